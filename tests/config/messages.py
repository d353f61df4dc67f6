"""What a message about a wrong configuration must be."""

from __future__ import annotations

import pytest

from marsrl_verl.settings.issues import MAX_LINES, ConfigError


def assert_message(text: str, key: str, hint: str) -> None:
    """One screen without a traceback that names the key, says `hint` and has a fix."""
    assert key in text
    assert hint in " ".join(text.split())
    assert "fix:" in text
    assert "Traceback" not in text
    assert len(text.splitlines()) <= MAX_LINES


def assert_checks_refuse(checked, changes: dict[str, object], key: str, hint: str) -> None:
    """The checks refuse the changed configuration and say so in one message.

    Args:
        checked: the fixture, which runs the checks.
    """
    with pytest.raises(ConfigError) as refused:
        checked(changes)
    assert_message(str(refused.value), key, hint)


def assert_refused(done, key: str, hint: str) -> None:
    """Exit status 2, nothing launched, the message on the error stream alone."""
    assert done.status == 2
    assert done.launched is None
    assert done.out == ""
    assert_message(done.err, key, hint)
