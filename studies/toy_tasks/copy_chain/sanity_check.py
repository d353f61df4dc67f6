"""Is a response decided where branch points are? `python -m studies.toy_tasks.copy_chain.sanity_check`

Answers in a minute, without Ray and vLLM, on held-out problems at temperature 1: how often the Solver is
right, and its lines of each kind, and how many of the branch points that each criterion chooses lie at one of
the two computed lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from marsrl_verl.algos.attnrl.branch_points import (
    BranchCriterion,
    BranchRule,
    FciAggregation,
    ResponseFeatures,
    aggregated_influence,
    choose_branch_points,
)
from marsrl_verl.algos.attnrl.step_cutter import step_cutter
from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.attention.choices import FciBackend
from marsrl_verl.core.reasoning_steps import Steps
from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.demo.problems import Split
from studies.tiny.command_line import print_sanity_check
from studies.tiny.influence import measure_response
from studies.tiny.measure import build_engine
from studies.tiny.sanity_figures import Figure, show
from studies.tiny.tokenizer import build_tokenizer
from studies.toy_tasks.copy_chain.problems import Ledger, generate
from studies.toy_tasks.copy_chain.prompts import CopyChainPrompts, as_problem

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_NEW_TOKENS, MAX_PROMPT_TOKENS = 120, 120
RULES = {
    "FCI (earliest two of top fifth)": (BranchRule(), FciAggregation.SUM),
    "FCI (top two by their mean)": (BranchRule(top_frac=0.08), FciAggregation.MEAN),
    **{
        one.value: (BranchRule(criterion=one), FciAggregation.SUM)
        for one in BranchCriterion
        if one is not BranchCriterion.FCI
    },
}
"""Rules for two branch points, the paper's first."""
_PROMPTS = CopyChainPrompts()


def measure(model: PreTrainedModel, problems: int, seed: int = 0) -> list[Figure]:
    """The figures of a model."""
    ledgers = generate(Split.HELD_OUT, problems, seed)
    figures = [_right("Solver is right, greedy", _answers(model, ledgers, seed, temperature=0.0))]
    answers = _answers(model, ledgers, seed)
    figures.append(_right("Solver is right", answers))
    figures += _lines(ledgers, answers)
    return figures + _points(model, ledgers, answers, seed)


def _answers(
    model: PreTrainedModel, ledgers: Sequence[Ledger], seed: int, temperature: float = 1.0
) -> list[Trajectory]:
    engine = build_engine(model, seed)
    sampling = Sampling(MAX_NEW_TOKENS, MAX_PROMPT_TOKENS, temperature=temperature)
    requests = [
        RolloutRequest(f"{SOLVER}{at}", problem, SOLVER, SOLVER, _PROMPTS.solver(problem), 1)
        for at, problem in enumerate(map(as_problem, ledgers))
    ]
    engine.submit(requests, {SOLVER: sampling})
    answered: dict[str, Trajectory] = {}
    while len(answered) < len(requests):
        answered |= {output.group_id: output.trajectories[0] for output in engine.outputs()}
    return [answered[one.group_id] for one in requests]


def _right(label: str, answers: Sequence[Trajectory]) -> Figure:
    return Figure(label, sum(one.finished and is_correct(one.value) for one in answers), len(answers))


def _lines(ledgers: Sequence[Ledger], answers: Sequence[Trajectory]) -> list[Figure]:
    """Lines of each kind as they follow from the lines before them."""
    hits: Counter[str] = Counter()
    tries: Counter[str] = Counter()
    for ledger, answer in zip(ledgers, answers, strict=True):
        found = ledger.follows(answer.final_text)
        for kind, right in found:
            tries[kind] += 1
            hits[kind] += right
    return [Figure(f"{kind} is right", hits[kind], tries[kind]) for kind in tries]


def _points(
    model: PreTrainedModel, ledgers: Sequence[Ledger], answers: Sequence[Trajectory], seed: int
) -> list[Figure]:
    """Of the branch points by each rule, those at a computed line; and responses with both."""
    cutter = step_cutter(build_tokenizer())
    rng = np.random.default_rng(seed)
    hits, points, both = Counter[str](), Counter[str](), Counter[str]()
    complete = [
        pair for pair in zip(ledgers, answers, strict=True) if pair[0].is_complete(pair[1].final_text)
    ]
    for ledger, answer in complete:
        prompt_ids, ids = answer.sequence.prompt_ids.tolist(), answer.sequence.response_ids.tolist()
        steps, delta = cutter.cut(ids), _PROMPTS.step_distance
        sums, log_probs, entropies = measure_response(
            model, prompt_ids, ids, steps, delta, FciBackend.CHUNKED
        )
        scores: dict[object, list[float]] = {
            BranchCriterion.ENTROPY: entropies,
            BranchCriterion.SURPRISAL: [-one for one in log_probs],
        }
        for name, (rule, aggregation) in RULES.items():
            influence = aggregated_influence(sums, delta, aggregation)
            features = ResponseFeatures(
                steps,
                len(prompt_ids),
                influence=influence if rule.criterion is BranchCriterion.FCI else (),
                token_scores=scores.get(rule.criterion, ()),
            )
            found = [_line_at(steps, point.token) for point in choose_branch_points(features, rule, rng)]
            points[name] += len(found)
            hits[name] += sum(line in ledger.computed for line in found)
            both[name] += set(ledger.computed) <= set(found)
    share = [Figure(f"{one}: at a computed line", hits[one], points[one]) for one in RULES]
    return share + [Figure(f"{one}: both lines", both[one], len(complete)) for one in RULES]


def _line_at(steps: Steps, token: int) -> int:
    return next(line for line, end in enumerate(steps.ends) if token < end)


def main() -> None:
    """Measures a model and prints the table."""
    print_sanity_check(
        "Whether the responses in the copy-chain task are decided where branch points are.",
        "copy_chain",
        lambda model, problems, seed: show(measure(model, problems, seed)),
    )


if __name__ == "__main__":
    main()
