"""The configuration as it is written to files, printed and sent to loggers, without anybody's secrets;
the command that goes on with a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.reporting.run_folder import IfExists, has_results

HIDDEN = "NOT_WRITTEN_DOWN"
"""Stands for a value; a command line with it can be parsed."""
SHOWN_VARIABLES = frozenset(
    {
        "VERL_USE_EXTERNAL_MODULES", "VERL_PLATFORM", "VLLM_CPU_KVCACHE_SPACE", "TORCHDYNAMO_DISABLE",
        "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_OMP_THREADS_BIND", "OMP_WAIT_POLICY",
        "OMP_NUM_THREADS",
    }
)  # fmt: skip
"""The variables of our presets; the value of any other is the user's own, and may be a key."""
_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
_PASSWORD = "ray_kwargs.ray_init._redis_password"
_COMMAND = "marsrl.run.command"
"""The words of the command line."""
_PYTHON_PATH = "PYTHONPATH"
_EMPTY = "{}"
"""Stands for a dictionary; merged into what is there, it changes nothing."""


def recorded(config: DictConfig) -> DictConfig:
    """A copy without the values of environment variables that the user set for the workers. A resume does not
    compare them (`config.resume_rules`). Ray itself writes them into its own logs."""
    copy: Any = OmegaConf.create(OmegaConf.to_container(config, resolve=False))
    variables = OmegaConf.select(copy, _VARIABLES)
    for name in variables or ():
        if name not in SHOWN_VARIABLES:
            variables[name] = HIDDEN
    if OmegaConf.select(copy, _PASSWORD) is not None:
        copy.ray_kwargs.ray_init._redis_password = HIDDEN
    if (words := OmegaConf.select(copy, _COMMAND)) is not None:
        copy.marsrl.run.command, _ = without_values(words)
    return copy


def without_values(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """A command line without the values that are not written down, and the names of what these belong to. A
    word's key alone decides: how a value is typed, quoted or nested makes no difference."""
    shown: list[str] = []
    names: list[str] = []
    for word in map(str, words):
        key, equals, _ = word.partition("=")
        path = setting_of(word)
        stand_in = _stand_in(path) if equals else None
        if stand_in is None:
            shown.append(word)
            continue
        # Hydra removes an entry by its key; with a value it compares that first.
        shown.append(key if key.startswith("~") else f"{key}={stand_in}")
        names.append(path.removeprefix(f"{_VARIABLES}."))
    return shown, names


def setting_of(word: str) -> str:
    """The dotted key that a word of the command line sets: without Hydra's marks and the value."""
    return word.partition("=")[0].strip().lstrip("+~").strip()


def _stand_in(path: str) -> str | None:
    """Returns the text that is written in place of a setting's value; None: the value itself is written."""
    if _within(path, _PASSWORD):
        return HIDDEN
    if path.startswith(f"{_VARIABLES}."):
        return None if path.removeprefix(f"{_VARIABLES}.") in SHOWN_VARIABLES else HIDDEN
    return _EMPTY if _within(_VARIABLES, path) or _within(_PASSWORD, path) else None


def _within(path: str, node: str) -> bool:
    return path == node or path.startswith(f"{node}.")


_IF_EXISTS, _MODE, _PATH = "marsrl.run.if_exists", "trainer.resume_mode", "trainer.resume_from_path"


def resume_command(config: DictConfig, saved: bool) -> list[str]:
    """The command line that goes on with a run that did not finish, or starts it again, and a line
    for values that are not written down. An evaluation alone goes on with the answers that it has.

    Args:
        config: the resolved configuration of the run, which holds the words that started it.
        saved: whether the run has a checkpoint of its own; one that it began from is not wanted again then.
    """
    words, hidden = without_values(config.marsrl.run.command)
    if config.trainer.val_only:
        if has_results(Path(config.marsrl.run.output_dir)):
            words = _with_if_exists(words, IfExists.RESUME)
    else:
        # A resume goes on from the newest checkpoint, which `disable` forbids.
        rewinding = (_MODE, _PATH) if saved or config.trainer.resume_mode == "disable" else ()
        words = [word for word in words if setting_of(word) not in rewinding]
        words = _with_if_exists(words, IfExists.RESUME)
    lines = [shell_line(words)]
    if hidden:
        lines.append(f"Values of {', '.join(dict.fromkeys(hidden))} are not written down: set them again.")
    return lines


def python_path() -> list[str]:
    """The first word of a command that is printed to be typed again: `PYTHONPATH=…`, where it is set."""
    path = os.environ.get(_PYTHON_PATH)
    return [f"{_PYTHON_PATH}={path}"] if path else []


def shell_line(words: list[str]) -> str:
    """Words as a shell takes them apart again; `python_path` may be the first, in which the value alone may
    be quoted."""
    name, equals, path = words[0].partition("=")
    if name != _PYTHON_PATH:
        return shlex.join(words)
    return f"{name}{equals}{shlex.quote(path)} {shlex.join(words[1:])}"


def _with_if_exists(words: list[str], policy: IfExists) -> list[str]:
    names = (_IF_EXISTS, "marsrl.run.existing")  # its former name
    return [*(word for word in words if setting_of(word) not in names), f"{_IF_EXISTS}={policy.value}"]
