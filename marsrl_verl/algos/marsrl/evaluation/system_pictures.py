"""Pictures of the system: accuracy against cost and rounds, verdicts, corrections, calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from marsrl_verl.algos.marsrl.evaluation.best_of import best_of_observations
from marsrl_verl.algos.marsrl.evaluation.loop_rules import AGAIN, LoopRules, RunEnd, choose_answer, verdict_of
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.trajectory import is_correct
from marsrl_verl.evaluation.estimators import Estimate, Observations, estimate
from marsrl_verl.evaluation.pictures import Bars, Curves, Matrix, Picture, Point, Series
from marsrl_verl.evaluation.runs import Call, Run, Runs, answer_reward, calls_of
from marsrl_verl.evaluation.single_role import cost_of, tries_series


def system_pictures(runs: Runs, rules: LoopRules, confidence: float) -> Iterator[Picture]:
    """Yields all pictures for which there are data."""
    if not runs.runs:
        return
    rounds = [_after(runs, rules, number, confidence) for number in range(rules.correction_rounds + 1)]
    what, cost = cost_of(runs.calls)
    system = Series("System, by rounds", [point for point, _ in rounds])
    alone = tries_series(SOLVER, runs, cost, confidence)
    yield Curves(
        name="accuracy_and_cost",
        title=f"Right answers against {what}",
        x_label=f"{what} for an answer, mean",
        y_label="right answers",
        series=[system, *alone, *_chosen(runs, confidence)],
        doubling=True,
        note="The number at a point is that of the system's rounds, else that of the Solver's answers. What "
        "lies higher at the same cost is better.",
    )
    by_round = [Series("right answers", [Point(k, one.value) for k, (one, _) in enumerate(rounds)])]
    by_round += [Series("accepted by the Verifier", [Point(k, one) for k, (_, one) in enumerate(rounds)])]
    yield Curves(
        name="accuracy_by_round",
        title="Right answers against rounds",
        x_label="rounds of Verifier and Corrector at most",
        y_label="runs",
        series=by_round,
    )
    yield from _verdicts(runs.calls)
    yield from _corrections(runs.calls)
    yield _calls(runs.runs)


def _chosen(runs: Runs, confidence: float) -> Iterator[Series]:
    """Yields the accuracy of the one of k solutions of the Solver that the Verifier passes."""
    prefix, cost = f"{VERIFIER}_best_of_", cost_of(runs.calls)[1]
    asked = {SOLVER, f"{VERIFIER}_1", f"{VERIFIER}_1{AGAIN}"}
    price = cost([call for call in runs.calls if call.request.stage in asked]) / len(runs.runs)
    found = {
        int(name.removeprefix(prefix)): observed
        for name, observed in best_of_observations(runs).items()
        if name.startswith(prefix)
    }
    if found:
        points = [Point(k * price, estimate(one, confidence), str(k)) for k, one in found.items()]
        yield Series("the one of k that the Verifier passes", points)


def round_of(call: Call) -> int:
    """Returns the round that a call belongs to, from 1; 0: the Solver's."""
    number = call.request.stage.partition("_")[2].partition("_")[0]
    return int(number or 0)


def calls_within(run: Run, rules: LoopRules, rounds: int) -> list[Call]:
    """Returns those of a run's calls that a loop of at most so many rounds would have made."""
    calls = [call for call in run.calls if round_of(call) <= rounds]
    last = calls[-1]
    if last.request.role == CORRECTOR and not rules.samples_correction(round_of(last), calls[:-1], rounds):
        calls.pop()
    return calls


def _after(runs: Runs, rules: LoopRules, rounds: int, confidence: float) -> tuple[Point, Estimate]:
    """Returns cost and accuracy of a loop of so many rounds, and the share of runs in which it accepts a
    solution."""
    cost = cost_of(runs.calls)[1]
    right, accepted, total = list[tuple[bool, str]](), list[tuple[bool, str]](), 0
    for run in runs.runs:
        calls = calls_within(run, rules, rounds)
        ended = run.end is RunEnd.ACCEPTED and len(calls) == len(run.calls)
        answer = choose_answer(calls, rules.fallback, accepted=ended)
        right.append((answer is not None and is_correct(answer.value), run.problem.problem_id))
        accepted.append((ended, run.problem.problem_id))
        total += cost(calls)
    found = [estimate(Observations.of(pairs), confidence) for pairs in (right, accepted)]
    return Point(total / len(runs.runs), found[0], str(rounds)), found[1]


def _verdicts(calls: list[Call]) -> Iterator[Matrix]:
    counts: Counter[tuple[bool, Verdict]] = Counter()
    for call in calls:
        if call.request.role == VERIFIER:
            counts[is_correct(call.request.inputs["solution_reward"]), verdict_of(call.trajectory)] += 1
    if counts:
        yield Matrix(
            name="verdicts",
            title="What the Verifier says of solutions",
            x_label="verdict",
            y_label="solution",
            rows=["right", "wrong"],
            columns=["Correct", "Wrong", "unreadable"],
            counts=[[counts[truth, verdict] for verdict in Verdict] for truth in (True, False)],
            note="All rounds together; per cent are of the solutions in a line.",
        )


_CHANGES = {
    "wrong, then right: fixed": (False, True),
    "right, then wrong: broken": (True, False),
    "right before and after": (True, True),
    "wrong before and after": (False, False),
}


def _corrections(calls: list[Call]) -> Iterator[Bars]:
    counts: Counter[tuple[int, tuple[bool, bool]]] = Counter()
    for call in calls:
        if call.request.role == CORRECTOR:
            before = is_correct(call.request.inputs["solution_reward"])
            counts[round_of(call), (before, is_correct(answer_reward(call.trajectory)))] += 1
    if rounds := sorted({number for number, _ in counts}):
        yield Bars(
            name="corrections",
            title="What the Corrector makes of solutions",
            x_label="round",
            y_label="corrections",
            categories=[str(number) for number in rounds],
            parts={label: [counts[k, change] for k in rounds] for label, change in _CHANGES.items()},
        )


def _calls(runs: list[Run]) -> Bars:
    counts = Counter((calls_of(run), run.solved) for run in runs)
    most = range(1, max(calls for calls, _ in counts) + 1)
    total, solved = sum(map(calls_of, runs)), sum(run.solved for run in runs)
    alone = sum(is_correct(answer_reward(run.calls[0].trajectory)) for run in runs)
    prices = [
        f"{calls / right:,.1f}" if right else "there is none"
        for calls, right in ((total, solved), (len(runs), alone))
    ]
    return Bars(
        name="calls",
        title="Calls of a run",
        x_label="calls of all roles",
        y_label="runs",
        categories=[str(number) for number in most],
        parts={
            "right answer": [counts[k, True] for k in most],
            "wrong or none": [counts[k, False] for k in most],
        },
        note=f"Calls for each right answer: {prices[0]}; of the Solver alone: {prices[1]}.",
    )
