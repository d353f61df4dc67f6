"""What stops a preparation, and how it is told."""

from __future__ import annotations


class PreparationError(Exception):
    """The data can't be prepared as asked.

    Args:
        what: what was found, where, and what was expected.
        fix: what to do.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}\n  fix: {fix}")
        self.what = what
        self.fix = fix


class RowError(ValueError):
    """One row is no problem with an answer.

    Args:
        what: what is wrong with it, the same words for the same fault.
        fix: what to do.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
