from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_tools import (
    TwoStages,
    absorb_round,
    answers,
    back,
    frozen,
    ids,
    marsrl,
    next_step,
    paused,
    problems,
    restarted,
    single_call,
    started,
)

from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.stage import Ended, EndReason


def test_sequential_takes_a_problem_through_all_stages_in_one_step():
    scheduler = started(mode="sequential")
    assert absorb_round(scheduler) == ["p0/a/0"]
    assert absorb_round(scheduler) == ["p0/b/0", "p0/b/1"]
    assert absorb_round(scheduler) == []
    result = scheduler.finish_step()
    assert ids(result.trained) == ["p0/a/0", "p0/b/0", "p0/b/1"]
    assert result.ended == [Ended("p0", "b", EndReason.FINISHED)]
    assert scheduler.idle()


def test_pipelined_decodes_every_stage_in_one_round_and_later_stages_first():
    scheduler = started()
    assert absorb_round(scheduler) == ["p0/a/0"]
    assert scheduler.next_round() == []
    first = scheduler.finish_step()
    assert ids(first.trained) == ["p0/a/0"]
    assert first.waiting == {"a": 0, "b": 2}

    scheduler.start_step(1, problems(1, first=1))
    assert absorb_round(scheduler) == ["p0/b/0", "p0/b/1", "p1/a/0"]
    second = scheduler.finish_step()
    assert ids(second.trained) == ["p0/b/0", "p0/b/1", "p1/a/0"]
    assert second.request_ages == {"a": 0.0, "b": 1.0}
    assert second.ended == [Ended("p0", "b", EndReason.FINISHED)]


def test_what_becomes_ready_in_a_pipelined_step_waits_for_the_next_one():
    scheduler = started()
    [item] = scheduler.next_round()
    scheduler.finish_step()

    scheduler.start_step(1, [])
    scheduler.absorb([answers(item)])
    assert scheduler.next_round() == []
    assert next_step(scheduler).waiting == {"a": 0, "b": 2}
    assert ids(scheduler.next_round()) == ["p0/b/0", "p0/b/1"]


def test_the_budget_goes_to_the_backlog_first_and_the_oldest_problem_first():
    scheduler = started(count=2, step_prompt_budget=2)
    assert absorb_round(scheduler) == ["p0/a/0", "p1/a/0"]
    scheduler.finish_step()
    scheduler.start_step(1, problems(2, first=2))
    assert absorb_round(scheduler) == ["p0/b/0", "p0/b/1"]
    result = scheduler.finish_step()
    assert result.waiting == {"a": 2, "b": 2}
    assert result.oldest_waiting == {"a": 0, "b": 1}
    assert scheduler.waiting_problems() == 2


def test_a_problem_with_several_first_requests_waits_as_one_problem():
    scheduler = started(TwoStages(fan=(3, 1)), count=2, step_prompt_budget=2)
    assert scheduler.waiting_problems() == 2
    absorb_round(scheduler)
    assert scheduler.waiting_problems() == 2, "one of the first problem's requests still waits"
    next_step(scheduler)
    absorb_round(scheduler)
    assert scheduler.waiting_problems() == 1


def test_a_younger_problem_that_waits_longer_overtakes_an_older_one():
    scheduler = started(TwoStages(fan=(1, 2)), count=2, step_prompt_budget=2)
    slow, fast = scheduler.next_round()
    scheduler.absorb([answers(fast)])
    scheduler.finish_step()

    scheduler.step_prompt_budget = 1
    scheduler.start_step(1, [])
    scheduler.absorb([answers(slow)])
    assert ids(scheduler.next_round()) == ["p1/b/0"]
    next_step(scheduler)
    assert ids(scheduler.next_round()) == ["p1/b/1"]


def with_limit(max_request_staleness):
    """Two problems left four inputs of stage b at step 0; a round decodes one input."""
    limits = {"step_prompt_budget": 2, "max_request_staleness": max_request_staleness}
    scheduler = started(TwoStages(), count=2, **limits)
    absorb_round(scheduler)
    scheduler.finish_step()
    scheduler.step_prompt_budget = 1
    return scheduler


def one_step(scheduler, step, new=()):
    scheduler.start_step(step, new)
    return absorb_round(scheduler), scheduler.finish_step()


def test_requests_of_later_stages_are_dropped_when_they_are_too_old():
    scheduler = with_limit(2)
    assert one_step(scheduler, 1)[0] == ["p0/b/0"]
    names, result = one_step(scheduler, 2)
    assert names == ["p0/b/1"] and result.stale == 0, "two steps old: just young enough"
    assert ids(result.completed) == ["p0/b/1"]
    names, result = one_step(scheduler, 3, problems(1, first=2))
    assert names == ["p2/a/0"], "the turn goes on to what is left"
    assert result.stale == 2 and result.ended == [Ended("p1", "b", EndReason.STALE)]
    assert one_step(scheduler, 4)[1].stale == 0


def test_a_problem_goes_on_with_the_groups_that_were_not_too_old():
    scheduler = with_limit(1)
    assert one_step(scheduler, 1)[0] == ["p0/b/0"]
    names, result = one_step(scheduler, 2)
    assert names == [] and result.stale == 3
    assert result.ended == [Ended("p0", "b", EndReason.FINISHED), Ended("p1", "b", EndReason.STALE)]
    assert scheduler.idle()


def test_neither_problems_nor_what_is_begun_grow_too_old():
    scheduler = started(TwoStages(), count=2, step_prompt_budget=1, max_request_staleness=1)
    (first,) = scheduler.next_round()
    assert scheduler.finish_step().stale == 0
    scheduler.start_step(5, [])
    assert ids(scheduler.next_round()) == ["p1/a/0"], "a problem waits as long as it takes"
    scheduler.absorb([answers(first)])
    assert scheduler.finish_step().stale == 0


def test_dropped_requests_are_counted_over_a_restart():
    scheduler = with_limit(1)
    scheduler.start_step(3, [])
    assert scheduler.next_round() == []
    assert restarted(scheduler, step_prompt_budget=1, max_request_staleness=1).finish_step().stale == 4


def test_the_budget_holds_for_every_sequential_round():
    scheduler = started(mode="sequential", count=3, step_prompt_budget=2)
    rounds = []
    while names := absorb_round(scheduler):
        rounds.append(names)
    assert [len(names) for names in rounds] == [2, 2, 2, 1, 2]
    assert rounds[1] == ["p0/b/0", "p0/b/1"]


def test_groups_with_equal_rewards_complete_but_do_not_train_and_still_feed_the_next_stage():
    scheduler = started(mode="sequential")
    absorb_round(scheduler, rewards=(1.0, 1.0))
    assert absorb_round(scheduler) == ["p0/b/0", "p0/b/1"]
    result = scheduler.finish_step()
    assert "p0/a/0" in ids(result.completed)
    assert "p0/a/0" not in ids(result.trained)


def test_a_problem_without_first_requests_ends_at_once():
    scheduler = started(TwoStages(fan=(0, 1)))
    assert scheduler.next_round() == []
    assert scheduler.finish_step().ended == [Ended("p0", "a", EndReason.SKIPPED)]


def test_a_stage_is_complete_only_with_all_its_groups():
    scheduler = started(TwoStages(fan=(2, 1)), mode="sequential")
    first, second = scheduler.next_round()
    scheduler.absorb([answers(second)])
    assert scheduler.next_round() == []
    scheduler.absorb([answers(first)])
    assert ids(scheduler.next_round()) == ["p0/b/0"]


def test_a_group_is_trained_in_the_step_in_which_it_completes():
    scheduler = started()
    scheduler.next_round()
    scheduler.absorb([back(single_call("p0/a/0#1", [1], 0.0), paused("p0/a/0#0", [7]))])
    first = next_step(scheduler)
    assert first.completed == [] and (first.in_flight, first.paused) == (1, 1)
    scheduler.next_round()
    scheduler.absorb([back(single_call("p0/a/0#0", [7, 8]))])
    [group] = scheduler.finish_step().trained
    assert [one.trajectory_id for one in group.trajectories] == ["p0/a/0#0", "p0/a/0#1"]
    assert [one.sequence.response_ids.tolist() for one in group.trajectories] == [[7, 8], [1]]


def test_many_trajectories_are_ordered_by_number():
    scheduler = started(TwoStages(n=12), mode="sequential")
    [item] = scheduler.next_round()
    output = answers(item, [0.0] * 12)
    output.trajectories.reverse()
    scheduler.absorb([output])
    [group] = scheduler.finish_step().completed
    assert [one.trajectory_id for one in group.trajectories] == [f"p0/a/0#{k}" for k in range(12)]


def test_unfinished_groups_go_before_new_ones():
    scheduler = started(count=2, step_prompt_budget=1)
    scheduler.next_round()
    scheduler.absorb([back(paused("p0/a/0#0", [7]), paused("p0/a/0#1", [7]))])
    first = scheduler.finish_step()
    assert (first.paused, first.waiting["a"]) == (2, 2)
    assert scheduler.waiting_problems() == 1
    scheduler.start_step(1, [])
    (again,) = scheduler.next_round()
    assert again.group_id == "p0/a/0" and all(one.paused for one in again.resume.trajectories)


# --- refusals ------------------------------------------------------------------------------------


def test_calls_out_of_order_are_refused():
    scheduler = Scheduler(TwoStages(), "sequential")
    for call in (scheduler.next_round, scheduler.finish_step, lambda: scheduler.absorb([])):
        with pytest.raises(RuntimeError, match="call start_step first"):
            call()
    scheduler.start_step(3, problems(1))
    with pytest.raises(RuntimeError, match="step 3 is still open"):
        scheduler.start_step(4, [])
    with pytest.raises(RuntimeError, match="1 requests still wait"):
        scheduler.finish_step()
    absorb_round(scheduler, (0.0, 0.0))
    scheduler.finish_step()
    with pytest.raises(ValueError, match="steps must rise, the last one was 3"):
        scheduler.start_step(3, [])


def test_a_problem_id_that_is_still_on_its_way_is_refused():
    scheduler = Scheduler(TwoStages(), "pipelined")
    with pytest.raises(ValueError, match=r"\['p0'\]"):
        scheduler.start_step(0, problems(1) + problems(2))
    scheduler.start_step(0, problems(1))
    scheduler.finish_step()
    with pytest.raises(ValueError, match=r"\['p0'\]"):
        scheduler.start_step(1, problems(1))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("a", lambda asked: asked * 2, "p0/a/0: the method gave this group id twice"),
        (
            "a",
            lambda asked: [replace(one, rollout="other") for one in asked],
            "p0/a/0: .*'other', expected that of its stage: single_call",
        ),
        ("b", lambda asked: [replace(one, stage="a") for one in asked], "found stage a, expected one of: b"),
    ],
    ids=["twice", "another program", "a wrong stage"],
)
def test_requests_that_do_not_fit_are_refused(name, change, message):
    class Changing(TwoStages):
        def requests(self, problem, stage, *rest):
            asked = super().requests(problem, stage, *rest)
            return change(asked) if stage == name else asked

    scheduler = Scheduler(Changing(), "sequential")
    with pytest.raises(ValueError, match=message):
        scheduler.start_step(0, problems(1))
        absorb_round(scheduler)
        scheduler.next_round()


@pytest.mark.parametrize(
    "setting",
    [
        {"step_prompt_budget": 0},
        {"max_request_staleness": 0},
        {"max_request_staleness": -1},
        {"min_group": 1},
        {"min_groups": 0},
        {"mode": "parallel"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(setting):
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=value if name == "mode" else f"{name} is {value}"):
        started(**setting)


# --- end of the data -----------------------------------------------------------------------------


def test_dropping_returns_what_waits_and_ends_its_problems():
    scheduler = started(count=2)
    absorb_round(scheduler)
    scheduler.finish_step()
    assert ids(scheduler.drop_waiting()) == ["p0/b/0", "p0/b/1", "p1/b/0", "p1/b/1"]
    assert scheduler.idle()
    scheduler.start_step(1, [])
    assert scheduler.finish_step().ended == [
        Ended("p0", "b", EndReason.DROPPED),
        Ended("p1", "b", EndReason.DROPPED),
    ]


def test_groups_in_flight_survive_a_drop_but_lead_nowhere():
    scheduler = started(TwoStages(fan=(2, 1)), step_prompt_budget=1)
    [item] = scheduler.next_round()
    assert ids(scheduler.drop_waiting()) == ["p0/a/1"]
    assert not scheduler.idle()
    scheduler = restarted(scheduler)
    scheduler.absorb([answers(item)])
    result = scheduler.finish_step()
    assert ids(result.trained) == ["p0/a/0"]
    assert result.ended == [Ended("p0", "a", EndReason.DROPPED)]
    assert scheduler.idle()


def test_what_waits_for_a_segment_is_dropped_with_the_rest():
    scheduler = half_answered()
    assert ids(scheduler.drop_waiting()) == ["p0/a/0"]
    assert scheduler.idle()


def test_what_comes_back_paused_after_a_drop_is_dropped_too():
    scheduler = started(TwoStages(fan=(2, 1)), step_prompt_budget=1)
    scheduler.next_round()
    assert ids(scheduler.drop_waiting()) == ["p0/a/1"]
    scheduler.absorb([back(single_call("p0/a/0#0"), paused("p0/a/0#1", [7, 8]))])
    result = scheduler.finish_step()
    assert result.ended == [Ended("p0", "a", EndReason.DROPPED)] and scheduler.idle()
    assert (result.in_flight, result.paused, result.completed) == (0, 0, [])


# --- checkpoint ----------------------------------------------------------------------------------


def test_a_state_of_another_mode_or_method_is_refused():
    saved = started().state_dict()
    with pytest.raises(ValueError, match="saved mode is 'pipelined', this run has 'sequential'"):
        Scheduler(TwoStages(), "sequential").load_state_dict(saved)
    with pytest.raises(ValueError, match=r"saved stages is \[\['a', 'a'\]"):
        Scheduler(marsrl(), "pipelined").load_state_dict(saved)
    with pytest.raises(ValueError, match="'stages' is missing"):
        Scheduler(TwoStages(), "pipelined").load_state_dict({"mode": "pipelined"})


def half_answered() -> Scheduler:
    """One of two trajectories has ended, the other has a token and is to go on."""
    scheduler = started()
    scheduler.next_round()
    scheduler.absorb([back(paused("p0/a/0#0", [7]), single_call("p0/a/0#1"))])
    next_step(scheduler)
    return scheduler


def test_what_was_in_flight_is_asked_for_again_after_a_restart():
    """A round that is lost with the machine: the same requests, with what earlier rounds had brought."""
    for scheduler in (started(), half_answered()):
        lost = scheduler.next_round()
        assert frozen(scheduler.in_flight()) == frozen(lost)
        again = restarted(scheduler)
        assert frozen(again.in_flight()) == frozen(lost)
        assert again.next_round() == [], "the step's round was dispatched"
        again.absorb([back(single_call("p0/a/0#0", [7, 8])) if lost[0].resume else answers(lost[0])])
        assert again.in_flight() == [] and len(again.finish_step().completed) == 1


def test_a_state_is_a_copy():
    scheduler = started()
    state = scheduler.state_dict()
    before = frozen(state)
    absorb_round(scheduler)
    scheduler.finish_step()
    assert frozen(state) == before
