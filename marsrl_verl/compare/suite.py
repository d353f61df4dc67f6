"""Suites: which methods are compared, and on what budget. One YAML file each, in
`studies/suites/` of a clone, or anywhere.

Keys of a suite file:

    title             a line for the report and the picture
    note              what a reader of the report should know, optional
    generated_tokens  every run's budget: it ends after the step that reaches so many generated tokens; or,
                      in its place, another quantity that is counted (`QUANTITIES`): executed_tool_calls
    max_steps         upper bound on the training steps, so large that no run reaches it
    seconds_per_run   a first guess, for the estimate of the time before any run was measured
    overrides         Hydra overrides of every run
    methods           name -> the Hydra overrides that make the method
    headline          metrics of the picture's left half (default: those that the methods' evaluations name)
    curve             metric of `metrics.jsonl` for its right half, or `val/…` of the evaluations in between
    level_of          a method: the report says when each run's curve came to where this method's run of the
                      same seed ended, and what it had taken then; optional
    primary           metrics on which the suite gives verdicts, named before it runs: of the evaluation after
                      training, or `area`, that under the curve; optional
    pairs             lists of a method and the one that it is judged against (default: each other method
                      and the first one)
    margin            differences of primary metrics below it are equivalence (default: 0.02)
    figures           metrics of `metrics.jsonl` of which the report has the mean over the training steps
    first_seed        seeds are counted from here (default: 1)
    grid              a search: a setting -> its values. Every method runs with each of them, and the report
                      says with which it did best by the mean of the primary outcomes; there are no verdicts
    like              another suite, a name there or the path of a file: what this one does not say is that
                      one's
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from marsrl_verl.config.tables import read_table

FOLDER = Path(__file__).parents[2] / "studies" / "suites"
"""Those of the studies; an installed package has none."""
_RENAMED: dict[str, str] = {
    **(table := read_table("renamed")["metrics"])["names"],
    **{name: f"{name.removesuffix('_share')}_frac" for name in table["shares"]},
}
"""Former names of metrics, and the names now."""
_NAME = re.compile(r"[A-Za-z0-9_.-]*[A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that a run counts, and that can be its budget."""

    name: str
    """Its key in a suite, and its column of a row."""
    label: str
    setting: str
    """Setting that ends the training after the step that reaches it."""
    metric: str
    """Metric of `metrics.jsonl`, per step; a step that does not log it counts 0."""


TOKENS = Quantity(
    "generated_tokens", "generated tokens", "marsrl.run.max_generated_tokens", "rollout/generated_tokens"
)
TOOL_CALLS = Quantity(
    "executed_tool_calls", "executed tool calls", "marsrl.run.max_tool_calls", "rollout/executed_tool_calls"
)
AREA = "area"
"""A primary outcome: the area under the curve."""
QUANTITIES = {one.name: one for one in (TOKENS, TOOL_CALLS)}


@dataclass(frozen=True, slots=True)
class Budget:
    """Amount that every run takes."""

    quantity: Quantity
    amount: int

    def __str__(self) -> str:
        return f"{self.amount:,} {self.quantity.label}"


@dataclass(frozen=True, slots=True)
class Grid:
    """Values of a setting that are tried with every method."""

    setting: str
    values: tuple[str, ...]
    methods: tuple[str, ...]

    def name(self, method: str, value: str) -> str:
        """Returns the name of the runs of a method with one of the values."""
        return f"{method}_{value}"


class SuiteError(ValueError):
    """A suite that can't be used; the message names the file, what is wrong and what to write."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One comparison."""

    name: str
    title: str
    budget: Budget
    max_steps: int
    methods: dict[str, tuple[str, ...]]
    """Name → Hydra overrides."""
    overrides: tuple[str, ...] = ()
    """Hydra overrides of every run."""
    seconds_per_run: float = 300.0
    note: str = ""
    """A paragraph of the report."""
    headline: tuple[str, ...] = ()
    """Empty: what the methods' evaluations name."""
    curve: str = ""
    """Empty only where a suite is made by hand."""
    level_of: str = ""
    """Empty: the report has no such table."""
    figures: tuple[str, ...] = ()
    primary: tuple[str, ...] = ()
    """Empty: the suite gives no verdicts."""
    pairs: tuple[tuple[str, str], ...] = ()
    """(method, reference), on each of which there are verdicts."""
    margin: float = 0.02
    first_seed: int = 1
    grid: Grid | None = None
    """None: no search; otherwise `methods` has every method with every value."""

    @property
    def judged(self) -> tuple[str, ...]:
        """The outcomes on which there are verdicts."""
        return () if self.grid else self.primary

    @property
    def questions(self) -> int:
        """Number of verdicts."""
        return len(self.judged) * len(self.pairs)


def suite_names() -> list[str]:
    """The suites of the studies; none where the package is installed without them."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_suite(name: str) -> Suite:
    """A suite of the studies by its name, or one of yours by the path of its YAML file; SuiteError where
    there is no such suite, or its file is wrong."""
    path = _path(name)
    return _suite(path, _read(path))


def _path(name: str, beside: Path = Path()) -> Path:
    return beside / name if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"


def _read(path: Path, readers: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The keys of a file, and of those that it is like."""
    name = path.stem if path.parent == FOLDER else str(path)
    if path in readers:
        raise SuiteError(f"{path} is like itself, by {readers[-1]}; take `like` out of one of them")
    if not path.is_file():
        known = ", ".join(suite_names())
        raise SuiteError(
            f"there is no suite {name!r}; use one of {known}, or the path of a suite's .yaml file"
            if known
            else f"there is no suite {name!r}; the studies' suites come with a clone of the repository: give "
            "the command there, or the path of a suite's .yaml file"
        )
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise SuiteError(f"{path} is not YAML: {error}") from error
    if not isinstance(plain, dict):
        raise SuiteError(f"{path} holds a {type(plain).__name__}, expected keys: {', '.join(_keys())}")
    if (like := plain.pop("like", None)) is None:
        return plain
    if not isinstance(like, str):
        raise SuiteError(f"{path}: like = {like!r}, expected a suite's name or the path of its .yaml file")
    base = _read(_path(like, path.parent), (*readers, path))
    if set(QUANTITIES) & set(plain):
        base = {key: value for key, value in base.items() if key not in QUANTITIES}
    return {**base, **plain}


def _keys() -> list[str]:
    own = [field.name for field in fields(Suite) if field.name not in ("name", "budget")]
    return [own[0], *QUANTITIES, *own[1:], "like"]


def _suite(path: Path, plain: dict[str, Any]) -> Suite:
    unknown = sorted(set(plain) - set(_keys()))
    if unknown:
        raise SuiteError(f"{path}: unknown keys {', '.join(unknown)}; known: {', '.join(_keys())}")
    missing = [key for key in ("title", "max_steps", "curve", "methods") if key not in plain]
    counted = [name for name in QUANTITIES if name in plain]
    if missing or not counted:
        missing += [] if counted else [" or ".join(QUANTITIES)]
        raise SuiteError(f"{path}: missing keys {', '.join(missing)}")
    if len(counted) > 1:
        raise SuiteError(f"{path}: {' and '.join(counted)} are two budgets; a run ends at one")
    for key in (*counted, "max_steps", "first_seed"):
        value = plain.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SuiteError(f"{path}: {key} = {value!r}, expected a whole number of at least 1")
    values = dict(plain)
    budget = Budget(QUANTITIES[counted[0]], values.pop(counted[0]))
    for key in ("overrides", "headline", "figures", "primary"):
        if key in values:
            values[key] = _words(path, key, values[key])
    for key in ("headline", "figures", "primary"):
        values |= {key: tuple(map(_current, values[key]))} if key in values else {}
    values["curve"] = _current(str(values["curve"]))
    values["methods"] = _methods(path, plain["methods"])
    if "grid" in values:
        values["grid"] = grid = _grid(path, values["grid"], values["methods"])
        values["level_of"], values["pairs"] = "", []
        values["methods"] = {
            grid.name(method, one): (*words, f"{grid.setting}={one}")
            for method, words in values["methods"].items()
            for one in grid.values
        }
        if not values.get("primary"):
            raise SuiteError(f"{path}: a grid needs `primary`, by the mean of which its values are compared")
    if (named := values.get("level_of", "")) and named not in values["methods"]:
        raise SuiteError(f"{path}: level_of = {named!r}, expected one of: {', '.join(values['methods'])}")
    values["pairs"] = _pairs(path, values.get("pairs"), list(values["methods"]))
    return Suite(name=path.stem, budget=budget, **values)


def _current(metric: str) -> str:
    """The name that a metric has now (`config/tables/renamed.yaml`)."""
    parts = []
    for part in metric.split("/"):
        name, end = part, ""
        if part not in _RENAMED and (found := re.fullmatch(r"(.+)(_(?:right|wrong|greedy|mean|max))", part)):
            name, end = found.groups()
        parts.append(_RENAMED[name] + end if name in _RENAMED else part)
    return "/".join(parts)


def _methods(path: Path, methods: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(methods, dict) or not methods:
        raise SuiteError(f"{path}: methods = {methods!r}, expected names with a list of overrides each")
    for name in methods:
        # The name becomes a part of a folder's name.
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith((".", "-")):
            raise SuiteError(f"{path}: a method is named {name!r}; use letters, digits, _ . and - only")
    return {name: _words(path, f"methods.{name}", words) for name, words in methods.items()}


def _pairs(path: Path, plain: Any, methods: Sequence[str]) -> tuple[tuple[str, str], ...]:
    if plain is None:
        return tuple((method, methods[0]) for method in methods[1:])
    listed = plain if isinstance(plain, list) else [None]
    found = [tuple(one) if isinstance(one, list) else () for one in listed]
    for pair in found:
        if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(methods):
            raise SuiteError(
                f"{path}: pairs = {plain!r}, expected lists of two of: {', '.join(methods)}, e.g. "
                f"[[{methods[-1]}, {methods[0]}]]"
            )
    if len(set(found)) < len(found):
        raise SuiteError(f"{path}: pairs = {plain!r} has one of them twice")
    return tuple((method, reference) for method, reference in found)


def _grid(path: Path, plain: Any, methods: dict[str, tuple[str, ...]]) -> Grid:
    """Reads a grid from `{setting: [values]}`; the values become parts of folders' names."""
    example = "{actor_rollout_ref.actor.optim.lr: [0.001, 0.002]}"
    expected = f"expected a setting with a list of values, e.g. {example}"
    if not isinstance(plain, dict) or len(plain) != 1:
        raise SuiteError(f"{path}: grid = {plain!r}, {expected}")
    ((setting, values),) = plain.items()
    texts = [str(one) for one in values] if isinstance(values, list) else []
    if not texts or not all(map(_NAME.fullmatch, texts)) or len(set(texts)) < len(texts):
        raise SuiteError(f"{path}: grid.{setting} = {values!r}, {expected}")
    return Grid(str(setting), tuple(texts), tuple(methods))


def _words(path: Path, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise SuiteError(f"{path}: {key} = {value!r}, expected a list of texts, e.g. [algo=grpo]")
    return tuple(value)
