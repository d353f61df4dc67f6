"""Answers that take several generation rounds, groups that train in parts, updates that wait."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marsrl_script import ScriptedEngine
from scheduler_tools import SAMPLING, TwoStages, answers, drive, frozen, marsrl, paused, problems, single_call
from scripted_engine import Reply
from test_scheduler_properties import few, modes, shuffled_portions, worlds

from marsrl_verl.core.credit.advantages import comparable_rows, group_relative
from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.stage import Ended, EndReason
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput

segments = st.integers(10, 60)


def run(world, mode, **options):
    return drive(marsrl(**world["method"]), mode, world["batches"], skill=world["skill"], **options)


def trained_ids(result) -> list[str]:
    """Ids of the trajectories that enter a loss, over all steps."""
    return [
        step.trained[ref.group].trajectories[ref.trajectory].trajectory_id
        for step in result.results
        for ref in comparable_rows(step.trained)
    ]


@given(worlds(), modes, segments, st.none() | st.integers(1, 6))
@few
def test_segments_change_no_group(world, mode, segment, budget):
    whole = run(world, mode)
    cut = run(world, mode, segment=segment, budget=budget)
    assert cut.trained == whole.trained
    assert cut.ended == whole.ended


@given(worlds(), segments)
@few
def test_every_segment_has_its_length_and_version(world, segment):
    result = run(world, "pipelined", segment=segment)
    for step in result.results:
        for group in step.completed:
            for one in group.trajectories:
                sequence = one.sequence
                ends = [end for end, _ in sequence.versions]
                versions = [version for _, version in sequence.versions]
                starts = [0, *ends[:-1]]
                sizes = [end - start for start, end in zip(starts, ends, strict=True)]
                assert all(size == segment for size in sizes[:-1])
                assert 0 <= sizes[-1] <= segment
                sampled = [version for version, size in zip(versions, sizes, strict=True) if size]
                assert sampled == sorted(set(sampled)) and versions == sorted(versions)
                assert len(sequence.token_versions()) == len(sequence)


@given(worlds(), segments, st.integers(2, 3), st.integers(1, 4))
@few
def test_with_parts_every_trajectory_of_a_mixed_group_is_trained_once(world, segment, min_group, min_groups):
    whole = run(world, "pipelined", segment=segment)
    parts = run(world, "pipelined", segment=segment, min_group=min_group, min_groups=min_groups)
    found = trained_ids(parts)
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(trained_ids(whole))
    assert parts.ended == whole.ended


@given(worlds(), modes, st.integers(2, 5))
@few
def test_small_updates_wait_for_the_next_step_and_nothing_is_lost(world, mode, least):
    plain, deferred = run(world, mode), run(world, mode, min_groups=least)
    assert sorted(trained_ids(deferred)) == sorted(trained_ids(plain))
    for step in deferred.results[:-1]:
        assert not step.trained or len(step.trained) >= least
        assert step.deferred < least


@given(worlds(), modes, segments, st.integers(0, 1000))
@few
def test_the_order_of_completion_changes_no_step_with_segments(world, mode, segment, seed):
    options = {"segment": segment, "min_group": 2, "min_groups": 2}
    plain = run(world, mode, engine_seed=None, **options)
    shuffled = run(world, mode, engine_seed=seed, deliver=shuffled_portions(seed), **options)
    assert frozen(plain.results) == frozen(shuffled.results)
    assert plain.rounds == shuffled.rounds


@given(worlds(), modes, segments)
@settings(max_examples=15, deadline=None)
def test_a_restart_after_every_call_changes_no_step_with_segments(world, mode, segment):
    options = {"segment": segment, "min_group": 2, "min_groups": 3}
    plain = run(world, mode, **options)
    restarted = run(world, mode, checkpoint=True, deliver=shuffled_portions(7), **options)
    assert frozen(plain.results) == frozen(restarted.results)
    assert plain.rounds == restarted.rounds


def test_unfinished_groups_go_before_new_ones():
    engine = ScriptedEngine(lambda item, k: Reply("x" * 30), scorer=lambda item, one: RewardResult(1.0))
    sampling = {"a": replace(SAMPLING["a"], segment_tokens=20), "b": SAMPLING["b"]}
    scheduler = Scheduler(TwoStages(fan=(1, 1)), "pipelined", step_prompt_budget=1)
    scheduler.start_step(0, problems(2))
    scheduler.absorb(engine.generate(scheduler.next_round(), sampling))
    first = scheduler.finish_step()
    assert (first.paused, first.waiting["a"]) == (2, 2)
    assert scheduler.waiting_problems() == 1
    scheduler.start_step(1, [])
    (again,) = scheduler.next_round()
    assert again.group_id == "p0/a/0"
    assert [one.finish for one in again.resume.trajectories] == [FinishReason.PAUSED] * 2


def begun() -> Scheduler:
    """A scheduler whose one request has one ended trajectory and one with tokens [7, 8] to be continued."""
    scheduler = Scheduler(TwoStages(), "pipelined")
    scheduler.start_step(0, problems(1))
    scheduler.next_round()
    scheduler.absorb([RolloutOutput("p0/a/0", [single_call("p0/a/0#0"), paused("p0/a/0#1", [7, 8])])])
    scheduler.finish_step()
    scheduler.start_step(1, [])
    return scheduler


def test_a_continued_trajectory_completes_its_group():
    scheduler = begun()
    scheduler.next_round()
    scheduler.absorb([RolloutOutput("p0/a/0", [single_call("p0/a/0#1", [7, 8, 9], 0.0)])])
    [group] = scheduler.finish_step().completed
    assert [one.sequence.response_ids.tolist() for one in group.trajectories] == [[0], [7, 8, 9]]


def test_what_waits_for_a_segment_is_dropped_with_the_rest():
    scheduler = begun()
    assert [dropped.group_id for dropped in scheduler.drop_waiting()] == ["p0/a/0"]
    assert scheduler.idle()


def test_what_comes_back_paused_after_a_drop_is_dropped_too():
    scheduler = Scheduler(TwoStages(fan=(2, 1)), "pipelined", step_prompt_budget=1)
    scheduler.start_step(0, problems(1))
    scheduler.next_round()
    assert [dropped.group_id for dropped in scheduler.drop_waiting()] == ["p0/a/1"]
    scheduler.absorb([RolloutOutput("p0/a/0", [single_call("p0/a/0#0"), paused("p0/a/0#1", [7, 8])])])
    result = scheduler.finish_step()
    assert result.ended == [Ended("p0", "a", EndReason.DROPPED)] and scheduler.idle()
    assert (result.in_flight, result.paused, result.completed) == (0, 0, [])


def test_parts_are_compared_with_all_that_has_ended():
    (item,) = TwoStages(n=4).first_requests(problems(1)[0], 0)
    members = answers(item, (1.0, 0.0, 1.0, 1.0)).trajectories
    group = Group(item, members, trained_before=frozenset({"p0/a/0#0", "p0/a/0#1"}))
    rows = Rows.of([group], comparable_rows([group]))
    assert [rows.trajectory(row).trajectory_id for row in range(len(rows))] == ["p0/a/0#2", "p0/a/0#3"]
    assert group_relative(rows, normalize_std=False).tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"min_group": 1}, "min_group is 1"), ({"min_groups": 0}, "min_groups is 0")],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        Scheduler(TwoStages(), "pipelined", **setting)
