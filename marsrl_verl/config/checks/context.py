"""The configuration of a run, as checks see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config import hf_folder
from marsrl_verl.config.light_tokenizer import LightTokenizer, open_tokenizer
from marsrl_verl.config.node import read_settings
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.method import Method, Traits
from marsrl_verl.core.prompts import Prompts, interface
from marsrl_verl.data.files import FileReport
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.rollout.external.recorded_answers import FileSource
from marsrl_verl.settings.issues import ConfigError, ConfigIssue
from marsrl_verl.settings.reading import no_such_choice


@dataclass
class Context:
    """A composed configuration in the forms that checks need."""

    config: DictConfig
    """Interpolations resolved."""
    raw: dict[str, Any]
    """The same as composed, interpolations unresolved; shows which settings were changed."""
    dry_run: bool
    """If true, only a plan is made: this machine need not be the one that trains."""
    prepares_data: bool = False
    """If true, only data are prepared: what training needs may be missing."""
    estimator_named: bool = False
    """If true, the command line names verl's estimator for group-relative advantages, `grpo`."""
    files: list[FileReport] = field(default_factory=list)
    """Reports of the data check, for the plan."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about settings that run, but hardly as intended; shown before a run and in the plan."""
    notes: list[str] = field(default_factory=list)
    """Notes on what could not be checked here, for the plan."""
    tried_prompts: dict[str, int] = field(default_factory=dict)
    """Tokens of each role's longest prompt in the start-up trial."""
    frozen_answers: dict[str, FileSource] = field(default_factory=dict)
    """Frozen policies' answers from files, by policy, as the check found them."""

    @cached_property
    def settings(self) -> MarsRLConfig:
        """The `marsrl` node, typed.

        Raises:
            ConfigError: with everything that is wrong with it.
        """
        return typed_settings(self.config)

    @property
    def method(self) -> type[Method]:
        """The class of the method."""
        return method_class(self.settings.algo.name)

    @property
    def on_cpu(self) -> bool:
        """True if the run trains on the processor."""
        return str(self.config.trainer.device) == "cpu"

    @property
    def frozen_roles(self) -> Mapping[str, str]:
        """The roles that are not trained here, with the names of their policies."""
        return self.settings.frozen_roles

    @property
    def trains(self) -> bool:
        """False for a run that only evaluates (`trainer.val_only`)."""
        return not self.config.trainer.val_only

    @property
    def evaluates(self) -> bool:
        """True if training begins with an evaluation, ends with one or has any in between."""
        one = self.settings.evaluation
        return one.before or one.after or one.every > 0

    def get(self, key: str) -> Any:
        """The value of a dotted key; None where it is missing."""
        return OmegaConf.select(self.config, key, throw_on_missing=False)

    def path(self, key: str) -> Path:
        """The path that a key names."""
        return Path(str(self.get(key))).expanduser()

    def issue(self, key: str, what: str, fix: str) -> ConfigIssue:
        """A problem with the value of a key."""
        return ConfigIssue(key, what, fix, self.get(key))

    @property
    def first_role(self) -> str:
        """The role of the first stage, which is prompted with the problems as the data has them."""
        return self.method.stages(self.settings.algo)[0].role

    @property
    def traits(self) -> Traits:
        """Facts about the method that trainer and checks must know."""
        return self.method.traits(self.settings.algo)

    def prompts(self) -> Prompts:
        """The object of `marsrl.prompts`; a check has constructed it before."""
        spec, base = self.settings.prompts, interface(self.method.Prompts)
        prompts: Prompts = load_class(spec.target, spec.kwargs, base)
        return prompts

    def usable_prompts(self) -> Prompts | None:
        """The same; None where there are none, which a check reports."""
        with suppress(ClassLoadError, ConfigError):
            return self.prompts()
        return None

    def model_folder(self) -> Path | None:
        """The local folder of the model, also of a downloaded hub model; None when it is not here."""
        return hf_folder.local_folder(str(self.get("actor_rollout_ref.model.path") or ""))

    def tokenizer(self) -> LightTokenizer | None:
        """The model's tokenizer; None where it is not here."""
        return open_tokenizer(self.model_folder(), dict(self.config.data.apply_chat_template_kwargs or {}))

    def read_model_config(self) -> dict[str, Any] | None:
        """The model's `config.json` with the configured overrides; None where it is not here.

        Raises:
            ValueError: it can't be read.
        """
        folder = self.model_folder()
        if folder is None or not (folder / "config.json").is_file():
            return None
        overrides = self.get("actor_rollout_ref.model.override_config") or {}
        return {**hf_folder.read_config(folder), **overrides}

    def model_config(self) -> dict[str, Any] | None:
        """The same; None, too, where it can't be read, which a check reports."""
        with suppress(ValueError):
            return self.read_model_config()
        return None


def typed_settings(config: DictConfig) -> MarsRLConfig:
    """The `marsrl` node of a resolved configuration, typed.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    node: Any = OmegaConf.to_container(config.marsrl, resolve=True)
    return read_settings(node)


def check_choice(key: str, value: Any, known: Iterable[str]) -> list[ConfigIssue]:
    """An issue when a key of verl's has none of the known values."""
    options = tuple(known)
    return [] if value in options else [no_such_choice(key, value, options)]
