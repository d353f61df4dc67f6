"""Instructions that plans give the reasoning agent, and counts of plans and solutions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marsrl_verl.algos.rema.json_actions import INVALID, ActionKind, parse_action
from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING
from marsrl_verl.algos.rema.single_turn.config import PlanForm
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import Trajectory

_DIFFICULTY = ("level", "difficulty")
"""Names of a problem's difficulty in its row's `extra_info`."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def instruction_of(one: Trajectory, form: PlanForm) -> str | None:
    """Returns a plan's instruction to the reasoning agent; empty for EMPTY. None if it can't be followed: it
    did not come to its end, it is empty, or it is no action."""
    if not one.finished:
        return None
    if form is PlanForm.JSON:
        action = parse_action(one.final_text)
        return None if action is None else action.instruction
    return one.final_text.strip() or None


def plan_notes(one: Trajectory, form: PlanForm, has_answer: Callable[[str], bool]) -> dict[str, Any]:
    """Returns findings about a plan alone: whether it has an answer in the form of answers, and its
    action."""
    if form is PlanForm.TEXT:
        return {"has_answer": has_answer(one.final_text)}
    action = parse_action(one.final_text) if one.finished else None
    text = one.final_text if action is None else action.output
    return {"has_answer": has_answer(text), "action": INVALID if action is None else action.kind.value}


def successes_of(groups: Sequence[Group], role: str) -> tuple[int, int]:
    """Counts successes and samples of a problem's groups whose rewards are complete.

    For the reasoning agent these are solutions; for the meta-thinking agent plans, which succeed with their
    solution: a plan that can't be followed fails. Trajectories that are not comparable are no samples."""
    members = [one for group in groups if group.request.role == role for one in group.trajectories]
    scored = [one.scored.info for one in members if one.comparable]
    if role == META_THINKING:
        outcomes = [float(info.get("correctness", 0.0)) > 0.5 for info in scored]
    else:
        outcomes = [bool(info.get("correct")) for info in scored]
    return sum(outcomes), len(outcomes)


def key_of(problem: Problem) -> str:
    """Returns a problem's identity over all epochs: rows with the same question, such as two pairs of answers
    to it, are told apart by verl's `extra_info.index`."""
    return f"{problem.row or problem.question}#{problem.extra_info.get('index', '')}"


def difficulty_of(problem: Problem) -> float | None:
    """Returns a problem's difficulty by the data: the number in `extra_info`'s `level` or `difficulty`
    (`Level 4`), or in those of the row that `prepare_data` made it of (`source`, JSON text); None if neither
    has one."""
    for said in (problem.extra_info, _source_of(problem)):
        for name in _DIFFICULTY:
            found = _NUMBER.search(str(said.get(name, "")))
            if found is not None:
                return float(found.group())
    return None


def _source_of(problem: Problem) -> Mapping[str, Any]:
    try:
        found = json.loads(problem.extra_info.get("source") or "{}")
    except (TypeError, ValueError):  # another field of this name
        return {}
    return found if isinstance(found, Mapping) else {}


def role_figures(groups: Sequence[Group]) -> dict[str, float]:
    """Returns shares among scored trajectories, by name; none without a trajectory."""
    found: dict[str, float] = {}
    for role, figures in ((META_THINKING, _plan_figures), (REASONING, _solution_figures)):
        pairs = [
            (group.request.problem, one.scored.info)
            for group in groups
            if group.request.role == role
            for one in group.trajectories
            if one.comparable
        ]
        if pairs:
            found |= figures(pairs)
    return found


Pairs = Sequence[tuple[Problem, Mapping[str, Any]]]


def _share(outcomes: Sequence[object]) -> float:
    return sum(map(bool, outcomes)) / len(outcomes)


def _solution_figures(pairs: Pairs) -> dict[str, float]:
    return {
        "reasoning_accuracy": _share([info.get("correct") for _, info in pairs]),
        "missing_answer_frac": _share([not info.get("has_answer") for _, info in pairs]),
    }


def _plan_figures(pairs: Pairs) -> dict[str, float]:
    found = {
        "answer_form_frac": _share([info.get("has_answer") for _, info in pairs]),
        "not_followed_frac": _share([not info.get("followed") for _, info in pairs]),
    }
    for name, key in (("plan_leak_frac", "leak"), ("plan_value_frac", "value_leak")):
        looked = [info[key] for _, info in pairs if key in info]
        if looked:
            found[name] = _share(looked)
    followed = [float(info["correctness"]) for _, info in pairs if "correctness" in info]
    if followed:
        found["plan_correctness"] = sum(followed) / len(followed)
    acted = [(problem, info["action"]) for problem, info in pairs if "action" in info]
    for kind in (*(one.value for one in ActionKind), INVALID) if acted else ():
        name = kind.lower()
        found[f"action_frac/{name}"] = _share([action == kind for _, action in acted])
        levels = [difficulty_of(problem) for problem, action in acted if action == kind]
        known = [level for level in levels if level is not None]
        if known:
            found[f"action_difficulty/{name}"] = sum(known) / len(known)
    return found
