"""Files that ship with the package: the warm-started tiny model."""

from __future__ import annotations

from pathlib import Path


def model_path() -> str:
    """The folder of the warm-started model: configuration, weights, tokenizer."""
    return str(Path(__file__).parent / "tiny")
