"""Configurations of commands, each composed once."""

from __future__ import annotations

import functools
from typing import Any

from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config


@functools.cache
def composed(*words: str, cluster: str = "cpu") -> Any:
    """The configuration of a command, which nobody changes."""
    return compose_config(parse_arguments([f"cluster={cluster}", *words])).config
