"""Grades and estimators against lighteval's on the same frozen answers.

    PYTHONPATH=LIGHTEVAL python -m benchmarks.lighteval_agreement grade answers.jsonl theirs.jsonl
    python -m benchmarks.lighteval_agreement compare answers.jsonl theirs.jsonl

A line of the answers is `{"set": …, "problem": …, "reference": …, "responses": […]}`, n responses of each
problem. The first command needs lighteval (0.13.0 was tried; its antlr4 4.13 and Hydra's 4.9 exclude each
other, so it has an environment of its own) and nothing of this package: it writes lighteval's grades with the
metric of its MATH-500 task, and its pass@k and G-Pass@k of them. The second one grades with
`reward=math_verify` and names every difference.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

KS, TAUS = (1, 2, 4), (0.5, 0.75, 1.0)
SHOWN = 12
"""Differences that are printed at most of each kind."""


def read(path: str) -> Iterator[dict[str, Any]]:
    """The lines of a file."""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def grade(answers: str, theirs: str) -> None:
    """Writes lighteval's grades and figures, a line for each problem."""
    from importlib.metadata import version

    import lighteval.metrics.metrics_sample as samples
    from lighteval.metrics.dynamic_metrics import MultilingualExtractiveMatchMetric
    from lighteval.metrics.utils.extractive_match_utils import ExprExtractionConfig, LatexExtractionConfig
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.requests import Doc
    from lighteval.utils.language import Language

    targets = [ExprExtractionConfig(), LatexExtractionConfig()]
    match = MultilingualExtractiveMatchMetric(Language.ENGLISH, targets, targets, precision=6)
    print(f"lighteval {version('lighteval')}", flush=True)
    with Path(theirs).open("w", encoding="utf-8") as file:
        for line in read(answers):
            gold = f"$\\boxed{{{line['reference']}}}$"
            scores = [
                int(match.compute(Doc(query="", choices=[gold], gold_index=0), ModelResponse(text=[one])))
                for one in line["responses"]
            ]
            count = len(scores)
            found = {f"pass@{k}": float(samples.PassAtK(k=k, n=count).pass_at_k(scores)) for k in KS}
            steady = samples.GPassAtK(k=[4], n=count, thresholds=list(TAUS)).g_pass_at_k(scores)
            found |= {name: float(value) for name, value in steady.items()}
            plain = {"problem": line["problem"], "scores": scores, "figures": found}
            file.write(json.dumps(plain) + "\n")


def ours(scores: Sequence[int]) -> dict[str, float]:
    """This package's figures of grades, by lighteval's names."""
    from marsrl_verl.evaluation.at_k import g_pass_at_k, mg_pass_at_k, pass_at_k

    count, right = len(scores), sum(scores)
    found = {f"pass@{k}": pass_at_k(count, right, k) for k in KS}
    found |= {f"g-pass@4_{tau}": g_pass_at_k(count, right, 4, tau) for tau in TAUS}
    return found | {"mg-pass@4": mg_pass_at_k(count, right, 4)}


def compare(answers: str, theirs: str) -> None:
    """Prints how far the figures agree on the same grades, and where grades differ."""
    from marsrl_verl.rewards.math_verify import MathVerifyReward

    grader, largest = MathVerifyReward(), 0.0
    cells: Counter[tuple[str, int, int]] = Counter()
    apart: dict[tuple[str, int, int], list[str]] = {}
    for line, other in zip(read(answers), read(theirs), strict=True):
        if line["problem"] != other["problem"]:
            raise SystemExit(f"{theirs}: found problem {other['problem']}, expected {line['problem']}")
        mine = ours(other["scores"])
        if mine.keys() != other["figures"].keys():
            raise SystemExit(f"{theirs}: found {sorted(other['figures'])}, expected {sorted(mine)}")
        largest = max(largest, *(abs(mine[name] - value) for name, value in other["figures"].items()))
        for response, theirs_says in zip(line["responses"], other["scores"], strict=True):
            we_say = int(grader.grade(response, [line["reference"]]).value > 0.5)
            cell = line["set"], we_say, theirs_says
            cells[cell] += 1
            if we_say != theirs_says:
                shown = f"{line['problem']}: {line['reference']!r} | …{response[-60:]!r}"
                apart.setdefault(cell, []).append(shown)
    print(f"figures of the same grades: largest difference {largest:.1e}")
    for name in sorted({cell[0] for cell in cells}):
        table = {(we, they): cells[name, we, they] for we in (1, 0) for they in (1, 0)}
        same = table[1, 1] + table[0, 0]
        print(
            f"{name}: {same} of {sum(table.values())} grades are equal (right {table[1, 1]}, wrong "
            f"{table[0, 0]}); right only here {table[1, 0]}, only there {table[0, 1]}"
        )
    for (name, we_say, _), lines in apart.items():
        print(f"\n{name}, {'right here, wrong' if we_say else 'wrong here, right'} there:")
        print("\n".join(f"  {one}" for one in lines[:SHOWN]))


if __name__ == "__main__":
    {"grade": grade, "compare": compare}[sys.argv[1]](*sys.argv[2:4])
