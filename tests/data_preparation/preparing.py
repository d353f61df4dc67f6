"""Sources, and a generator that answers from a script, to run the command without vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marsrl_verl.core.types import FinishReason
from marsrl_verl.demo.assets import model_path
from marsrl_verl.rollout.single_call import Completion

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
class ScriptedGenerator:
    """Answers a prompt as a script says, the last prompt first.

    `script(question, k)` gives the k-th response to a question, or a finish reason without an answer.
    `stop_after` raises KeyboardInterrupt after so many problems.
    """

    script: Callable[[str, int], str | FinishReason]
    stop_after: int | None = None
    asked: list[str] = field(default_factory=list)
    arguments: tuple[Any, ...] = ()

    def __call__(self, config: Any, settings: Any, seed: int) -> ScriptedGenerator:
        """Be made by the application."""
        self.arguments = (config, settings, seed)
        return self

    def generate(
        self, prompts: Iterable[tuple[str, list[int]]], n: int
    ) -> Iterator[tuple[str, list[Completion]]]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model_path())
        for number, (key, prompt_ids) in enumerate(reversed(list(prompts))):
            if number == self.stop_after:
                raise KeyboardInterrupt
            prompt = tokenizer.decode(prompt_ids)
            assert prompt.startswith("<|user|>") and prompt.endswith("<|end|><|assistant|>"), prompt
            question = prompt.removeprefix("<|user|>").removesuffix("<|end|><|assistant|>")
            self.asked.append(question)
            yield key, [self._completion(tokenizer, question, k) for k in range(n)]

    def _completion(self, tokenizer: Any, question: str, k: int) -> Completion:
        said = self.script(question, k)
        if isinstance(said, FinishReason):
            return Completion([5, 6], [0.0, 0.0], said)
        ids = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
        return Completion(ids, [0.0] * len(ids), FinishReason.STOP)


def right_times(times: Callable[[int], int]) -> Callable[[str, int], str]:
    """Answers `Compute 1+i` rightly the first `times(i)` times."""

    def script(question: str, k: int) -> str:
        i = int(question.partition("+")[2])
        return f"so \\boxed{{{1 + i if k < times(i) else 99}}}"

    return script
