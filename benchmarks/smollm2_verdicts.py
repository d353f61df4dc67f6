"""Whether a Verifier of word problems compares: its verdicts on a right and a wrong solution of each problem.

    python -m benchmarks.smollm2_verdicts ~/.cache/marsrl-verl/SmolLM2-135M-roles

For folders of models as `studies.smollm2.supervised` makes them. A verdict follows its report where
it says Correct for two equal numbers and Wrong for two different ones, whether they are right or not.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.record import machine, options, write_json
from benchmarks.tables import table
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.core.prompts import Chat
from marsrl_verl.core.request import Problem
from marsrl_verl.demo.problems import Split
from marsrl_verl.demo.smollm2 import problems
from marsrl_verl.demo.smollm2.prompts import WordProblemPrompts
from studies.smollm2 import supervised

_COMPARED = re.compile(r"= (-?\d+)\nThe solution says (-?\d+)\.")
_BATCH, _TOKENS = 32, 40


@dataclass(frozen=True)
class Row:
    """A model at a temperature; shares, of the judgements that can be read where a report is meant."""

    model: str
    temperature: float
    errors_found: float
    false_alarms: float
    follows_report: float
    calculated_right: float


@dataclass(frozen=True)
class Case:
    """A solution under judgement."""

    chat: Chat
    right: bool
    answer: int


def cases(count: int, seed: int) -> list[Case]:
    """A right and a wrong solution of each of so many held-out problems."""
    rng, prompts = random.Random(seed), WordProblemPrompts({SOLVER: [], VERIFIER: [], CORRECTOR: []})
    found = []
    for index, one in enumerate(problems.generate(Split.HELD_OUT, count, 0)):
        problem = Problem(f"v{index}", one.question, str(one.answer))
        line, said = supervised.slip(rng, one.steps[0])
        found.append(Case(prompts.verifier(problem, problems.solution(one.steps)), True, one.answer))
        wrong = f"{line}\n\\boxed{{{said}}}"
        found.append(Case(prompts.verifier(problem, wrong), False, one.answer))
    return found


def row(model: str, temperature: float, judged: Sequence[Case], responses: Sequence[str]) -> Row:
    """Shares of one model's judgements."""
    counts: Counter[str] = Counter()
    for case, text in zip(judged, responses, strict=True):
        says_wrong = text.rstrip().endswith("Wrong")
        counts["right" if case.right else "wrong"] += 1
        counts["false alarms" if case.right else "errors found"] += says_wrong
        if found := _COMPARED.search(text):
            counts["reports"] += 1
            counts["follows"] += (found.group(1) != found.group(2)) is says_wrong
            counts["calculated"] += int(found.group(1)) == case.answer
    reports = max(1, counts["reports"])
    return Row(
        model,
        temperature,
        counts["errors found"] / counts["wrong"],
        counts["false alarms"] / counts["right"],
        counts["follows"] / reports,
        counts["calculated"] / reports,
    )


def judge(folder: Path, judged: Sequence[Case], temperature: float, seed: int) -> list[str]:
    """The model's responses."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "left"
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    torch.manual_seed(seed)
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    responses: list[str] = []
    for start in range(0, len(judged), _BATCH):
        chats = [list(case.chat) for case in judged[start : start + _BATCH]]
        given = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
        )
        ids = network.generate(**given, max_new_tokens=_TOKENS, pad_token_id=tokenizer.pad_token_id, **how)
        own = ids[:, given["input_ids"].shape[1] :]
        responses += tokenizer.batch_decode(own, skip_special_tokens=True)
    return responses


def main() -> None:
    parser = options(__doc__, "the rows")
    parser.add_argument("folders", nargs="+", type=Path, help="models")
    parser.add_argument("--problems", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    judged = cases(arguments.problems, arguments.seed)
    rows = [
        row(folder.name, temperature, judged, judge(folder, judged, temperature, arguments.seed))
        for folder in arguments.folders
        for temperature in (0.0, 1.0)
    ]
    head = ["model", "temperature", "errors found", "false alarms", "follows its report", "calculated right"]
    cells = [[one.model, f"{one.temperature:g}", *(f"{value:.0%}" for value in _shares(one))] for one in rows]
    print(table(head, cells))
    write_json(arguments.json, {"machine": machine(), "rows": [asdict(one) for one in rows]})


def _shares(one: Row) -> tuple[float, ...]:
    return one.errors_found, one.false_alarms, one.follows_report, one.calculated_right


if __name__ == "__main__":
    main()
