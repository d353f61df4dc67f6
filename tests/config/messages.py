"""What a message about a wrong configuration must be."""

from __future__ import annotations

from marsrl_verl.config.errors import MAX_LINES


def assert_message(text: str, key: str, hint: str) -> None:
    """One screen without a traceback that names the key, says `hint` and has a fix."""
    assert key in text
    assert hint in " ".join(text.split())
    assert "fix:" in text
    assert "Traceback" not in text
    assert len(text.splitlines()) <= MAX_LINES


def assert_refused(done, key: str, hint: str) -> None:
    """Exit status 2, nothing launched, the message on the error stream alone."""
    assert done.status == 2
    assert done.launched is None
    assert done.out == ""
    assert_message(done.err, key, hint)
