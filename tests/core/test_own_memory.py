"""What outlives a step holds no memory of others: arrays of answers lie in Ray's object store."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from equal_sequences import equal_sequences
from marsrl_script import ScriptedEngine, SkillModel
from scheduler_tools import SAMPLING, TwoStages, problems
from test_units_and_stages import PlanAndSolve

from marsrl_verl.core.own_memory import Copies, is_owned
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.sequence import Sequence


class Store(bytearray):
    """A piece of shared memory; can be referred to weakly."""


class ForeignEngine(ScriptedEngine):
    """Answers whose arrays are views of one piece of memory for each request."""

    def __init__(self, **kwargs) -> None:
        super().__init__(SkillModel(seed=5), **kwargs)
        self.stores: list[weakref.ref] = []

    def generate(self, requests, sampling):
        outputs = super().generate(requests, sampling)
        for output in outputs:
            store = Store(100_000)
            self.stores.append(weakref.ref(store))
            self._move(output, store)
        return outputs

    @staticmethod
    def _move(output, store) -> None:
        end = 0

        def moved(array):
            nonlocal end
            view = np.frombuffer(store, array.dtype, len(array), end)
            view[:] = array
            end += -(-array.nbytes // 8) * 8
            return view

        prompt = moved(output.trajectories[0].sequence.prompt_ids)
        for one in output.trajectories:
            found = one.sequence
            one.sequences = [
                replace(
                    found, prompt_ids=prompt, response_ids=moved(found.response_ids),
                    rollout_log_probs=moved(found.rollout_log_probs),
                    response_mask=moved(found.response_mask),
                    annotations={"turn": moved(np.zeros(len(found), dtype=np.int16))},
                )
            ]  # fmt: skip
            one.state = {"parts": [moved(np.arange(3))]} if one.paused else None

    def alive(self) -> int:
        gc.collect()
        return sum(one() is not None for one in self.stores)


def arrays(sequence: Sequence) -> list[np.ndarray]:
    found = [sequence.prompt_ids, sequence.response_ids, sequence.rollout_log_probs, sequence.response_mask]
    return [*found, *sequence.annotations.values()]


def steps(scheduler: Scheduler, engine: ForeignEngine, sampling, count: int = 3) -> None:
    for step in range(1, count + 1):
        scheduler.start_step(step, problems(2, first=2 * step))
        while requests := scheduler.next_round():
            scheduler.absorb(engine.generate(requests, sampling))
        assert engine.alive() > 0, "a step reads in place"
        result = scheduler.finish_step()
        assert result.step == step
        del result, requests
        assert engine.alive() == 0, "what is left has been copied"


SEGMENTED = {role: replace(one, segment_tokens=5) for role, one in SAMPLING.items()}


@pytest.mark.parametrize(
    ("method", "sampling", "options"),
    [
        pytest.param(TwoStages(), SEGMENTED, {}, id="paused trajectories"),
        pytest.param(TwoStages(), SEGMENTED, {"step_prompt_budget": 1}, id="groups of a stage that goes on"),
        pytest.param(TwoStages(), SAMPLING, {"min_groups": 100}, id="deferred groups"),
        pytest.param(PlanAndSolve(), SAMPLING, {}, id="groups of a problem that goes on"),
    ],
)
def test_what_a_step_leaves_holds_nothing_of_the_store(method, sampling, options):
    scheduler = Scheduler(method, "pipelined", **options)
    steps(scheduler, ForeignEngine(seed=None), sampling)
    kept = scheduler._state
    groups = [group for one in kept.problems.values() for group in [*one.done.values(), *one.passed]]
    groups += kept.deferred
    members = [one for pending in kept.pending.values() for one in pending.members.values()]
    members += [one for group in groups for one in group.trajectories]
    assert members, "something is left"
    assert all(is_owned(array) for one in members for s in one.sequences for array in arrays(s))


def test_copies_are_equal_and_share_what_was_shared():
    store = np.frombuffer(Store(range(1, 41)), dtype=np.int32)
    prompt = store[:3]
    first, second = (
        Sequence("solver", prompt, store[3 + k : 6 + k], [-1.0] * 3, annotations={"turn": store[:3]})
        for k in range(2)
    )
    copies = Copies()
    one, other = copies.sequence(first), copies.sequence(second)
    assert equal_sequences(one, first) and equal_sequences(other, second)
    assert one.prompt_ids is other.prompt_ids is one.annotations["turn"]
    assert copies.sequence(one).response_ids is one.response_ids, "what is owned is not copied again"
    assert not any(np.shares_memory(array, store) for array in arrays(one) + arrays(other))


def test_views_of_owned_arrays_are_left_alone():
    whole = Sequence("solver", [1], range(6), [-1.0] * 6)
    prefix = whole.truncate(3)
    assert Copies().sequence(prefix).response_ids is prefix.response_ids
    assert not is_owned(np.frombuffer(b"1234", dtype=np.uint8)[1:])
    plain = {"a": [np.frombuffer(b"1234", dtype=np.uint8), "text", (1, None)]}
    found = Copies().plain(plain)
    assert found["a"][1:] == ["text", (1, None)] and found["a"][0].tobytes() == b"1234"
    assert is_owned(found["a"][0])
