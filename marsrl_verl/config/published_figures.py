"""A paper's figures beside those of a run: only where the evaluation is the paper's.

What a suite's file sets, and the options of other groups that it chooses, are the paper's conditions. They
are compared with the values that count in the end, whoever set them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from marsrl_verl.data.benchmarks import BENCHMARKS

_NODE = "marsrl.evaluation"
_FIGURES = ("published", "published_rows", "benchmarks", "only", "in_between")
_IMPLIED: Mapping[str, Any] = {
    f"{_NODE}.problems": None,
    f"{_NODE}.repetition_penalty": 1.0,
    f"{_NODE}.solutions_per_plan": 1,
    f"{_NODE}.both_orders": False,
    "marsrl.roles.default.top_k": -1,
    "marsrl.roles.default.max_sequence_tokens": None,
    "data.val_max_samples": -1,
}
"""Conditions of every suite that does not set them otherwise."""
_ANY_ROLE, _ANY_REWARD = "marsrl.roles.default.", "marsrl.reward.default."
_ANSWERS = "marsrl.reward.solver."
"""Rewards of roles that a method grades itself are its own."""


@dataclass(frozen=True, slots=True)
class PaperConditions:
    """A suite's settings. Null is left to the user."""

    settings: Mapping[str, Any]
    """By dotted keys."""
    benchmarks: Mapping[str, Mapping[str, Any]]
    """By benchmark, its own number of problems and of answers."""

    @classmethod
    def of_suite(cls, folders: Sequence[Path], suite: str) -> PaperConditions:
        """Those of an option of group `suite`, by the folders of groups. An option that takes another's
        figures over (`defaults: [NAME, _self_]`) has the other's conditions."""
        tree = _option(folders, "suite", suite)
        own, defaults = tree.get("marsrl") or {}, tree.get("defaults", ())
        evaluation = own.get("evaluation") or {}
        others = [one for one in defaults if isinstance(one, str) and one != "_self_"]
        parent = cls.of_suite(folders, others[-1]) if others else None
        if parent is not None and "published" not in evaluation:
            return parent
        settings = dict(_IMPLIED)
        for key, option in (pair for one in defaults if isinstance(one, dict) for pair in one.items()):
            chosen = _option(folders, key.removeprefix("override").strip(" /"), option)
            settings |= _leaves(chosen.get("marsrl") or {})
        settings |= _leaves(own)
        benchmarks = evaluation.get("benchmarks") or {}
        if parent is not None:  # whose figures stand there, too
            settings, benchmarks = settings | dict(parent.settings), {**benchmarks, **parent.benchmarks}
        return cls(settings, benchmarks)


def without_other_figures(
    config: DictConfig, conditions: PaperConditions, rows: Mapping[str, int], named: Iterable[str]
) -> list[str]:
    """Takes the figures away that are of another evaluation than the run's, and returns what to say of it.

    Args:
        config: resolved, its benchmarks read (`adopt_benchmarks`).
        conditions: of the suite.
        rows: how many of each benchmark are evaluated.
        named: the keys that the command line sets; prompts and rewards are the method's own where it names
            none.
    """
    shown = {model: dict(one) for model, one in (config.marsrl.evaluation.get("published") or {}).items()}
    if not shown:
        return []
    own = {
        key for key in named if key.startswith(("marsrl.prompts", "marsrl.reward.")) and "judge" not in key
    }
    changed = sorted(own | set(_changed(config, conditions.settings)))
    told, taken = [], dict[str, str]()
    if changed:
        taken = dict.fromkeys(BENCHMARKS, "")
        told.append(
            f"The paper's figures are not shown beside those of the run: {', '.join(changed)} "
            f"{'differs' if len(changed) == 1 else 'differ'}."
        )
    else:
        taken = {**_of_a_judge(config), **_of_other_problems(config, conditions, rows)}
        known = {name for figures in shown.values() for name in figures} & rows.keys()
        for why in dict.fromkeys(taken.values()):
            names = [name for name in taken if taken[name] == why and name in known]
            told += [f"The paper's figures of {', '.join(names)} are not shown: {why}."] if names else []
    left = {
        model: {name: value for name, value in figures.items() if name in rows and name not in taken}
        for model, figures in shown.items()
    }
    with open_dict(config):
        config.marsrl.evaluation.published = {model: one for model, one in left.items() if one}
    return told


def _option(folders: Sequence[Path], group: str, option: str) -> dict[str, Any]:
    """A file of the last folder that has it, as in `Arguments`; the user's come behind ours."""
    for folder in reversed(folders):
        path = folder / group / f"{option}.yaml"
        if path.is_file():
            return yaml.safe_load(path.read_text()) or {}
    return {}


def _leaves(node: Mapping[str, Any], prefix: str = "marsrl.") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in node.items():
        if prefix == f"{_NODE}." and name in _FIGURES:
            continue
        if isinstance(value, dict):
            found |= _leaves(value, f"{prefix}{name}.")
        elif value is not None and "${" not in str(value):  # an interpolation follows other settings
            found[f"{prefix}{name}"] = value
    return found


def _changed(config: DictConfig, settings: Mapping[str, Any]) -> Iterator[str]:
    """The settings that the method has, with another value than the paper's."""
    for key, value in settings.items():
        roles = config.marsrl.roles if key.startswith(_ANY_ROLE) else ["default"]
        for role in roles:
            own = key.replace(_ANY_ROLE, f"marsrl.roles.{role}.").replace(_ANY_REWARD, _ANSWERS)
            parent, _, name = own.rpartition(".")
            node = OmegaConf.select(config, parent)
            if isinstance(node, DictConfig) and name in node and node[name] != value:
                yield own


def _of_a_judge(config: DictConfig) -> dict[str, str]:
    """Benchmarks that the paper's judge graded, where none is named."""
    return {
        name: "a judge graded them (kwargs.judge names none)"
        for spec in (config.marsrl.reward or {}).values()
        for name in ((spec or {}).get("kwargs") or {}).get("judged") or ()
        if spec.kwargs.get("judge") is None
    }


def _of_other_problems(
    config: DictConfig, conditions: PaperConditions, rows: Mapping[str, int]
) -> dict[str, str]:
    """Benchmarks of which other problems are evaluated, or another number of answers to them."""
    found, own_rows = {}, config.marsrl.evaluation.get("published_rows") or ()
    for name, count in rows.items():
        one, papers = config.marsrl.evaluation.benchmarks[name], conditions.benchmarks.get(name) or {}
        papers_count = min(papers.get("problems") or BENCHMARKS[name].problems, BENCHMARKS[name].problems)
        if name in own_rows and one.get("file") is None:
            found[name] = "they are of rows of the paper's own (benchmarks.NAME.file)"
        elif count != papers_count:
            found[name] = "they are of another number of problems"
        elif one.get("samples_per_problem") != papers.get("samples_per_problem"):
            found[name] = "they are of another number of answers (benchmarks.NAME.samples_per_problem)"
    return found
