"""Decisions of the test-time loop: the end of a run, and the choice of its answer.

The loop is that of the reasoning system of MarsRL (arXiv 2511.11373), which follows Huang & Yang
(arXiv 2507.15855): a solution is accepted after several Correct verdicts in a row, a run is given up after
several Wrong ones. The answer is chosen from the run's calls alone, so it can be chosen again from a log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from marsrl_verl.algos.marsrl.prompts import VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.evaluation.runs import Call, Run, final_answer, is_usable
from marsrl_verl.settings.choices import Choice

AGAIN = "_again"
"""Suffix of the stage of a call that repeats a prompt after an unreadable verdict."""


def verdict_of(trajectory: Trajectory) -> Verdict:
    """Returns the Verifier's verdict as its scorer read it; INVALID if it read none, or there is no answer.

    The scorer decides about an answer that was cut off: INVALID for the strict parser, while the released one
    reads it like any other.
    """
    verdict = trajectory.scored.info.get("verdict")
    answered = trajectory.finish in (FinishReason.STOP, FinishReason.LENGTH)
    return Verdict(verdict) if answered and verdict is not None else Verdict.INVALID


def report_of(trajectory: Trajectory) -> str:
    """Returns the bug report for the Corrector: what the scorer extracted, which is empty where the released
    rule loses it; the Verifier's final text if the scorer has no report."""
    report = None if trajectory.reward is None else trajectory.reward.info.get("report")
    return trajectory.final_text if report is None else report


class Fallback(Choice):
    """Choice of the answer if no solution was accepted. Candidates are the finished, non-empty solutions of
    Solver and Corrector, in the order in which they were made."""

    LAST = "last"
    """The last candidate."""
    PASSES = "passes"
    """The one with the most Correct verdicts, of several the latest; without any Correct verdict the first
    candidate, which is the Solver's (the paper's "most often identified as correct")."""
    MAJORITY = "majority"
    """Like `passes`, but without any Correct verdict the first candidate with the most frequent final answer,
    of equally frequent answers the earliest. Candidates without a readable answer do not vote; if none has
    one, the Solver's."""
    RELEASED = "released"
    """The rule of MarsRL's published evaluation script, for comparable figures: the one with the most
    finished Verifier calls, whatever their verdicts, of several the earliest. It decides on accepted runs,
    too."""


@dataclass(frozen=True, slots=True)
class LoopRules:
    """Settings of the loop.

    Raises:
        ValueError: a number is out of range, or the fallback is unknown; the message names it.
    """

    correction_rounds: int
    """Most rounds. A round is one judgement and, after Wrong, a correction."""
    accept_passes: int = 1
    """Correct verdicts in a row on one solution that accept it."""
    reject_fails: int | None = None
    """Wrong verdicts in a row, on whatever solutions, that end a run; None: no number of them does."""
    fallback: Fallback | str = Fallback.LAST

    def __post_init__(self) -> None:
        rounds, passes, fails = self.correction_rounds, self.accept_passes, self.reject_fails
        if rounds < 0:
            raise ValueError(f"correction_rounds must be 0 or more, found {rounds}")
        if passes < 1:
            raise ValueError(f"accept_passes must be 1 or more, found {passes}")
        if passes > max(rounds, 1):
            raise ValueError(
                f"accept_passes must be at most {max(rounds, 1)} with correction_rounds = {rounds}, found "
                f"{passes}: a round gives one verdict"
            )
        if fails is not None and fails < 1:
            raise ValueError(f"reject_fails must be 1 or more, or None for no limit, found {fails}")
        known = [one.value for one in Fallback]
        if self.fallback not in known:
            raise ValueError(f"fallback must be one of {', '.join(known)}, found {self.fallback!r}")

    def samples_correction(self, number: int, calls: Sequence[Call], rounds: int | None = None) -> bool:
        """True if a correction in round `number` could become the answer. That of the last round is not
        judged, so it would have to win without a Correct verdict. `rounds`: of the loop, None:
        `correction_rounds`."""
        most = self.correction_rounds if rounds is None else rounds
        if number < most or self.fallback == Fallback.LAST:
            return True
        return self.fallback == Fallback.MAJORITY and not any(one.passes for one in candidates(calls))


class Decision(str, Enum):
    """Next step after a round's verdict."""

    END = "end"
    """The run ends."""
    JUDGE_AGAIN = "judge_again"
    """The next round judges the same solution."""
    CORRECT = "correct"
    """The Corrector rewrites the solution."""


@dataclass(slots=True)
class Candidate:
    """A solution that can be a run's answer, and how it was judged."""

    solution: Trajectory
    passes: int = 0
    """Correct verdicts."""
    judgements: int = 0
    """Finished Verifier calls, readable or not."""


def candidates(calls: Sequence[Call]) -> list[Candidate]:
    """Returns the usable solutions of a run in the order in which they were made."""
    found: dict[str, Candidate] = {}
    for call in calls:
        if call.request.role == VERIFIER:
            judged = found[call.request.parent_id or ""]
            judged.passes += verdict_of(call.trajectory) is Verdict.CORRECT
            judged.judgements += call.trajectory.finished
        elif is_usable(call.trajectory):
            found[call.trajectory.trajectory_id] = Candidate(call.trajectory)
    return list(found.values())


def choose_answer(calls: Sequence[Call], fallback: Fallback | str, *, accepted: bool) -> Trajectory | None:
    """Returns the solution that is a run's answer; None if it has no usable one.

    Args:
        calls: all calls of the run.
        fallback: rule of the choice, unless the last candidate was accepted.
        accepted: whether it was.
    """
    found, rule = candidates(calls), Fallback(fallback)
    if not found:
        return None
    if rule is Fallback.RELEASED:
        return max(found, key=lambda one: one.judgements).solution  # max keeps the first of equals
    if accepted or rule is Fallback.LAST:
        return found[-1].solution
    most = max(one.passes for one in found)
    if most:
        return [one for one in found if one.passes == most][-1].solution
    return _majority(found) if rule is Fallback.MAJORITY else found[0].solution


def _majority(candidates: list[Candidate]) -> Trajectory:
    """Returns the first candidate with the most frequent answer."""
    answers = [final_answer(one.solution) for one in candidates]
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return candidates[0].solution
    winner = max(votes, key=lambda answer: votes[answer])  # a Counter keeps the order of first votes
    return candidates[answers.index(winner)].solution


class RunEnd(str, Enum):
    """Reason why a run of the system ended."""

    ACCEPTED = "accepted"
    """The Verifier judged the current solution Correct, as often in a row as needed."""
    REJECTED = "rejected"
    """The Verifier said Wrong so often in a row that the run was given up."""
    NO_SOLUTION = "no_solution"
    """The Solver's solution was unfinished or empty."""
    NO_VERDICT = "no_verdict"
    """The Verifier's verdict was INVALID twice, the second time without any text."""
    ROUNDS_USED = "rounds_used"
    """All verify–correct rounds were used."""


@dataclass(slots=True)
class SystemRun(Run):
    """A run of the Verifier–Corrector system."""

    solution: Trajectory | None = None
    """The current solution: the Solver's or the last usable Corrector's; None without a usable one."""
    solver_reward: float = 0.0
    """Reward of the answer after the Solver."""
    end: str = RunEnd.ROUNDS_USED
    passes: int = 0
    """Correct verdicts in a row so far on the current solution, which changes after a Wrong one only."""
    fails: int = 0
    """Wrong verdicts in a row so far, over all solutions."""

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts of the Verifier in the order of the rounds."""
        return [verdict_of(call.trajectory) for call in self.calls if call.request.role == VERIFIER]

    def decide(self, rules: LoopRules, verdict: Verdict, number: int) -> Decision:
        """Counts a round's verdict and returns the next step; INVALID counts as Wrong.

        Args:
            rules: the loop's settings.
            verdict: the round's, that of the repeated call if there was one.
            number: the round's, from 1.
        """
        if verdict is Verdict.CORRECT:
            self.passes, self.fails = self.passes + 1, 0
            if self.passes < rules.accept_passes:
                return Decision.JUDGE_AGAIN if number < rules.correction_rounds else Decision.END
            self.end = RunEnd.ACCEPTED
            return Decision.END
        self.passes, self.fails = 0, self.fails + 1
        if rules.reject_fails is not None and self.fails >= rules.reject_fails:
            self.end = RunEnd.REJECTED
            return Decision.END
        return Decision.CORRECT if rules.samples_correction(number, self.calls) else Decision.END
