"""Generation rounds on the engine: one after another, or one in the background of a training step.

With `overlap: one_step` the round of step k+1 is started before step k trains and is collected after it, so
its tokens come from the weights before update k. No request may be in flight while weights are
synchronised; `Generation.in_flight` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.trajectory import RolloutOutput, Trajectory
from marsrl_verl.verl_adapter.rollout_server.prefill_counters import PrefillCounters


@dataclass(slots=True)
class Round:
    """Results of one generation round."""

    outputs: list[RolloutOutput]
    seconds: float
    """Seconds from the start of the round to the end of its last group."""
    prefill: PrefillCounters | None = None
    """Prompts that the engine read in it; None where it keeps no statistics."""
    shared_prompt_tokens: int = 0
    """Tokens of the engine's prompts that stand after a beginning that an earlier one had, too
    (`core.prefix_tree`); 0 where it keeps no statistics."""


class StartedRound(Protocol):
    """A round that the engine is working on."""

    def wait(self) -> Round:
        """Returns when all of its groups are answered and scored."""
        ...


class RoundEngine(Protocol):
    """An engine that can be called without waiting for it."""

    def start(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> StartedRound:
        """Begins every request, or continues what is paused of it; what ends is scored. `sampling`: settings
        by role, where a request has none of its own."""
        ...


@dataclass(slots=True)
class RoundCounts:
    """The generation rounds of one training step in numbers."""

    rounds: int = 0
    trajectories: int = 0
    """Trajectories that were begun or continued."""
    tokens: int = 0
    """Tokens that policies chose in these rounds; those of tools and templates are none."""
    continued_tokens: int = 0
    """Tokens of prompts and responses so far that the engine was given to continue."""
    seconds: float = 0.0
    """The rounds' own time, hidden behind training or not."""
    prompt_tokens: int = 0
    """See `PrefillCounters`. This and what follows is 0 where the engine keeps no statistics."""
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    shared_prompt_tokens: int = 0
    shared_cached_tokens: int = 0
    """Cached tokens, of each round at most as many as its prompts shared."""
    tool_calls: int = 0
    """Calls of tools that ran."""

    def add(self, done: Round, earlier: frozenset[str] = frozenset()) -> None:
        """Counts a round that is over; `earlier` are ids of tool calls made before it (`executed_calls`)."""
        self.rounds += 1
        trajectories = [one for output in done.outputs for one in output.trajectories]
        self.trajectories += len(trajectories)
        self.tokens += sum(one.new_tokens for one in trajectories)
        self.tool_calls += len(executed_calls(trajectories) - earlier)
        self.seconds += done.seconds
        if done.prefill is not None:
            self.prompt_tokens += done.prefill.prompt_tokens
            self.cached_tokens += done.prefill.cached_tokens
            self.prefill_seconds += done.prefill.seconds
            self.shared_prompt_tokens += done.shared_prompt_tokens
            self.shared_cached_tokens += min(done.prefill.cached_tokens, done.shared_prompt_tokens)

    def metrics(self) -> dict[str, float]:
        """The `rollout/` metrics of the step; what was not observed is absent."""
        metrics: dict[str, float] = {
            "rollout/rounds": self.rounds,
            "rollout/samples": self.trajectories,
            "rollout/generated_tokens": self.tokens,
            "rollout/continued_tokens": self.continued_tokens,
        }
        if self.tool_calls:
            metrics["rollout/executed_tool_calls"] = self.tool_calls
        if self.seconds > 0:
            metrics["perf/generated_tokens_per_second"] = self.tokens / self.seconds
        if self.prefill_seconds > 0:
            metrics["rollout/prefill_seconds"] = self.prefill_seconds
        if self.prompt_tokens:
            metrics["rollout/prompt_tokens"] = self.prompt_tokens
            metrics["rollout/prefix_cache_hit_frac"] = self.cached_tokens / self.prompt_tokens
            metrics["rollout/shared_prompt_tokens"] = self.shared_prompt_tokens
        if self.prompt_tokens and self.shared_prompt_tokens:
            metrics["rollout/shared_prefix_hit_frac"] = self.shared_cached_tokens / self.shared_prompt_tokens
        return metrics


def executed_calls(trajectories: Iterable[Trajectory]) -> frozenset[str]:
    """The ids of the tool calls that ran, by trajectories' events; one that several share counts once."""
    return frozenset(
        str(event["call_id"])
        for one in trajectories
        for event in one.events
        if event.get("kind") == "tool" and event.get("executed")
    )


@dataclass
class Generation:
    """Hands the scheduler's rounds to the engine and its outputs back."""

    scheduler: Scheduler
    """The pools; a training step of it must be open."""
    engine: RoundEngine
    sampling: Mapping[str, Sampling]
    """Settings by role."""
    before_round: Callable[[], None] = lambda: None
    """Called before the engine is given a round."""
    after_round: Callable[[], None] = lambda: None
    """Called when a round's outputs are with the scheduler."""
    _started: StartedRound | None = field(default=None, init=False)
    _counts: RoundCounts = field(default_factory=RoundCounts, init=False)
    _earlier_calls: frozenset[str] = field(default=frozenset(), init=False)

    @property
    def in_flight(self) -> bool:
        """True if a round was started and not collected."""
        return self._started is not None

    def start_round(self) -> bool:
        """Starts the step's next round without waiting for it; False when the step needs none."""
        if self._started is not None:
            raise RuntimeError("a generation round is in flight; collect it before starting another")
        requests = self.scheduler.next_round()
        if requests:
            self.before_round()
            self._started = self.engine.start(requests, self.sampling)
            self._counts.continued_tokens += sum(one.continued_tokens for one in requests)
            resumed = (one.resume for one in requests if one.resume is not None)
            self._earlier_calls = executed_calls(one for output in resumed for one in output.trajectories)
        return bool(requests)

    def collect(self) -> None:
        """Waits for the round in flight, if there is one, and gives its outputs to the scheduler."""
        if self._started is None:
            return
        done = self._started.wait()
        self._started = None
        self.scheduler.absorb(done.outputs)
        self._counts.add(done, self._earlier_calls)
        self.after_round()

    def finish(self) -> RoundCounts:
        """Collects what is in flight, runs the step's remaining rounds, and returns the step's counts."""
        self.collect()
        while self.start_round():
            self.collect()
        counts, self._counts = self._counts, RoundCounts()
        return counts

    def state_dict(self) -> dict[str, Any]:
        """Counts of rounds that were collected ahead of their step. The trajectories are the scheduler's."""
        if self._started is not None:
            raise RuntimeError("a generation round is in flight; collect it before writing a checkpoint")
        return asdict(self._counts)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with saved counts."""
        self._counts = RoundCounts(**state)
