"""Files that ship with the package: the warm-started tiny models."""

from __future__ import annotations

from pathlib import Path


def model_path(name: str = "tiny") -> str:
    """The folder of a warm-started model: configuration, weights, tokenizer.

    Args:
        name: of its folder here: `tiny`, or another world's, such as `tiny_tools`.
    """
    return str(Path(__file__).parent / name)
