"""What is recorded of MarsRL: its presets with settings, without a class of the project. Another method's
scenarios are in a file `<method>_scenarios.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from scripted_answers import Faults, World

STEPS = 30
CHECKPOINTS = tuple(range(10, 21))
"""Steps after which everything is saved and loaded."""
RANKS = 2
SEED = 7

FAULTS = Faults(error=0.06, aborted=0.05, prompt_too_long=0.05, ungraded=0.08)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One golden trace."""

    preset: str
    """A file of `configs/algo`."""
    settings: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Keys below `marsrl`."""
    problems: int = 2
    """New problems of a step."""
    world: World = field(default_factory=World)
    new_tokens: int = 150
    """Most tokens of a response."""
    prompt_limit: int = 10_000
    """Most tokens of a prompt that the method asks about."""
    external_solver: bool = False
    """Another model solves: its texts are all that is known."""
    loss: bool = False
    """Whether the trace says what the loss is given beside advantages."""


def scenario(preset: str, settings: dict[str, Any] | None = None, **rest: Any) -> Scenario:
    pipeline = {"pipeline.mode": "pipelined"}
    return Scenario(preset, MappingProxyType({**pipeline, **(settings or {})}), **rest)


def _marsrl(settings: dict[str, Any] | None = None, **rest: Any) -> Scenario:
    return scenario(rest.pop("preset", "marsrl"), {"algo.group_size": 4, **(settings or {})}, **rest)


SEGMENTS = {"pipeline.max_segments": 3}
MASTERED = {
    "algo.mastered_tokens.enabled": True,
    "algo.mastered_tokens.probability": 0.95,
    "algo.mastered_tokens.target_entropy": 1.3,
}
"""The scripted log-probabilities and entropies have means of -0.7 and 1.3."""
_ONE_ROUND = {"algo.correction_rounds": 1}
_PARTIAL_GROUPS = {
    **_ONE_ROUND,
    "algo.group_size": 6,
    "pipeline.max_segments": 4,
    "pipeline.min_group": 2,
    "pipeline.min_groups": 3,
}

SCENARIOS: dict[str, Scenario] = {
    "marsrl_sequential": _marsrl({"pipeline.mode": "sequential"}, problems=1),
    "marsrl_pipelined": _marsrl(problems=1),
    "marsrl_segments": _marsrl(SEGMENTS, problems=1),
    "marsrl_partial_groups": _marsrl(
        _PARTIAL_GROUPS,
        problems=1,
        world=World(lines=(1, 8)),
    ),
    "marsrl_weighted_tokens": _marsrl(
        {**_PARTIAL_GROUPS, "off_policy.mode": "tis", "off_policy.tis_threshold": 1.5},
        problems=1,
        world=World(lines=(1, 8), faults=FAULTS),
        loss=True,
    ),
    "marsrl_mastered_tokens": _marsrl({**_ONE_ROUND, **MASTERED}, problems=1, loss=True),
    "marsrl_overlap": _marsrl({**_ONE_ROUND, "pipeline.overlap": "one_step"}, problems=1),
    "marsrl_overlap_segments": _marsrl(
        {**SEGMENTS, **_ONE_ROUND, "pipeline.overlap": "one_step", "pipeline.min_group": 2},
        problems=1,
    ),
    "marsrl_budget_staleness": _marsrl(
        {"pipeline.step_prompt_budget": 6, "pipeline.max_request_staleness": 1}, problems=3
    ),
    "marsrl_random": _marsrl(_ONE_ROUND, preset="marsrl_random", problems=1),
    "marsrl_balanced": _marsrl(_ONE_ROUND, preset="marsrl_balanced", problems=1),
    "marsrl_by_group": _marsrl(
        {
            **_ONE_ROUND,
            "algo.select_scope": "group",
            "algo.distinct_answers": True,
            "algo.normalize_std": False,
        },
        problems=1,
    ),
    "marsrl_role_balance": _marsrl(
        {**_ONE_ROUND, "algo.role_balance": "roles", "algo.role_weights": {"verifier": 0.5}},
        problems=1,
    ),
    "marsrl_mini_batches": _marsrl({**_ONE_ROUND, "pipeline.samples_per_update": 8}),
    "marsrl_shared_prefixes": _marsrl(
        {**_ONE_ROUND, "training.share_prefixes": True, "pipeline.updates_per_step": 2},
        problems=1,
    ),
    "marsrl_faults": _marsrl(SEGMENTS, world=World(faults=FAULTS), problems=2, prompt_limit=120),
    "marsrl_external_solver": _marsrl(
        _ONE_ROUND,
        preset="marsrl_vc",
        external_solver=True,
        world=World(faults=Faults(error=0.05, refused=0.1)),
    ),
}
