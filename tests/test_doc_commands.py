"""Commands of README, docs and examples: what starts a run composes, options are there, files are there.

A block of shell code whose title says that it needs GPUs is composed as well; it is the run that needs them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from composing import TAKEN_AWAY
from test_docs import PAGES, ROOT

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


def modules(words: list[str]) -> list[tuple[str, list[str]]]:
    """Modules of ours that a command runs, with their words: also behind `ray job submit … --`, `nohup` or a
    variable."""
    found = []
    for at, word in enumerate(words):
        module = words[at + 1] if word == "-m" and at + 1 < len(words) else ""
        if re.match(r"(recipe|marsrl_verl|benchmarks|studies)\b", module):
            rest = words[at + 2 :]
            ends = [number for number, one in enumerate(rest) if one in ("&", "|", "&&", ";", ">", "2>&1")]
            found.append((module, rest[: min(ends, default=len(rest))]))
        elif word in _SCRIPTS:
            found.append((_SCRIPTS[word], words[at + 1 :]))
    return found


_SCRIPTS = {
    "marsrl-train": "recipe.marsrl.main_marsrl",
    "marsrl-eval": "recipe.marsrl.main_eval",
    **{
        f"marsrl-{one}": f"recipe.marsrl.{one}"
        for one in ("serve", "export", "view", "replay", "play", "doctor")
    },
}


@cache
def options() -> frozenset[str]:
    """All options that commands of the project have."""
    folders = ("marsrl_verl", "benchmarks", "studies", "tests")
    texts = (path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
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
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()
        if module.startswith("recipe") and (kind := _COMPOSED.get(module.rpartition(".")[2])):
            composes(rest, kind)
        else:
            assert {one.partition("=")[0] for one in rest if one.startswith("-")} <= options() | {
                "--",
                "-h",
                "--help",
            }
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
    given = [one for one in words if not one.startswith("checkpoint=") and one not in ("-m", "--multirun")]
    if any("=my_" in one or "my_configs" in one for one in given):
        return  # what a reader has
    if not any(one.startswith("cluster=") for one in given):
        given.append("cluster=cpu")
    compose.compose_config(kind(parse_arguments(given)))
