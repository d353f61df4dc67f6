"""Who is expanded, who is trained as it is and who is rejected, by each rule of the filter, side by side."""

from __future__ import annotations

import pytest
from attnrl_tools import LINES, SAMPLING, annotate, method, segments
from marsrl_script import ScriptedEngine
from scheduler_tools import problems
from scripted_engine import Reply

from marsrl_verl.algos.attnrl.adaptive_sampling import FilterRule
from marsrl_verl.algos.attnrl.method import CONTINUATION
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.stage import EndReason

RIGHT = {"p0": 3, "p1": 1, "p2": 3, "p3": 6, "p4": 6, "p5": 0}
"""First responses of six that are right."""
INFLUENCE = {"p0": 0.1, "p1": 0.2, "p2": 0.6, "p3": 0.3, "p4": 0.7, "p5": 0.2}
"""Mean influence of a step. Of all problems the mean is 0.35, of the two that are always solved 0.5."""
EXPANDED, AS_IT_IS, NOTHING, REJECTED = "expanded", "first responses", "no difference", "rejected"


def became(rule: FilterRule, keep_unbranched: bool = True) -> dict[str, str]:
    """What becomes of each problem, from the round of first responses to the one of continuations."""

    def answers(item, k):
        right = k < RIGHT[item.problem.problem_id] if item.prefix is None else k == 0
        return Reply(f"{LINES}\\boxed{{{item.problem.ground_truth if right else 'no'}}}")

    attnrl = method(group_size=6, filter=rule, keep_unbranched=keep_unbranched)
    scheduler, engine = Scheduler(attnrl, "pipelined"), ScriptedEngine(answers)
    scheduler.start_step(1, problems(6))
    scheduler.absorb(engine.generate(scheduler.next_round(), SAMPLING))
    for group in scheduler.completed_stages():
        for one in group.trajectories:
            annotate(attnrl, one, [INFLUENCE[group.request.problem.problem_id]] * 10)
    result = scheduler.finish_step()
    ended = {end.problem_id: end.reason for end in result.ended}
    trained = {group.request.problem.problem_id: group for group in result.trained}
    found = {}
    for name in RIGHT:
        if name not in ended:
            found[name] = EXPANDED
        elif name in trained:
            found[name] = AS_IT_IS
            credited = segments(attnrl, [trained[name]])
            assert list(credited) == [one.trajectory_id for one in trained[name].trajectories]
            assert all(value for parts in credited.values() for _, value in parts)
        else:
            found[name] = REJECTED if ended[name] is EndReason.REJECTED else NOTHING
    scheduler.start_step(2, [])
    continued = {item.problem.problem_id for item in scheduler.next_round() if item.stage == CONTINUATION}
    assert continued == {name for name, fate in found.items() if fate == EXPANDED}
    return found


PAPER = {
    "p0": AS_IT_IS, "p1": AS_IT_IS, "p2": EXPANDED, "p3": REJECTED, "p4": EXPANDED, "p5": NOTHING,
}  # fmt: skip
RULES = {
    FilterRule.NONE: dict.fromkeys(RIGHT, EXPANDED),
    FilterRule.RELEASED: dict.fromkeys(RIGHT, EXPANDED) | {"p3": REJECTED},
    FilterRule.PAPER: PAPER,
}


@pytest.mark.parametrize("rule", FilterRule)
def test_the_rules_side_by_side(rule):
    assert became(rule) == RULES[rule]


def test_without_unexpanded_responses_only_expanded_problems_are_trained():
    found = became(FilterRule.PAPER, keep_unbranched=False)
    assert found == PAPER | {"p0": NOTHING, "p1": NOTHING}
