"""`marsrl.evaluation.benchmarks`: their problems as the run's held-out files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from marsrl_verl.data.benchmarks import BENCHMARKS, read_benchmark
from marsrl_verl.data.rows import DataError
from marsrl_verl.data.written import write_parquet
from marsrl_verl.machine.cache import cache_folder
from marsrl_verl.settings.issues import ConfigError, ConfigIssue, did_you_mean

_NODE, _FILES, _PUBLISHED = "marsrl.evaluation.benchmarks", "data.val_files", "marsrl.evaluation.published"
_SETTING = re.compile(
    r"evaluation"  # the group
    r"|marsrl\.evaluation\.(problems|samples_per_problem|temperature|top_p|greedy|correction_rounds|"
    r"accept_passes|reject_fails|fallback|solutions_per_plan|both_orders|benchmarks|"
    r"benchmarks\.\w+\.(problems|samples_per_problem))"
    r"|data\.val_max_samples"
    r"|marsrl\.algo\.(call_limit|at_limit)|marsrl\.tools\.\w+\.(max_calls|results)"
    r"|marsrl\.roles\.\w+\.(max_new_tokens|max_prompt_tokens|max_sequence_tokens|top_p|top_k)"
)
"""Settings that a paper's figures depend on beside the model and the prompts."""


def adopt_benchmarks(config: DictConfig, words: Iterable[str]) -> list[str]:
    """Writes the benchmarks' problems as verl's parquet files below the cache, names these as
    `data.val_files`, and returns warnings. `words`: the keys that the command line sets. ConfigError: one is
    not known or can't be had, or held-out files are named beside them."""
    node, named = config.marsrl.evaluation.get("benchmarks"), set(words)
    if not node:
        return []
    if _FILES in named:
        what = "Held-out problems are named twice, by files and as benchmarks."
        raise ConfigError([ConfigIssue(_FILES, what, f"Leave one of {_FILES} and {_NODE} out.")])
    only = list(config.marsrl.evaluation.get("only") or node)
    if unknown := list(_unknown([*node, *only])):
        raise ConfigError(unknown)
    with open_dict(node):
        for name in [name for name in node if name not in only]:
            del node[name]
    files, missing, hub_answers = [], list[ConfigIssue](), True
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
        with open_dict(node):
            node[name].problems = len(found.problems)
    if missing:
        raise ConfigError(missing)
    OmegaConf.update(config, _FILES, files)
    return _without_figures(config, named)


def _unknown(names: Iterable[Any]) -> Iterator[ConfigIssue]:
    for name in dict.fromkeys(str(name) for name in names if name not in BENCHMARKS):
        near = did_you_mean(name, list(BENCHMARKS))
        guess = f"Did you mean {near[0]}? " if near else ""
        yield ConfigIssue(
            f"{_NODE}.{name}", "There is no such benchmark.", f"{guess}{', '.join(BENCHMARKS)}."
        )


def _without_figures(config: DictConfig, named: set[str]) -> list[str]:
    """Takes a paper's figures away where the evaluation is not the paper's."""
    published = config.marsrl.evaluation.get("published")
    changed = sorted(key for key in named if _SETTING.fullmatch(key))
    if not published:
        return []
    if not changed:
        return _without_judged(config)
    with open_dict(config):
        config.marsrl.evaluation.published = {}
    differ = f"{', '.join(changed)} {'differs' if len(changed) == 1 else 'differ'}"
    return [f"The paper's figures are not shown beside those of the run: {differ}."]


def _without_judged(config: DictConfig) -> list[str]:
    """Takes the figures of benchmarks away that a paper's judge graded, where none is named."""
    taken = {
        name
        for spec in (config.marsrl.reward or {}).values()
        for name in ((spec or {}).get("kwargs") or {}).get("judged") or ()
        if spec.kwargs.get("judge") is None
    }
    shown = config.marsrl.evaluation.published
    found = sorted(taken & {name for figures in shown.values() for name in figures})
    if not found:
        return []
    with open_dict(config):
        config.marsrl.evaluation.published = {
            model: {name: value for name, value in figures.items() if name not in taken}
            for model, figures in shown.items()
        }
    told = ", ".join(found)
    return [f"The paper's figures of {told} are not shown: a judge graded them (kwargs.judge names none)."]
