"""What the scheduler refuses to take from an engine; a refused call takes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_tools import TwoStages, answers, frozen, paused, problems, single_call

from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput, Trajectory

FIRST, SECOND = "p0/a/0#0", "p0/a/0#1"


class Continuing(TwoStages):
    """Stage a continues a prefix of two tokens."""

    def first_requests(self, problem, step):
        prefix = Sequence("a", [1], [5, 6], [0.0, 0.0])
        return [RolloutRequest(f"{problem.problem_id}/a/0", problem, "a", "a", (), self.n, prefix=prefix)]


class Late(TwoStages):
    @classmethod
    def stages(cls, config):
        return tuple(replace(one, rewarded_later=one.name == "a") for one in super().stages(config))

    def late_rewards(self, groups):
        return {one.trajectory_id: RewardResult(1.0) for group in groups for one in group.trajectories}


def dispatched(method=None) -> Scheduler:
    scheduler = Scheduler(method or TwoStages(), "pipelined")
    scheduler.start_step(0, problems(1))
    scheduler.next_round()
    return scheduler


def second_round() -> Scheduler:
    """The first trajectory has ended, the second one is to continue the tokens [7, 8]."""
    scheduler = dispatched()
    scheduler.absorb([RolloutOutput("p0/a/0", [single_call(FIRST), paused(SECOND, [7, 8])])])
    scheduler.finish_step()
    scheduler.start_step(1, [])
    scheduler.next_round()
    return scheduler


def refused(scheduler: Scheduler, message: str, *members: Trajectory, state=None, group="p0/a/0") -> None:
    before = frozen(scheduler.state_dict())
    with pytest.raises(ValueError, match=message):
        scheduler.absorb([RolloutOutput(group, list(members), state)])
    assert frozen(scheduler.state_dict()) == before


def test_a_group_that_is_not_in_flight():
    scheduler = dispatched()
    message = "group px/a/0 is not in flight: it was never dispatched, or its round is back already"
    refused(scheduler, message, single_call("px/a/0#0"), group="px/a/0")
    scheduler.absorb([RolloutOutput("p0/a/0", [single_call(FIRST), single_call(SECOND)])])
    refused(scheduler, "group p0/a/0 is not in flight", single_call(FIRST), single_call(SECOND))


def test_a_group_whose_next_round_was_not_dispatched():
    scheduler = dispatched()
    scheduler.absorb([RolloutOutput("p0/a/0", [single_call(FIRST), paused(SECOND, [7])])])
    refused(scheduler, "group p0/a/0 is not in flight", single_call(SECOND, [7, 8]))


def test_a_group_that_comes_twice_in_one_call():
    scheduler = dispatched()
    [item] = scheduler.in_flight()
    with pytest.raises(ValueError, match="group p0/a/0 came twice"):
        scheduler.absorb([answers(item), answers(item)])
    assert scheduler.in_flight() == [item]


def test_trajectories_that_were_not_asked_for():
    scheduler = dispatched()
    known = "unknown, group p0/a/0 has trajectories p0/a/0#0 to #1"
    refused(scheduler, f"trajectory p0/a/0#2: {known}", single_call(FIRST), single_call("p0/a/0#2"))
    refused(scheduler, f"trajectory p1/a/0#1: {known}", single_call(FIRST), single_call("p1/a/0#1"))
    refused(scheduler, "trajectory p0/a/0#x: expected an id like GROUP#0", single_call("p0/a/0#x"))


def test_trajectories_that_come_twice():
    refused(dispatched(), f"trajectory {FIRST} came twice", single_call(FIRST), single_call(FIRST))
    refused(
        second_round(),
        f"trajectory {FIRST} had ended, and came again",
        single_call(FIRST),
        single_call(SECOND, [7, 8]),
    )


def test_a_paused_trajectory_that_is_not_continued():
    refused(
        second_round(),
        f"trajectory {SECOND}: it was to be continued and did not come back",
        state={"left": 1},
    )


def test_missing_trajectories():
    message = "group p0/a/0: 1 trajectories, expected 2; a group that begins more of them later has a state"
    refused(dispatched(), message, single_call(FIRST))
    refused(dispatched(), message, paused(FIRST, [1]))


def test_rewards():
    refused(
        dispatched(), f"trajectory {SECOND}: not scored, score it before absorb",
        single_call(FIRST), single_call(SECOND, reward=None),
    )  # fmt: skip
    refused(
        dispatched(), f"trajectory {SECOND}: reward nan is not a finite number",
        single_call(FIRST), single_call(SECOND, reward=float("nan")),
    )  # fmt: skip
    refused(
        dispatched(Late()), f"trajectory {FIRST}: reward inf is not", single_call(FIRST, reward=float("inf")),
        single_call(SECOND),
    )  # fmt: skip


def test_a_stage_with_late_rewards_may_leave_them_open():
    scheduler = dispatched(Late())
    scheduler.absorb(
        [RolloutOutput("p0/a/0", [single_call(FIRST, reward=None), single_call(SECOND, reward=None)])]
    )
    [group] = scheduler.finish_step().completed
    assert group.rewards == [1.0, 1.0]


@pytest.mark.parametrize("tokens", [[7], [7, 9, 8], [8, 7]])
def test_a_continuation_must_begin_with_the_tokens_of_earlier_rounds(tokens):
    message = f"trajectory {SECOND}: does not begin with the 2 tokens of its earlier rounds"
    refused(second_round(), message, single_call(SECOND, tokens))


def test_a_continuation_must_keep_its_sequences():
    message = f"trajectory {SECOND}: has 0 sequences, and had 1"
    refused(
        second_round(), message, Trajectory(SECOND, [], single_call(SECOND).finish, reward=RewardResult(0.0))
    )


def test_a_trajectory_must_begin_with_the_requests_prefix():
    good, bad = single_call(FIRST, [5, 6, 1]), single_call(SECOND, [5, 1])
    refused(dispatched(Continuing()), f"trajectory {SECOND}: does not begin with the 2 tokens", good, bad)
    scheduler = dispatched(Continuing())
    scheduler.absorb([RolloutOutput("p0/a/0", [good, single_call(SECOND, [5, 6])])])
    assert len(scheduler.finish_step().completed) == 1


def test_an_error_in_one_output_takes_none_of_the_others():
    scheduler = Scheduler(TwoStages(), "pipelined")
    scheduler.start_step(0, problems(2))
    first, second = scheduler.next_round()
    with pytest.raises(ValueError, match="reward nan"):
        scheduler.absorb([answers(first), answers(second, (1.0, float("nan")))])
    assert scheduler.in_flight() == [first, second]
