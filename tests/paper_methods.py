"""Drives a method with a workflow of its own: scheduler steps, each of them a process of its own."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scripted_client import runner

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, trained_rows
from marsrl_verl.core.policy import PolicySet
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.scheduler import Scheduler

PROBLEMS = [Problem(f"p{number}", f"{number}+1", str(number + 1)) for number in range(3)]


class Trained:
    """What a step trained: its rows with their advantages."""

    def __init__(self, method: Method, step: int, groups: list[Group]) -> None:
        self.step, self.groups = step, groups
        self.rows = Rows.of(groups, trained_rows(method, groups, step))
        self.advantages = method.credit.advantages(self.rows) if len(self.rows) else np.zeros(0, np.float32)


def train(
    method: Callable[[], Method],
    client: Callable[[PolicySet], Any],
    sampling: Mapping[str, Sampling],
    *,
    max_steps: int = 2000,
    **more: Any,
) -> list[Trained]:
    """Steps until nothing is on its way. Every step is a process of its own: a new method, scheduler, runner
    and set of policies, which know what the state of the step before says and no more."""
    found: list[Trained] = []
    state: dict[str, Any] | None = None
    for step in range(1, max_steps):
        one, weights = method(), PolicySet()
        scheduler = Scheduler(one, "pipelined")
        if state is not None:
            state = pickle.loads(pickle.dumps(state))
            scheduler.load_state_dict(state["scheduler"])
            weights.load_state_dict(state["policies"])
            one.load_state_dict(state["method"])
        scheduler.start_step(step, PROBLEMS if step == 1 else [])
        made = runner(client(weights), policies=weights, **more)

        async def round_of(requests):
            return await asyncio.gather(*[made.run(item, sampling) for item in requests])  # noqa: B023

        scheduler.absorb(list(asyncio.run(round_of(scheduler.next_round())))[:: -1 if step % 2 else 1])
        result = scheduler.finish_step()
        found.append(Trained(one, step, result.trained))
        due = one.schedule.trained(step).policies
        weights.updated(weights.trained if due is None else due, step)
        state = {
            "scheduler": scheduler.state_dict(),
            "policies": weights.state_dict(),
            "method": one.state_dict(),
        }
        if scheduler.idle():
            return found
    raise AssertionError(f"not idle after {max_steps} steps")
