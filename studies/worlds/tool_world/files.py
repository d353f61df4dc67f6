"""The tool world's corpus, made on first use."""

from __future__ import annotations

from pathlib import Path

from marsrl_verl.demo.files import DATA_SEED, made_once
from studies.worlds.tool_world import problems


def tool_world_corpus() -> str:
    """The file with the tool world's facts, a JSON object on each line."""

    def write(path: Path) -> None:
        problems.write_corpus(path, DATA_SEED)

    return made_once(f"tool_world-corpus-{DATA_SEED}", ".jsonl", (str(problems.__file__),), write)
