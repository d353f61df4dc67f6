"""Where the ranks of a worker group meet."""

from __future__ import annotations

from random import SystemRandom
from typing import Any

from verl.single_controller.ray import RayWorkerGroup

PORTS = (20_000, 30_000)
"""Above those of Ray's workers (10002 to 19999), below those of Kubernetes' services (from 30000) and of
outgoing connections (Linux: from 32768)."""
TRIED = 1_000
"""Most ports that are tried, from a random one on: runs that start together rarely try the same."""


def master_ports() -> list[int]:
    """A range `[first, end)` for the rendezvous of a worker group, for verl to take the first free one."""
    first = SystemRandom().randrange(PORTS[0], PORTS[1] - TRIED)
    return [first, first + TRIED]


class MarsRLWorkerGroup(RayWorkerGroup):
    """verl's, whose first rank listens at a port that no other process is given meanwhile.

    Upstream behaviour: without a range, `get_master_addr_port` lets the system choose a free port and gives
    it back. Until the first rank listens there, seconds later, any outgoing connection can be given it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("master_port_range", master_ports())
        super().__init__(*args, **kwargs)
