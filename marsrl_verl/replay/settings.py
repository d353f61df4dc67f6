"""The recorded configuration of a run, with rewards in place of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config import hf_folder
from marsrl_verl.config.command_line import Arguments, check_overrides, parse_arguments
from marsrl_verl.config.compose import available_groups
from marsrl_verl.config.light_tokenizer import open_tokenizer
from marsrl_verl.config.locations import config_folder
from marsrl_verl.config.node import chosen_method
from marsrl_verl.config.renamed import rename_settings
from marsrl_verl.reporting.run_folder import RunFolder
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.settings.issues import ConfigError, ConfigIssue

_GROUP = "reward"
_KEYS = (
    "marsrl.reward.",
    "marsrl.algo.",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
)
"""Settings that grades depend on, and the place of the tokenizer on this machine."""


def recorded_config(run: Path, words: list[str]) -> DictConfig:
    """The configuration of a run's folder, changed as words of the command line say.

    Args:
        run: the folder.
        words: `reward=OPTION` and settings of rewards and of the method.

    Raises:
        OutputFolderError: it is no run's folder.
        ConfigError: it has no configuration, or a word can't be meant.
    """
    path = RunFolder.attach(run).config_path
    if not path.is_file():
        raise ConfigError([ConfigIssue(str(path), "There is no such file.", "Name a run that has begun.")])
    config: Any = OmegaConf.load(path)
    rename_settings(config, ())
    arguments = parse_arguments(words)
    for text in check_overrides(arguments, available_groups(arguments)).overrides:
        override = OverridesParser.create().parse_override(text)
        key, value = override.key_or_group, override.value()
        if key.startswith("marsrl.reward.default"):
            fix = "Name the role: marsrl.reward.<role>.…"
            raise ConfigError([ConfigIssue(key, "A recorded run has a reward for each role.", fix, value)])
        if key == _GROUP:
            _choose_reward(config, _option(str(value), arguments), str(value))
        elif not key.startswith(_KEYS) or override.is_delete():
            fix = f"Settings here: {_GROUP}=OPTION, {'…, '.join(_KEYS)}."
            raise ConfigError([ConfigIssue(key, "No grade of recorded rollouts depends on it.", fix, value)])
        else:
            OmegaConf.update(config, key, value, merge=False, force_add=True)
    return config


def tokenizer_of(config: DictConfig) -> ChatTokenizer | None:
    """The run's tokenizer; None where it is not on this machine."""
    model = config.actor_rollout_ref.model
    folder = hf_folder.local_folder(str(model.get("tokenizer_path") or model.path))
    arguments = dict(config.data.get("apply_chat_template_kwargs") or {})
    found = open_tokenizer(folder, arguments)
    return None if found is None else ChatTokenizer(found, {}, hf_folder.end_ids(folder))


def _option(name: str, arguments: Arguments) -> Any:
    """`marsrl.reward` of an option's file; `check_overrides` knows that there is one."""
    own = [arguments.config_dir] if arguments.config_dir is not None else []
    files = [folder / _GROUP / f"{name}.yaml" for folder in [*own, *arguments.search_path, config_folder()]]
    return OmegaConf.load(next(path for path in files if path.is_file())).marsrl.reward


def _choose_reward(config: DictConfig, option: Any, name: str) -> None:
    """Gives the roles the rewards of an option: `default` to those that have none of their method's."""
    method = chosen_method(config.marsrl.algo)
    given = {
        role: option.default for role, one in method.roles.items() if not one.reward and "default" in option
    }
    given |= {role: option[role] for role in method.roles if role in option}
    if not given:
        role = next(iter(method.roles))
        fix = f"Name a class: marsrl.reward.{role}.target=package.module:Class."
        what = "All roles have rewards of their method's own, and the option names none of them."
        raise ConfigError([ConfigIssue(_GROUP, what, fix, name)])
    for role, spec in given.items():
        config.marsrl.reward[role].target = spec.target
        config.marsrl.reward[role].kwargs = spec.get("kwargs") or {}
