"""Figures of agents and their trees, in training and in evaluation, from their trajectories."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from marsrl_verl.core.group import Group
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.trajectory import FinishReason, Trajectory, is_correct
from marsrl_verl.evaluation.estimators import Estimate, mean_estimate
from marsrl_verl.evaluation.runs import Program, Run, Runs, answer_reward, is_usable
from marsrl_verl.evaluation.single_role import SingleRole
from marsrl_verl.rollout.agent_loop import CALL_LIMIT

_OUTCOMES = ("ok", "error", "timeout", "failed", "refused")
_CHANGES = (-0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2)
"""Edges of the histogram of entropy changes."""
ROOTS = "roots"
"""Input of a request: number of its trajectories that begin at the prompt, further roots not counted."""


def _own_calls(members: Iterable[Trajectory]) -> list[Mapping[str, Any]]:
    """Returns the calls that trajectories made themselves, without those before their forks."""
    return [event for one in members for event in one.events if event.get("by") == one.number]


def executed(one: Trajectory) -> list[Mapping[str, Any]]:
    """Returns the calls that a trajectory made itself and that ran."""
    return [event for event in _own_calls([one]) if event.get("executed")]


def agent_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Returns the figures of scored groups by name, without those that were not observed."""
    members = [one for group in groups for one in group.trajectories]
    if not members:
        return {}
    return _calls(groups, members) | _tree(groups, members) | _decisions(members)


def _calls(groups: Sequence[Group], members: Sequence[Trajectory]) -> dict[str, float]:
    calls = _own_calls(members)
    ran = [event for event in calls if event.get("executed")]
    right = sum(is_correct(one.value) for one in members if one.reward is not None)
    using = sum(any(event.get("executed") for event in one.events) for one in members)
    limited = sum(one.finish is FinishReason.LIMIT and one.detail == CALL_LIMIT for one in members)
    found: dict[str, float] = {
        "executed_calls": len(ran),
        "executed_calls_per_group": len(ran) / len(groups),
        "calls_per_trajectory": sum(len(one.events) for one in members) / len(members),
        "using_tools_frac": using / len(members),
        "call_limit_frac": limited / len(members),
    }
    if right:
        found["executed_calls_per_right"] = len(ran) / right
    if calls:
        outcomes = Counter(event["outcome"] for event in calls)
        found |= {f"call_outcome/{name}": outcomes[name] / len(calls) for name in _OUTCOMES}
        found["cut_result_frac"] = sum(event["cut"] or event["truncated"] for event in calls) / len(calls)
        found["result_tokens_mean"] = float(np.mean([event["tokens"] for event in calls]))
    for name, count in sorted(Counter(event["tool"] for event in ran).items()):
        found[f"executed_calls/{name}"] = count
    if ran:
        seconds = [event["seconds"] for event in ran]
        found["call_seconds_p50"] = float(np.percentile(seconds, 50))
        found["call_seconds_p95"] = float(np.percentile(seconds, 95))
        found["call_waited_seconds_p95"] = float(np.percentile([event["waited"] for event in ran], 95))
    return found


def _tree(groups: Sequence[Group], members: Sequence[Trajectory]) -> dict[str, float]:
    forks = [one for one in members if one.fork is not None]
    depth = _depths(members)
    sampled = sum(map(_own_tokens, members))
    rows = sum(sequence.trained_tokens for one in members for sequence in one.sequences)
    further = sum(
        one.fork is None and one.number >= int(group.request.inputs.get(ROOTS, group.request.n))  # type: ignore[arg-type]
        for group in groups
        for one in group.trajectories
    )
    found: dict[str, float] = {
        "roots_per_group": (len(members) - len(forks) - further) / len(groups),
        "forks_per_group": len(forks) / len(groups),
        "further_roots_per_group": further / len(groups),
        "fork_depth_mean": float(np.mean([depth[one.trajectory_id] for one in members])),
        "fork_depth_max": max(depth.values()),
    }
    if rows:
        found["shared_token_frac"] = 1 - sampled / rows
    return found


def _own_tokens(one: Trajectory) -> int:
    """Counts the tokens that the policy generated in this trajectory, without those before its fork."""
    begin = 0 if one.fork is None else one.fork.token
    return sum(int(sequence.response_mask[begin:].sum()) for sequence in one.sequences)


def _depths(members: Iterable[Trajectory]) -> dict[str, int]:
    """Counts the forks on the way to each trajectory, by id."""
    found: dict[str, int] = {}
    for one in sorted(members, key=lambda one: (one.group_id, one.number)):
        found[one.trajectory_id] = 0 if one.fork is None else found.get(one.fork.trajectory_id, 0) + 1
    return found


def _decisions(members: Sequence[Trajectory]) -> dict[str, float]:
    """Returns figures of the results after which forks were decided."""
    decided = [event for event in _own_calls(members) if "forks_wanted" in event]
    if not decided:
        return {}
    requested = sum(int(event["forks_wanted"]) for event in decided)
    forks = sum(one.fork is not None for one in members)
    found = {
        "fork_decisions": float(len(decided)),
        "fork_wanted_frac": sum(event["forks_wanted"] > 0 for event in decided) / len(decided),
        "fork_granted_frac": forks / requested if requested else 0.0,
    }
    if chances := [event["fork_probability"] for event in decided if event["fork_probability"] is not None]:
        found["fork_probability_mean"] = float(np.mean(chances))
    changes = [event["entropy_change"] for event in decided if event["entropy_change"] is not None]
    if changes:
        found["entropy_change_mean"] = float(np.mean(changes))
        found["entropy_change_std"] = float(np.std(changes))
        found["entropy_rises_frac"] = sum(change > 0 for change in changes) / len(changes)
        places = Counter(int(np.searchsorted(_CHANGES, change, side="left")) for change in changes)
        names = [*(f"to_{edge:g}" for edge in _CHANGES), f"above_{_CHANGES[-1]:g}"]
        for place, name in enumerate(names):
            found[f"entropy_change/{name}"] = places[place] / len(changes)
    return found


class AgentEvaluation(SingleRole):
    """Evaluation of an agent, as `SingleRole`: one trajectory with tools and without forks for each answer.

    Args:
        role, prompts, rollout: see `SingleRole`.
        protocol: form of the tool calls.
    """

    def __init__(self, role: str, prompts: Prompts, rollout: str, protocol: str) -> None:
        super().__init__(role, prompts, rollout)
        self.protocol = str(protocol)

    def program(self, run: Run) -> Program:
        messages, inputs = self.prompts.problem(run.problem), {"protocol": self.protocol}
        trajectory = yield run.request(self.role, self.role, messages, rollout=self.rollout, inputs=inputs)
        run.final_reward = answer_reward(trajectory) - _bonus(trajectory)
        run.answer = trajectory if is_usable(trajectory) else None
        run.end = trajectory.finish.value

    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        """Calls of the model, tokens and executed tool calls of a run; tool calls for each that is solved."""
        found = super().effort(runs, confidence)
        found |= runs.means(confidence, tool_calls=_executed)
        found["tool_calls_per_solved"] = _per_solved(runs, confidence)
        return found

    def description(self) -> str:
        return f"The {self.role.capitalize()} with its tools: its final answer is graded."


def _bonus(one: Trajectory) -> float:
    """The reward's bonus for the use of tools, which makes no answer right."""
    found = one.scored.info.get("bonus")
    return found if is_usable(one) and isinstance(found, float) else 0.0


def _executed(run: Run) -> int:
    return sum(len(executed(call.trajectory)) for call in run.calls)


def _per_solved(runs: Runs, confidence: float) -> Estimate:
    """Returns all executed calls over all solved runs, with the interval of a ratio: its residuals, clustered
    by problem."""
    solved = sum(run.solved for run in runs.runs)
    if not solved:
        return Estimate(None, None, None, 0)
    ratio = sum(map(_executed, runs.runs)) / solved
    share = solved / len(runs.runs)
    residuals = [((_executed(run) - ratio * run.solved) / share, run.problem.problem_id) for run in runs.runs]
    around = mean_estimate(residuals, confidence)
    if around.low is None or around.high is None or not math.isfinite(ratio):
        return Estimate(ratio, None, None, solved)
    return Estimate(ratio, max(0.0, ratio + around.low), ratio + around.high, solved)
