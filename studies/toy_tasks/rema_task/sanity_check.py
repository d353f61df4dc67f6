"""Does a plan help in this task, and is there room below the ceiling? `python -m
studies.toy_tasks.rema_task.sanity_check`

Answers in seconds, without Ray and vLLM, what the warm-started model makes of held-out problems: with its
own plans, with perfect ones, with none, and as one agent alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marsrl_verl.core.request import Message, RolloutRequest, Sampling
from marsrl_verl.core.trajectory import RewardResult, Trajectory, is_correct
from marsrl_verl.demo.problems import Split
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.exact import ExactAnswerReward
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.engine import LocalEngine
from marsrl_verl.rollout.runner import RolloutRunner
from studies.tiny.command_line import print_sanity_check
from studies.tiny.sampler import TorchClient
from studies.tiny.tokenizer import build_tokenizer
from studies.toy_tasks.rema_task.problems import Puzzle, generate
from studies.toy_tasks.rema_task.prompts import TinyPlanPrompts
from studies.toy_tasks.rema_task.tokenizer import WORDS
from studies.toy_tasks.rema_task.transcripts import as_problem

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROLE = "reasoning"
SAMPLING = {ROLE: Sampling(max_new_tokens=64, max_prompt_tokens=80)}
_PROMPTS = TinyPlanPrompts()
Answered = list[list[Trajectory]]
"""By puzzle, its trajectories."""


@dataclass(frozen=True, slots=True)
class AccuracyByDepth:
    """A figure by depth of the chain."""

    label: str
    by_depth: Mapping[int, tuple[int, int]]
    """Hits and tries."""

    @property
    def share(self) -> float:
        """Over all depths."""
        hits, tries = (sum(pair[k] for pair in self.by_depth.values()) for k in (0, 1))
        return hits / max(tries, 1)


def build_engine(model: PreTrainedModel, seed: int) -> LocalEngine:
    """An engine that answers and grades with this model."""
    reward = ExactAnswerReward()

    async def score(request: RolloutRequest, trajectories: Sequence[Trajectory]) -> list[RewardResult]:
        return [reward.score(ScoreRequest.of(request, one)) for one in trajectories]

    return LocalEngine(RolloutRunner(TorchClient(model, seed), ChatTokenizer(build_tokenizer(WORDS)), score))


def ask(
    engine: LocalEngine, prompts: Sequence[tuple[Puzzle, tuple[Message, ...]]], name: str, n: int = 1
) -> Answered:
    """`n` answers to each of these prompts."""
    requests = [
        RolloutRequest(f"{name}/{at}", as_problem(puzzle), name, ROLE, messages, n)
        for at, (puzzle, messages) in enumerate(prompts)
    ]
    engine.submit(requests, SAMPLING)
    answered: dict[str, list[Trajectory]] = {}
    while len(answered) < len(requests):
        answered |= {output.group_id: output.trajectories for output in engine.outputs()}
    return [answered[request.group_id] for request in requests]


def measure(model: PreTrainedModel, problems: int, seed: int = 0) -> list[AccuracyByDepth]:
    """How often each way leads to the right answer at temperature 1, by depth."""
    engine = build_engine(model, seed)
    found = generate(Split.HELD_OUT, problems, seed)
    posed = [as_problem(puzzle) for puzzle in found]
    plans = ask(engine, [(p, _PROMPTS.plan(a)) for p, a in zip(found, posed, strict=True)], "plan")
    own = [one.final_text for [one] in plans]
    ways: dict[str, list[tuple[Message, ...]]] = {
        "solution without a plan (VRP)": [_PROMPTS.direct(one) for one in posed],
        "plan and solution in one answer (MRP)": [_PROMPTS.planned(one) for one in posed],
        "solution after the model's own plan": [
            _PROMPTS.solution(one, plan) for one, plan in zip(posed, own, strict=True)
        ],
        "solution after a perfect plan": [
            _PROMPTS.solution(one, puzzle.order) for one, puzzle in zip(posed, found, strict=True)
        ],
    }
    figures = [_by_depth("plan is the whole way back", found, plans, _is_the_order)]
    for label, messages in ways.items():
        answered = ask(engine, list(zip(found, messages, strict=True)), label)
        figures.append(_by_depth(label, found, answered, _is_right))
    return figures


def _is_the_order(one: Trajectory, puzzle: Puzzle) -> bool:
    return one.final_text == puzzle.order


def _is_right(one: Trajectory, puzzle: Puzzle) -> bool:
    return one.finished and is_correct(one.value)


def _by_depth(
    label: str, puzzles: Sequence[Puzzle], answered: Answered, hit: Callable[[Trajectory, Puzzle], bool]
) -> AccuracyByDepth:
    counts: dict[int, tuple[int, int]] = {}
    for puzzle, members in zip(puzzles, answered, strict=True):
        hits, tries = counts.get(puzzle.depth, (0, 0))
        counts[puzzle.depth] = (hits + sum(hit(one, puzzle) for one in members), tries + len(members))
    return AccuracyByDepth(label, dict(sorted(counts.items())))


def show(figures: Sequence[AccuracyByDepth]) -> str:
    """The figures as a text table: over all problems, then by the number of letters on the way."""
    depths = sorted({depth for one in figures for depth in one.by_depth})
    lines = [f"{'':40}{'all':>8}" + "".join(f"{f'{depth} letters':>15}" for depth in depths)]
    for one in figures:
        cells = [
            f"{hits / max(tries, 1):.2f}" for hits, tries in (one.by_depth.get(d, (0, 0)) for d in depths)
        ]
        lines.append(f"{one.label:40}{one.share:8.2f}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    """Measures a model and prints the table."""
    print_sanity_check(
        "What plans are worth in the task of planned chains.",
        "rema_task",
        lambda model, problems, seed: show(measure(model, problems, seed)),
    )


if __name__ == "__main__":
    main()
