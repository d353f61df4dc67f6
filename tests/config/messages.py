"""What a message about a wrong configuration must be."""

from __future__ import annotations

from typing import Any

import pytest

from marsrl_verl.settings.issues import MAX_LINES, ConfigError


def assert_message(text: str, key: str, hint: str) -> None:
    """One screen without a traceback that names the key, says `hint` and has a fix."""
    assert key in text
    assert hint in " ".join(text.split())
    assert "fix:" in text
    assert "Traceback" not in text
    assert len(text.splitlines()) <= MAX_LINES


Case = tuple[Any, ...]
"""What is changed, the key that the message names (by default the last one that is changed, with its value),
and a part of what it says."""


def assert_checks_refuse(checked, *case: Any) -> None:
    """The checks refuse the changed configuration and say so in one message.

    Args:
        checked: the fixture, which runs the checks.
        case: a `Case`.
    """
    changes, *named, hint = case
    key, value = list(changes.items())[-1]
    shown = "null" if value is None else str(value)
    with pytest.raises(ConfigError) as refused:
        checked(changes)
    assert_message(
        str(refused.value), *(named or [f"{key} = {shown if shown.strip() else repr(shown)}"]), hint
    )


def assert_refused(done, key: str, hint: str) -> None:
    """Exit status 2, nothing launched, the message on the error stream alone."""
    assert done.status == 2
    assert done.launched is None
    assert done.out == ""
    assert_message(done.err, key, hint)
