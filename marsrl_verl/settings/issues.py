"""Problems of a configuration and how they are shown: one message, one screen, no traceback."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

EXIT_WRONG_CONFIGURATION = 2
"""Exit status of a run that was rejected because of its configuration."""

MAX_LINES = 24
"""Lines of a message: one screen. Problems beyond it are counted, not shown."""
_WIDTH = 100
_MAX_VALUE = 90
_MAX_PARAGRAPH = 3


NO_VALUE: Any = object()
"""Marks a problem that is not about a value."""


@dataclass(frozen=True, slots=True)
class ConfigIssue:
    """One thing that is wrong, addressed to the person who has to put it right."""

    key: str
    """The key, group, option or file that is meant."""
    what: str
    """Statement of what was found and what was expected."""
    fix: str
    """Advice on what to do."""
    value: Any = NO_VALUE
    """The value that was found, `NO_VALUE` when there is none."""


class ConfigError(Exception):
    """A configuration that must not be started, with everything that is wrong with it."""

    def __init__(self, problems: Sequence[ConfigIssue]) -> None:
        if not problems:
            raise ValueError("a ConfigError needs at least one problem")
        self.problems = list(problems)
        super().__init__(format_problems(self.problems))


def did_you_mean(word: str, candidates: Iterable[str], n: int = 1) -> list[str]:
    """The candidates that look most like `word`, best first; abbreviations count as alike."""
    unique = list(dict.fromkeys(candidates))
    near = difflib.get_close_matches(word, unique, n=n, cutoff=0.6)
    longer = sorted((name for name in unique if len(word) > 2 and name.startswith(word)), key=len)
    return list(dict.fromkeys([*near, *longer]))[:n]


def format_problems(problems: Sequence[ConfigIssue]) -> str:
    """The message that is shown: at most a screen of text, whatever the number of problems."""
    count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"The configuration has {count}; nothing was started."]
    for number, problem in enumerate(problems):
        block = ["", *_format_problem(problem)]
        last = number == len(problems) - 1
        if number > 0 and len(lines) + len(block) > MAX_LINES - (0 if last else 2):
            lines += ["", f"… and {len(problems) - number} more, shown once these are put right."]
            break
        lines += block
    return "\n".join(lines)


def _format_problem(problem: ConfigIssue) -> list[str]:
    head = problem.key
    if problem.value is not NO_VALUE:
        head += f" = {_shorten(problem.value)}"
    return [f"  {head}", *_wrap("    ", problem.what), *_wrap("    fix: ", problem.fix)]


def _shorten(value: Any) -> str:
    text = "null" if value is None else str(value)
    text = " ".join(text.split()) if text.strip() else repr(text)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"


def _wrap(prefix: str, text: str) -> list[str]:
    indent = " " * len(prefix)
    lines = textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=prefix,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,  # paths and option names are copied
    )
    if len(lines) > _MAX_PARAGRAPH:
        lines = [*lines[: _MAX_PARAGRAPH - 1], lines[_MAX_PARAGRAPH - 1] + " …"]
    return lines
