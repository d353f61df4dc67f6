"""The tool task's corpus, made on first use."""

from __future__ import annotations

from pathlib import Path

from marsrl_verl.demo.files import DATA_SEED, made_once
from studies.toy_tasks.tool_task import problems


def tool_task_corpus() -> str:
    """The file with the tool task's facts, a JSON object on each line."""

    def write(path: Path) -> None:
        problems.write_corpus(path, DATA_SEED)

    return made_once(f"tool_task-corpus-{DATA_SEED}", ".jsonl", (str(problems.__file__),), write)
