"""What a method's scripted steps train, and what each row ought to be worth by formulas of their own.

Another method's cases are in a file `<method>_credit.py`, as `CASES`. The formulas are written down once
more, with loops over plain numbers: what they have in common with the project's code is the paper.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scheduler_tools import ShortPrompts, build, marsrl, problems

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.scheduler import Scheduler, StepResult
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory

Row = tuple[str, int]
"""Trajectory id and number of the sequence."""
Worth = dict[Row, list[float]]
"""What each token of a row is worth; rows that are not there are not trained."""
REJECTED_REWARD = 50.0
"""Of failed requests and grades: it would be seen in any mean."""


@dataclass(frozen=True)
class Case:
    """A method with settings, in a scripted world."""

    name: str
    method: Callable[[], Method]
    play: Callable[[RolloutRequest, np.random.Generator], list[Trajectory]]
    """The trajectories of a request."""
    worth: Callable[[StepResult], Worth]
    """By the paper, of a step."""
    turns: bool = False
    """Whether responses have turns."""
    by_group: bool = True
    """Whether a row's advantage is a matter of its group alone."""
    leaves: bool = False
    """Whether the paper's baseline is a mean over the leaves of trees."""


def new_sequence(role: str, rng: np.random.Generator, length: int, **fields: Any) -> Sequence:
    """Random tokens: no two responses have one by chance."""
    ids = rng.integers(1, 2**31 - 1, length)
    return Sequence(role, [7, 8], ids, np.full(length, -0.5), fields.pop("mask", None), **fields)


def fate(rng: np.random.Generator, rewards: Iterable[float] = (0.0, 1.0)) -> dict[str, Any]:
    """How a trajectory ends: one in five fails, or its grade does, and its reward then says nothing."""
    draw = rng.random()
    failed = FinishReason.ERROR if draw < 0.1 else FinishReason.STOP
    if draw < 0.2:
        return {
            "finish": failed,
            "reward": RewardResult(REJECTED_REWARD, graded=failed is FinishReason.ERROR),
        }
    return {"finish": FinishReason.STOP, "reward": RewardResult(float(rng.choice(list(rewards))))}


def length(rng: np.random.Generator) -> int:
    return int(rng.integers(0, 7))


def answers(item: RolloutRequest, rng: np.random.Generator) -> list[Trajectory]:
    """One call of the model each."""
    return [
        Trajectory(f"{item.group_id}#{k}", [new_sequence(item.role, rng, length(rng))], text="x", **fate(rng))
        for k in range(item.n)
    ]


# --- formulas ---------------------------------------------------------------------------------------


def counts(one: Trajectory) -> bool:
    """Whether a reward says something."""
    return one.finish not in (FinishReason.ERROR, FinishReason.ABORTED) and bool(
        one.reward and one.reward.graded
    )


def relative(rewards: Mapping[Any, float], *, divide: bool = True) -> dict[Any, float]:
    """GRPO: (r - mean) / (std + 1e-6) with G - 1 in the variance; nothing where all are equal."""
    if len(set(rewards.values())) < 2:
        return {}
    mean = sum(rewards.values()) / len(rewards)
    square = sum((value - mean) ** 2 for value in rewards.values()) / (len(rewards) - 1)
    return {
        name: (value - mean) / (math.sqrt(square) + 1e-6 if divide else 1.0)
        for name, value in rewards.items()
    }


def group_worth(
    group: Group, rewards: Callable[[Trajectory, int], float] = lambda one, number: one.reward.value
) -> Worth:
    """Sequences of one number are compared with each other; whoever has none counts with its reward."""
    found: Worth = {}
    members = [one for one in group.trajectories if counts(one)]
    for number in range(max((len(one.sequences) for one in members), default=0)):
        values = relative({one.trajectory_id: rewards(one, number) for one in members})
        for one in members:
            if (
                one.trajectory_id in values
                and number < len(one.sequences)
                and one.sequences[number].response_mask.any()
            ):
                found[one.trajectory_id, number] = [values[one.trajectory_id]] * len(one.sequences[number])
    return found


def worth_of_groups(result: StepResult) -> Worth:
    """Every group by itself, whatever else the step has."""
    return {row: values for group in result.completed for row, values in group_worth(group).items()}


def whitened_returns(rows: Mapping[Row, list[tuple[float, float]]]) -> Worth:
    """REINFORCE++: (G - mean) / std over the tokens of all rows.

    Args:
        rows: of each token its return, and 1 where the policy chose it, else 0.
    """
    chosen = [value for tokens in rows.values() for value, mask in tokens if mask]
    mean = sum(chosen) / len(chosen)
    std = math.sqrt(sum((one - mean) ** 2 for one in chosen) / max(len(chosen) - 1, 1) + 1e-8)
    return {row: [(value - mean) / std * mask for value, mask in tokens] for row, tokens in rows.items()}


# --- steps ------------------------------------------------------------------------------------------


def steps_of(case: Case, seed: int, mode: str, order: int) -> tuple[Method, list[StepResult]]:
    """The steps of a few problems that train something.

    Args:
        seed: of what is sampled, by group.
        order: of the order in which groups come back.
    """
    method = case.method()
    scheduler, found = Scheduler(method, mode), []
    for step in range(1, 30):
        scheduler.start_step(step, problems(2, first=2 * step) if step <= 2 else [])
        while requests := scheduler.next_round():
            shuffled = derive_generator(order, step).permutation(len(requests))
            for at in shuffled.tolist():
                item = requests[at]
                members = case.play(item, derive_generator(seed, item.group_id))
                scheduler.absorb([RolloutOutput(item.group_id, members)])
        found.append(scheduler.finish_step())
        if step >= 2 and scheduler.idle():
            return method, found
    raise AssertionError("not idle after 30 steps")


# --- MarsRL and a method of one's own ---------------------------------------------------------------


def roles(item: RolloutRequest, rng: np.random.Generator) -> list[Trajectory]:
    """MarsRL's: a Verifier mostly says Wrong, so that a Corrector has work."""
    found = answers(item, rng)
    for one in found:
        one.final_text = f"{item.role} {one.trajectory_id}"
        if item.role == "verifier":
            wrong = rng.random() < 0.7
            right = wrong is (item.inputs["solution_reward"] < 0.5)
            info = {"verdict": "wrong" if wrong else "correct", "report": "it says"}
            result = RewardResult(float(right)) if counts(one) else one.reward
            one.reward = replace(result, info=info)
    return found


def judged_by_class(result: StepResult) -> Worth:
    """`verdict_balance=classes`: N / (2 N_c) for what judges a solution of class c, with N all judgements of
    the step that say something, those of groups with equal rewards among them."""
    judged = {True: 0, False: 0}
    for group in result.completed:
        if group.request.role == "verifier":
            judged[group.request.inputs["solution_reward"] > 0.5] += sum(map(counts, group.trajectories))
    found = worth_of_groups(result)
    for group in result.completed:
        if group.request.role == "verifier":
            of_class = judged[group.request.inputs["solution_reward"] > 0.5]
            factor = sum(judged.values()) / (2 * of_class) if all(judged.values()) else 0.0
            for one in group.trajectories:
                if (row := (one.trajectory_id, 0)) in found:
                    found[row] = [factor * value for value in found[row]]
    return found


def calculator() -> Method:
    """The method of `examples/own_method`."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    try:
        from own_method.calculator import Calculator
    finally:
        sys.path.pop(0)
    return build(Calculator, ShortPrompts(), group_size=4)


def against_the_others(result: StepResult) -> Worth:
    """The example's: right answers earn the shortest one's length over theirs, less the others' mean."""
    found: Worth = {}
    for group in result.completed:
        members = [one for one in group.trajectories if counts(one)]
        sizes = {one.trajectory_id: len(one.sequences[0]) for one in members if one.reward.value > 0}
        values = {
            one.trajectory_id: min(sizes.values()) / sizes[one.trajectory_id]
            if one.trajectory_id in sizes
            else 0.0
            for one in members
        }
        if len(set(values.values())) > 1:
            for one in members:
                others = [value for name, value in values.items() if name != one.trajectory_id]
                worth = values[one.trajectory_id] - sum(others) / len(others)
                found[one.trajectory_id, 0] = [worth] * len(one.sequences[0])
    return found


def lengths_of_at_least_one(item: RolloutRequest, rng: np.random.Generator) -> list[Trajectory]:
    found = answers(item, rng)
    for one in found:
        if not len(one.sequences[0]):
            one.sequences = [new_sequence(item.role, rng, 1)]
    return found


CASES = (
    Case("marsrl", marsrl, roles, worth_of_groups),
    Case(
        "marsrl_verdict_classes",
        lambda: marsrl(verdict_balance="classes"),
        roles,
        judged_by_class,
        by_group=False,
    ),
    Case("own_method", calculator, lengths_of_at_least_one, against_the_others),
)
