"""Trajectories, groups and requests: what they tell, and that plain data brings them back."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from scheduler_tools import assert_plain, frozen, paused, single_call

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import (
    Problem,
    RolloutRequest,
    Sampling,
    problem_from_plain,
    problem_to_plain,
    segment_length,
)
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, Fork, RewardResult, RolloutOutput, Trajectory

PROBLEM = Problem(
    "p1", "1 + 1 = ?", "2", "sums", ({"role": "user", "content": "1 + 1 = ?"},), {"index": 3}, "sums/3"
)


def dialogue() -> Trajectory:
    """Two agents, a fork, everything set."""
    return Trajectory(
        "g#1",
        [
            Sequence("meta", [1, 2], [3, 4], [-0.1, -0.2], annotations={"turn": np.array([0, 1], np.int16)}),
            Sequence("reason", [5], [6], [-0.3], policy="second", reward=0.5),
        ],
        FinishReason.LIMIT,
        text="all of it",
        final_text="42",
        reward=RewardResult(1.0, {"answer": "42", "shape": np.array([1, 2])}, error="slow"),
        detail="turn_limit",
        events=[{"tool": "python", "seconds": 0.1}],
        figures={"repetition": 0.25},
        fork=Fork("g#0", 2, sequence=1),
        state={"turn": 3},
    )


def request(**fields) -> RolloutRequest:
    n = fields.pop("n", 4)
    return RolloutRequest("g", PROBLEM, "a", "solver", PROBLEM.messages, n, **fields)


def through_checkpoint(plain):
    """As a checkpoint of torch holds it."""
    assert_plain(plain)
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_trajectory_comes_back_with_all_of_it():
    one = dialogue()
    again = Trajectory.from_plain(through_checkpoint(one.to_plain()))
    assert frozen(again) == frozen(one)
    assert again.fork == Fork("g#0", 2, 1) and again.finish is FinishReason.LIMIT
    bare = Trajectory("g#0", [], FinishReason.REFUSED)
    assert frozen(Trajectory.from_plain(through_checkpoint(bare.to_plain()))) == frozen(bare)


def test_a_group_comes_back_with_what_was_trained():
    group = Group(request(n=2), [single_call("g#0"), dialogue()], frozenset({"g#0"}))
    again = Group.from_plain(through_checkpoint(group.to_plain()), group.request)
    assert frozen(again.to_plain()) == frozen(group.to_plain()) and again.trained_before == {"g#0"}


def test_a_request_comes_back_without_what_is_resumed():
    whole = request(
        inputs={"solution": "x", "ids": np.array([1, 2])},
        sampling={"solver": {"temperature": 0.5, "max_new_tokens": 10}},
        parent_id="g0#1",
        created_step=4,
        prefix=Sequence("solver", [1], [2, 3], [-0.1, -0.2]),
        rollout="tree",
    )
    resumed = whole.resumed(RolloutOutput("g", [paused("g#0", [2, 3])]))
    again = RolloutRequest.from_plain(through_checkpoint(resumed.to_plain()), {"p1": PROBLEM})
    assert frozen(again) == frozen(whole)
    assert problem_from_plain(through_checkpoint(problem_to_plain(PROBLEM))) == PROBLEM


def test_a_shared_prompt_is_still_one_array_in_a_checkpoint():
    """At the published lengths the prompts of a group would else be written and held n times."""
    prompt = np.arange(1000, dtype=np.int32)
    members = [
        Trajectory(
            f"g#{k}", [Sequence("solver", prompt, [1], [0.0])], FinishReason.STOP, reward=RewardResult(0.0)
        )
        for k in range(4)
    ]
    plain = Group(request(), members).to_plain()
    assert len(pickle.dumps(plain)) < 2 * prompt.nbytes
    again = Group.from_plain(pickle.loads(pickle.dumps(plain)), request())
    assert len({id(one.sequence.prompt_ids) for one in again.trajectories}) == 1


def test_a_saved_state_does_not_change_with_its_trajectory():
    one = dialogue()
    before = frozen(plain := one.to_plain())
    one.reward, one.finish = RewardResult(0.0), FinishReason.STOP
    one.sequences.append(one.sequences[0])
    assert frozen(plain) == before


def test_ids_and_counts():
    one = dialogue()
    assert (one.group_id, one.number, one.tokens, one.new_tokens, one.value) == ("g", 1, 3, 3, 1.0)
    assert Trajectory("a#b#12", [], FinishReason.STOP).number == 12
    for name in ("g", "g#", "g#x"):
        with pytest.raises(ValueError, match=f"trajectory {name}: expected an id like GROUP#0"):
            _ = Trajectory(name, [], FinishReason.STOP).number


def test_the_only_sequence_is_told_only_where_there_is_one():
    assert single_call("g#0").sequence.response_ids.tolist() == [0]
    for one, count in ((dialogue(), 2), (Trajectory("g#1", [], FinishReason.STOP), 0)):
        with pytest.raises(ValueError, match=f"trajectory g#1 has {count} sequences, expected 1"):
            _ = one.sequence
    assert Trajectory("g#1", [], FinishReason.STOP).external and not dialogue().external


@pytest.mark.parametrize("finish", FinishReason)
def test_how_a_trajectory_ended(finish):
    one = single_call("g#0", finish=finish)
    assert one.paused == (finish is FinishReason.PAUSED)
    assert one.finished == (finish is FinishReason.STOP)
    assert one.comparable != (finish in (FinishReason.ERROR, FinishReason.ABORTED))


def test_a_failed_grade_is_not_compared_and_a_missing_one_is_named():
    failed = single_call("g#0")
    failed.reward = RewardResult(0.0, graded=False)
    group = Group(request(), [failed, single_call("g#1", reward=0.5)])
    assert group.rewards == [0.5] and [one.trajectory_id for one in group.comparable] == ["g#1"]
    for name in ("value", "comparable", "scored"):
        with pytest.raises(ValueError, match="trajectory g#2 has not been scored yet"):
            getattr(single_call("g#2", reward=None), name)


def test_continued_tokens():
    prefix = Sequence("solver", [1, 2, 3], [4, 5], [0.0, 0.0])
    assert request().continued_tokens == 0
    assert request(prefix=prefix).continued_tokens == 4 * 5, "each of the four reads prompt and prefix"
    output = RolloutOutput("g", [paused("g#0", [7, 8]), single_call("g#1"), paused("g#2", [7])])
    assert request(prefix=prefix).resumed(output).continued_tokens == 3 + 2, "one token of prompt each"


def test_sampling():
    defaults = {"solver": Sampling(100, 20, segment_tokens=30, seed=5), "verifier": Sampling(7, 7)}
    assert request().sampling_of("solver", defaults).max_new_tokens == 100
    own = request(sampling={"solver": {"temperature": 0.0}})
    changed = Sampling(100, 20, temperature=0.0, segment_tokens=30, seed=5)
    assert own.sampling_of("solver", defaults) == changed, "seeds and segments stay the run's"
    assert own.sampling_of("verifier", defaults) == Sampling(7, 7)
    with pytest.raises(
        ValueError, match=r"request g: .* missing for role 'judge', found \['solver', 'verifier'\]"
    ):
        own.sampling_of("judge", defaults)
    one = defaults["solver"]
    assert one.request_seed("g", 0) == one.request_seed("g", 0)
    assert len({one.request_seed("g", 0), one.request_seed("g", 30), one.request_seed("h", 0)}) == 3
    assert defaults["verifier"].request_seed("g", 0) is None
    assert [segment_length(10, parts) for parts in (1, 3, 4)] == [10, 4, 3]


def test_what_a_tool_wrote_was_not_sampled():
    sequence = Sequence("agent", [1], [5, 6], [-1.0, -1.0], versions=((2, 1),))
    sequence = sequence.extend([7, 8, 9], [-1.0, 0.0, 0.0], 2, mask=[1, 0, 0])
    other = Sequence("critic", [1], [5], [-1.0]).extend([], [], 2)
    one = Trajectory("g#0", [sequence, other], FinishReason.STOP)
    assert (one.new_tokens, sequence.new_tokens) == (1, 3)
