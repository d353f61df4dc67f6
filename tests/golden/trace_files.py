"""How golden traces are written, read and compared; knows no class of the project.

A trace is {"scenario", "steps", "end"}; a step has the parts that `GoldenRun.take_step` names. Parts in
`COLUMNS` are tables, one line per row.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "traces"
COLUMNS = {
    "completed": ("request", "endings", "rewards", "tokens", "texts"),
    "trained": ("request", "samples", "trained before"),
    "rows": (
        "sample", "part", "tokens", "prompt", "response", "mask", "rollout log-probs",
        "recorded log-probs", "recorded entropies", "versions", "reward", "advantages",
    ),
    "loss": ("sample", "old log-probs", "mean weight"),
    "ended": ("problem", "stage", "reason"),
}  # fmt: skip
"""`part` is rank/mini-batch; `endings` are letters of `ENDINGS`, one per sample; a reward is ? where the
grading failed; mask, versions and advantages are `spans`; recorded values are how many, and their digest."""
ENDINGS = {
    "S": "stop", "L": "length", "P": "prompt_too_long", "A": "aborted", "R": "refused", "E": "error",
}  # fmt: skip
DIGITS = 6
"""Significant digits of numbers."""
TOLERANCE = 1e-5
"""Relative difference from which numbers differ: one in the last digit is rounding."""


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
    """Writes a trace, a line per row, and returns where."""
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


def leaves(trace: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every value with its place; rows are named by their first cell."""
    for step in [*trace["steps"], {"step": "end", **trace["end"]}]:
        for part, value in step.items():
            place = f"{trace['scenario']}, step {step['step']}, {part}"
            if part in COLUMNS:
                for at, row in enumerate(value):
                    for column, cell in zip(COLUMNS[part], row, strict=True):
                        yield f"{place} row {at} ({row[0]}), {column}", cell
            elif isinstance(value, dict | list):
                items = value.items() if isinstance(value, dict) else enumerate(value)
                yield from ((f"{place}, {name}", one) for name, one in items)
            else:
                yield place, value


def differences(expected: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    """Where two traces differ, in their order."""
    one, other = dict(leaves(expected)), dict(leaves(found))
    for place in one | other:
        equal = same_spans if place.endswith(", advantages") and place in one and place in other else same
        if not equal(one.get(place), other.get(place)):
            yield f"{place}: expected {one.get(place)!r}, found {other.get(place)!r}"


def cells(trace: dict, part: str, column: str) -> Iterator:
    """A column of a table in all steps."""
    at = COLUMNS[part].index(column)
    return (row[at] for step in trace["steps"] for row in step[part])


def asked(trace: dict) -> list[str]:
    """What was decoded, in all rounds."""
    return [one for step in trace["steps"] for row in step["rounds"] for one in row]
