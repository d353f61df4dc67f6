"""What a message about a wrong configuration must be."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import yaml

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


def lines(text: str) -> list[list[str]]:
    """The parts of each line of a table; what is indented below a line belongs to it."""
    joined = re.sub(r"\n {5,}", " ", text.strip())
    return [[part.strip() for part in line.split(" | ")] for line in joined.splitlines()]


def refusals(text: str, **sets: dict[str, object]) -> dict[str, Case]:
    """Cases by their names, each a line: the name, what is changed, the key that the message names, if it is
    another, and a part of what it says; nothing more where it is accepted. A word without a value is one of
    `sets`."""
    found: dict[str, Case] = {}
    for name, words, *said in lines(text):
        changes: dict[str, object] = {}
        for word in shlex.split(words):
            key, equals, value = word.partition("=")
            changes |= {key: yaml.safe_load(value)} if equals else sets[word]
        found[name] = changes, *said
    return found


def commands(text: str) -> dict[str, tuple[list[str], str, str]]:
    """The same of words that are typed."""
    return {name: (shlex.split(words), key, hint) for name, words, key, hint in lines(text)}


def assert_checks_refuse(checked, *case: Any) -> str:
    """The checks refuse the changed configuration and say so in one message, which is returned.

    Args:
        checked: the fixture, which runs the checks.
        case: a `Case`.
    """
    changes, *named, hint = case
    if not named:
        key, value = list(changes.items())[-1]
        shown = "null" if value is None else str(value)
        named = [f"{key} = {shown if shown.strip() else repr(shown)}"]
    with pytest.raises(ConfigError) as refused:
        checked(changes)
    assert_message(str(refused.value), *named, hint)
    return str(refused.value)


def accepted(run: Callable[..., Any], *words: str) -> Any:
    """The outcome of a command line that nothing is said against."""
    done = run(*words)
    assert (done.status, done.err) == (0, ""), done.err
    return done


def assert_refused(done, key: str, hint: str) -> None:
    """Exit status 2, nothing launched, the message on the error stream alone."""
    assert done.status == 2
    assert done.launched is None
    assert done.out == ""
    assert_message(done.err, key, hint)
