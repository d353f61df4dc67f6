"""How golden traces are written, read and compared; knows no class of the project.

A trace is {"scenario", "steps", "end"}; a step has the parts that `GoldenRun.take_step` names. Parts in
`COLUMNS` are tables, one line per row.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "traces"
COLUMNS = {
    "completed": ("request", "endings", "rewards", "tokens", "texts"),
    "trained": ("request", "samples", "trained before"),
    "rows": (
        *("sample", "part", "tokens", "prompt", "response", "mask", "rollout log-probs"),
        *("recorded log-probs", "recorded entropies", "versions", "reward", "advantages"),
    ),
    "loss": ("sample", "old log-probs", "mean weight"),
    "ended": ("problem", "stage", "reason"),
}
"""`part` is rank/mini-batch; `endings` are letters of `ENDINGS`, one per sample; a reward is ? where the
grading failed; mask, versions and advantages are `spans`; recorded values are how many, and their digest."""
ENDINGS = dict(
    zip("SLPARE", ("stop", "length", "prompt_too_long", "aborted", "refused", "error"), strict=True)
)
DIGITS = 6
"""Significant digits of numbers."""
TOLERANCE = 1e-5
"""Relative difference from which numbers differ: one in the last digit is rounding."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where a trace is not as expected."""

    scenario: str
    step: int | str
    row: str
    field: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        place = f"{self.scenario}, step {self.step}, {self.row}, {self.field}"
        return f"{place}: expected {self.expected!r}, found {self.found!r}"


# --- values -----------------------------------------------------------------------------------


def digest(data: Any) -> str:
    """The first 6 hexadecimal digits of the SHA-256 of bytes or of an array's bytes."""
    return hashlib.sha256(data if isinstance(data, bytes) else data.tobytes()).hexdigest()[:6]


def spans(runs: Sequence[tuple[int, float]]) -> str:
    """Consecutive parts as "end:value end:value", or the value alone where one part is all."""
    texts = [f"{value:.{DIGITS}g}" for _, value in runs]
    if len(runs) == 1:
        return texts[0]
    return " ".join(f"{end}:{text}" for (end, _), text in zip(runs, texts, strict=True))


def rounded(value: Any) -> Any:
    """Plain data with its numbers to `DIGITS` significant digits."""
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() else short
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


def same(expected: Any, found: Any) -> bool:
    """Whether two values are the same, numbers up to a relative difference."""
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return math.isclose(expected, found, rel_tol=TOLERANCE, abs_tol=1e-9)
    return bool(expected == found)


def same_spans(expected: str, found: str) -> bool:
    """Whether two texts of `spans` say the same, numbers up to `TOLERANCE`."""
    one, other = ([part.rpartition(":") for part in text.split()] for text in (expected, found))
    return [part[0] for part in one] == [part[0] for part in other] and all(
        same(float(left[2]), float(right[2])) for left, right in zip(one, other, strict=True)
    )


# --- files ------------------------------------------------------------------------------------


def path_of(scenario: str) -> Path:
    return FOLDER / f"{scenario}.json"


def read(scenario: str) -> dict[str, Any]:
    """A recorded trace."""
    return json.loads(path_of(scenario).read_text())


def write(trace: dict[str, Any]) -> Path:
    """Write a trace, a line per row, and return where."""
    FOLDER.mkdir(exist_ok=True)
    path = path_of(trace["scenario"])
    path.write_text(dumps(trace) + "\n")
    return path


def dumps(value: Any, depth: int = 0) -> str:
    """A trace as JSON with one line per row of a table."""
    if depth < 4 and value and isinstance(value, dict | list) and _holds_parts(value, depth):
        items = value.items() if isinstance(value, dict) else ((None, one) for one in value)
        lines = [
            " " * (depth + 1) + ("" if key is None else json.dumps(key) + ": ") + dumps(one, depth + 1)
            for key, one in items
        ]
        opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
        return f"{opening}\n" + ",\n".join(lines) + "\n" + " " * depth + closing
    return json.dumps(value, separators=(",", ":"))


def _holds_parts(value: Any, depth: int) -> bool:
    """Whether a line would be too long for a reader: traces, steps and tables are cut into lines."""
    return depth < 3 or (isinstance(value, list) and isinstance(value[0], list))


# --- comparison -------------------------------------------------------------------------------


def differences(expected: dict[str, Any], found: dict[str, Any]) -> Iterator[Difference]:
    """Where two traces differ, in their order."""
    scenario = expected["scenario"]
    for at, (one, other) in enumerate(zip_longest(expected["steps"], found["steps"]), 1):
        if one is None or other is None:
            yield Difference(scenario, at, "the step", "present", one is not None, other is not None)
            return
        yield from _parts(scenario, at, one, other)
    yield from _parts(scenario, "end", expected["end"], found["end"])


def _parts(scenario: str, step: int | str, expected: Any, found: Any) -> Iterator[Difference]:
    for part in [*expected, *(name for name in found if name not in expected)]:
        one, other = expected.get(part), found.get(part)
        if part in COLUMNS and one is not None and other is not None:
            yield from _tables(scenario, step, part, one, other)
        elif isinstance(one, dict) and isinstance(other, dict):
            for key in [*one, *(name for name in other if name not in one)]:
                if not same(one.get(key), other.get(key)):
                    yield Difference(scenario, step, part, key, one.get(key), other.get(key))
        elif isinstance(one, list) and isinstance(other, list):
            for at, (left, right) in enumerate(zip_longest(one, other)):
                if left != right:
                    yield Difference(scenario, step, part, f"number {at}", left, right)
        elif not same(one, other):
            yield Difference(scenario, step, part, "value", one, other)


def _tables(
    scenario: str, step: int | str, part: str, expected: list[Any], found: list[Any]
) -> Iterator[Difference]:
    """Rows by their place. Where other ones are there, or in another order, no further field is compared."""
    names, found_names = [row[0] for row in expected], [row[0] for row in found]
    if names != found_names:
        at = next(at for at, (one, other) in enumerate(zip_longest(names, found_names)) if one != other)
        kind = "the order" if sorted(names) == sorted(found_names) else "which there are"
        wanted, there = names[at : at + 3], found_names[at : at + 3]
        yield Difference(scenario, step, f"{part} from row {at} on", kind, wanted, there)
        return
    for at, (one, other) in enumerate(zip(expected, found, strict=True)):
        for column, left, right in zip_longest(COLUMNS[part], one, other):
            equal = same_spans if column == "advantages" else same
            if not equal(left, right):
                yield Difference(scenario, step, f"{part} row {at} ({names[at]})", column, left, right)


def cells(trace: dict, part: str, column: str) -> Iterator:
    """A column of a table in all steps."""
    at = COLUMNS[part].index(column)
    return (row[at] for step in trace["steps"] for row in step[part])


def asked(trace: dict) -> list[str]:
    """What was decoded, in all rounds."""
    return [one for step in trace["steps"] for row in step["rounds"] for one in row]
