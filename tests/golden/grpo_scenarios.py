"""What is recorded of independent responses."""

from __future__ import annotations

from scenarios import Scenario, scenario

SCENARIOS: dict[str, Scenario] = {
    "grpo": scenario("grpo", {"algo.group_size": 4, "pipeline.mode": "sequential"}, problems=4),
}
