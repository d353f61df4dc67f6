"""Composition of a command line into one resolved configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marsrl_verl.algos.registry import KEY as METHOD_KEY
from marsrl_verl.config import resolvers
from marsrl_verl.config.benchmark_files import adopt_benchmarks
from marsrl_verl.config.command_line import METHOD_NODES, Arguments, check_overrides, unknown_key_issue
from marsrl_verl.config.locations import config_folder, group_options, verl_folder
from marsrl_verl.config.node import (
    BY_ROLE,
    chosen_method,
    converted_node,
    dropped_settings,
    foreign_settings,
    node_issues,
    other_methods_setting,
    unknown_role,
    with_defaults,
)
from marsrl_verl.config.own_files import without_effect
from marsrl_verl.config.published_figures import PaperConditions, without_other_figures
from marsrl_verl.config.ray_cluster import cluster_in_sight
from marsrl_verl.config.reference import all_keys, find_unknown, kind_problems, unknown_keys
from marsrl_verl.config.renamed import rename_overrides, rename_settings
from marsrl_verl.config.reward_function import adopt_reward_function
from marsrl_verl.config.schema import MarsRLConfig, RootSettings
from marsrl_verl.config.studies import missing_studies
from marsrl_verl.config.verl_keys import translate
from marsrl_verl.machine import gpus
from marsrl_verl.reporting.record import setting_of
from marsrl_verl.settings.issues import ConfigError, ConfigIssue, did_you_mean
from marsrl_verl.settings.reading import converted, defaults, find_issues, read, without_interpolations

ROOT = "marsrl"
"""The root configuration that is composed unless another is named."""
AUTO = "auto"
"""The option of group `cluster` that stands for "look at the machine"."""
_EVALUATION = "marsrl.evaluation."
NODE_GPUS = 8
"""GPUs of a node of the cluster presets."""
_HELP = "Correct the setting; --help lists the groups."
_OWN_GROUPS = (
    "algo", "reward", "model", "data", "cluster", "pipeline", "policies", "evaluation", "training",
    "suite",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Composed:
    """A composed configuration."""

    config: DictConfig
    """Interpolations resolved."""
    raw: dict[str, Any]
    """Interpolations as written."""
    choices: dict[str, str]
    """The option chosen in each of our groups."""
    cluster_detected: bool
    """If true, no cluster was named, and one was picked from the machine."""
    notes: tuple[str, ...] = ()
    """Settings that verl's keys on the command line make here, and former names of settings, a line each."""
    estimator_named: bool = False
    """If true, the command line names verl's estimator for group-relative advantages, `grpo`."""
    warnings: tuple[str, ...] = ()
    """Settings without effect in files of the user's, a line each."""


def detect_cluster() -> str:
    """The option of group `cluster` for this machine: `8xgpu`, `1xgpu`, or `cpu` where no GPU answers."""
    found = gpus.count_gpus()
    return "8xgpu" if found >= NODE_GPUS else "1xgpu" if found else "cpu"


def picked(option: str) -> str:
    """Describes the picked cluster, and what of the machine it leaves idle."""
    there = gpus.count_gpus()
    used = {"1xgpu": 1, "8xgpu": NODE_GPUS}.get(option, 0)
    note = "picked from the machine; name one to choose"
    if there > used:
        note += f"; {used} of {there} GPUs: cluster=8xgpu trainer.n_gpus_per_node={there} takes all"
    elif not there and gpus.gpu_devices():
        note += "; there is a GPU, but nvidia-smi does not answer: see python -m recipe.marsrl.doctor"
    return f"cluster={option} ({note})"


def available_groups(arguments: Arguments) -> dict[str, list[str]]:
    """Groups and options, ours and those of `--config-dir` and `hydra.searchpath`."""
    return group_options(_all_folders(arguments))


def _all_folders(arguments: Arguments) -> list[Path]:
    named = [arguments.config_dir] if arguments.config_dir is not None else []
    return [config_folder(), *arguments.search_path, *named]


def compose_config(arguments: Arguments) -> Composed:
    """Composes, checks keys and types, resolves; ConfigError: anything that Hydra or OmegaConf refuses, and
    unknown keys anywhere."""
    words, notes = rename_overrides(arguments.overrides)
    arguments = check_overrides(replace(arguments, overrides=words), available_groups(arguments))
    resolvers.register()
    translated = translate(arguments.overrides, lambda: _roles(arguments), lambda: first_role(arguments))
    # Not every preset names all of the method's settings.
    words = tuple(f"++{word}" if word.startswith(METHOD_NODES) else word for word in translated.overrides)
    arguments = replace(arguments, overrides=words)
    # The last word counts, as in Hydra.
    clusters = [text for text in arguments.overrides if text.startswith("cluster=")]
    automatic = clusters[-1:] == [f"cluster={AUTO}"]
    named = bool(clusters) and not automatic
    overrides = [text for text in arguments.overrides if text not in clusters]
    overrides += clusters[-1:] if named else []
    # Our own root configuration names no cluster; one of the user's may, and has to be composed first.
    ours = arguments.config_name == ROOT and arguments.config_dir is None
    detected = not named and (ours or automatic)
    try:
        if detected:
            overrides.append(f"cluster={detect_cluster()}")
        raw, choices, renamed = _compose(arguments, overrides)
        if choices.get("cluster") == AUTO:
            detected = True
            raw, choices, renamed = _compose(arguments, [*overrides, f"cluster={detect_cluster()}"])
        # Before resolving: our functions in interpolations compute with these values.
        issues, warnings = _own_files(arguments, raw, choices)
        tree = _checked_tree(raw, overrides, issues)
        if problems := missing_studies(tree, choices):
            raise ConfigError(problems)
        config = resolve(OmegaConf.create(tree))
        function_notes = adopt_reward_function(config)
        named_keys = set(map(setting_of, overrides))
        rows = adopt_benchmarks(config, named_keys)
        conditions = PaperConditions.of_suite(_all_folders(arguments), choices.get("suite", "none"))
        warnings += without_other_figures(config, conditions, rows, named_keys)
        if problems := _missing(config):
            raise ConfigError(problems)
        if detected and cluster_in_sight(config):
            raise ConfigError([_nobody_looked(choices["cluster"])])
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError([_explained(error)]) from error
    return Composed(
        config=config,
        raw=tree,
        choices={group: choices[group] for group in _OWN_GROUPS if group in choices},
        cluster_detected=detected,
        notes=(*notes, *renamed, *translated.notes, *function_notes),
        estimator_named=translated.estimator_named,
        warnings=tuple(warnings),
    )


def _own_files(
    arguments: Arguments, raw: DictConfig, choices: Mapping[str, str]
) -> tuple[list[ConfigIssue], list[str]]:
    """Errors and warnings about settings in the user's files that the method does not have."""
    tree: Any = OmegaConf.to_container(raw, resolve=False)
    node = tree["marsrl"]
    folders = [folder for folder in _all_folders(arguments) if folder != config_folder()]
    if not folders or not isinstance(node, dict):
        return [], []  # what is no node is rejected with the other keys
    names = [arguments.config_name, *(f"{group}/{option}" for group, option in choices.items())]
    return without_effect(folders, names, node)


def _roles(arguments: Arguments) -> tuple[str, ...]:
    """The roles of the method that a command line chooses."""
    return tuple(chosen_method(_algo(arguments, "marsrl.algo.name")).roles)


def first_role(arguments: Arguments) -> str:
    """The role that the method which a command line chooses asks the problems; ConfigError: a setting of the
    method is wrong."""
    node = _algo(arguments, "marsrl.algo.")
    method = chosen_method(node)
    config = read(method.Config, without_interpolations(node), "marsrl.algo")
    return method.stages(config)[0].role


def _algo(arguments: Arguments, keys: str) -> Any:
    """The `marsrl.algo` node that options of groups, and settings whose keys begin so, give."""
    groups = available_groups(arguments)
    named = ((text, setting_of(text)) for text in arguments.overrides)
    words = [
        f"++{text}" if text.startswith(METHOD_NODES) else text
        for text, key in named
        if key in groups or key.startswith(keys)
    ]
    raw, _, _ = _compose(arguments, words)
    return OmegaConf.to_container(raw.marsrl.algo, resolve=False)


def _nobody_looked(option: str) -> ConfigIssue:
    """This machine tells nothing about the GPUs of a Ray cluster."""
    what = (
        f"It looks at this machine alone, where it found {option}, but there is a Ray cluster to join (its "
        "address was given, or `ray start` was called here)."
    )
    fix = (
        "Name what the run takes of the cluster: cluster=1xgpu, 8xgpu, 4x8xgpu or cpu. To leave the cluster "
        "alone: ray_kwargs.ray_init.address=local."
    )
    return ConfigIssue("cluster", what, fix, AUTO)


def _compose(arguments: Arguments, overrides: list[str]) -> tuple[DictConfig, dict[str, str], list[str]]:
    """The configuration, the option of each group, and notes about former names of settings."""
    ConfigStore.instance().store(name="marsrl_schema", node=defaults(MarsRLConfig), package="marsrl")
    # Hydra looks for the root configuration in the first folder only, for groups in all of them.
    first, *others = _folders(arguments)
    named = {setting_of(text) for text in overrides}
    if METHOD_KEY in named and "algo" not in named and first == config_folder():
        # A class by its name has its own defaults, not those of the preset that is usual.
        overrides = [*overrides, "~algo"]
    # verl's root configuration is then `config/ppo_trainer`.
    search_path = [f"file://{folder}" for folder in (verl_folder() / "trainer", *others)]
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(first), version_base="1.3"):
        config = compose(
            arguments.config_name,
            overrides=[*overrides, f"hydra.searchpath=[{','.join(search_path)}]"],
            return_hydra_config=True,
        )
    chosen = config.hydra.runtime.choices
    choices = {group: str(option) for group, option in chosen.items() if "@" not in group}
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    if isinstance(OmegaConf.select(config, "trainer.logger"), str):
        # verl takes one name as well as a list of them.
        config.trainer.logger = [config.trainer.logger]
    return config, choices, rename_settings(config, overrides)


def _folders(arguments: Arguments) -> list[Path]:
    """The folders of root configurations and groups, that of the chosen root configuration first."""
    folders = _all_folders(arguments)
    having = [folder for folder in folders if (folder / f"{arguments.config_name}.yaml").is_file()]
    if not having:
        known = sorted(path.stem for folder in folders for path in folder.glob("*.yaml"))
        fix = f"Use one of: {', '.join(known)}; --config-dir names the folder of your own."
        what = "There is no such root configuration."
        raise ConfigError([ConfigIssue("--config-name", what, fix, arguments.config_name)])
    return [having[-1], *(folder for folder in folders if folder != having[-1])]


def _checked_tree(raw: DictConfig, words: Iterable[str], issues: Iterable[ConfigIssue]) -> dict[str, Any]:
    """The composed tree as plain dictionaries, interpolations as written, the method's defaults filled in;
    ConfigError with keys that do not exist, whichever file or override (`words`) brought them, values of the
    wrong kind, and these other issues."""
    tree: Any = OmegaConf.to_container(raw, resolve=False)
    node = tree["marsrl"]
    if not isinstance(node, dict):
        what = "The plugin's own settings lie below this key."
        raise ConfigError([ConfigIssue("marsrl", what, "Leave it out and set keys below it.", node)])
    foreign = _named_foreign(node, words)
    tree["marsrl"] = node = with_defaults(node)
    others = {name: value for name, value in tree.items() if name != "marsrl"}
    own = {name: tree[name] for name in RootSettings.model_fields}
    if found := [
        *issues,
        *(_unknown(item.key, item.siblings) for item in unknown_keys(others)),
        *_named_roles(node, words),
        *foreign,
        *node_issues(node, kinds_only=True, unknown=_unknown),
        *find_issues(RootSettings, own, ""),
        *kind_problems(others),
    ]:
        raise ConfigError(found)
    return {**tree, **converted(RootSettings, own), "marsrl": converted_node(node)}


def _named_roles(node: dict[str, Any], words: Iterable[str]) -> list[ConfigIssue]:
    """Roles that the command line names, and the method does not have."""
    roles = tuple(chosen_method(node["algo"]).roles)
    named = [setting_of(word).split(".")[:3] for word in words]
    return [
        unknown_role(".".join(parts), parts[2], roles)
        for parts in named
        if parts[0] == "marsrl" and len(parts) == 3 and parts[1] in BY_ROLE
        if parts[2] not in roles and parts[2] not in node[parts[1]]
    ]


def _named_foreign(node: dict[str, Any], words: Iterable[str]) -> list[ConfigIssue]:
    """Settings of other methods that the command line names, or, of their evaluation, that an option of
    `evaluation` named there turns on. 0 and null say "nothing of it", which holds for a method that has
    nothing of it."""
    named = {setting_of(word) for word in words}
    defaults = foreign_settings(chosen_method(node["algo"]))
    return [
        other_methods_setting(key, node, value)
        for key, value in dropped_settings(node).items()
        if key in named
        or (key.startswith(_EVALUATION) and "evaluation" in named and value and value != defaults[key])
    ]


def _unknown(key: str, siblings: tuple[str, ...]) -> ConfigIssue:
    return unknown_key_issue(key, siblings, _OWN_GROUPS)


def _missing(config: DictConfig) -> list[ConfigIssue]:
    """Keys of ours that have no default and that nobody gave a value."""
    what = "Nothing names a value for it."
    group = "Choose a group: reward=exact or reward=math_verify, or name a class of yours."
    names = sorted(name.removeprefix("marsrl.") for name in OmegaConf.missing_keys(config.marsrl))
    return [
        ConfigIssue(f"marsrl.{name}", what, group if name.startswith("reward") else "Set it.")
        for name in names
        # A tool has parts of which one is used: what it needs of them it says itself.
        if not name.startswith("tools.")
    ]


def resolve(config: DictConfig) -> DictConfig:
    """Replaces every interpolation by its value; the result holds plain dictionaries only."""
    tree: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    resolved: DictConfig = OmegaConf.create(tree)
    OmegaConf.set_struct(resolved, True)
    return resolved


def _explained(error: Exception) -> ConfigIssue:
    """A readable problem for an exception of Hydra or OmegaConf."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    for one in chain:
        if isinstance(one, ConfigError):
            return one.problems[0]
    text = "\n".join(map(str, chain))  # Hydra wraps OmegaConf's message, which names the key
    key = _first_match(
        text,
        r"interpolation '\$\{([\w.]+)\}'",
        r"full_key: ([\w.\[\]]+)",
        r"[Oo]verrid(?:e|ing) '?([\w.]+)",
        r"config '?([\w./]+)",
    )
    if key is not None and (unknown := find_unknown(key)) is not None:
        return _unknown(unknown.key, unknown.siblings)
    if isinstance(error, yaml.YAMLError):
        what = f"A configuration file cannot be read: {error}"
        return ConfigIssue("YAML", what, "Put the YAML right there.")
    if absent := _first_match(text, r"Interpolation key '([^']+)' not found"):
        near = did_you_mean(absent, all_keys())
        what = f"{key or 'A setting'} takes its value from this key, and there is no such key."
        fix = f"Did you mean ${{{near[0]}}}?" if near else "Name an existing key; --cfg job prints them all."
        return ConfigIssue(f"${{{absent}}}", what, fix)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    options = _first_match(text, r"(?s)Available options in '[^']*':\s*(.*?)\n\S")
    fix = f"Options: {', '.join(options.split())}." if options else _HELP
    return ConfigIssue(key or "configuration", first, fix)


def _first_match(text: str, *patterns: str) -> str | None:
    found = (re.search(pattern, text) for pattern in patterns)
    return next((one[1] for one in found if one and one[1]), None)
