"""The warm-started models of the toy tasks."""

from __future__ import annotations

from pathlib import Path


def model_path(name: str) -> str:
    """The folder of a warm-started model: configuration, weights, tokenizer.

    Args:
        name: of its folder here: a task's, or `tiny_tools`.
    """
    return str(Path(__file__).parent / name)
