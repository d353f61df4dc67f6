"""A small model folder, data files, and files of answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

TEMPLATE = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}<assistant>"
SHAPE = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 50,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}


def make_model(folder: Path) -> Path:
    """A folder that looks like a small chat model: one token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    (folder / "model.safetensors").write_bytes(b"")
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def write_problems(path: Path, problems: Iterable[tuple[str, object]]) -> str:
    """A data file in verl's format with these questions and answers; returns its path."""
    rows = [
        {
            "prompt": [{"role": "user", "content": question}],
            "data_source": "test",
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
        }
        for question, answer in problems
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def make_data(path: Path, answers: list[object], question: str = "1 + 1") -> Path:
    """The same with one question."""
    write_problems(path, [(question, answer) for answer in answers])
    return path


def sums(first: int, count: int) -> list[tuple[str, object]]:
    """Different problems."""
    return [(f"{i} + 1", str(i + 1)) for i in range(first, first + count)]


def write_answers(path: Path, *rows: dict[str, object]) -> str:
    """A file of answers for a frozen Solver."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def numbered(path: Path, questions: list[str], first_id: int = 0) -> str:
    """A data file whose rows have an id in `extra_info.index`."""
    lines = Path(write_problems(path, [(question, "2") for question in questions])).read_text().splitlines()
    rows = [{**json.loads(line), "extra_info": {"index": i}} for i, line in enumerate(lines, first_id)]
    return write_answers(path, *rows)
