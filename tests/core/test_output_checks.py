"""What the scheduler refuses to take from an engine; a refused call takes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_tools import TwoStages, answers, back, frozen, next_step, paused, single_call, started

from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory

FIRST, SECOND = "p0/a/0#0", "p0/a/0#1"
ENDED = single_call(FIRST)


class Continuing(TwoStages):
    """Stage a continues a prefix of two tokens."""

    def first_requests(self, problem, step):
        prefix = Sequence("a", [1], [5, 6], [0.0, 0.0])
        return [RolloutRequest(f"{problem.problem_id}/a/0", problem, "a", "a", (), self.n, prefix=prefix)]


class Late(TwoStages):
    @classmethod
    def stages(cls, config):
        return tuple(replace(one, deferred_reward=one.name == "a") for one in super().stages(config))

    def deferred_rewards(self, groups):
        return {one.trajectory_id: RewardResult(1.0) for group in groups for one in group.trajectories}


def dispatched(method=None) -> Scheduler:
    scheduler = started(method)
    scheduler.next_round()
    return scheduler


def second_round() -> Scheduler:
    """The first trajectory has ended, the second one is to continue the tokens [7, 8]."""
    scheduler = dispatched()
    scheduler.absorb([back(ENDED, paused(SECOND, [7, 8]))])
    next_step(scheduler)
    scheduler.next_round()
    return scheduler


def round_over() -> Scheduler:
    """What came back goes on in a next round, which was not dispatched."""
    scheduler = dispatched()
    scheduler.absorb([back(ENDED, paused(SECOND, [7]))])
    return scheduler


def refused(scheduler: Scheduler, message: str, *outputs) -> None:
    before = frozen(scheduler.state_dict())
    with pytest.raises(ValueError, match=message):
        scheduler.absorb(list(outputs))
    assert frozen(scheduler.state_dict()) == before


KNOWN = "unknown, group p0/a/0 has trajectories p0/a/0#0 to #1"
MISSING = "group p0/a/0: 1 trajectories, expected 2; a group that begins more of them later has a state"
BEGINNING = f"trajectory {SECOND}: does not begin with the 2 tokens"


@pytest.mark.parametrize(
    ("message", "members"),
    [
        (f"trajectory p0/a/0#2: {KNOWN}", [ENDED, single_call("p0/a/0#2")]),
        (f"trajectory p1/a/0#1: {KNOWN}", [ENDED, single_call("p1/a/0#1")]),
        ("trajectory p0/a/0#x: expected an id like GROUP#0", [single_call("p0/a/0#x")]),
        (f"trajectory {FIRST} came twice", [ENDED, ENDED]),
        (MISSING, [ENDED]),
        (MISSING, [paused(FIRST, [1])]),
        (f"trajectory {SECOND}: not scored, score it", [ENDED, single_call(SECOND, reward=None)]),
        (
            f"trajectory {SECOND}: reward nan is not a finite number",
            [ENDED, single_call(SECOND, reward=float("nan"))],
        ),
    ],
)
def test_a_first_round(message, members):
    refused(dispatched(), message, back(*members))


@pytest.mark.parametrize(
    ("message", "members"),
    [
        (f"trajectory {FIRST} had ended, and came again", [ENDED, single_call(SECOND, [7, 8])]),
        (f"trajectory {SECOND}: it was to be continued and did not come back", []),
        (f"{BEGINNING} of its earlier rounds", [single_call(SECOND, [7])]),
        (f"{BEGINNING} of its earlier rounds", [single_call(SECOND, [7, 9, 8])]),
        (f"{BEGINNING} of its earlier rounds", [single_call(SECOND, [8, 7])]),
        (
            f"trajectory {SECOND}: has 0 sequences, and had 1",
            [Trajectory(SECOND, [], FinishReason.STOP, reward=RewardResult(0.0))],
        ),
    ],
)
def test_a_later_round(message, members):
    refused(second_round(), message, back(*members, state=None if members else {"left": 1}))


def test_a_group_that_is_not_in_flight():
    scheduler, again = dispatched(), back(ENDED, single_call(SECOND))
    message = "group px/a/0 is not in flight: it was never dispatched, or its round is back already"
    refused(scheduler, message, back(single_call("px/a/0#0"), group="px/a/0"))
    refused(scheduler, "group p0/a/0 came twice", again, again)
    scheduler.absorb([again])
    refused(scheduler, "group p0/a/0 is not in flight", again)
    refused(round_over(), "group p0/a/0 is not in flight", back(single_call(SECOND, [7, 8])))


def test_deferred_rewards_may_be_open_and_are_finite():
    scheduler = dispatched(Late())
    endless = single_call(FIRST, reward=float("inf"))
    refused(scheduler, f"trajectory {FIRST}: reward inf is not", back(endless, single_call(SECOND)))
    scheduler.absorb([back(single_call(FIRST, reward=None), single_call(SECOND, reward=None))])
    [group] = scheduler.finish_step().completed
    assert group.rewards == [1.0, 1.0]


def test_a_trajectory_must_begin_with_the_requests_prefix():
    scheduler, good = dispatched(Continuing()), single_call(FIRST, [5, 6, 1])
    refused(scheduler, BEGINNING, back(good, single_call(SECOND, [5, 1])))
    scheduler.absorb([back(good, single_call(SECOND, [5, 6]))])
    assert len(scheduler.finish_step().completed) == 1


def test_an_error_in_one_output_takes_none_of_the_others():
    scheduler = started(count=2)
    first, second = scheduler.next_round()
    refused(scheduler, "reward nan", answers(first), answers(second, (1.0, float("nan"))))
    assert scheduler.in_flight() == [first, second]
