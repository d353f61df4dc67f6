"""`marsrl.evaluation.benchmarks`: their problems as the run's held-out files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from marsrl_verl.data.benchmarks import BENCHMARKS, read_benchmark
from marsrl_verl.data.rows import DataError
from marsrl_verl.data.written import write_parquet
from marsrl_verl.machine.cache import cache_folder
from marsrl_verl.settings.issues import ConfigError, ConfigIssue, did_you_mean

_NODE, _FILES = "marsrl.evaluation.benchmarks", "data.val_files"


def adopt_benchmarks(config: DictConfig, named: Collection[str]) -> dict[str, int]:
    """Writes the benchmarks' problems as verl's parquet files below the cache, names these as
    `data.val_files`, and returns how many rows of each are evaluated. `named`: the keys that the command line
    sets. ConfigError: one is not known or can't be had, or held-out files are named beside them."""
    node = config.marsrl.evaluation.get("benchmarks")
    if not node:
        return {}
    if _FILES in named:
        what = "Held-out problems are named twice, by files and as benchmarks."
        raise ConfigError([ConfigIssue(_FILES, what, f"Leave one of {_FILES} and {_NODE} out.")])
    only = list(config.marsrl.evaluation.get("only") or node)
    if unknown := list(_unknown([*node, *only])):
        raise ConfigError(unknown)
    with open_dict(node):
        for name in [name for name in node if name not in only]:
            del node[name]
    files, rows, missing, hub_answers = [], dict[str, int](), list[ConfigIssue](), True
    for name in (name for name in BENCHMARKS if name in node):
        one = node[name]
        of_hub = one.get("file") is None and BENCHMARKS[name].hub is not None
        if of_hub and not hub_answers:
            what, fix = "It is on the hub, too.", f"Name a copy of your own: {_NODE}.{name}.file=FILE."
            missing.append(ConfigIssue(f"{_NODE}.{name}", what, fix))
            continue
        try:
            found = read_benchmark(name, one.get("file"), one.get("problems"))
        except DataError as error:
            missing.append(ConfigIssue(f"{_NODE}.{name}", error.what, error.fix))
            # Each time it tries for half a minute.
            hub_answers = hub_answers and not isinstance(error.__cause__, OSError)
            continue
        path = cache_folder() / "benchmarks" / f"{name}-{found.fingerprint}.parquet"
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            write_parquet(path, found.problems, "val", fields=found.fields)
        files.append(str(path))
        rows[name] = found.rows if one.get("problems") is None else len(found.problems)
        with open_dict(node):
            node[name].problems = len(found.problems)
    if missing:
        raise ConfigError(missing)
    OmegaConf.update(config, _FILES, files)
    return rows


def _unknown(names: Iterable[Any]) -> Iterator[ConfigIssue]:
    for name in dict.fromkeys(str(name) for name in names if name not in BENCHMARKS):
        near = did_you_mean(name, list(BENCHMARKS))
        guess = f"Did you mean {near[0]}? " if near else ""
        yield ConfigIssue(
            f"{_NODE}.{name}", "There is no such benchmark.", f"{guess}{', '.join(BENCHMARKS)}."
        )
