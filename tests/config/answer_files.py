"""Files of answers for a frozen Solver, and data that they answer."""

from __future__ import annotations

import json
from pathlib import Path

from small_files import make_data


def write_answers(path: Path, *rows: dict[str, object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def numbered(path: Path, questions: list[str], first_id: int = 0) -> str:
    """A data file whose rows have an id in `extra_info.index`."""
    lines = make_data(path, ["2"] * len(questions)).read_text().splitlines()
    rows = []
    for number, (line, question) in enumerate(zip(lines, questions, strict=True)):
        row = json.loads(line)
        row["prompt"][0]["content"] = question
        rows.append({**row, "extra_info": {"index": first_id + number}})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
