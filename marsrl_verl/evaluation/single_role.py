"""Results of a role with k tries at a problem: with any of its answers, or with the most frequent one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from marsrl_verl.core.group import Group
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.evaluation.at_k import by_problem, majority_of_k, pass_at_k, reported_k
from marsrl_verl.evaluation.estimators import (
    NOT_OBSERVED,
    Estimate,
    MetricInfo,
    Observations,
    estimate,
    share_estimate,
)
from marsrl_verl.evaluation.pictures import Curves, Picture, Point, Series
from marsrl_verl.evaluation.runs import (
    Call,
    Evaluation,
    Program,
    Run,
    Runs,
    answer_reward,
    calls_of,
    final_answer,
    is_usable,
    tokens_of,
)
from marsrl_verl.rewards.by_ability import QA


def accuracy_metric(role: str) -> str:
    """The share of a role's answers that are correct: over all answers to a problem the avg@k of the
    literature."""
    return f"{role}_accuracy"


def accuracy_info(role: str) -> MetricInfo:
    """Name and meaning of a role's accuracy, for readers."""
    name = role.capitalize()
    return MetricInfo(f"{name} accuracy", f"share of {name} answers that are correct")


_WORDS = {
    "f1": MetricInfo("F1", "mean F1 of the answers to questions with the best of their references"),
    "exact_match": MetricInfo("exact match", "share of answers to questions that equal a reference"),
    "raw_f1": MetricInfo("raw F1", "mean F1 with punctuation left in"),
}
"""Figures of an answer by a grader of words (`rewards.qa.QAGrader`), by name in `RewardResult.info`."""


class SingleRole(Evaluation):
    """One answer of one role to each problem, as often as asked: avg@k, pass@k and the majority's accuracy;
    of questions F1 and exact match.

    Args:
        role: who answers.
        prompts: words the problem.
        rollout: the program of the answer.
    """

    def __init__(self, role: str, prompts: Prompts, rollout: str = "single_call") -> None:
        self.role, self.prompts, self.rollout = role, prompts, rollout
        self.roles = (role,)
        self.metrics = {accuracy_metric(role): accuracy_info(role)} | {
            f"{role}_{name}": replace(info, label=f"{role.capitalize()} {info.label}")
            for name, info in _WORDS.items()
        }

    def program(self, run: Run) -> Program:
        """A single request."""
        messages = self.prompts.problem(run.problem)
        trajectory = yield run.request(self.role, self.role, messages, rollout=self.rollout)
        run.final_reward = answer_reward(trajectory)
        run.answer = trajectory if is_usable(trajectory) else None
        run.end = trajectory.finish.value

    def observations(self, runs: Runs) -> dict[str, Observations]:
        """The answers, and with several to a problem the most frequent one."""
        answers = Observations.of((run.solved, run.problem.problem_id) for run in runs.runs)
        words = word_observations(self.role, runs)
        return {accuracy_metric(self.role): answers, **words, **majority_observations(self.role, runs)}

    def derived(self, observations: Mapping[str, Observations], confidence: float) -> dict[str, Estimate]:
        """pass@k and G-Pass@k."""
        answers = observations.get(accuracy_metric(self.role), NOT_OBSERVED)
        return pass_at_k_estimates(self.role, answers, confidence)

    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        """Calls and tokens of a run."""
        return runs.means(confidence, calls=calls_of, tokens=tokens_of)

    def pictures(self, runs: Runs, confidence: float) -> Iterator[Picture]:
        """Accuracy of several answers to a problem against their cost."""
        what, cost = cost_of(runs.calls)
        if series := tries_series(self.role, runs, cost, confidence):
            yield Curves(
                name="accuracy_and_cost",
                title=f"Right answers against {what}",
                x_label=f"{what} for an answer, mean",
                y_label="right answers",
                series=series,
                doubling=True,
                note="The number at a point is that of answers.",
            )

    def description(self) -> str:
        """Describes a run."""
        return f"The {self.role.capitalize()} alone: its final answer is graded."


def answer_metrics(groups: Sequence[Group], answering: Sequence[str]) -> dict[str, float]:
    """Shares in scored groups of answers that are right, and of responses of answering roles without one."""
    metrics: dict[str, list[bool]] = {}
    for group in groups:
        role = group.request.role
        if role in answering:
            for one in group.trajectories:
                metrics.setdefault(accuracy_metric(role), []).append(is_correct(answer_reward(one)))
                metrics.setdefault("missing_answer_frac", []).append(final_answer(one) is None)
    return {name: sum(found) / len(found) for name, found in metrics.items()}


def pass_at_k_estimates(role: str, answers: Observations, confidence: float = 0.95) -> dict[str, Estimate]:
    """`<role>_pass_at_<k>`, `<role>_g_pass_at_<k>_tau_<tau>` and `<role>_mg_pass_at_<k>` for each
    `reported_k`: means over problems.

    Args:
        role: who answered.
        answers: whether each of a problem's answers is correct; the problem with the fewest limits k.
    """
    right: dict[str, list[bool]] = {}
    for outcome, problem in zip(answers.outcomes, answers.problems, strict=True):
        right.setdefault(problem, []).append(bool(outcome))
    most = min((len(outcomes) for outcomes in right.values()), default=0)
    return {
        f"{role}_{name}": share_estimate(values, answers.n, confidence)
        for k in reported_k(most)
        for name, values in by_problem(right, k).items()
    }


def word_observations(role: str, runs: Runs) -> dict[str, Observations]:
    """`<role>_f1` and `<role>_exact_match` of the answers to questions; nothing where there are none.

    A problem is a question where the grader has compared words for one of its answers. Of a problem without
    a graded answer its row tells (`Problem.ability`), or else the others: where all of them are questions it
    is one too. Runs without a usable answer count 0, also where no run has any.
    """
    infos = [run.calls[-1].trajectory.scored.info if run.calls else {} for run in runs.runs]
    told: dict[str, bool] = {}
    for run, info in zip(runs.runs, infos, strict=True):
        if "f1" in info or info.get("answer") is not None:
            name = run.problem.problem_id
            told[name] = told.get(name, False) or "f1" in info

    def is_question(problem: Problem) -> bool:
        named = problem.ability.casefold()
        unnamed = bool(told) and all(told.values())
        return told.get(problem.problem_id, named == QA if named else unnamed)

    names = [name for name in _WORDS if any(name in info for info in infos)]
    if not told and any(run.problem.ability.casefold() == QA for run in runs.runs):
        names = ["f1", "exact_match"]  # nothing could be read
    pairs = [(run, info) for run, info in zip(runs.runs, infos, strict=True) if is_question(run.problem)]
    return {
        f"{role}_{name}": Observations.of(
            (info.get(name, 0) if run.answer is not None else 0, run.problem.problem_id)
            for run, info in pairs
        )
        for name in names
    }


def majority_observations(role: str, runs: Runs) -> dict[str, Observations]:
    """`<role>_majority_at_k`, where problems were asked several times, and `<role>_majority_of_<k>`, what k
    of the answers would give (`majority_of_k`), for k from 4 on below their number."""
    if not any(run.repeat for run in (*runs.runs, *runs.skipped)):
        return {}
    tries = tries_of(role, runs.calls)
    most = min(map(len, tries.values()), default=0)
    fewer = [k for k in reported_k(most) if 4 <= k < most]
    return {
        f"{role}_majority_at_k": majority_at_k(role, runs.calls),
        **{f"{role}_majority_of_{k}": expected_majority(tries, k) for k in fewer},
    }


def cost_of(calls: Iterable[Call]) -> tuple[str, Callable[[Sequence[Call]], int]]:
    """Unit of cost and its count: generated tokens, or calls where other models answered some of them, whose
    tokens are not known."""
    if any(call.trajectory.external for call in calls):
        return "calls", len
    return "generated tokens", lambda some: sum(call.trajectory.tokens for call in some)


def tries_series(
    role: str, runs: Runs, cost: Callable[[Sequence[Call]], int], confidence: float
) -> list[Series]:
    """The most frequent and any of k answers of a role to each problem, against what they cost; nothing
    where one problem has a single answer."""
    tries = tries_of(role, runs.calls)
    most = min(map(len, tries.values()), default=0)
    if most < 2:
        return []
    right = {name: [is_correct(answer_reward(one)) for one in some] for name, some in tries.items()}
    price = cost([call for call in runs.calls if call.request.role == role]) / sum(map(len, tries.values()))
    majority, one_of = list[Point](), list[Point]()
    for k in [1, *reported_k(most)]:
        found = expected_majority(tries, k)
        passed = Observations.of((pass_at_k(len(one), sum(one), k), name) for name, one in right.items())
        for points, observed in ((majority, found), (one_of, passed)):
            points.append(Point(k * price, estimate(observed, confidence), str(k)))
    name = role.capitalize()
    return [
        Series(f"{name} alone, most frequent of k", majority),
        Series(f"{name} alone, any of k (oracle)", one_of, bound=True),
    ]


def tries_of(role: str, calls: Iterable[Call]) -> dict[str, list[Trajectory]]:
    """A role's answers to each problem."""
    found: dict[str, list[Trajectory]] = {}
    for call in calls:
        if call.request.role == role:
            found.setdefault(call.request.problem.problem_id, []).append(call.trajectory)
    return found


def expected_majority(tries: Mapping[str, Sequence[Trajectory]], k: int) -> Observations:
    """The chance that the most frequent of k of a problem's answers is correct, one number a problem."""
    return Observations.of(
        (majority_of_k([(final_answer(one), is_correct(answer_reward(one))) for one in some], k), problem)
        for problem, some in tries.items()
    )


def majority_at_k(role: str, calls: Iterable[Call]) -> Observations:
    """Correctness of the most frequent of a problem's final answers, one observation a problem.

    Of equally frequent answers the earliest is taken. Responses without a readable answer do not vote; a
    problem without any vote is not solved. Answers are compared as the reward extracted them.
    """
    found = tries_of(role, calls)
    return Observations.of((_majority_is_correct(tries), problem) for problem, tries in found.items())


def _majority_is_correct(tries: list[Trajectory]) -> bool:
    answers = [final_answer(one) for one in tries]
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return False
    winner = max(votes, key=lambda answer: votes[answer])  # a Counter keeps the order of first votes
    return is_correct(answer_reward(tries[answers.index(winner)]))
