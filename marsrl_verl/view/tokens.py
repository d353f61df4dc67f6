"""The text of single tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class TokenPieces:
    """Cuts responses into the texts of their tokens.

    Args:
        folder: that has the run's `tokenizer.json`; where it is not on this machine, nothing is cut.
    """

    def __init__(self, folder: Any) -> None:
        path = Path(str(folder)) / "tokenizer.json"
        self._tokenizer: Any = None
        if path.is_file():
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(path))

    def of(self, ids: list[int]) -> list[str] | None:
        """(T,) texts; a token that ends within a character has an empty one, and the one that completes it
        has the character. None: the tokenizer is not here."""
        if self._tokenizer is None:
            return None
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self._tokenizer, one) or "" for one in ids]
