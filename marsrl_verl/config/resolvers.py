"""The `${marsrl.…}` functions of our YAML files.

They are resolved before the configuration leaves the launcher; no other process needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marsrl_verl.config.tiny_files import tiny_data, tiny_model


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-int(numerator) // max(1, int(denominator)))


def _longest_prompt(roles: Mapping[str, Any]) -> int:
    return max(int(role["max_prompt_tokens"]) for role in roles.values())


def _longest_response(roles: Mapping[str, Any]) -> int:
    return max(int(role["max_new_tokens"]) for role in roles.values())


def _longest_sequence(roles: Mapping[str, Any]) -> int:
    return max(int(role["max_prompt_tokens"]) + int(role["max_new_tokens"]) for role in roles.values())


def _smallest(*numbers: int) -> int:
    return min(int(number) for number in numbers)


def _largest(*numbers: int) -> int:
    return max(int(number) for number in numbers)


def _absolute(path: str) -> str:
    """Workers do not share the launcher's working folder."""
    return str(Path(path).expanduser().absolute())


def register() -> None:
    """Make the functions known to OmegaConf; calling it again changes nothing."""
    functions: dict[str, Callable[..., Any]] = {
        "absolute": _absolute,
        "ceil_div": _ceil_div,
        "min": _smallest,
        "max": _largest,
        "longest_prompt": _longest_prompt,
        "longest_response": _longest_response,
        "longest_sequence": _longest_sequence,
        "tiny_model": tiny_model,
        "tiny_data": tiny_data,
    }
    for name, function in functions.items():
        OmegaConf.register_new_resolver(f"marsrl.{name}", function, replace=True, use_cache=False)
