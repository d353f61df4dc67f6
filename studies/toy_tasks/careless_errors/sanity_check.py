"""Do the roles find each other's errors? `python -m studies.toy_tasks.careless_errors.sanity_check`

Answers in seconds, without Ray and vLLM, on held-out problems at temperature 1: how often the Solver is
right, whether its mistakes are slips (a second try finds the truth, not the same mistake), what the Verifier
says of right and of wrong solutions, and what the Corrector makes of wrong ones with and without what was
found.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.core.request import Message, RolloutRequest
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.demo.problems import Chain, Split, generate
from marsrl_verl.demo.prompts import TinyPrompts
from studies.tiny.command_line import print_sanity_check
from studies.tiny.measure import SAMPLING, build_engine
from studies.tiny.sanity_figures import Figure, show
from studies.tiny.transcripts import as_problem, check_lines, correct_solution
from studies.toy_tasks.careless_errors.problems import DIFFICULTY, wrong_solution

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from marsrl_verl.rollout.engine import LocalEngine

BARE = "Correctness: Wrong"
"""A report that says nothing of where."""
_TRIES = 4
_PROMPTS = TinyPrompts()


def measure(model: PreTrainedModel, problems: int, seed: int = 0) -> list[Figure]:
    """The figures of a model."""
    engine = build_engine(model, seed)
    chains = generate(Split.HELD_OUT, problems, seed, DIFFICULTY)
    solved = _ask(engine, SOLVER, [(one, _PROMPTS.solver(as_problem(one))) for one in chains], _TRIES)
    figures = [_right(f"Solver is right, {n} terms", solved, n) for n in _lengths(chains)]
    greedy = _ask(engine, SOLVER, [(one, _PROMPTS.solver(as_problem(one))) for one in chains], greedy=True)
    figures = [_right("Solver is right, greedy", greedy), _right("Solver is right", solved), *figures]
    figures += _second_tries(solved)

    rng = random.Random(f"premise:{seed}")
    right = [correct_solution(chain) for chain in chains]
    wrong = [wrong_solution(chain, rng) for chain in chains]
    judged = {
        name: _ask(
            engine,
            VERIFIER,
            [
                (chain, _PROMPTS.verifier(as_problem(chain), str(one)))
                for chain, one in zip(chains, solutions, strict=True)
            ],
        )
        for name, solutions in (("wrong", wrong), ("right", right))
    }
    figures += [
        Figure(f"Verifier calls a {name} solution wrong", *_judged_wrong(answers))
        for name, answers in judged.items()
    ]
    reports = {
        "the true finding": ["\n".join(check_lines(c, s)) for c, s in zip(chains, wrong, strict=True)],
        "a bare verdict": [BARE] * len(chains),
    }
    for label, role_reports in reports.items():
        prompts = [
            (chain, _PROMPTS.corrector(as_problem(chain), str(solution), report))
            for chain, solution, report in zip(chains, wrong, role_reports, strict=True)
        ]
        figures.append(_right(f"Corrector mends a wrong one, {label}", _ask(engine, CORRECTOR, prompts)))
    return figures


def _ask(
    engine: LocalEngine,
    role: str,
    prompts: Sequence[tuple[Chain, tuple[Message, ...]]],
    n: int = 1,
    *,
    greedy: bool = False,
) -> list[tuple[Chain, list[Trajectory]]]:
    requests = [
        RolloutRequest(f"{role}{at}", as_problem(chain), role, role, messages, n)
        for at, (chain, messages) in enumerate(prompts)
    ]
    sampling = replace(SAMPLING[role], temperature=0.0) if greedy else SAMPLING[role]
    engine.submit(requests, {role: sampling})
    answered: dict[str, list[Trajectory]] = {}
    while len(answered) < len(requests):
        answered |= {output.group_id: output.trajectories for output in engine.outputs()}
    return [(chain, answered[one.group_id]) for (chain, _), one in zip(prompts, requests, strict=True)]


def _lengths(chains: Sequence[Chain]) -> list[int]:
    return sorted({len(chain.terms) for chain in chains})


def _right(
    label: str, answered: Sequence[tuple[Chain, list[Trajectory]]], terms: int | None = None
) -> Figure:
    tried = [one for chain, found in answered if terms in (None, len(chain.terms)) for one in found]
    return Figure(label, sum(one.finished and is_correct(one.value) for one in tried), len(tried))


def _second_tries(answered: Sequence[tuple[Chain, list[Trajectory]]]) -> list[Figure]:
    """Of pairs of tries whose first is wrong: how often the second is right, or makes the same mistake."""
    counts: Counter[str] = Counter()
    for _, (first, *others) in answered:
        if first.finished and not is_correct(first.value):
            counts["pairs"] += len(others)
            counts["right"] += sum(is_correct(one.value) for one in others)
            counts["same"] += sum(
                one.scored.info.get("answer") == first.scored.info.get("answer") for one in others
            )
    return [
        Figure("another try of a problem that went wrong is right", counts["right"], counts["pairs"]),
        Figure("another try makes the same mistake", counts["same"], counts["pairs"]),
    ]


def _judged_wrong(answered: Sequence[tuple[Chain, list[Trajectory]]]) -> tuple[int, int]:
    tried = [one for _, found in answered for one in found if one.finished]
    return sum(one.final_text.splitlines()[-1:] == [BARE] for one in tried), len(tried)


def main() -> None:
    """Measures a model and prints the table."""
    print_sanity_check(
        "What the roles know of each other in the task of careless errors.",
        "careless_errors",
        lambda model, problems, seed: show(measure(model, problems, seed)),
    )


if __name__ == "__main__":
    main()
