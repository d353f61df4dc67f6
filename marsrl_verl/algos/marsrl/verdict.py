"""Reading and rewards of a Verifier's judgement (MarsRL, arXiv 2511.11373, §3.2).

A Verifier ends its answer with a line such as `**Correctness**: Wrong`. What precedes that line is
the report that is handed to the Corrector.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from marsrl_verl.core.thinking import CLOSE
from marsrl_verl.core.trajectory import FinishReason, RewardResult, is_correct
from marsrl_verl.rewards.base import RoleReward, ScoreRequest


class Verdict(str, Enum):
    """A Verifier's judgement of a solution."""

    CORRECT = "correct"
    WRONG = "wrong"
    INVALID = "invalid"
    """No verdict could be read (missing, ambiguous, or the trajectory was cut off)."""


def right_verdict(solution_reward: float) -> Verdict:
    """Returns the verdict that a solution deserves, by the reward of its answer."""
    return Verdict.CORRECT if is_correct(solution_reward) else Verdict.WRONG


class VerdictParser(str, Enum):
    """Rule by which a judgement is read."""

    STRICT = "strict"
    """The last Correctness field must say Correct or Wrong and nothing else; the answer must be finished."""
    RELEASED = "released"
    """The rule of the published evaluation script, for comparison only: "incorrect" and answers
    without a field mostly count as Correct, and the report is often lost."""


@dataclass(frozen=True, slots=True)
class ParsedVerdict:
    """A judgement and the text that explains it."""

    verdict: Verdict
    report: str


# `Correctness` at the start of a line, behind any Markdown decoration (heading, bullet, quote, bold).
_FIELD_NAME = re.compile(r"(?:[#>*_`\-+\s]|\d+[.)])*correctness", re.IGNORECASE)
# What may stand around a verdict: bold and code marks, quotes, brackets, punctuation, but no question mark.
_MARKS = " \t*_`\"'“”‘’()[]$.,;:!。"
_WRAPPED = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf)\s?\{(.*)\}")
_LONGEST_VALUE, _MAX_WRAPPERS = 100, 4
_VALUES = {"correct": Verdict.CORRECT, "wrong": Verdict.WRONG, "incorrect": Verdict.WRONG}
_RELEASED_MARKER = "**Correctness**"


def parse_verdict(
    final_text: str, finish_reason: FinishReason, parser: VerdictParser | str = VerdictParser.STRICT
) -> ParsedVerdict:
    """Reads verdict and report from a Verifier's final text.

    Strict rule: the last line that is a Correctness field decides, whatever its case, bold and code marks,
    spaces and place of the colon; a field without a value is completed by the next non-empty line. Its value
    must be Correct, Wrong or Incorrect (= Wrong), whatever punctuation, marks or box stand around that one
    word. Anything else (two verdicts too), no field, or an answer that the model did not end itself is
    INVALID. The report is all text before the field, or the whole text when there is no field.

    Args:
        final_text: the text after the thinking part. For the released rule of a response that never
            stopped thinking: the whole response, as the published script does.
        finish_reason: why the response ended; the released rule ignores it.
        parser: which rule.
    """
    if VerdictParser(parser) is VerdictParser.RELEASED:
        return _parse_released(final_text)
    lines = final_text.splitlines()
    for index in range(len(lines) - 1, -1, -1):
        value = _field_value(lines[index])
        if value is None:
            continue
        if not value:
            value = next((_plain(line) for line in lines[index + 1 :] if _plain(line)), "")
        verdict = _VALUES.get(value, Verdict.INVALID)
        report = "\n".join(lines[:index]).strip()
        break
    else:
        verdict, report = Verdict.INVALID, final_text.strip()
    if finish_reason is not FinishReason.STOP:
        verdict = Verdict.INVALID
    return ParsedVerdict(verdict, report)


def _field_value(line: str) -> str | None:
    """Returns the plain value of a Correctness field; None if the line is no such field. Without a colon the
    rest must already be a verdict or nothing: "correctness of step 2 is unclear" is prose."""
    match = _FIELD_NAME.match(line)
    if match is None:
        return None
    rest = line[match.end() :].lstrip(" \t*_`")
    if rest[:1] in (":", "："):
        return _plain(rest[1:])
    bare = _plain(rest)
    return bare if bare == "" or bare in _VALUES else None


def _plain(value: str) -> str:
    """Returns the value in lower case without the marks around it; a long one is no verdict and stays as it
    is."""
    text = value.strip()
    if len(text) > _LONGEST_VALUE:
        return text
    for _ in range(_MAX_WRAPPERS):
        text = text.strip(_MARKS)
        wrapped = _WRAPPED.fullmatch(text)
        if wrapped is None:
            break
        text = wrapped.group(1)
    return text.lower()


def _parse_released(text: str) -> ParsedVerdict:
    tail = text.lower().rpartition("correctness")[2]
    report, marker, _ = text.partition(_RELEASED_MARKER)
    verdict = Verdict.CORRECT if "correct" in tail else Verdict.WRONG
    return ParsedVerdict(verdict, report.strip() if marker else "")


class VerdictReward(RoleReward):
    """1 when the verdict is Wrong on an incorrect solution or Correct on a correct one, else 0.

    Correct is measured by the solution's own reward, that is by its final answer. No verdict (INVALID)
    is always 0. The content of the report is not rewarded.

    Args:
        parser: `strict`, or `released` for the rule of the published evaluation script.
    """

    def __init__(self, parser: str = "strict") -> None:
        known = [member.value for member in VerdictParser]
        if parser not in known:
            raise ValueError(f"parser is {parser!r}, expected one of: {', '.join(known)}")
        self.parser = VerdictParser(parser)

    def score(self, request: ScoreRequest) -> RewardResult:
        """Parses the verdict and compares it with the judged solution's reward."""
        solution_reward = request.inputs.get("solution_reward")
        if solution_reward is None:
            raise ValueError(
                f"trajectory {request.trajectory_id}: a verdict is scored against the judged solution's "
                f"reward, but solution_reward is missing among the request's inputs {dict(request.inputs)}"
            )
        text = request.final_text
        if self.parser is VerdictParser.RELEASED:
            # The published script reads a response that never stopped thinking in full.
            text = request.text.rpartition(CLOSE)[2]
        parsed = parse_verdict(text, request.finish_reason, self.parser)
        report = parsed.report
        if self.parser is VerdictParser.STRICT:
            # A verdict without a word of explanation is still something to tell the Corrector.
            report = report or text
        info = {"verdict": parsed.verdict.value, "report": report}
        return RewardResult(float(parsed.verdict is right_verdict(solution_reward)), info)
