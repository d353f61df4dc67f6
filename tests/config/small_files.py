"""A small model folder and data files."""

from __future__ import annotations

import json
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


def make_data(path: Path, answers: list[object], question: str = "1 + 1") -> Path:
    """A data file in verl's format with one row per answer."""
    rows = [
        {
            "prompt": [{"role": "user", "content": question}],
            "data_source": "test",
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
        }
        for answer in answers
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path
