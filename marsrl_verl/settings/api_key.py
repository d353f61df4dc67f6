"""The key of an endpoint: where it is kept, and that it is nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class KeyPlace(Protocol):
    """Settings that say where a key is."""

    api_key_env: str | None
    api_key_file: str | None


class ApiKeyError(ValueError):
    """There is no usable key where the settings say; the message never holds what was found."""

    def __init__(self, setting: str, found: str) -> None:
        self.setting, self.found = setting, found
        super().__init__(f"{setting}: {found}")


def read_api_key(settings: KeyPlace) -> str | None:
    """The key in the environment variable or the file that the settings name; None where they name neither.

    Only the driver reads it. The rollout workers get it in a call: what is in Ray's runtime environment,
    in a configuration or on a command line ends up in log files.

    Raises:
        ApiKeyError: the variable is not set, everybody or nobody can read the file, or there is no key.
    """
    if settings.api_key_env is not None:
        if settings.api_key_env not in os.environ:
            raise ApiKeyError("api_key_env", "it is not set")
        return _key(os.environ[settings.api_key_env], "api_key_env")
    return None if settings.api_key_file is None else _key(_content(settings.api_key_file), "api_key_file")


def _content(name: str) -> str:
    path = Path(name).expanduser()
    try:
        if path.stat().st_mode & 0o007:
            raise ApiKeyError("api_key_file", "every user of this machine can read it")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ApiKeyError("api_key_file", f"it can't be read ({reason})") from None


def _key(content: str, setting: str) -> str:
    key = content.strip()
    if not key:
        raise ApiKeyError(setting, "it is empty")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ApiKeyError(setting, "it holds more than one word of printable ASCII characters")
    return key
