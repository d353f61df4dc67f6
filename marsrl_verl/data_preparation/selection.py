"""Selection of the problems that are trained and of those that are held out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from marsrl_verl.core.seeding import derive_seed
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.data.files import PromptLengths
from marsrl_verl.data.problems import SourceProblem, look_alike
from marsrl_verl.data.rows import DataError
from marsrl_verl.data_preparation.grades import ProblemGrades
from marsrl_verl.settings.choices import Choice

_ROUNDING = 1e-9


class Contaminated(Choice):
    """Treatment of problems that stand in an evaluation set."""

    DROP = "drop"
    REFUSE = "refuse"
    """The command ends."""
    REPORT = "report"
    """They are kept, and counted."""


@dataclass(frozen=True, slots=True)
class PassRates:
    """The pass rates that are kept, both ends included."""

    least: float = 0.0
    most: float | None = None
    """None: every rate but 1. What all answers solve is left out (UloRL, arXiv 2507.19766, §3.4)."""

    def __post_init__(self) -> None:
        most = 1.0 if self.most is None else self.most
        if not 0.0 <= self.least <= most <= 1.0:
            fix = "Choose 0 <= --min-pass-rate <= --max-pass-rate <= 1."
            raise DataError(f"Pass rates from {self.least:g} to {most:g} are none.", fix)

    def judge(self, grades: ProblemGrades | None) -> str:
        """Returns the outcome of a problem (`Selection.counts`)."""
        if grades is None or grades.skipped or grades.ungraded:
            return "unanswered" if grades is None else grades.skipped or "ungraded"
        if grades.pass_rate < self.least - _ROUNDING:
            return "too_hard"
        if self.most is None:
            return "too_easy" if grades.passes == grades.graded else "kept"
        return "too_easy" if grades.pass_rate > self.most + _ROUNDING else "kept"


@dataclass(slots=True)
class Selection:
    """The problems that stay, in the source's order, and what became of the others."""

    kept: list[SourceProblem] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Problems by what became of them: `kept`, `too_easy`, `too_hard`, `prompt_too_long`, `error` (the chat
    template rejects it), `ungraded` (grader or workflow failed on all answers), `unanswered`."""


def select(
    problems: Iterable[SourceProblem], grades: Mapping[str, ProblemGrades], rates: PassRates
) -> Selection:
    """Selects problems by pass rate. A problem that was never prompted or has no grades is left out."""
    selection = Selection()
    for problem in problems:
        fate = rates.judge(grades.get(problem.key))
        selection.counts[fate] += 1
        if fate == "kept":
            selection.kept.append(problem)
    return selection


def select_unrated(problems: Iterable[SourceProblem], lengths: PromptLengths | None) -> Selection:
    """Keeps every problem within the limit of a prompt; all of them where prompts can't be measured."""
    selection = Selection()
    for problem in problems:
        fits = lengths is None or not lengths.over(problem.problem)
        selection.counts["kept" if fits else FinishReason.PROMPT_TOO_LONG.value] += 1
        if fits:
            selection.kept.append(problem)
    return selection


def hold_out(
    problems: list[SourceProblem], count: int, seed: int
) -> tuple[list[SourceProblem], list[SourceProblem]]:
    """The problems that are trained and `count` others, both in their order; DataError: fewer, or all of
    them, would have to go.

    Questions that look alike (the same but for typesetting) stay together, so that none is on both sides.
    Which ones are held out follows from the seed and the questions, not from their order.
    """
    if count == 0:
        return problems, []
    if count >= len(problems):
        what = f"{count} problems are to be held out of {len(problems)} that were kept: none is left to"
        raise DataError(f"{what} train.", "Lower --held-out, keep more problems, or give more of them.")
    families: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        families[look_alike(problem.question)].append(problem.key)
    held: set[str] = set()
    for family in sorted(families, key=lambda text: derive_seed(seed, "held_out", text)):
        if len(held) + len(families[family]) <= count:
            held.update(families[family])
    if len(held) < count:
        what = (
            f"Exactly {count} problems can't be held out without splitting questions that look alike; the "
            f"nearest smaller number is {len(held)}."
        )
        raise DataError(what, f"Use --held-out {len(held)}.")
    trained = [problem for problem in problems if problem.key not in held]
    return trained, [problem for problem in problems if problem.key in held]


def looking_alike(problems: Iterable[SourceProblem]) -> int:
    """Problems beyond the first of each family of questions that look alike."""
    families = Counter(look_alike(problem.question) for problem in problems)
    return sum(size - 1 for size in families.values())
