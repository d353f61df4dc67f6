"""The command line: a few options and any number of Hydra overrides, checked before composing."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from marsrl_verl.config.reference import (
    ABSENT,
    all_keys,
    default_of,
    find_unknown,
    is_free_entry,
    reference_tree,
)
from marsrl_verl.config.tables import read_table
from marsrl_verl.data.sources import SOURCES
from marsrl_verl.reporting.manifest import newest_complete, step_folder
from marsrl_verl.reporting.run_folder import CHECKPOINT_FOLDER, MARKER
from marsrl_verl.settings.issues import ConfigError, ConfigIssue, did_you_mean
from marsrl_verl.settings.reading import unknown_key

_SEARCH_PATH, CHECKPOINT, _BENCHMARKS = "hydra.searchpath", "checkpoint", "benchmarks"
METHOD_NODES = ("marsrl.algo.", "marsrl.evaluation.", "marsrl.roles.", "marsrl.reward.", "marsrl.policies.")
"""Keys of the method that is chosen, which is known once the configuration is composed."""
TRAIN = "python -m recipe.marsrl.main_marsrl"
EVALUATE = "python -m recipe.marsrl.main_eval"
SERVE = "python -m recipe.marsrl.serve"
_DESCRIPTIONS = {
    TRAIN: "Train a language model that reasons in several roles. Without arguments: the tiny task.",
    EVALUATE: "Evaluate a model, alone or in a method's system of several roles; nothing is trained. "
    "checkpoint=… names a run's folder (its newest checkpoint) or a global_step_N, benchmarks=a,b what is "
    "evaluated.",
    SERVE: "Answer OpenAI's chat completions with a method's system of several roles, or with a model alone. "
    "checkpoint=… as in an evaluation; marsrl.serve.… says where, for whom and for how many.",
}

_OTHER_NAMES = {name: key for key, names in read_table("other_names").items() for name in names}
"""Names of settings in other trainers, and the keys here; where they stand alone."""
_RENAMED: dict[str, str] = read_table("renamed")["settings"]
_SEVERAL = "Several runs: one command each, with a name=… of its own (docs/guides/runs.md, Several runs)."


@dataclass(frozen=True, slots=True)
class Arguments:
    """A parsed command line."""

    overrides: tuple[str, ...] = ()
    config_name: str = "marsrl"
    config_dir: Path | None = None
    search_path: tuple[Path, ...] = ()
    """Further folders with groups (`hydra.searchpath=[pkg://package.configs,…]`)."""
    show_config: bool = False
    """Print the composed configuration and stop (`--cfg job`)."""
    show_help: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fix = "Settings are written key=value without dashes; --help lists options and groups."
        if re.search(r"(^| )(-m|--multirun)( |$)", message):
            fix = _SEVERAL
        raise ConfigError([ConfigIssue("command line", f"{message[:1].upper()}{message[1:]}.", fix)])


def build_parser(program: str = TRAIN) -> argparse.ArgumentParser:
    """The parser of the options; everything else on the line is an override."""
    text = _DESCRIPTIONS[program]
    parser = _Parser(prog=program, description=text, add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add("overrides", nargs="*", help="key=value, group=option, +key=value, ~key (Hydra's syntax)")
    add("--config-dir", "-cd", type=Path, help="a folder with root configurations or groups of yours")
    add("--config-name", "-cn", default="marsrl", help="the root configuration (default: marsrl)")
    add("--cfg", "-c", choices=["job"], help="print the composed configuration and stop")
    add("--help", "-h", action="store_true", help="show this text")
    return parser


def parse_arguments(argv: list[str]) -> Arguments:
    """Options and overrides of a command line; ConfigError: an unknown option, or no such folder."""
    found = build_parser().parse_intermixed_args(argv)
    if found.config_dir is not None and not found.config_dir.is_dir():
        fix = "Name an existing folder with YAML files, or leave the option out."
        raise ConfigError([ConfigIssue("--config-dir", "There is no such folder.", fix, found.config_dir)])
    searched = [word for word in found.overrides if word.startswith(f"{_SEARCH_PATH}=")]
    return Arguments(
        overrides=tuple(word for word in found.overrides if word not in searched),
        config_name=found.config_name.removesuffix(".yaml"),
        config_dir=found.config_dir.resolve() if found.config_dir is not None else None,
        search_path=tuple(folder for word in searched for folder in _searched_folders(word)),
        show_config=found.cfg is not None,
        show_help=found.help,
    )


def _searched_folders(word: str) -> list[Path]:
    """The folders that a `hydra.searchpath=[…]` names; ConfigError: one is not there, or it can't be read."""
    example = f"Write '{_SEARCH_PATH}=[pkg://package.configs]', or file:// and a folder."
    try:
        value = OverridesParser.create().parse_override(word).value()
    except HydraException as error:
        raise ConfigError([ConfigIssue(word, "This is not readable as key=value.", example)]) from error
    folders = []
    for place in value if isinstance(value, list) else [value]:
        package, path = str(place).startswith("pkg://"), str(place).removeprefix("file://")
        folder = _package_folder(path) if package else Path(path).expanduser()
        if folder is None or not folder.is_dir():
            what = "There is no such package or folder."
            raise ConfigError([ConfigIssue(_SEARCH_PATH, what, example, place)])
        folders.append(folder.resolve())
    return folders


def _package_folder(place: str) -> Path | None:
    """The folder of `pkg://package.sub`; the package itself is imported if there is a part below it."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a package of the user's may lie where the command is given
    package, _, rest = place.removeprefix("pkg://").replace("/", ".").partition(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)), *filter(None, rest.split(".")))


def check_overrides(arguments: Arguments, groups: dict[str, list[str]]) -> Arguments:
    """The arguments with free-form entries (keyword arguments, role weights) marked as additions, so that
    nobody has to know Hydra's `+`; ConfigError with one problem for each override that cannot be meant."""
    problems: list[ConfigIssue] = []
    accepted: list[str] = []
    if (words := arguments.overrides).count("="):
        around = words[max(0, words.index("=") - 1) : words.index("=") + 2]
        fix = f"Write {''.join(around)}."
        raise ConfigError([ConfigIssue(" ".join(around), "There are spaces around '='.", fix)])
    for text in arguments.overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            fix = "Write key=value without spaces around '='; quote lists for the shell: 'key=[a,b]'."
            problems.append(ConfigIssue(text, "This is not readable as key=value.", fix))
            continue
        if problem := _check_override(override, groups):
            problems.append(problem)
        accepted.append(f"++{text}" if _is_free_entry(override) else text)
    if problems:
        raise ConfigError(problems)
    return replace(arguments, overrides=tuple(accepted))


def _check_override(override: Override, groups: dict[str, list[str]]) -> ConfigIssue | None:
    key = override.key_or_group
    if override.is_sweep_override():
        what = "Several values for one key: one command is one run."
        fix = f"Give one value, or a list as '{key}=[a,b]'. {_SEVERAL}"
        return ConfigIssue(key, what, fix, override.get_value_string())
    if key == "hydra" or key.startswith("hydra."):
        what = "Hydra's own settings have no effect: the launcher composes the configuration itself."
        fix = (
            "The output folder is marsrl.run.output_dir; folders with groups of yours come with "
            f"--config-dir or {_SEARCH_PATH}=[pkg://…]."
        )
        return ConfigIssue(key, what, fix)
    if key in groups or "/" in key or "@" in key:
        return _check_group(key, None if override.is_delete() else override.value(), groups)
    return _check_key(key, groups) or (_check_removal(key) if override.is_delete() else None)


def _check_removal(key: str) -> ConfigIssue | None:
    """Only entries of free dictionaries can be removed: verl and the checks read all other keys."""
    default = default_of(key)
    if default is ABSENT:
        return None
    shown = f" (verl's default: {'null' if default is None else default})"
    fix = f"Leave '~{key}' out, or set {key} to a value{'' if isinstance(default, dict) else shown}."
    return ConfigIssue(f"~{key}", "The key is read by the run, so it can't be removed.", fix)


def _check_group(key: str, value: object, groups: dict[str, list[str]]) -> ConfigIssue | None:
    options = groups.get(key)
    if options is None or isinstance(value, list) or value in options:
        return None
    if not isinstance(value, str):
        what = f"The group {key!r} needs an option, and none is named."
        return ConfigIssue(key, what, f"Leave it out, or choose one of: {', '.join(options)}.", value)
    near = did_you_mean(value, options)
    guess = f"Did you mean {key}={near[0]}? " if near else ""
    if key == "data" and (name := value.replace("-", "_").lower()) in SOURCES:
        guess = (
            f"It is a published file: python -m recipe.marsrl.prepare_data --source {name} --input FILE "
            f"--output data/{name}, then data=parquet data.train_files=data/{name}/train.parquet. "
        )
    what = f"The group {key!r} has no such option."
    return ConfigIssue(key, what, f"{guess}Options: {', '.join(options)}.", value)


def _check_key(key: str, groups: dict[str, list[str]]) -> ConfigIssue | None:
    unknown = None if key.startswith(METHOD_NODES) else find_unknown(key)
    if unknown is None:
        return None
    own = f"marsrl.{key}"
    if find_unknown(own) is None or (own.startswith(METHOD_NODES) and key.partition(".")[0] in groups):
        return ConfigIssue(key, "There is no such key.", f"Did you mean {own}?")
    return unknown_key_issue(unknown.key, unknown.siblings, tuple(groups))


def unknown_key_issue(key: str, siblings: tuple[str, ...], groups: tuple[str, ...] = ()) -> ConfigIssue:
    """The message for a key that does not exist, with the nearest one that does."""
    parent, _, name = key.rpartition(".")
    if key in _OTHER_NAMES:
        return ConfigIssue(key, "There is no such key.", f"Did you mean {_OTHER_NAMES[key]}?")
    if key in _RENAMED:
        return ConfigIssue(key, "There is no such key.", f"It is named {_RENAMED[key]} now.")
    issue = unknown_key(key, siblings if parent else (*siblings, *groups), _same_name_elsewhere(name))
    if parent or issue.fix.startswith("Did you mean"):
        return issue
    return replace(issue, fix=f"Groups: {', '.join(groups)}; other keys: --cfg job prints them all.")


def _same_name_elsewhere(name: str) -> str | None:
    """A key of the same last name in another node, our own node first."""
    trained = (key for key in all_keys() if not key.startswith("critic."))
    keys = sorted(trained, key=lambda key: (not key.startswith("marsrl."), len(key)))
    return next((key for key in keys if key.rpartition(".")[2] == name), None)


def _is_free_entry(override: Override) -> bool:
    """True if a plain `key=value` names new entries of a free dictionary, one or several in braces, or a
    setting of the method, which its class knows."""
    if override.is_add() or override.is_force_add() or override.is_delete():
        return False
    key = override.key_or_group
    entry = f"{key}.entry" if isinstance(override.value(), dict) else key
    return key.startswith(METHOD_NODES) or is_free_entry(entry)


def evaluating(arguments: Arguments) -> Arguments:
    """The arguments of an evaluation alone; `checkpoint=…` and `benchmarks=…` in keys of verl and of ours.
    ConfigError: there is no such checkpoint."""
    words: list[str] = []
    for word in arguments.overrides:
        key, _, value = word.partition("=")
        if key == _BENCHMARKS:
            names = [name.strip() for name in value.strip("[]").split(",")]
            words += [f"++marsrl.evaluation.{_BENCHMARKS}.{name}={{}}" for name in names]
            words.append(f"marsrl.evaluation.only=[{','.join(names)}]")
        else:
            words.append(word)
    return _without_training(words, arguments)


def serving(arguments: Arguments) -> Arguments:
    """The arguments of a server; `checkpoint=…` as in an evaluation."""
    return _without_training([*arguments.overrides, "marsrl.serve.enabled=true"], arguments)


def _without_training(words: list[str], arguments: Arguments) -> Arguments:
    found: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key == CHECKPOINT:
            found += ["trainer.resume_mode=resume_path"]
            found += [f"trainer.resume_from_path={checkpoint_folder(value)}"]
        else:
            found.append(word)
    return replace(arguments, overrides=(*found, "trainer.val_only=true"))


def checkpoint_folder(named: str) -> Path:
    """The `global_step_N` that a path names: itself, or a run's newest. ConfigError: it is neither, or the
    run has none."""
    folder, fix = Path(named).expanduser(), f"Name a run's folder, or RUN/{CHECKPOINT_FOLDER}/global_step_N."
    if not folder.is_dir():
        raise ConfigError([ConfigIssue(CHECKPOINT, "There is no such folder.", fix, named)])
    if not (folder / MARKER).is_file():
        if re.fullmatch(r"global_step_\d+", folder.name):
            return folder.absolute()
        what = f"It has no {MARKER}, so it is no run's folder, and it is no global_step_N."
        if runs := sorted(str(path.parent) for path in folder.glob(f"*/{MARKER}"))[:4]:
            fix += f" Runs in it: {', '.join(runs)}."
        raise ConfigError([ConfigIssue(CHECKPOINT, what, fix, named)])
    root = folder / CHECKPOINT_FOLDER
    if (step := newest_complete(root)) is None:
        what = "The run has no complete checkpoint."
        fix = "Name another run; a model as it begins needs no checkpoint."
        raise ConfigError([ConfigIssue(CHECKPOINT, what, fix, named)])
    return step_folder(root, step).absolute()


def help_text(groups: dict[str, list[str]], program: str = TRAIN) -> str:
    """Returns the text of `--help`."""
    lines = [build_parser(program).format_help().rstrip(), "", "groups (group=option):"]
    shown = {group: options for group, options in groups.items() if group != "model_engine"}
    width = max(map(len, shown))
    lines += [f"  {group:<{width}}  {', '.join(options)}" for group, options in shown.items()]
    own = ", ".join(f"marsrl.{name}" for name in reference_tree()["marsrl"])
    lines += [
        "",
        f"keys of the plugin: name, dry_run, {own}",
        "keys of verl: as in verl's ppo_trainer, e.g. trainer.total_training_steps=100",
        "",
        "dry_run=true checks everything and prints the plan without starting Ray.",
    ]
    return "\n".join(lines)
