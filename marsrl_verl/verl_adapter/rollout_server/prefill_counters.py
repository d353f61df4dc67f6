"""vLLM's own count of the prompts that it read.

The engine's front end keeps it in the server's process, in the registry of `prometheus_client`, unless
`actor_rollout_ref.rollout.disable_log_stats` is true, as it is by verl's default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_QUERIES = "vllm:prefix_cache_queries_total"
_HITS = "vllm:prefix_cache_hits_total"
_SECONDS = "vllm:request_prefill_time_seconds_sum"


@dataclass(frozen=True, slots=True)
class PrefillCounters:
    """Prompts of a server since it started, of several servers together, or of the time between two readings.
    A group of n samples is n requests, each with its own prompt."""

    prompt_tokens: int = 0
    """Tokens that were looked up in the prefix cache; 0 where the cache is turned off."""
    cached_tokens: int = 0
    """Tokens among them that were found there."""
    seconds: float = 0.0
    """Seconds from a request's first turn in the engine to its first new token, summed over requests: those
    that are read together each count the whole time."""

    def __add__(self, other: PrefillCounters) -> PrefillCounters:
        return PrefillCounters(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.seconds + other.seconds,
        )

    def __sub__(self, other: PrefillCounters) -> PrefillCounters:
        return PrefillCounters(
            self.prompt_tokens - other.prompt_tokens,
            self.cached_tokens - other.cached_tokens,
            self.seconds - other.seconds,
        )


def keeps_statistics(rollout: Any) -> bool:
    """True if `actor_rollout_ref.rollout` tells the engine to keep statistics. As in verl, the key in
    `engine_kwargs.vllm` takes precedence over verl's own."""
    own = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    disabled = own.get("disable_log_stats")
    return not (rollout.disable_log_stats if disabled is None else disabled)


def read_counters() -> PrefillCounters | None:
    """This process's counters, all engines of it together; None where its engine keeps no statistics."""
    from prometheus_client import REGISTRY

    # The three by name: to collect all of vLLM's takes milliseconds.
    collected = REGISTRY.restricted_registry([_QUERIES, _HITS, _SECONDS]).collect()
    totals: dict[str, float] = {}
    for sample in (sample for metric in collected for sample in metric.samples):
        totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    if not totals:
        return None
    return PrefillCounters(int(totals[_QUERIES]), int(totals[_HITS]), totals[_SECONDS])
