"""What holds for every method setting, skill of the model, budget, order of completion and cut of answers."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from marsrl_script import SkillModel
from scheduler_tools import Run, drive, frozen, marsrl, problems

from marsrl_verl.core.credit.advantages import comparable_rows
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.stage import EndReason

few, fewer = settings(max_examples=25), settings(max_examples=10)


@st.composite
def cases(draw) -> dict:
    """Settings of a method, a model and a stream of problems."""
    scope = draw(st.sampled_from(["problem", "group"]))
    method = {
        "seed": draw(st.integers(0, 5)),
        "group_size": draw(st.integers(2, 4)),
        "requests_per_stage": draw(st.integers(1, 3 if scope == "problem" else 2)),
        "correction_rounds": draw(st.integers(1, 2)),
        "selection": draw(st.sampled_from(["random", "balanced", "adaptive"])),
        "select_scope": scope,
    }
    skill = SkillModel(
        seed=draw(st.integers(0, 100)),
        solver=draw(st.sampled_from([0.0, 0.5, 1.0])),
        verifier=draw(st.sampled_from([0.3, 0.8])),
        truncated=draw(st.sampled_from([0.0, 0.3])),
        invalid=draw(st.sampled_from([0.0, 0.4])),
    )
    sizes = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    batches = [problems(size, first) for size, first in zip(sizes, firsts, strict=True)]
    return {"method": method, "skill": skill, "batches": batches}


budgets = st.none() | st.integers(1, 6)
segments = st.integers(10, 60)
modes = st.sampled_from(["sequential", "pipelined"])
ways = st.fixed_dictionaries({"budget": budgets}) | st.fixed_dictionaries(
    {"segment": segments, "min_group": st.just(2), "min_groups": st.integers(2, 3)}
)


def run(case: dict, mode: str, **options) -> Run:
    return drive(marsrl(**case["method"]), mode, case["batches"], skill=case["skill"], **options)


def shuffled_portions(seed: int, hold_back: float = 0.0):
    """Deliver in random portions; an output is held back for a later round with this probability."""
    calls = iter(range(10**9))

    def deliver(outputs):
        rng = derive_generator(seed, next(calls))
        order = [outputs[i] for i in rng.permutation(len(outputs)) if rng.random() >= hold_back]
        cuts = sorted(rng.integers(0, len(order) + 1, size=3).tolist())
        return [order[i:j] for i, j in pairwise([0, *cuts, len(order)])]

    return deliver


def trained_ids(result: Run) -> list[str]:
    """Ids of the trajectories that enter a loss, over all steps, in their order by name."""
    return sorted(
        step.trained[ref.group].trajectories[ref.trajectory].trajectory_id
        for step in result.results
        for ref in comparable_rows(step.trained)
    )


@given(cases(), modes, budgets, budgets, st.none() | segments)
@few
def test_neither_mode_nor_budget_nor_segments_change_a_group(case, mode, budget, other_budget, segment):
    sequential = run(case, "sequential", budget=budget)
    other = run(case, mode, budget=other_budget, segment=segment)
    assert sequential.trained == other.trained
    assert sequential.completed == other.completed
    assert sequential.ended == other.ended


@given(cases(), modes, budgets)
@few
def test_no_group_is_trained_twice_or_lost_and_every_problem_ends_once(case, mode, budget):
    result = run(case, mode, budget=budget)
    assert len(result.decoded) == len(set(result.decoded))
    assert set(result.completed) == set(result.decoded)
    mixed = {name for name, members in result.completed.items() if len({row[2] for row in members}) > 1}
    assert set(result.trained) == mixed
    assert set(result.ended) == {problem.problem_id for batch in case["batches"] for problem in batch}
    last = f"corrector_{case['method']['correction_rounds']}"
    for stage, reason in result.ended.values():
        assert reason is (EndReason.FINISHED if stage == last else EndReason.NO_REQUESTS)


@given(cases(), modes, ways, st.integers(0, 1000))
@few
def test_the_order_of_completion_changes_no_step(case, mode, way, seed):
    plain = run(case, mode, engine_seed=None, **way)
    shuffled = run(case, mode, engine_seed=seed, deliver=shuffled_portions(seed), **way)
    assert frozen(plain.results) == frozen(shuffled.results)
    assert plain.rounds == shuffled.rounds


@given(cases(), budgets, st.integers(0, 1000))
@few
def test_outputs_that_come_back_steps_later_change_no_group(case, budget, seed):
    plain = run(case, "pipelined", budget=budget)
    late = run(case, "pipelined", budget=budget, deliver=shuffled_portions(seed, hold_back=0.3))
    assert plain.trained == late.trained
    assert plain.ended == late.ended


@given(cases(), modes, st.integers(1, 6))
@few
def test_the_budget_is_respected_and_used(case, mode, budget):
    result = run(case, mode, budget=budget)
    assert all(len(names) <= budget for step in result.rounds for names in step)
    if mode == "pipelined":
        assert all(len(step) <= 1 for step in result.rounds)
        for step, found in zip(result.rounds, result.results, strict=True):
            left_over = [age for age in found.oldest_waiting.values() if age > 0]
            if left_over:
                assert len(step[0]) == budget


@given(cases(), modes, ways)
@fewer
def test_a_restart_after_every_call_changes_no_step(case, mode, way):
    plain = run(case, mode, **way)
    again = run(case, mode, checkpoint=True, deliver=shuffled_portions(7), **way)
    assert frozen(plain.results) == frozen(again.results)
    assert plain.rounds == again.rounds


@given(cases())
@fewer
def test_a_restart_keeps_outputs_that_come_back_later(case):
    plain = run(case, "pipelined", deliver=shuffled_portions(3, hold_back=0.3))
    again = run(case, "pipelined", checkpoint=True, deliver=shuffled_portions(3, hold_back=0.3))
    assert frozen(plain.results) == frozen(again.results)


@given(cases(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 100))
@fewer
def test_what_is_too_old_is_dropped_whatever_the_order_and_the_restarts(case, budget, staleness, seed):
    limits = {"budget": budget, "staleness": staleness}
    expected = run(case, "pipelined", **limits)
    found = run(case, "pipelined", deliver=shuffled_portions(seed), checkpoint=True, **limits)
    assert found.trained == expected.trained and found.ended == expected.ended
    never = run(case, "pipelined", budget=budget, staleness=10_000)
    assert frozen(never.results) == frozen(run(case, "pipelined", budget=budget).results)
    ids = {problem.problem_id for batch in case["batches"] for problem in batch}
    assert sorted(expected.ended) == sorted(ids), "every problem ends once"


@given(cases(), segments)
@few
def test_every_segment_has_its_length_and_version(case, segment):
    result = run(case, "pipelined", segment=segment)
    members = [one for step in result.results for group in step.completed for one in group.trajectories]
    for sequence in (one.sequence for one in members):
        ends = [end for end, _ in sequence.versions]
        versions = [version for _, version in sequence.versions]
        sizes = [end - start for start, end in pairwise([0, *ends])]
        assert all(size == segment for size in sizes[:-1])
        assert 0 <= sizes[-1] <= segment
        sampled = [version for version, size in zip(versions, sizes, strict=True) if size]
        assert sampled == sorted(set(sampled)) and versions == sorted(versions)
        assert len(sequence.token_versions()) == len(sequence)


@given(cases(), segments, st.integers(2, 3), st.integers(1, 4))
@few
def test_with_parts_every_trajectory_of_a_mixed_group_is_trained_once(case, segment, min_group, min_groups):
    whole = run(case, "pipelined", segment=segment)
    parts = run(case, "pipelined", segment=segment, min_group=min_group, min_groups=min_groups)
    found = trained_ids(parts)
    assert len(found) == len(set(found))
    assert found == trained_ids(whole)
    assert parts.ended == whole.ended


@given(cases(), modes, st.integers(2, 5))
@few
def test_small_updates_wait_for_the_next_step_and_nothing_is_lost(case, mode, least):
    plain, deferred = run(case, mode), run(case, mode, min_groups=least)
    assert trained_ids(deferred) == trained_ids(plain)
    for step in deferred.results[:-1]:
        assert not step.trained or len(step.trained) >= least
        assert step.deferred < least
