"""Alternating training in phases, each with the problems that its agent solves now and then (ReMA, arXiv
2503.09501, alg. 1 and appendix D.1).

A phase trains one agent while the other one stays as it is. It begins with an epoch over all problems that
trains nothing and counts successes; its training epochs, the episodes, have the problems whose success rate
lies between two bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marsrl_verl.algos.rema.prompts import REASONING
from marsrl_verl.algos.rema.single_turn.config import Config, FilterConfig, Process
from marsrl_verl.algos.rema.single_turn.plans import key_of
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.request import Problem
from marsrl_verl.core.schedule import EpochMode, Schedule, Trained, Unit
from marsrl_verl.settings.rules import OwnFunction

KEY = "marsrl.algo.filter.rule"


@dataclass(slots=True)
class Phases:
    """The current epoch, and its role: roles are trained one phase after the other, then
    anew."""

    config: Config
    number: int = 0
    """Number of the epoch, from 0 on."""

    @property
    def epochs(self) -> int:
        """Epochs of a phase."""
        return self.config.episodes + self.config.filter.enabled

    @property
    def phase(self) -> int:
        """Number of the phase, from 0 on."""
        return self.number // self.epochs

    @property
    def role(self) -> str:
        """Role that is trained in this phase."""
        return self.config.phase_roles[self.phase % len(self.config.phase_roles)]

    @property
    def iteration(self) -> int:
        """Number of phases that this role had before."""
        return self.phase // len(self.config.phase_roles)

    @property
    def filtering(self) -> bool:
        """True if this epoch counts successes and trains nothing."""
        return self.config.filter.enabled and self.number % self.epochs == 0

    @property
    def episode(self) -> int:
        """Number of the training epoch in its phase, from 1 on; 0 for the one that counts."""
        return self.number % self.epochs + (not self.config.filter.enabled)

    @property
    def left(self) -> int | None:
        """Epochs that follow this one; None: without end. Below 0 if the last one is over."""
        if self.config.iterations is None:
            return None
        return self.config.iterations * len(self.config.phase_roles) * self.epochs - self.number - 1

    def next_epoch(self) -> bool:
        """Goes on to the next epoch; returns whether a phase begins."""
        self.number += 1
        return self.number % self.epochs == 0


@dataclass(slots=True)
class SuccessFilter:
    """Filter of the problems that an agent solves now and then."""

    config: FilterConfig
    counts: dict[str, list[int]] = field(default_factory=dict)
    """Problem -> successes and samples of this phase."""

    def note(self, problem: str, successes: int, samples: int) -> None:
        """Adds a problem's successes and samples; a problem that the data has twice has the sum of both."""
        if not 0 <= successes <= samples:
            raise ValueError(f"problem {problem}: found {successes} successes in {samples} samples")
        found = self.counts.setdefault(problem, [0, 0])
        found[0] += successes
        found[1] += samples

    def keeps(self, problem: str) -> bool:
        """True if a problem's success rate is within the bounds, or the function keeps it; a problem without
        a sample is not kept."""
        successes, samples = self.counts.get(problem, (0, 0))
        if not samples:
            return False
        rule = self.config.rule
        if not isinstance(rule, OwnFunction):
            return self.config.lowest <= successes / samples <= self.config.highest
        found = rule.call(KEY, successes, samples)
        if not isinstance(found, bool | np.bool_):
            raise rule.refuse(KEY, repr(found), "True or False")
        return bool(found)

    def metrics(self) -> dict[str, float]:
        """Returns figures of the counts, by name."""
        rates = [successes / samples for successes, samples in self.counts.values() if samples]
        kept = sum(map(self.keeps, self.counts))
        found = {"filter/problems": float(len(self.counts)), "filter/kept": float(kept)}
        if rates:
            found["filter/success_rate"] = sum(rates) / len(rates)
            found["filter/always_solved_frac"] = sum(rate == 1.0 for rate in rates) / len(rates)
            found["filter/never_solved_frac"] = sum(rate == 0.0 for rate in rates) / len(rates)
        return found

    def state_dict(self) -> dict[str, list[int]]:
        """Returns the counts."""
        return {problem: list(found) for problem, found in self.counts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with saved counts."""
        self.counts = {str(problem): [int(one) for one in found] for problem, found in state.items()}


class PhaseSchedule(Schedule):
    """Phases of the agents, one after the other, over problems that are filtered anew in each."""

    unit = Unit.PROBLEM
    epoch_mode = EpochMode.BARRIER

    def __init__(self, config: Config, tools: MethodTools) -> None:
        super().__init__(config, tools)
        self.phases, self.filter = Phases(config), SuccessFilter(config.filter)

    @classmethod
    def max_trained(cls, config: Config) -> int:
        """A step trains one agent, and epochs that count successes, with more responses, train none."""
        return config.group_size

    @classmethod
    def max_steps(cls, config: Config, problems: int, per_step: int) -> int | None:
        """Returns the steps of all phases if each epoch has all problems; most training epochs have fewer."""
        if config.iterations is None:
            return None
        counting = -(-problems // per_step) if config.filter.enabled else 0
        asked = [_problems_per_step(config, role, per_step) for role in config.phase_roles]
        return config.iterations * sum(counting + config.episodes * -(-problems // one) for one in asked)

    def admits(self, problem: Problem) -> bool:
        """Admits all problems where successes are counted, then those that are solved now and then."""
        if self.phases.left is not None and self.phases.left < 0:
            return False
        asks_all = not self.config.filter.enabled or self.phases.filtering
        return asks_all or self.filter.keeps(key_of(problem))

    def problems_per_step(self, configured: int) -> int:
        """Returns fewer than `configured` if each becomes several prompts of the reasoning agent."""
        if self.phases.filtering:
            return configured
        return _problems_per_step(self.config, self.phases.role, configured)

    def epoch_ended(self, step: int) -> None:
        """Goes on to the next epoch; a new phase counts anew."""
        if self.phases.next_epoch():  # another agent is asked, or the same one with other weights
            self.filter.counts = {}

    def epochs_left(self) -> int | None:
        """Returns the epochs of the phases that are left."""
        return None if self.phases.left is None else max(0, self.phases.left)

    def trained(self, step: int) -> Trained:
        """Returns the phase's agent; none while successes are counted."""
        if self.phases.filtering:
            return Trained(policies=frozenset())
        name = self.tools.policies.get(self.phases.role)
        return Trained(frozenset({self.phases.role}), None if name is None else frozenset({name}))

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch, and the counts of its phase."""
        return {"pass": self.phases.number, "counts": self.filter.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues in the same epoch."""
        self.phases.number = int(state["pass"])
        self.filter.load_state_dict(state["counts"])


def _problems_per_step(config: Config, role: str, configured: int) -> int:
    """Returns the problems of a training step: fewer if each becomes several prompts of the agent that is
    trained."""
    if config.process is not Process.MAMRP or role != REASONING:
        return configured
    return max(1, configured // config.plans_per_problem)
