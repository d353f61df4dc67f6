"""ReMA's cases: dialogues of two agents, plans and solutions in a single turn."""

from __future__ import annotations

import numpy as np
from credit_cases import Case, Worth, counts, fate, group_worth, length, new_sequence, whitened_returns
from scheduler_tools import build

from marsrl_verl.algos.rema.dialogue.config import Config as DialogueConfig
from marsrl_verl.algos.rema.dialogue.method import ReMA
from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING, ROLES, MathDialogue
from marsrl_verl.algos.rema.single_turn.config import Config as SingleTurnConfig
from marsrl_verl.algos.rema.single_turn.config import FilterConfig
from marsrl_verl.algos.rema.single_turn.method import ReMASingleTurn
from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.sequence import LABEL, TURN, Sequence
from marsrl_verl.core.trajectory import Trajectory

GAMMA_TURN = 0.5


def _messages(role: str, rng: np.random.Generator, policy: str) -> Sequence:
    """An agent's list: its own messages, each a turn, between those of the other."""
    turns, mask = [], []
    for turn in range(int(rng.integers(1, 4))):
        own, heard = int(rng.integers(1, 4)), int(rng.integers(0, 3))
        turns += [turn] * own + [-1] * heard
        mask += [1] * own + [0] * heard
    columns = {
        TURN: np.array(turns, dtype=np.int16),
        LABEL: np.full(len(turns), ROLES.index(role), dtype=np.int8),
    }
    return new_sequence(role, rng, len(turns), mask=mask, annotations=columns, policy=policy)


def talk(item: RolloutRequest, rng: np.random.Generator) -> list[Trajectory]:
    """Dialogues; in some the reasoning agent never speaks, in some the meta-thinking agent has a penalty."""
    found = []
    for k in range(item.n):
        sequences = [_messages(META_THINKING, rng, "planner")]
        if rng.random() < 0.8:
            sequences.append(_messages(REASONING, rng, "worker"))
        one = Trajectory(f"{item.group_id}#{k}", sequences, text="x", **fate(rng))
        if rng.random() < 0.2:
            sequences[0].reward = one.value - 0.5
        found.append(one)
    return found


def _own(one: Trajectory, number: int) -> float:
    own = one.sequences[number].reward if number < len(one.sequences) else None
    return one.reward.value if own is None else own


def agents_apart(result: StepResult) -> Worth:
    """Each agent's lists are compared with its others; a dialogue in which it said nothing counts as well."""
    return {row: worth for group in result.completed for row, worth in group_worth(group, _own).items()}


def turn_returns(result: StepResult) -> Worth:
    """The reward, discounted by the turns that follow, whitened over all of an agent's tokens of the step."""
    found: Worth = {}
    for number in range(2):
        rows = {}
        for one in (one for group in result.completed for one in group.trajectories if counts(one)):
            if number < len(one.sequences):
                turns = one.sequences[number].annotations[TURN].tolist()
                reward, last = _own(one, number), max(turns)
                rows[one.trajectory_id, number] = [
                    (reward * GAMMA_TURN ** (last - turn), 1.0) if turn >= 0 else (0.0, 0.0) for turn in turns
                ]
        found |= whitened_returns(rows)
    return found


def dialogues(**settings) -> ReMA:
    return build(ReMA, MathDialogue(), DialogueConfig(group_size=4, **settings))


# --- a single turn ----------------------------------------------------------------------------------


def plan_or_solve(item: RolloutRequest, rng: np.random.Generator) -> list[Trajectory]:
    """Plans, some of them empty; solutions that are right, wrong, or answer nothing."""
    found = []
    for k in range(item.n):
        one = Trajectory(
            f"{item.group_id}#{k}", [new_sequence(item.role, rng, 1 + length(rng))], **fate(rng, [0.0])
        )
        if item.role == META_THINKING:
            one.final_text = "" if rng.random() < 0.2 else f"a plan {k}"
        else:
            one.final_text = str(rng.choice([r"\boxed{right}", r"\boxed{wrong}", "nothing"]))
            if counts(one) and "right" in one.final_text:
                one.reward = type(one.reward)(1.0)
        one.text = one.final_text
        found.append(one)
    return found


def _solved(one: Trajectory) -> float:
    return {r"\boxed{right}": 1.0, r"\boxed{wrong}": -0.5, "nothing": -1.0}[one.final_text]


def solutions(result: StepResult) -> Worth:
    """Of each plan its solutions are compared (appendix C.2: 1, -0.5, -1)."""
    groups = [group for group in result.completed if group.request.role == REASONING]
    return {
        row: worth
        for group in groups
        for row, worth in group_worth(group, lambda one, _: _solved(one)).items()
    }


def plans(result: StepResult) -> Worth:
    """A plan is worth the share of its solutions that are right; 0 where nobody could follow it. One none of
    whose solutions was graded says nothing."""
    below = {
        group.request.parent_id: group.trajectories for group in result.completed if group.request.parent_id
    }
    found: Worth = {}
    for group in (one for one in result.completed if one.request.role == META_THINKING):
        shares: dict[str, float] = {}
        kept = []
        for plan in group.trajectories:
            graded = [_solved(one) > 0 for one in below.get(plan.trajectory_id, []) if counts(one)]
            if plan.trajectory_id in below and not graded:
                continue
            kept.append(plan)
            shares[plan.trajectory_id] = sum(graded) / len(graded) if graded else 0.0
        alone = type(group)(group.request, kept)
        found |= group_worth(alone, lambda one, _, shares=shares: shares[one.trajectory_id])
    return found


def single_turn(role: str) -> ReMASingleTurn:
    off = FilterConfig(enabled=False)
    more = {"solutions_per_plan": 3, "train_roles": [role], "plans_per_problem": 2}
    config = SingleTurnConfig(group_size=4, estimator="group", filter=off, leak_rule="none", **more)
    return build(ReMASingleTurn, MathPlanPrompts(), config)


CASES = (
    Case("rema", dialogues, talk, agents_apart, turns=True),
    Case(
        "rema_reinforce_pp",
        lambda: dialogues(estimator="reinforce_pp", gamma_turn=GAMMA_TURN),
        talk,
        turn_returns,
        turns=True,
        by_group=False,
    ),
    Case("rema_single_turn_solutions", lambda: single_turn(REASONING), plan_or_solve, solutions),
    Case("rema_single_turn_plans", lambda: single_turn(META_THINKING), plan_or_solve, plans),
)
