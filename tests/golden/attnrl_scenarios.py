"""What is recorded of trees."""

from __future__ import annotations

from typing import Any

from scenarios import FAULTS, MASTERED, SEGMENTS, Scenario, scenario
from scripted_answers import World

SHORT_TREES = World(lines=(3, 9), words=3)
"""A response has about ten steps and 200 bytes, so that branch points differ."""


def _tree(preset: str, settings: dict[str, Any] | None = None, **rest: Any) -> Scenario:
    # With the bytes of short texts as tokens the released 512 tokens would leave no point.
    usual = {"algo.min_token_distance": 40} if preset == "attnrl_released" else {}
    small = {"algo.group_size": 3, "algo.adaptive_batch.max_problems": 3}
    settings = {**small, **usual, **(settings or {})}
    return scenario(preset, settings, **{"world": SHORT_TREES, "new_tokens": 300, **rest})


SCENARIOS: dict[str, Scenario] = {
    "attnrl_paper": _tree("attnrl"),
    "attnrl_released": _tree("attnrl_released"),
    "attnrl_sequential": _tree(
        "attnrl",
        {
            "pipeline.mode": "sequential",
            "algo.adaptive_batch.enabled": False,
            "algo.filter": "paper",
            "algo.filter_mean": "ema",
            "algo.fci_aggregation": "mean",
            "algo.on_too_few": "spread",
            "training.share_prefixes": True,
        },
    ),
    "attnrl_mini_batches": _tree(
        "attnrl",
        {"pipeline.samples_per_update": 16, "training.share_prefixes": True, "pipeline.min_groups": 8},
    ),
    "attnrl_faults": _tree("attnrl", SEGMENTS, world=World((3, 9), 3, FAULTS), prompt_limit=60),
    "attnrl_mastered_tokens": _tree("attnrl", MASTERED, loss=True),
    "treerl": _tree("treerl", problems=1),
    "treerl_baseline": _tree("treerl_baseline", {"algo.advantage_rule": "treerl_original"}, problems=1),
}
