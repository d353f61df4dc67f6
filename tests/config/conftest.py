"""A model folder, data files and a way to run the command line without starting anything."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import pytest
from composing import skip_without
from omegaconf import DictConfig, OmegaConf
from small_files import make_data, make_model

from marsrl_verl.config.application import main
from marsrl_verl.config.checks import run_checks
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.command_line import TRAIN, parse_arguments
from marsrl_verl.config.compose import Composed, compose_config, resolve
from marsrl_verl.config.node import with_defaults
from marsrl_verl.machine.packages import FLASH, GPU
from marsrl_verl.version import REQUIRED_VERL


@dataclass
class Outcome:
    """What a command line led to."""

    status: int
    out: str
    err: str
    launched: DictConfig | None

    @property
    def text(self) -> str:
        """What was printed, on one line with single spaces."""
        return " ".join(self.out.split())


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return make_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data file with 256 problems."""
    return make_data(tmp_path_factory.mktemp("data") / "problems.jsonl", ["2"] * 256)


@pytest.fixture(scope="session")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data file with 32 problems."""
    return make_data(tmp_path_factory.mktemp("data") / "held_out.jsonl", ["2"] * 32)


@pytest.fixture(scope="session")
def base_overrides(model, data, held_out) -> tuple[str, ...]:
    """Overrides that put the fixtures' model and data in place of the tiny task's."""
    return (f"actor_rollout_ref.model.path={model}", f"data.train_files={data}", f"data.val_files={held_out}")


@pytest.fixture(scope="session")
def composed(base_overrides) -> Composed:
    """The default configuration on the CPU; composing takes a second."""
    return compose_config(parse_arguments([*base_overrides, "cluster=cpu"]))


def followed(tree: dict) -> str:
    """All interpolations of a tree in one text: a key that is not in it is followed by no other."""
    texts = []
    for value in tree.values():
        if isinstance(value, dict):
            texts.append(followed(value))
        elif isinstance(value, str) and "${" in value:
            texts.append(value)
    return " ".join(texts)


READ_BY_FUNCTIONS = ("roles", "marsrl.policies", "marsrl.default_policy")
"""In keys that functions in interpolations read of the whole node (`config.resolvers`)."""


def put(tree: dict, key: str, value: object) -> None:
    """Sets a dotted key of nested dictionaries."""
    *parents, last = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = value


@pytest.fixture
def quiet_machine(tmp_path, monkeypatch):
    """An empty working folder on a machine without GPUs and without a Ray cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("marsrl_verl.config.compose.detect_cluster", lambda: "cpu")
    monkeypatch.setattr("marsrl_verl.config.ray_cluster._address_file", lambda config: tmp_path / "none")
    monkeypatch.setattr("marsrl_verl.config.checks.machine.count_gpus", lambda: 0)
    versions = {"verl": REQUIRED_VERL, **GPU, **FLASH}
    monkeypatch.setattr("marsrl_verl.config.checks.machine.installed", versions.get)
    monkeypatch.setattr("marsrl_verl.config.checks.machine.check_vllm_cpu", lambda: None)


@pytest.fixture
def checked(quiet_machine, composed):
    """Changes keys of the composed default and runs the checks; returns the context that passed."""
    plain = OmegaConf.to_container(composed.config)
    interpolations = followed(composed.raw)

    def check(changes: dict[str, object], dry_run: bool = False) -> Context:
        tree, values = copy.deepcopy(composed.raw), copy.deepcopy(plain)
        for key, value in changes.items():
            put(tree, key, copy.deepcopy(value))
            put(values, key, copy.deepcopy(value))
        if "marsrl.algo" in changes:  # what the default method's presets say of its roles and evaluation
            tree["marsrl"], values["marsrl"] = with_defaults(tree["marsrl"]), with_defaults(values["marsrl"])
        # Resolving takes a while, so only what others follow is resolved anew.
        read = {
            key for key in changes if key == "marsrl.algo" or any(name in key for name in READ_BY_FUNCTIONS)
        }
        moved = bool(read) or any(f"{{{key}" in interpolations for key in changes)
        config = resolve(OmegaConf.create(tree)) if moved else OmegaConf.create(values)
        context = Context(config=config, raw=tree, dry_run=dry_run)
        run_checks(context)
        return context

    return check


def typed(text: str) -> list[str]:
    """The words of a text in which each is key=value; any other is one word."""
    words = text.split(" ")
    return words if all(word.partition("=")[0] and "=" in word for word in words) else [text]


@pytest.fixture
def run(quiet_machine, capsys, base_overrides):
    """Runs a command line, of words or of texts of several words, in an empty folder, with the fixtures'
    model and data unless told otherwise."""

    def call(*argv: str, program: str = TRAIN) -> Outcome:
        launched: list[DictConfig] = []

        def launch(config: DictConfig) -> int:
            launched.append(config)
            return 0

        words = [word for text in argv for word in typed(text)]
        named = {word.split("=")[0] for word in words}
        if any("marsrl.evaluation.benchmarks" in word for word in named):
            named.add("data.val_files")
        added = tuple(word for word in base_overrides if word.split("=")[0] not in named)
        skip_without(words)
        status = main([*added, *words], launch, program)
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err, launched[0] if launched else None)

    return call
