"""A run's folder as the page requests it; works while the run writes."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from marsrl_verl.evaluation.suite import AFTER, BEFORE
from marsrl_verl.reporting.files import to_json
from marsrl_verl.reporting.metrics_log import read_metrics
from marsrl_verl.reporting.rollout_files import contains, read_bytes, read_line, rollout_files
from marsrl_verl.reporting.rollout_index import read_index, trained_earlier
from marsrl_verl.reporting.run_folder import RunFolder, read_evaluations
from marsrl_verl.reporting.summary import changes
from marsrl_verl.reporting.trained_tokens import TrainedTokens, advantages, stem
from marsrl_verl.view.tokens import TokenPieces
from marsrl_verl.view.turns import turns_of

_SETTINGS = {
    "method": "marsrl.algo.name",
    "model": "actor_rollout_ref.model.path",
    "training data": "data.train_files",
    "held-out data": "data.val_files",
    "pipeline": "marsrl.pipeline.mode",
    "group size": "marsrl.algo.group_size",
    "problems a step": "data.train_batch_size",
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "GPUs": "trainer.n_gpus_per_node",
    "nodes": "trainer.nnodes",
    "seed": "marsrl.run.seed",
}
"""Settings that the overview shows, by label."""
_LEAST, _LEAKS = 16, 0.25
"""Least count that says something; least share of answers that shows a leak in a role that must be silent."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on lines; None and "": any."""

    file: str = ""
    role: str = ""
    stage: str = ""
    finish: str = ""
    problem: str = ""
    group: str = ""
    question: str = ""
    """Question as the index has it: its beginning."""
    low: float | None = None
    high: float | None = None
    """Rewards."""
    first: int | None = None
    last: int | None = None
    """Steps."""
    trained: bool | None = None
    reference: bool | None = None
    """True if the response has the reference answer."""
    text: str = ""
    """Text in the line, letter case aside."""


@dataclass(frozen=True, slots=True)
class _Indexed:
    state: tuple[int, int]
    table: pa.Table
    earlier: dict[str, list[float | None]]
    """Trajectories of earlier files that its step trained (`rollout_index.trained_earlier`)."""


class ViewedRun:
    """One run.

    Raises:
        OutputFolderError: the folder is no run's, or one of another format.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder.attach(path)
        self.path = self.folder.path
        self._indexes: dict[Path, _Indexed] = {}
        self._table: tuple[str, pa.Table] | None = None
        self._trained = TrainedTokens(self.path, {})

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration; empty where there is none."""
        path = self.folder.config_path
        found = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
        return found or {}

    def setting(self, key: str) -> Any:
        """A setting by its dotted key; None: there is none."""
        node: Any = self.config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.setting("marsrl.run.name") or self.path.name)

    def state(self) -> str:
        """A text that is another one when the run has written something."""
        files = [self.folder.metrics.path, self.folder.summary_path, *rollout_files(self._rollouts)]
        return ",".join(f"{one.name}:{one.stat().st_size}" for one in files if one.is_file())

    # --- the overview -------------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
        """Settings, results and warnings of the run."""
        summary = self._json(self.folder.summary_path) or {}
        run = summary.get("run") or {}
        lines = read_metrics(self.path)
        told = {label: self.setting(key) for label, key in _SETTINGS.items()}
        records = {one.tag: one for one in read_evaluations(self.path)}
        rollouts = self._by_role()
        return {
            "name": self.name,
            "path": str(self.path),
            "created": (self._json(self.path / "run.json") or {}).get("created"),
            "command": self.setting("marsrl.run.command") or [],
            "settings": {label: value for label, value in told.items() if value not in (None, "", [])},
            "roles": sorted(self.setting("marsrl.roles") or {}),
            "steps": lines[-1].step if lines else 0,
            "planned_steps": self.setting("trainer.total_training_steps"),
            "ended": bool(run),
            "seconds": run.get("seconds"),
            "versions": run.get("versions") or {},
            "warnings": [*(run.get("warnings") or []), *self._found_wrong(rollouts)],
            "rollouts": rollouts,
            "changes": [
                {
                    "label": one.info.label,
                    "greedy": one.greedy,
                    "higher_is_better": one.info.higher_is_better,
                    "share": one.info.higher_is_better is not None,
                    "before": asdict(one.before),
                    "after": asdict(one.after),
                    "change": asdict(one.delta),
                    "direction": one.direction,
                }
                for one in changes(records.get(BEFORE), records.get(AFTER))
            ],
            "evaluations": [
                {
                    "tag": one.tag,
                    "step": one.step,
                    "labels": {name: info.label for name, info in one.metrics.items()},
                    "estimates": {name: asdict(value) for name, value in one.estimates.items()},
                    "effort": {name: asdict(value) for name, value in one.effort.items()},
                    "temperature": one.temperature,
                    "problems": one.problems,
                }
                for one in records.values()
            ],
        }

    def _by_role(self) -> list[dict[str, Any]]:
        """Figures of each role's rollouts in training."""
        table = self.table()
        table = table.filter(pc.and_(pc.starts_with(table["file"], "step_"), pc.invert(table["external"])))
        says = pc.cast(table["says_reference"], pa.int32())
        grouped = table.append_column("says", says).group_by("role", use_threads=False).aggregate(
            [
                ("row", "count"), ("advantage", "count"), ("tokens", "mean"), ("says", "mean"),
                ("says", "count"),
                *(("reward", what) for what in ("count", "mean", "min", "max")),
            ]
        )  # fmt: skip
        return list(grouped.to_pylist())

    def _found_wrong(self, rollouts: list[dict[str, Any]]) -> Iterator[str]:
        """Warnings from a role's rollouts of a training that can't be right."""
        for one in rollouts:
            role, count, says = one["role"], one["reward_count"], one["says_count"]
            if count >= _LEAST and one["reward_min"] == one["reward_max"]:
                yield f"All {count} rewards of {role} are {one['reward_mean']:g}: nothing teaches it."
            if role in self._view("silent") and says >= _LEAST and one["says_mean"] >= _LEAKS:
                share = f"{one['says_mean']:.0%} of {says} responses of {role} have the reference answer"
                yield f"{share}, which this role must not tell."

    def metrics(self) -> dict[str, Any]:
        """All series of `metrics.jsonl`: `steps`, and by name as many values, null where a step has none."""
        lines = read_metrics(self.path)
        series: dict[str, list[float | None]] = defaultdict(lambda: [None] * len(lines))
        for number, line in enumerate(lines):
            for name, value in line.metrics.items():
                series[name][number] = value
            for name, value in line.timings.items():
                series[f"seconds/{name}"][number] = value
        return {"steps": [one.step for one in lines], "series": dict(sorted(series.items()))}

    # --- rollouts -----------------------------------------------------------------------------

    @property
    def _rollouts(self) -> Path:
        return self.path / "rollouts"

    def table(self) -> pa.Table:
        """The index of all files, with the columns `file` and `row`."""
        state = self.state()
        if self._table is None or self._table[0] != state:
            files = {path: self._indexed(path) for path in rollout_files(self._rollouts)}
            table = pa.concat_tables([one.table for one in files.values()]) if files else _empty()
            later = {name: stem(path) for path, one in files.items() for name in one.earlier}
            self._trained = TrainedTokens(self.path, later)
            ends = {
                f"{name}|{number}": value
                for one in files.values()
                for name, values in one.earlier.items()
                for number, value in enumerate(values)
            }
            if ends:
                names = pc.binary_join_element_wise(
                    table["trajectory"], pc.cast(table["sequence"], pa.string()), "|"
                )
                values = pa.array(ends.values(), pa.float32()).take(pc.index_in(names, pa.array(ends)))
                at = table.schema.get_field_index("advantage")
                table = table.set_column(at, "advantage", pc.coalesce(table["advantage"], values))
            self._table = state, table
        return self._table[1]

    def _indexed(self, path: Path) -> _Indexed:
        about = path.stat()
        state = about.st_size, about.st_mtime_ns
        if path not in self._indexes or self._indexes[path].state != state:
            index = read_index(path, advantages(self.path, stem(path)))
            table = index.replace_schema_metadata(None)
            named = pa.DictionaryArray.from_arrays(np.zeros(len(table), np.int32), [path.name])
            table = table.append_column("file", named.cast(pa.string()))
            table = table.append_column("row", pa.array(np.arange(len(table), dtype=np.int32)))
            self._indexes[path] = _Indexed(state, table, trained_earlier(index))
        return self._indexes[path]

    def chosen(self, wanted: Filter) -> pa.Table:
        """The lines of a filter."""
        table = self.table()
        keep = None

        def also(mask: Any) -> None:
            nonlocal keep
            mask = pc.fill_null(mask, False)
            keep = mask if keep is None else pc.and_(keep, mask)

        for name, value in (
            ("file", wanted.file), ("role", wanted.role), ("stage", wanted.stage), ("group", wanted.group),
            ("finish_reason", wanted.finish), ("problem", wanted.problem), ("question", wanted.question),
        ):  # fmt: skip
            if value:
                also(pc.equal(table[name], value))
        for name, low, high in (("reward", wanted.low, wanted.high), ("step", wanted.first, wanted.last)):
            if low is not None:
                also(pc.greater_equal(table[name], low))
            if high is not None:
                also(pc.less_equal(table[name], high))
        if wanted.trained is not None:
            also(pc.equal(pc.is_valid(table["advantage"]), wanted.trained))
        if wanted.reference is not None:
            also(pc.equal(table["says_reference"], wanted.reference))
        found = table if keep is None else table.filter(keep)
        return self._with_text(found, wanted.text) if wanted.text else found

    def _with_text(self, table: pa.Table, text: str) -> pa.Table:
        """Reads the files of the lines, one after the other."""
        keep = np.zeros(len(table), bool)
        files, rows = table["file"].to_pylist(), table["row"].to_pylist()
        begin = 0
        for name, some in itertools.groupby(files):
            end = begin + sum(1 for _ in some)
            lines = read_bytes(self._rollouts / name).split(b"\n")
            for number in range(begin, end):
                keep[number] = contains(lines[rows[number]], text)
            begin = end
        return table.filter(pa.array(keep))

    def choices(self) -> dict[str, list[Any]]:
        """Values that filters can choose among."""
        table = self.table()
        return {
            name: table[name].unique().drop_null().to_pylist()
            for name in ("file", "role", "stage", "finish_reason", "data_source")
        }

    def problems(self, wanted: Filter, offset: int, limit: int) -> dict[str, Any]:
        """Problems with lines of a filter, in each file: how many, mean reward, tokens."""
        table = self.chosen(wanted)
        grouped = table.group_by(["file", "problem"], use_threads=False).aggregate(
            [
                ("question", "first"), ("step", "max"), ("row", "count"), ("reward", "mean"),
                ("tokens", "sum"), ("advantage", "count"), ("stage", "count_distinct"),
            ]
        )  # fmt: skip
        page = grouped.slice(offset, limit)
        return {"total": len(grouped), "lines": len(table), "rows": page.to_pylist()}

    def lines(self, wanted: Filter, offset: int, limit: int, order: str = "") -> dict[str, Any]:
        """Lines of a filter; `order`: a column, with `-` before it falling. Those of one problem have their
        advantages: [end, value] of consecutive parts of the response."""
        table = self.chosen(wanted)
        if order:
            how = "descending" if order.startswith("-") else "ascending"
            table = table.sort_by([(order.removeprefix("-"), how)])
        rows = table.slice(offset, limit).to_pylist()
        if wanted.problem or wanted.question:
            self.add_advantages(rows)
        return {"total": len(table), "rows": rows}

    def add_advantages(self, rows: list[dict[str, Any]]) -> None:
        """Gives rows of the index the key `advantages`; null: not trained."""
        for one in rows:
            found = self._trained.advantages(one["file"], one["trajectory"], one["sequence"])
            one["advantages"] = found or None

    def line(self, file: str, row: int) -> dict[str, Any]:
        """A line with all that is known of its tokens, and the turns of its trajectory (`view.turns`); where
        it has some, `others` are the trajectory's other lines by their sequences.

        Raises:
            KeyError: there is no such line.
        """
        place = self.lines(Filter(file=file), row, 1)["rows"]
        if not place:
            raise KeyError(f"{file} has no line {row}")
        found = self._tokens(file, place[0])
        line = found["line"]
        table = self._indexed(self._rollouts / file).table
        same = table.filter(pc.equal(table["trajectory"], line["trajectory"])).to_pylist()
        others = {one["sequence"]: self._tokens(file, one) for one in same if one["row"] != row}
        turns = turns_of([line, *(one["line"] for one in others.values())])
        return {**found, "turns": turns, "others": others if turns else {}}

    def _tokens(self, file: str, place: Mapping[str, Any]) -> dict[str, Any]:
        line = read_line(self._rollouts / file, place)
        ids = line["token_ids"]
        name, number = line["trajectory"], line["sequence"]
        columns: dict[str, list[float | None]] = {}
        if parts := self._trained.advantages(file, name, number):
            columns["advantage"] = _spread(parts, len(ids))
        kept = self._trained.columns(file, name, number)
        columns |= {name.replace("_", " "): values for name, values in kept.items()}
        mask = np.ones(len(ids))
        for begin, end in line["masked"]:
            mask[begin:end] = 0
        if {"old_log_probs", "rollout_log_probs"} <= kept.keys():
            known = zip(kept["old_log_probs"], kept["rollout_log_probs"], mask, strict=True)
            columns["ratio old / rollout"] = [
                math.exp(old - sampled) if chosen and old is not None and sampled is not None else None
                for old, sampled, chosen in known
            ]
        for name, (ends, values) in dict(self._view("columns")).items():
            if line.get(ends) and line.get(values):
                columns[name] = _spread(zip(line[ends], line[values], strict=True), len(ids))
        columns["policy version"] = _spread(line["versions"], len(ids))
        columns["mask"] = list(mask.tolist())
        return {"line": line, "pieces": self._pieces.of(ids), "columns": columns}

    @cached_property
    def _pieces(self) -> TokenPieces:
        model = "actor_rollout_ref.model"
        return TokenPieces(self.setting(f"{model}.tokenizer_path") or self.setting(f"{model}.path"))

    def _view(self, key: str) -> Any:
        """The method's declaration of its view (`core.method.View`); empty of earlier runs."""
        return (self._json(self.path / "view.json") or {}).get(key) or ()

    @staticmethod
    def _json(path: Path) -> Any:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _empty() -> pa.Table:
    from marsrl_verl.reporting.rollout_index import schema

    full = schema().append(pa.field("file", pa.string())).append(pa.field("row", pa.int32()))
    return full.empty_table()


def _spread(parts: Iterable[tuple[int, float]], count: int) -> list[float | None]:
    """Values of tokens from [end, value] of their parts."""
    values: list[float | None] = []
    for end, value in parts:
        values += [value] * (end - len(values))
    return values + [None] * (count - len(values))


def plain(value: Any) -> str:
    """Returns a value as JSON for the page; a NaN becomes null."""
    return to_json(value)
