"""How many answers of the unseen catalogues are graded as they should be, by class.

    python -m benchmarks.grading_classes
    python -m benchmarks.grading_classes --reward hybrid --json rows.json

The catalogues (`tests/rewards/unseen_hacks.txt`, `unseen_ordinary.txt`) were written by somebody who did not
know the grader. Rows that are marked as disputed there count as they are written: as graded otherwise.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import HERE, machine, options, write_json
from benchmarks.tables import table
from marsrl_verl.rewards.hybrid import HybridReward
from marsrl_verl.rewards.math_verify import MathVerifyReward

CATALOGUES = ("unseen_hacks.txt", "unseen_ordinary.txt")
REWARDS = {"math_verify": MathVerifyReward, "hybrid": HybridReward}


@dataclass(frozen=True)
class Row:
    catalogue: str
    kind: str
    right: bool
    reference: str
    text: str


def read_rows(path: Path) -> list[Row]:
    """The rows of a catalogue, with the class that stands above them and the set that they are of."""
    rows, kind, part = [], "", ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# === "):
            part = line.removeprefix("# === the ")
        elif line.startswith("# --- "):
            kind = line.removeprefix("# --- ")
        elif line and not line.startswith("#"):
            verdict, reference, response = (one.strip() for one in line.split(" | "))
            verdict = verdict.removeprefix("disputed ")
            boxed = verdict.startswith("unboxed ") or r"\boxed{" in response
            text = response if boxed else rf"\boxed{{{response}}}"
            is_right = verdict.removeprefix("unboxed ") == "right"
            rows.append(Row(f"{path.stem}, {part}", kind, is_right, reference, text))
    return rows


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--reward", choices=tuple(REWARDS), default="math_verify")
    arguments = parser.parse_args()
    print(machine(("math-verify",)))
    reward = REWARDS[arguments.reward](require_box=False)
    rows = [row for name in CATALOGUES for row in read_rows(HERE / "tests/rewards" / name)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda row: reward.grade(row.text, [row.reference]).value == 1.0, rows))
    reward.close()
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row, accepted in zip(rows, found, strict=True):
        for key in ((row.catalogue, row.kind), (row.catalogue, "all")):
            count = counts[key]
            count[0 if row.right else 2] += 1
            count[1 if row.right else 3] += accepted is not row.right
    lines = [[*key, *map(str, count)] for key, count in counts.items() if key[1] != "all"]
    lines += [[*key, *map(str, count)] for key, count in counts.items() if key[1] == "all"]
    print("\n" + table(["catalogue", "class", "right", "refused", "wrong", "accepted"], lines))
    write_json(arguments.json, [dict(zip(("catalogue", "class"), line, strict=False)) | {
        "right": int(line[2]), "refused": int(line[3]), "wrong": int(line[4]), "accepted": int(line[5])
    } for line in lines])  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
