"""Ports at which the ranks of a worker group meet, and limits on the driver's wait for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import Any

import ray
from verl.single_controller.ray import RayWorkerGroup

from marsrl_verl.verl_adapter.rollout_server.dead_process import running_process
from marsrl_verl.verl_adapter.rollout_server.engine_watch import Stopwatch, results

PORTS = (20_000, 30_000)
"""Above those of Ray's workers (10002 to 19999), below those of Kubernetes' services (from 30000) and of
outgoing connections (Linux: from 32768)."""
TRIED = 1_000
"""Most ports that are tried, from a random one on: runs that start together rarely try the same."""


def master_ports() -> list[int]:
    """A range `[first, end)` for the rendezvous of a worker group, for verl to take the first free one."""
    first = SystemRandom().randrange(PORTS[0], PORTS[1] - TRIED)
    return [first, first + TRIED]


FIRST_S = 86_400.0
"""A published step may take hours."""
LEAST_S, TIMES, MEASURED = 3_600.0, 20, 2


class TrainerHangsError(RuntimeError):
    """Ranks of the trainer do not come to the end of a call; the message says which."""


class MarsRLWorkerGroup(RayWorkerGroup):
    """verl's, whose first rank listens at a port that no other process is given meanwhile, and which waits
    for no rank without a limit. Upstream behaviour: without a range, `get_master_addr_port` lets the system
    choose a free port and gives it back. Until the first rank listens there, seconds later, any outgoing
    connection can be given it. And a method of the group waits in `ray.get` as long as a rank hangs."""

    limit_s: float | None = None
    """Most seconds of one call; None: `TIMES` the longest of its name so far, at least `LEAST_S`, and
    `FIRST_S` until there are `MEASURED`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("master_port_range", master_ports())
        super().__init__(*args, **kwargs)
        self._calls: dict[str, tuple[int, float]] = {}
        """Number of calls of each method that have returned, and the seconds of the longest."""

    def _bind_worker_method(self, user_defined_cls: type, func_generator: Callable[..., Any]) -> Any:
        """Binds as upstream, but a blocking method waits here, so that verl has nothing to wait for."""

        def generate(
            group: Any, name: str, *, execute_fn: Callable[..., Any], blocking: bool, **functions: Any
        ) -> Any:
            def execute(*args: Any, **kwargs: Any) -> Any:
                called = execute_fn(*args, **kwargs)
                if not blocking:
                    return called
                several = isinstance(called, list)  # of all ranks, or of the first alone
                found = self._wait(name, called if several else [called])
                return found if several else found[0]

            return func_generator(group, name, execute_fn=execute, blocking=False, **functions)

        return super()._bind_worker_method(user_defined_cls, generate)

    def _wait(self, name: str, references: Sequence[Any]) -> list[Any]:
        """Results of the ranks; TrainerHangsError: not all have returned within the limit."""
        watch = Stopwatch()
        limit, why = self._limit(name)

        def look() -> None:
            if watch.look() < limit:
                return
            _, pending = ray.wait(list(references), num_returns=len(references), timeout=0)
            silent = [rank for rank, one in enumerate(references) if one in pending]
            who = "; ".join(f"rank {rank}{running_process(self.workers[rank])}" for rank in silent[:_SHOWN])
            raise TrainerHangsError(
                f"the trainer's {name.removeprefix(_ROLE)} has taken longer than {why}: it hangs, or needs a "
                f"higher limit. {len(silent)} of {len(references)} ranks have not returned: {who}"
            )

        found = results(references, look, heeds_stop=False)
        count, longest = self._calls.get(name, (0, 0.0))
        self._calls[name] = count + 1, max(longest, watch.look())
        return found

    def _limit(self, name: str) -> tuple[float, str]:
        """Most seconds of a call of this name, and the words for it in the message."""
        key = "marsrl.run.training_timeout_s"
        if self.limit_s is not None:
            return self.limit_s, f"{key} = {self.limit_s:g} s"
        count, longest = self._calls.get(name, (0, 0.0))
        if count < MEASURED:
            return FIRST_S, f"{FIRST_S:g} s ({key} sets another limit)"
        limit = max(LEAST_S, TIMES * longest)
        before = f"the longest of {count} before took {longest:.0f} s"
        return limit, f"{limit:g} s, where {before} ({key} sets another limit)"


_ROLE = "actor_rollout_ref_"
"""Prefix that verl gives the methods of a class with several roles."""
_SHOWN = 4
"""Ranks that are named: where one hangs, those that it communicates with wait for it."""


def worker_group(limit_s: float | None) -> type[MarsRLWorkerGroup]:
    """The class with a limit: verl makes the groups, and hands no setting of ours to them."""
    return type("LimitedWorkerGroup", (MarsRLWorkerGroup,), {"limit_s": limit_s})
