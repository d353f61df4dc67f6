"""One readable example of a problem going through the stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from marsrl_verl.algos.marsrl.evaluation.loop import RunEnd, SystemRun
from marsrl_verl.algos.marsrl.evaluation.loop_rules import verdict_of
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.inert_text import code_block, code_span, one_line, printable
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.evaluation.runs import Call, Run, Runs, answer_reward, final_answer


class Story(IntEnum):
    """What an example shows, the most telling last."""

    OTHER = 0
    UNFINISHED = 1
    """The Solver gave no usable solution."""
    SOLVED = 2
    """The Solver, alone, is correct."""
    ACCEPTED = 3
    """The Solver is correct and the Verifier accepts."""
    FOUND = 4
    """The Solver is wrong, the Verifier finds it, the repair fails."""
    REPAIRED = 5
    """The Solver is wrong, the Verifier finds it, the Corrector repairs it."""
    REPAIRED_AND_ACCEPTED = 6
    """And the Verifier accepts the repaired solution."""


_LONGEST_ANSWER = 200
"""Characters of an answer that are shown."""

_HEADLINES = {
    Story.OTHER: "How one problem went through the stages",
    Story.UNFINISHED: "The Solver gave no usable solution",
    Story.SOLVED: "The Solver solves it",
    Story.ACCEPTED: "The Solver is right and the Verifier accepts",
    Story.FOUND: "The Verifier finds the Solver's error, the repair fails",
    Story.REPAIRED: "The Verifier finds the Solver's error and the Corrector repairs it",
    Story.REPAIRED_AND_ACCEPTED: "The Verifier finds the Solver's error, the Corrector repairs it, and the "
    "Verifier accepts the repair",
}


@dataclass(frozen=True, slots=True)
class Example:
    """A chosen run and what it shows."""

    run: Run
    story: Story

    @property
    def headline(self) -> str:
        """One sentence on what the example shows."""
        return _HEADLINES[self.story]


def story_of(run: Run) -> Story:
    """What a run shows."""
    if not isinstance(run, SystemRun):
        return Story.SOLVED if run.solved else Story.UNFINISHED if run.answer is None else Story.OTHER
    if run.end is RunEnd.NO_SOLUTION:
        return Story.UNFINISHED
    verdicts, solved_at_once = run.verdicts, is_correct(run.solver_reward)
    accepted = run.end is RunEnd.ACCEPTED
    if solved_at_once and accepted and set(verdicts) == {Verdict.CORRECT}:
        return Story.ACCEPTED
    if solved_at_once or not verdicts or verdicts[0] is not Verdict.WRONG:
        return Story.OTHER
    if not run.solved:
        repaired = run.solution is not None and is_correct(run.solution.value)
        return Story.OTHER if repaired else Story.FOUND  # a repair that was not chosen did not fail
    return Story.REPAIRED_AND_ACCEPTED if accepted and run.answer is run.solution else Story.REPAIRED


def pick_example(runs: Runs) -> Example | None:
    """The most telling run; among equals the one with the fewest calls, then the shortest text, then the
    first. None without runs."""
    if not runs.runs:
        return None

    def rank(item: tuple[int, Run]) -> tuple[int, int, int, int]:
        index, run = item
        length = sum(len(call.trajectory.text) for call in run.calls)
        return (-story_of(run), len(run.calls), length, index)

    _, best = min(enumerate(runs.runs), key=rank)
    return Example(best, story_of(best))


def example_markdown(example: Example, limit: int = 4000) -> str:
    """The example as Markdown; responses longer than `limit` characters are cut in the middle."""
    run = example.run
    parts = [
        f"{example.headline}.",
        f"**Problem** {code_span(run.problem.problem_id)} "
        f"(reference answer: {code_span(run.problem.ground_truth)})",
        code_block(run.problem.question),
    ]
    for number, call in enumerate(run.calls, 1):
        parts.append(f"**{number}. {_name(call)}**: {outcome_of(call, code_span)}")
        parts.append(code_block(_cut(_response(call.trajectory), limit)))
    parts.append(f"**Result**: {_result(run)}")
    return "\n\n".join(parts)


def example_text(example: Example, limit: int = 1200) -> str:
    """The example as plain text for a terminal."""
    run = example.run
    lines = [example.headline + ".", ""]
    reference = one_line(run.problem.ground_truth)
    lines += [f"Problem (reference answer: {reference})", _indent(run.problem.question)]
    for number, call in enumerate(run.calls, 1):
        lines += ["", f"{number}. {_name(call)}: {outcome_of(call, _quoted)}"]
        lines.append(_indent(_cut(_response(call.trajectory), limit)))
    lines += ["", f"Result: {_result(run)}"]
    return "\n".join(lines)


def outcome_of(call: Call, quote: Callable[[str], str]) -> str:
    """What one call came to, in a few words; `quote` makes an answer part of them."""
    trajectory, role = call.trajectory, call.request.role
    ending = "" if trajectory.finished else f" ({trajectory.finish.value})"
    if role == VERIFIER:
        verdict, truth = verdict_of(trajectory), is_correct(call.request.inputs["solution_reward"])
        if verdict is Verdict.INVALID:
            return f"no readable verdict{ending}"
        right = verdict is (Verdict.CORRECT if truth else Verdict.WRONG)
        return f"verdict {verdict.value.capitalize()}, {'rightly' if right else 'wrongly'}{ending}"
    if role in (SOLVER, CORRECTOR):
        answer = final_answer(trajectory)
        said = f"answer {quote(_cut(answer, _LONGEST_ANSWER))}, " if answer is not None else "no answer, "
        return said + ("correct" if is_correct(answer_reward(trajectory)) else "incorrect") + ending
    return f"reward {trajectory.value:g}{ending}"


def _result(run: Run) -> str:
    end = str(getattr(run.end, "value", run.end)).replace("_", " ")
    if isinstance(run, SystemRun) and run.answer is not run.solution:
        # The answer is not the last solution, so the reader has to be told which one it is.
        end += f"; answer: {next(_name(call) for call in run.calls if call.trajectory is run.answer)}"
    return f"{'correct' if run.solved else 'incorrect'} ({end})"


def _name(call: Call) -> str:
    name, _, number = call.request.stage.partition("_")
    if call.trajectory.external:
        return f"{name.capitalize()} (external)"
    return f"{name.capitalize()} (round {number})" if number else name.capitalize()


def _response(trajectory: Trajectory) -> str:
    return trajectory.text.strip() or "(empty)"


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _quoted(text: str) -> str:
    return f"`{one_line(text)}`"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in printable(text).split("\n"))
