from __future__ import annotations

import json

import pytest
from scheduler_tools import TwoStages, answers, drive, marsrl, problems

from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.scheduler_state import Ended, EndReason


def started(mode: str = "pipelined", count: int = 1, **settings) -> Scheduler:
    scheduler = Scheduler(TwoStages(), mode, **settings)
    scheduler.start_step(0, problems(count))
    return scheduler


def ids(inputs) -> list[str]:
    return [item.group_id for item in inputs]


def absorb_round(scheduler: Scheduler, rewards=(1.0, 0.0)) -> list[str]:
    inputs = scheduler.next_round()
    for item in inputs:
        scheduler.absorb(answers(item, rewards))
    return ids(inputs)


def test_sequential_takes_a_problem_through_all_stages_in_one_step():
    scheduler = started("sequential")
    assert absorb_round(scheduler) == ["p0/a/0"]
    assert absorb_round(scheduler) == ["p0/b/0", "p0/b/1"]
    assert absorb_round(scheduler) == []
    result = scheduler.finish_step()
    assert ids(group.input for group in result.trained) == ["p0/a/0", "p0/b/0", "p0/b/1"]
    assert result.ended == [Ended("p0", "b", EndReason.FINISHED)]
    assert scheduler.idle()


def test_pipelined_decodes_every_stage_in_one_round_and_later_stages_first():
    scheduler = started("pipelined")
    assert absorb_round(scheduler) == ["p0/a/0"]
    assert scheduler.next_round() == []
    first = scheduler.finish_step()
    assert ids(group.input for group in first.trained) == ["p0/a/0"]
    assert first.waiting == {"a": 0, "b": 2}

    scheduler.start_step(1, problems(1, first=1))
    assert absorb_round(scheduler) == ["p0/b/0", "p0/b/1", "p1/a/0"]
    second = scheduler.finish_step()
    assert ids(group.input for group in second.trained) == ["p0/b/0", "p0/b/1", "p1/a/0"]
    assert second.input_ages == {"a": 0.0, "b": 1.0}
    assert second.ended == [Ended("p0", "b", EndReason.FINISHED)]


def test_a_pipelined_problem_takes_one_step_per_stage():
    run = drive(marsrl(), "pipelined", [problems(1)])
    stages = [[name.split("/")[1] for name in step[0]] for step in run.rounds if step]
    assert [set(names) for names in stages] == [
        {"solver"},
        {"verifier_1"},
        {"corrector_1"},
        {"verifier_2"},
        {"corrector_2"},
    ]


def test_what_becomes_ready_in_a_pipelined_step_waits_for_the_next_one():
    scheduler = started()
    [item] = scheduler.next_round()
    early, late = answers(item)
    scheduler.absorb([early])
    scheduler.finish_step()

    scheduler.start_step(1, [])
    scheduler.absorb([late])
    assert scheduler.next_round() == []
    assert scheduler.finish_step().waiting == {"a": 0, "b": 2}

    scheduler.start_step(2, [])
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


def test_a_younger_problem_that_waits_longer_overtakes_an_older_one():
    scheduler = Scheduler(TwoStages(fan=(1, 2)), "pipelined", step_prompt_budget=2)
    scheduler.start_step(0, problems(2))
    slow, fast = scheduler.next_round()
    early, late = answers(slow)
    scheduler.absorb([early, *answers(fast)])
    scheduler.finish_step()

    scheduler.step_prompt_budget = 1
    scheduler.start_step(1, [])
    scheduler.absorb([late])
    assert ids(scheduler.next_round()) == ["p1/b/0"]
    scheduler.finish_step()
    scheduler.start_step(2, [])
    assert ids(scheduler.next_round()) == ["p1/b/1"]


def with_limit(max_input_staleness, fan=(1, 2)):
    """Two problems left four inputs of stage b at step 0; a round decodes one input."""
    scheduler = Scheduler(
        TwoStages(fan=fan), "pipelined", step_prompt_budget=2, max_input_staleness=max_input_staleness
    )
    scheduler.start_step(0, problems(2))
    absorb_round(scheduler)
    scheduler.finish_step()
    scheduler.step_prompt_budget = 1
    return scheduler


def one_step(scheduler, step, new=()):
    scheduler.start_step(step, new)
    return absorb_round(scheduler), scheduler.finish_step()


def test_inputs_of_later_stages_are_dropped_when_they_are_too_old():
    scheduler = with_limit(2)
    assert one_step(scheduler, 1)[0] == ["p0/b/0"]
    names, result = one_step(scheduler, 2)
    assert names == ["p0/b/1"] and result.stale == 0, "two steps old: just young enough"
    assert [group.input.group_id for group in result.completed] == ["p0/b/1"]
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
    scheduler = Scheduler(TwoStages(), "pipelined", step_prompt_budget=1, max_input_staleness=1)
    scheduler.start_step(0, problems(2))
    (first,) = scheduler.next_round()
    early, late = answers(first)
    scheduler.absorb([early])
    assert scheduler.finish_step().stale == 0
    scheduler.start_step(5, [])
    assert ids(scheduler.next_round()) == ["p1/a/0"], "a problem waits as long as it takes"
    scheduler.absorb([late])
    assert scheduler.finish_step().stale == 0


def test_dropped_inputs_are_counted_over_a_restart():
    scheduler = with_limit(1)
    scheduler.start_step(3, [])
    assert scheduler.next_round() == []
    again = Scheduler(TwoStages(), "pipelined", step_prompt_budget=1, max_input_staleness=1)
    again.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert again.finish_step().stale == 4


@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_below_the_first_turn_is_refused(value):
    with pytest.raises(ValueError, match="max_input_staleness"):
        Scheduler(TwoStages(), "pipelined", max_input_staleness=value)


def test_the_budget_holds_for_every_sequential_round():
    scheduler = started("sequential", count=3, step_prompt_budget=2)
    rounds = []
    while names := absorb_round(scheduler):
        rounds.append(names)
    assert [len(names) for names in rounds] == [2, 2, 2, 1, 2]
    assert rounds[1] == ["p0/b/0", "p0/b/1"]


def test_groups_with_equal_rewards_complete_but_do_not_train_and_still_feed_the_next_stage():
    scheduler = started("sequential")
    absorb_round(scheduler, rewards=(1.0, 1.0))
    assert absorb_round(scheduler) == ["p0/b/0", "p0/b/1"]
    result = scheduler.finish_step()
    assert "p0/a/0" in ids(group.input for group in result.completed)
    assert "p0/a/0" not in ids(group.input for group in result.trained)


def test_a_problem_without_eligible_outputs_ends_early():
    scheduler = started()
    absorb_round(scheduler, rewards=(0.0, 0.0))
    assert scheduler.finish_step().ended == [Ended("p0", "a", EndReason.NO_INPUTS)]
    assert scheduler.idle()


def test_a_problem_without_first_inputs_ends_at_once():
    scheduler = Scheduler(TwoStages(fan=(0, 1)), "pipelined")
    scheduler.start_step(0, problems(1))
    assert scheduler.next_round() == []
    assert scheduler.finish_step().ended == [Ended("p0", "a", EndReason.NOT_ASKED)]


def test_a_stage_is_complete_only_with_all_its_groups():
    scheduler = Scheduler(TwoStages(fan=(2, 1)), "sequential")
    scheduler.start_step(0, problems(1))
    first, second = scheduler.next_round()
    scheduler.absorb(answers(second))
    assert scheduler.next_round() == []
    scheduler.absorb(answers(first))
    assert ids(scheduler.next_round()) == ["p0/b/0"]


def test_a_group_is_trained_in_the_step_in_which_it_completes():
    scheduler = started()
    [item] = scheduler.next_round()
    early, late = answers(item)
    scheduler.absorb([late])
    assert scheduler.finish_step().completed == []
    [pending] = scheduler.pending()
    assert (pending.input.group_id, pending.missing) == ("p0/a/0", (0,))
    scheduler.start_step(1, [])
    scheduler.absorb([early])
    [group] = scheduler.finish_step().trained
    assert [sample.sample_id for sample in group.samples] == ["p0/a/0#0", "p0/a/0#1"]


def test_many_samples_are_ordered_by_number():
    scheduler = Scheduler(TwoStages(n=12), "sequential")
    scheduler.start_step(0, problems(1))
    [item] = scheduler.next_round()
    scheduler.absorb(reversed(answers(item, [0.0] * 12)))
    [group] = scheduler.finish_step().completed
    assert [sample.sample_id for sample in group.samples] == [f"p0/a/0#{k}" for k in range(12)]


# --- refusals ------------------------------------------------------------------------------------


def test_unknown_duplicate_unscored_and_infinite_samples_are_refused_by_id():
    scheduler = started()
    [item] = scheduler.next_round()
    first, second = answers(item)

    stranger = answers(item)[0]
    stranger.sample_id, stranger.group_id = "px/a/0#0", "px/a/0"
    with pytest.raises(ValueError, match="px/a/0#0: its group px/a/0 is not in flight"):
        scheduler.absorb([stranger])
    outside = answers(item)[0]
    outside.sample_id = "p0/a/0#7"
    with pytest.raises(ValueError, match="p0/a/0#7: unknown"):
        scheduler.absorb([outside])
    with pytest.raises(ValueError, match="p0/a/0#0: came twice"):
        scheduler.absorb([first, first])
    unscored = answers(item)[1]
    unscored.outcome = None
    with pytest.raises(ValueError, match="p0/a/0#1: not scored"):
        scheduler.absorb([first, unscored])
    with pytest.raises(ValueError, match="p0/a/0#1: reward nan"):
        scheduler.absorb(answers(item, (1.0, float("nan"))))

    # None of the refused calls took anything.
    scheduler.absorb([first])
    with pytest.raises(ValueError, match="p0/a/0#0: came twice"):
        scheduler.absorb([first])
    scheduler.absorb([second])
    with pytest.raises(ValueError, match=r"p0/a/0#1: .*complete already"):
        scheduler.absorb([second])


def test_calls_out_of_order_are_refused():
    scheduler = Scheduler(TwoStages(), "sequential")
    for call in (scheduler.next_round, scheduler.finish_step, lambda: scheduler.absorb([])):
        with pytest.raises(RuntimeError, match="call start_step first"):
            call()
    scheduler.start_step(3, problems(1))
    with pytest.raises(RuntimeError, match="step 3 is still open"):
        scheduler.start_step(4, [])
    with pytest.raises(RuntimeError, match="1 inputs still wait"):
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


def test_inputs_that_a_method_gives_twice_or_for_a_wrong_stage_are_refused():
    class Twice(TwoStages):
        def first_inputs(self, problem, step):
            return super().first_inputs(problem, step) * 2

    class Astray(TwoStages):
        def first_inputs(self, problem, step):
            return self._inputs(problem, 1, step, None)

    with pytest.raises(ValueError, match="p0/a/0: the method gave this group id twice"):
        Scheduler(Twice(), "pipelined").start_step(0, problems(1))
    with pytest.raises(ValueError, match=r"p0/b/0: found stage 1 \(b\).*expected stage 0 \(a\)"):
        Scheduler(Astray(), "pipelined").start_step(0, problems(1))


def test_a_budget_of_nothing_and_an_unknown_mode_are_refused():
    with pytest.raises(ValueError, match="step_prompt_budget is 0"):
        Scheduler(TwoStages(), "pipelined", step_prompt_budget=0)
    with pytest.raises(ValueError, match="parallel"):
        Scheduler(TwoStages(), "parallel")


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
    scheduler = Scheduler(TwoStages(fan=(2, 1)), "pipelined", step_prompt_budget=1)
    scheduler.start_step(0, problems(1))
    [item] = scheduler.next_round()
    assert ids(scheduler.drop_waiting()) == ["p0/a/1"]
    assert not scheduler.idle()
    resumed = Scheduler(TwoStages(fan=(2, 1)), "pipelined")
    resumed.load_state_dict(scheduler.state_dict())
    scheduler = resumed
    scheduler.absorb(answers(item))
    result = scheduler.finish_step()
    assert ids(group.input for group in result.trained) == ["p0/a/0"]
    assert result.ended == [Ended("p0", "a", EndReason.DROPPED)]
    assert scheduler.idle()


# --- checkpoint ----------------------------------------------------------------------------------


def test_a_state_of_another_version_mode_or_method_is_refused():
    saved = started().state_dict()
    with pytest.raises(ValueError, match="saved mode is 'pipelined', this run has 'sequential'"):
        Scheduler(TwoStages(), "sequential").load_state_dict(saved)
    with pytest.raises(ValueError, match=r"saved stages is \[\['a', 'a'\]"):
        Scheduler(marsrl(), "pipelined").load_state_dict(saved)
    with pytest.raises(ValueError, match="saved version is 99"):
        Scheduler(TwoStages(), "pipelined").load_state_dict({**saved, "version": 99})
    with pytest.raises(ValueError, match="'stages' is missing"):
        Scheduler(TwoStages(), "pipelined").load_state_dict(
            {"version": saved["version"], "mode": "pipelined"}
        )


def test_a_half_answered_group_is_saved():
    scheduler = started()
    [item] = scheduler.next_round()
    first, second = answers(item)
    scheduler.absorb([second])
    other = Scheduler(TwoStages(), "pipelined")
    other.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    with pytest.raises(ValueError, match="came twice"):
        other.absorb([second])
    other.absorb([first])
    scheduler.absorb([first])
    assert other.finish_step() == scheduler.finish_step()


def test_a_state_is_a_copy():
    scheduler = started()
    saved = scheduler.state_dict()
    before = json.dumps(saved)
    absorb_round(scheduler)
    scheduler.finish_step()
    assert json.dumps(saved) == before
