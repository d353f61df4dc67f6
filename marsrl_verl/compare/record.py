"""A comparison's record, `results.json`: what its runs measured, and what they were.

The tables, the picture and the verdicts follow from it, so a comparison can go on, and be read again, without
the folders of its runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marsrl_verl.compare.curves import RunCurve
from marsrl_verl.compare.plan import Run
from marsrl_verl.compare.results import Finished, Measured, headline_of, metrics_of
from marsrl_verl.compare.suite import QUANTITIES, Suite
from marsrl_verl.evaluation.estimators import MetricInfo
from marsrl_verl.evaluation.suite import AFTER, BEFORE


class RecordError(ValueError):
    """A file that is no comparison's record; the message names it and what is wrong."""


def run_json(one: Finished) -> dict[str, Any]:
    """A run, without what all runs of a comparison share."""
    figures: dict[str, Any] = {
        "method": one.run.method,
        "seed": one.run.seed,
        "work": one.run.work,
        "source": one.source,
        "steps": one.steps,
        "updates": one.updates,
        "trained_rows": one.trained_rows,
        "generated_tokens": one.generated_tokens,
        "executed_tool_calls": one.executed_tool_calls,
        "seconds": round(one.step_seconds, 2),
        "wall_seconds": round(one.seconds, 2),
        "problems": one.problems,
    }
    for tag in (BEFORE, AFTER):
        prefix = f"{tag}/"
        found = {name: list(each) for name, each in one.measured.items() if name.startswith(prefix)}
        figures[tag] = {name.removeprefix(prefix): each for name, each in found.items()}
    figures["figures"] = dict(one.figures)
    figures["curve"] = {"taken": list(one.curve.taken), "values": list(one.curve.values)}
    if one.curve.excluded:
        figures["curve"]["excluded"] = one.curve.excluded
    return figures


def shared_json(finished: Sequence[Finished]) -> dict[str, Any]:
    """Returns what all runs of a comparison have in common."""
    metrics = {name: asdict(info) for name, info in metrics_of(finished).items()}
    first = finished[0] if finished else None
    return {
        "curve": first.curve.metric if first else "",
        "versions": first.versions if first else {},
        "headline": list(headline_of(finished)),
        "metrics": metrics,
    }


def finished_of(run: Run, plain: Mapping[str, Any], shared: Mapping[str, Any]) -> Finished:
    """The inverse of both; KeyError, TypeError, ValueError where they are something else."""
    measured = {
        f"{tag}/{name}": Measured(value, cases)
        for tag in (BEFORE, AFTER)
        for name, (value, cases) in plain[tag].items()
    }
    curve = plain["curve"]
    # Earlier records name what was counted.
    taken = next(curve[name] for name in ("taken", *QUANTITIES) if name in curve)
    return Finished(
        run,
        measured,
        steps=int(plain["steps"]),
        generated_tokens=int(plain["generated_tokens"]),
        executed_tool_calls=int(plain["executed_tool_calls"]),
        seconds=float(plain.get("wall_seconds", plain["seconds"])),
        problems=plain.get("problems"),
        versions=dict(shared["versions"]),
        curve=RunCurve(shared["curve"], tuple(taken), tuple(curve["values"]), curve.get("excluded", 0)),
        step_seconds=float(plain["seconds"]),
        updates=plain.get("updates"),
        trained_rows=plain.get("trained_rows"),
        figures=dict(plain.get("figures", {})),
        metrics={name: MetricInfo(**info) for name, info in shared["metrics"].items()},
        headline=tuple(shared.get("headline", ())),
        source=plain.get("source"),
    )


def record_json(suite: Suite, finished: Sequence[Finished]) -> dict[str, Any]:
    """A comparison as JSON has it."""
    head = {"suite": suite.name, "budget": str(suite.budget), **shared_json(finished)}
    return {**head, "runs": [run_json(one) for one in finished]}


def text_of(record: Mapping[str, Any]) -> str:
    """The record with a line for each run."""
    head = {key: value for key, value in record.items() if key != "runs"}
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in record["runs"])
    return f'{json.dumps(head, indent=1, ensure_ascii=False)[:-2]},\n "runs": [\n{lines}\n]}}\n'


@dataclass(frozen=True, slots=True)
class Known:
    """A run of a record, which may be the run of another comparison."""

    work: str | None
    """`Run.work`; None in earlier records."""
    plain: Mapping[str, Any]
    shared: Mapping[str, Any]

    def of(self, run: Run) -> Finished:
        """It as the result of this run."""
        return finished_of(run, self.plain, self.shared)


def read_record(path: Path) -> list[Known]:
    """The runs of a record; RecordError where the file is missing or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = [Known(run.get("work"), run, content) for run in content["runs"]]
        for one in found:
            one.of(Run(one.plain["method"], one.plain["seed"], (), path.parent))
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise RecordError(
            f"{path} can't be read as a comparison's record ({type(error).__name__}: {error}); expected the "
            "results.json of a comparison"
        ) from error


def runs_of(path: Path) -> list[Finished]:
    """Returns the runs of a record (`read_record`), each as a result of its own."""
    return [one.of(Run(one.plain["method"], one.plain["seed"], (), path.parent)) for one in read_record(path)]
