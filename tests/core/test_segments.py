"""Answers that take several generation rounds, groups that train in parts, updates that wait."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_tools import SAMPLING, TwoStages, answers, drive, marsrl, problems
from test_scheduler_properties import few, modes, shuffled_portions, worlds

from marsrl_verl.core.advantages import sample_advantages
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.scripted import Reply, ScriptedEngine
from marsrl_verl.core.types import FinishReason, Group, Outcome, Sample

segments = st.integers(10, 60)


def run(world, mode, **options):
    return drive(marsrl(**world["method"]), mode, world["batches"], skill=world["skill"], **options)


def trained_ids(result) -> list[str]:
    """Ids of the samples that enter a loss, over all steps."""
    return [name for step in result.results for name in sample_advantages(step.trained)]


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
            for sample in group.samples:
                ends = [end for end, _ in sample.segments]
                versions = [version for _, version in sample.segments]
                starts = [0, *ends[:-1]]
                sizes = [end - start for start, end in zip(starts, ends, strict=True)]
                assert all(size == segment for size in sizes[:-1])
                assert 0 <= sizes[-1] <= segment
                assert versions == sorted(set(versions))
                assert len(sample.token_versions) == len(sample.response_ids)


@given(worlds(), segments, st.integers(2, 3), st.integers(1, 4))
@few
def test_with_parts_every_sample_of_a_mixed_group_is_trained_once(world, segment, min_group, min_groups):
    whole = run(world, "pipelined", segment=segment)
    parts = run(world, "pipelined", segment=segment, min_group=min_group, min_groups=min_groups)
    found = trained_ids(parts)
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(trained_ids(whole))
    assert parts.ended == whole.ended


@given(worlds(), modes, st.integers(2, 5))
@few
def test_small_updates_wait_for_the_next_step_and_nothing_is_lost(world, mode, least):
    plain, held = run(world, mode), run(world, mode, min_groups=least)
    assert sorted(trained_ids(held)) == sorted(trained_ids(plain))
    for step in held.results[:-1]:
        assert not step.trained or len(step.trained) >= least
        assert step.held < least


@given(worlds(), modes, segments, st.integers(0, 1000))
@few
def test_the_order_of_completion_changes_no_step_with_segments(world, mode, segment, seed):
    options = {"segment": segment, "min_group": 2, "min_groups": 2}
    plain = run(world, mode, engine_seed=None, **options)
    shuffled = run(world, mode, engine_seed=seed, deliver=shuffled_portions(seed), **options)
    assert plain.results == shuffled.results
    assert plain.rounds == shuffled.rounds


@given(worlds(), modes, segments)
@settings(max_examples=15, deadline=None)
def test_a_restart_after_every_call_changes_no_step_with_segments(world, mode, segment):
    options = {"segment": segment, "min_group": 2, "min_groups": 3}
    plain = run(world, mode, **options)
    restarted = run(world, mode, checkpoint=True, deliver=shuffled_portions(7), **options)
    assert plain.results == restarted.results
    assert plain.rounds == restarted.rounds


def test_unfinished_groups_go_before_new_ones():
    engine = ScriptedEngine(lambda item, k: Reply("x" * 30), scorer=lambda item, sample: Outcome(1.0))
    sampling = {"a": replace(SAMPLING["a"], segment_tokens=20), "b": SAMPLING["b"]}
    scheduler = Scheduler(TwoStages(fan=(1, 1)), "pipelined", step_prompt_budget=1)
    scheduler.start_step(0, problems(2))
    scheduler.absorb(engine.generate(scheduler.next_round(), sampling))
    first = scheduler.finish_step()
    assert (first.unfinished, first.waiting["a"]) == (2, 2)
    assert scheduler.waiting_problems() == 1
    scheduler.start_step(1, [])
    (again,) = scheduler.next_round()
    assert again.group_id == "p0/a/0"
    assert [sample.finish_reason for sample in again.unfinished] == [FinishReason.SEGMENT] * 2


def cut(sample: Sample, tokens: list[int]) -> Sample:
    return replace(
        sample,
        response_ids=tokens,
        rollout_log_probs=[0.0] * len(tokens),
        response_mask=[],
        segments=[],
        finish_reason=FinishReason.SEGMENT,
        outcome=None,
    )


def begun() -> tuple[Scheduler, list[Sample]]:
    """A scheduler whose one input has one ended sample and one with tokens [7, 8] to be continued."""
    scheduler = Scheduler(TwoStages(), "pipelined")
    scheduler.start_step(0, problems(1))
    (item,) = scheduler.next_round()
    ended, other = answers(item)
    scheduler.absorb([ended, cut(other, [7, 8])])
    scheduler.finish_step()
    scheduler.start_step(1, [])
    scheduler.next_round()
    return scheduler, [ended, other]


def test_a_continuation_must_begin_with_the_earlier_segments():
    scheduler, (_, other) = begun()
    with pytest.raises(ValueError, match="does not begin with the 2 tokens"):
        scheduler.absorb([other])
    scheduler.absorb([replace(cut(other, [7, 8, 9]), finish_reason=FinishReason.STOP, outcome=Outcome(0.0))])
    assert [len(group.samples) for group in scheduler.finish_step().completed] == [2]


def test_a_sample_that_ended_is_not_taken_again():
    scheduler, (ended, _) = begun()
    with pytest.raises(ValueError, match="came twice, or its next segment was not asked for"):
        scheduler.absorb([ended])


def test_what_waits_for_a_segment_is_dropped_with_the_rest():
    scheduler = Scheduler(TwoStages(), "pipelined")
    scheduler.start_step(0, problems(1))
    (item,) = scheduler.next_round()
    ended, other = answers(item)
    scheduler.absorb([ended, cut(other, [7])])
    scheduler.finish_step()
    assert [dropped.group_id for dropped in scheduler.drop_waiting()] == [item.group_id]
    assert scheduler.idle()


def test_parts_are_compared_with_all_that_has_ended():
    (item,) = TwoStages(n=4).first_inputs(problems(1)[0], 0)
    samples = answers(item, (1.0, 0.0, 1.0, 1.0))
    group = Group(item, samples, trained_before=frozenset({"p0/a/0#0", "p0/a/0#1"}))
    advantages = sample_advantages([group], normalize_std=False)
    assert advantages == {"p0/a/0#2": pytest.approx(0.25), "p0/a/0#3": pytest.approx(0.25)}


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"min_group": 1}, "min_group is 1"), ({"min_groups": 0}, "min_groups is 0")],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        Scheduler(TwoStages(), "pipelined", **setting)


def test_segments_of_a_sample_must_cover_its_tokens():
    with pytest.raises(ValueError, match="segments end at"):
        Sample("g#0", "g", [1], [2, 3], [0.0, 0.0], FinishReason.STOP, "", "", segments=[(1, 0)])
