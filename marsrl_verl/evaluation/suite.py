"""One evaluation as a run does it: the system at a temperature and greedily, and its record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from marsrl_verl.core.types import Engine, Problem, SamplingSettings
from marsrl_verl.evaluation.effort import effort
from marsrl_verl.evaluation.estimators import Estimate, Observations
from marsrl_verl.evaluation.loop_rules import Fallback
from marsrl_verl.evaluation.role_metrics import GREEDY_SUFFIX, estimates, f1_estimates, system_observations
from marsrl_verl.evaluation.solver_at_k import MAJORITY_AT_K, majority_at_k, pass_at_k_estimates
from marsrl_verl.evaluation.system import StageCallback, SystemEvaluation, evaluate_system

if TYPE_CHECKING:
    from marsrl_verl.algos.prompts import RolePrompts

BEFORE = "before"
"""Tag of the evaluation before the first training step."""
AFTER = "after"
"""Tag of the evaluation after the last training step."""
ALONE = "alone"
"""Tag of the evaluation of a run that does nothing else."""


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """What an evaluation measured, small enough to keep: enough for tables, curves and differences."""

    tag: str
    step: int
    """The training step whose weights were evaluated; 0 before training."""
    confidence: float
    temperature: float
    problems: int
    samples_per_problem: int
    correction_rounds: int
    seconds: float
    generated_tokens: int
    observations: dict[str, Observations]
    """By metric name; greedy ones carry the suffix `_greedy`."""
    effort: dict[str, Estimate] = field(default_factory=dict)
    """Of `EFFORT_METRICS`, by metric name as above; empty in records that do not hold it."""
    accept_passes: int = 1
    """Of the sampled pass; the greedy one accepts at the first Correct verdict."""
    reject_fails: int | None = None
    fallback: str = Fallback.LAST.value
    top_p: float | None = None
    """Of the sampled pass; None: the roles' own."""
    not_asked: int = 0
    """Problems, of those above, whose prompt exceeds the Solver's limit; no figure counts them."""

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Mean and interval by metric name; `verifier_f1` and, with several samples per problem,
        `solver_pass_at_<k>` are derived from the other metrics' observations."""
        found = estimates(self.observations, self.confidence)
        answers = self.observations.get("solver_accuracy")
        if self.samples_per_problem > 1 and answers is not None:
            found |= pass_at_k_estimates(answers, self.confidence)
        return found | f1_estimates(self.observations, self.confidence)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it back."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in _plain_fields()}
        plain["effort"] = {name: item.to_json() for name, item in self.effort.items()}
        plain["estimates"] = {name: item.to_json() for name, item in self.estimates.items()}
        plain["observations"] = {
            name: {"outcomes": [int(x) for x in items.outcomes], "problems": list(items.problems)}
            for name, items in self.observations.items()
        }
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> EvaluationRecord:
        """Read what `to_json` wrote; fields with a default may be absent.

        Raises:
            KeyError, TypeError: another one is.
        """
        observations = {
            name: Observations(tuple(bool(x) for x in items["outcomes"]), tuple(items["problems"]))
            for name, items in plain["observations"].items()
        }
        costs = {name: Estimate(**item) for name, item in plain.get("effort", {}).items()}
        kept = {name: plain[name] for name in _plain_fields() if name in plain}
        return cls(**kept, observations=observations, effort=costs)


def _plain_fields() -> list[str]:
    """The record's fields that are JSON values themselves."""
    return [item.name for item in fields(EvaluationRecord) if item.name not in ("observations", "effort")]


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """An evaluation's record and the runs behind it."""

    record: EvaluationRecord
    sampled: SystemEvaluation
    greedy: SystemEvaluation | None


def evaluate(
    engine: Engine,
    problems: list[Problem],
    prompts: RolePrompts,
    sampling: dict[str, SamplingSettings],
    *,
    tag: str,
    step: int,
    temperature: float = 1.0,
    top_p: float | None = None,
    greedy: bool = True,
    correction_rounds: int = 2,
    accept_passes: int = 1,
    reject_fails: int | None = None,
    fallback: Fallback | str = Fallback.LAST,
    samples_per_problem: int = 1,
    confidence: float = 0.95,
    seed: int | None = None,
    on_stage: StageCallback | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> EvaluationResult:
    """Evaluate the system at `temperature` and, if asked, once per problem greedily.

    Args:
        sampling: settings by role; their token limits and, for the sampled pass, `top_p` and `top_k`
            are kept, the temperature is replaced; responses are not cut into segments. The greedy pass
            uses temperature 0 alone.
        top_p: of the sampled pass, in place of the roles'; None: theirs.
        accept_passes: as in `evaluate_system`, for the sampled pass. At temperature 0 a Verifier that is
            asked again about one solution repeats itself, so the greedy pass accepts at the first Correct
            verdict.
        reject_fails, fallback: as in `evaluate_system`, for both passes.
        seed: of the sampled pass's tokens, so that they do not depend on the order of requests; None: the
            engine's own generator draws them.
        tag: `BEFORE`, `AFTER` or any other name that occurs once in a run, e.g. `step_20`.
        on_stage: called before each stage with its name and number of inputs.

    Raises:
        ValueError: as `evaluate_system`.
    """
    start = clock()
    whole = {role: replace(item, segment_tokens=None) for role, item in sampling.items()}
    warm = {
        role: replace(item, temperature=temperature, top_p=item.top_p if top_p is None else top_p, seed=seed)
        for role, item in whole.items()
    }
    sampled = evaluate_system(
        engine,
        problems,
        prompts,
        warm,
        correction_rounds=correction_rounds,
        accept_passes=accept_passes,
        reject_fails=reject_fails,
        fallback=fallback,
        samples_per_problem=samples_per_problem,
        tag=tag,
        step=step,
        on_stage=on_stage,
    )
    observations, costs = _measured(sampled, correction_rounds, confidence)
    if samples_per_problem > 1:
        observations[MAJORITY_AT_K] = majority_at_k(sampled.calls)
    cold_run = None
    if greedy:
        cold = {role: replace(item, temperature=0.0, top_p=1.0, top_k=-1) for role, item in whole.items()}
        cold_run = evaluate_system(
            engine,
            problems,
            prompts,
            cold,
            correction_rounds=correction_rounds,
            reject_fails=reject_fails,
            fallback=fallback,
            samples_per_problem=1,
            tag=f"{tag}{GREEDY_SUFFIX}",
            step=step,
            on_stage=on_stage,
        )
        cold_observations, cold_costs = _measured(cold_run, correction_rounds, confidence)
        observations |= {f"{k}{GREEDY_SUFFIX}": v for k, v in cold_observations.items()}
        costs |= {f"{k}{GREEDY_SUFFIX}": v for k, v in cold_costs.items()}
    record = EvaluationRecord(
        tag=tag,
        step=step,
        confidence=confidence,
        temperature=temperature,
        problems=len(problems),
        samples_per_problem=samples_per_problem,
        correction_rounds=correction_rounds,
        seconds=clock() - start,
        generated_tokens=sampled.generated_tokens + (cold_run.generated_tokens if cold_run else 0),
        observations=observations,
        effort=costs,
        accept_passes=accept_passes,
        reject_fails=reject_fails,
        fallback=Fallback(fallback).value,
        top_p=top_p,
        not_asked=len({run.problem.problem_id for run in sampled.not_asked}),
    )
    return EvaluationResult(record, sampled, cold_run)


def _measured(
    evaluation: SystemEvaluation, rounds: int, confidence: float
) -> tuple[dict[str, Observations], dict[str, Estimate]]:
    """Observations and costs; without rounds there is no system to say anything about."""
    observations, costs = system_observations(evaluation), effort(evaluation, confidence)
    if not rounds:
        observations.pop("system_accuracy")
        for name in ("accepted_share", "rejected_share", "iterations"):
            costs.pop(name)
    return observations, costs
