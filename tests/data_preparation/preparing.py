"""Sources, and a client that answers from a script, to run the command without vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marsrl_verl.core.sequence import token_ids
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.data_preparation.application import main
from marsrl_verl.demo.assets import model_path
from marsrl_verl.rollout.generation import Completion

MODEL = ("model=tiny", "cluster=cpu", "reward=exact")


def verl_row(question: str, answer: Any, **more: Any) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": question}],
        "data_source": "sums",
        "reward_model": {"style": "rule", "ground_truth": answer},
        **more,
    }


def sums(count: int) -> list[dict[str, Any]]:
    """Rows of the form `Compute 1+i`."""
    return [verl_row(f"Compute 1+{i}", str(1 + i)) for i in range(1, count + 1)]


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


@dataclass
class ScriptedClient:
    """Answers one prompt after the other as a script says.

    `script(question, k)` gives the k-th response to a question, or a finish reason without an answer.
    `stop_after` raises KeyboardInterrupt when so many problems are on record in `log`.
    """

    script: Callable[[str, int], str | FinishReason]
    stop_after: int | None = None
    log: Path = Path()
    requests: list[str] = field(default_factory=list)
    arguments: tuple[Any, ...] = ()
    interrupted: bool = False
    turns: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __call__(self, config: Any, settings: Any) -> ScriptedClient:
        """Be made by the application."""
        self.arguments = (config, settings)
        return self

    async def generate(self, policy, prompt_ids, decoding, *, session, name, n=1) -> list[Completion]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model_path())
        async with self.turns:
            if len(self.requests) == self.stop_after:
                if self.interrupted:
                    await asyncio.sleep(3600)
                self.interrupted = True
                while len(read_lines(self.log)) - 1 < self.stop_after:
                    await asyncio.sleep(0.002)
                raise KeyboardInterrupt
            prompt = tokenizer.decode(prompt_ids.tolist())
            assert prompt.startswith("<|user|>") and prompt.endswith("<|end|><|assistant|>"), prompt
            question = prompt.removeprefix("<|user|>").removesuffix("<|end|><|assistant|>")
            self.requests.append(question)
            return [self._completion(tokenizer, question, k) for k in range(n)]

    def _completion(self, tokenizer: Any, question: str, k: int) -> Completion:
        said, finish = self.script(question, k), FinishReason.STOP
        if isinstance(said, FinishReason):
            ids, finish = [5, 6], said
        else:
            ids = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
        return Completion(token_ids(ids), np.zeros(len(ids), dtype=np.float32), finish)


def right_times(times: Callable[[int], int]) -> Callable[[str, int], str]:
    """Answers `Compute 1+i` rightly the first `times(i)` times."""

    def script(question: str, k: int) -> str:
        i = int(question.partition("+")[2])
        return f"so \\boxed{{{1 + i if k < times(i) else 99}}}"

    return script


def right_once() -> ScriptedClient:
    """Its first answer to every problem is right."""
    return ScriptedClient(right_times(lambda i: 1))


NEVER = ScriptedClient(lambda question, k: pytest.fail("the model was asked"))


def prepare(source: Path, output: Path, client: ScriptedClient, *more: str) -> int:
    """Runs the command; its exit status."""
    return main(["--input", str(source), "--output", str(output), *more, *MODEL], client)


def questions(path: Path) -> list[str]:
    return [row["prompt"][-1]["content"] for row in read_parquet(path)]


def pass_rates(path: Path) -> dict[str, float]:
    """By question, in the file's order."""
    rows = read_parquet(path)
    return {row["prompt"][-1]["content"]: row["extra_info"]["pass_rate"] for row in rows}


def report_of(output: Path) -> dict[str, Any]:
    return json.loads((output / "report.json").read_text())
