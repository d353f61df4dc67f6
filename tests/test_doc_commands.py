"""Commands of README, docs and examples: what starts a run composes, options are there, files are there.

A block of shell code whose title says that it needs GPUs is composed as well; it is the run that needs them.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from composing import TAKEN_AWAY
from test_docs import PAGES, ROOT

from marsrl_verl import commands as commands_of_ours
from marsrl_verl.config import compose
from marsrl_verl.config.command_line import Arguments, evaluating, parse_arguments, serving
from marsrl_verl.demo.files import tiny_model
from marsrl_verl.demo.smollm2 import model as smollm2

if TAKEN_AWAY:
    pytest.skip("lines of its method are cut out of commands", allow_module_level=True)

_COMPOSED: dict[str, Callable[[Arguments], Arguments]] = {
    "main_marsrl": lambda arguments: arguments,
    "main_eval": evaluating,
    "serve": serving,
}
"""What the commands make of their arguments."""
_PROGRAMS = """
pip uv git cd . source export curl hf ls cat tail mkdir cp kill chmod scp tar inspect python3 sudo squeue
openssl rsync torchrun ray kubectl sbatch docker ssh nvidia-smi apt-get tensorboard vllm lm_eval
"""
_SHELL = frozenset(_PROGRAMS.split())
"""Programs of others."""
_ASSIGNED = re.compile(r"\w+=\S*$")


def commands(path: Path) -> list[list[str]]:
    """The words of each command in a page's blocks of shell code."""
    found = []
    for block in re.findall(
        r"^```(?:bash|sh|shell|console)[^\n]*\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE
    ):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            words = shlex.split(line.replace("$PWD", str(ROOT)), comments=True)
            if words:
                found.append(words)
    return found


ALL = [(path.relative_to(ROOT).as_posix(), words) for path in PAGES for words in commands(path)]


_RENAMED = {"train": "main_marsrl", "eval": "main_eval"}
_SCRIPTS = {
    f"marsrl-{name}": "recipe.marsrl." + _RENAMED.get(name, name.replace("-", "_"))
    for name in re.findall(r"^marsrl-([a-z-]+) = ", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
}
"""Modules of the console scripts."""


def modules(words: list[str]) -> list[tuple[str, list[str]]]:
    """Modules of ours that a command runs, with their words: also behind `ray job submit … --`, `nohup` or a
    variable."""
    found = []
    for at, word in enumerate(words):
        module, begin = (words[at + 1], at + 2) if word == "-m" and at + 1 < len(words) else (word, at + 1)
        module = _SCRIPTS.get(word, module)
        if re.match(r"(recipe|marsrl_verl|benchmarks|studies)\.", module):
            rest = words[begin:]
            ends = [number for number, one in enumerate(rest) if one in ("&", "|", "&&", ";", ">", "2>&1")]
            found.append((module, rest[: min(ends, default=len(rest))]))
    return found


def file_of(module: str) -> Path | None:
    """The file that a module of ours is, or runs as; None: it is none of ours."""
    path = ROOT / module.replace(".", "/")
    found = (path.with_suffix(".py"), path / "__main__.py", path / "__init__.py")
    return next((one for one in found if one.exists()), None)


@cache
def sources(module: str, depth: int = 4) -> frozenset[Path]:
    """The files of a module and of what it imports of ours; a recipe's are those of its command."""
    file = file_of(module)
    if file is None:
        return frozenset()
    text = file.read_text()
    if module.startswith("recipe."):
        (command,) = re.findall(r"from marsrl_verl.commands import (\w+)", text)
        text = inspect.getsource(getattr(commands_of_ours, command))
    imported = re.findall(r"from ((?:marsrl_verl|benchmarks|studies)[\w.]*) import", text)
    return frozenset({file}.union(*(sources(one, depth - 1) for one in imported if depth)))


def options(module: str) -> frozenset[str]:
    """The options that a module's command has."""
    texts = (file.read_text() for file in sources(module))
    return frozenset(found for text in texts for found in re.findall(r'"(--[a-z][a-z-]*|-[a-z])"', text))


@pytest.mark.parametrize(
    ("page", "words"), ALL, ids=[f"{page}: {shlex.join(words)[:60]}" for page, words in ALL]
)
def test_a_command_is_one(page, words, monkeypatch):
    # SmolLM2 is downloaded by `python -m marsrl_verl.demo.smollm2.model`, which no command here runs.
    monkeypatch.setattr(smollm2, "usual_folder", lambda: Path(tiny_model()))
    # Benchmarks come from the hub.
    monkeypatch.setattr(compose, "adopt_benchmarks", lambda *_: {})
    while words and _ASSIGNED.match(words[0]):
        name, _, value = words[0].partition("=")
        if name == "PYTHONPATH":
            monkeypatch.syspath_prepend(ROOT / value)
        words = words[1:]
    if not words:
        return
    if words[0] == "for":  # its body, as the shell sees it
        words = [
            one.rstrip(";").replace("$lr", "1e-6") for one in words[words.index("do") + 1 :] if one != "done"
        ]
    ours = modules(words)
    for module, rest in ours:
        assert file_of(module) is not None, module
        if module.startswith("recipe") and (kind := _COMPOSED.get(module.rpartition(".")[2])):
            composes(rest, kind)
        else:
            given = {one.partition("=")[0] for one in rest if one.startswith("-")}
            assert given <= options(module) | {"--", "-h", "--help"}
    if ours:
        return
    program = words[0]
    if program == "make":
        return  # test_docs
    if program == "bash" or program.startswith("examples/"):
        assert (ROOT / (words[1] if program == "bash" else program)).exists()
        return
    assert program in _SHELL or Path(program).name in _SHELL | {"python", "pytest"}, (
        f"{program}: whose is it?"
    )


def composes(words: list[str], kind: Callable[[Arguments], Arguments]) -> None:
    """Raises ConfigError where a command names settings that do not exist."""
    if "--config-dir" in words:
        return  # options of a folder of the reader's
    left_out = ("checkpoint=", "-m", "--multirun")
    # Without what a reader has.
    given = [one for one in words if not one.startswith(left_out) and not re.search(r"[=/]my_", one)]
    if not any(one.startswith("cluster=") for one in given):
        given.append("cluster=cpu")
    compose.compose_config(kind(parse_arguments(given)))
