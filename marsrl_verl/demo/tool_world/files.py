"""Files of the tool world: the shipped model, problems and corpus, made on first use."""

from __future__ import annotations

from pathlib import Path

from marsrl_verl.demo.assets import model_path
from marsrl_verl.demo.files import DATA_SEED, made_once
from marsrl_verl.demo.problems import Split
from marsrl_verl.demo.tool_world import problems


def tiny_tools_model() -> str:
    """The folder of the tool world's warm-started model and tokenizer."""
    return str(model_path("tiny_tools"))


def tool_world_data(split: str, count: int) -> str:
    """The parquet file with `count` problems of the tool world."""

    def write(path: Path) -> None:
        problems.write_parquet(path, Split(split), count, DATA_SEED)

    return made_once(f"tool-world-{split}-{count}-{DATA_SEED}", ".parquet", str(problems.__file__), write)


def tool_world_corpus() -> str:
    """The file with the tool world's facts, a JSON object on each line."""

    def write(path: Path) -> None:
        problems.write_corpus(path, DATA_SEED)

    return made_once(f"tool-world-corpus-{DATA_SEED}", ".jsonl", str(problems.__file__), write)
