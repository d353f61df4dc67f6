"""Two policies whose turns alternate: versions, batches, what the engine gets, and a kill in between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted_trainer import ScriptedTrainer, batches

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.policy import Policy, PolicySet
from marsrl_verl.core.schedule import Schedule, Trained

STEPS = 8
ROLES = {"solver": "reasoner", "corrector": "reasoner", "verifier": "judge"}


def two_policies() -> PolicySet:
    return PolicySet((Policy("reasoner"), Policy("judge")), ROLES)


class Turns(Schedule):
    def trained(self, step):
        due = frozenset() if step % 5 == 0 else frozenset({"reasoner" if step % 2 else "judge"})
        return Trained(policies=due)


class TakingTurns(MarsRL):
    """The reasoner in odd steps, the judge in even ones; every fifth step trains neither."""

    Schedule = Turns


class Together(MarsRL):
    """Both policies in every step."""


def run(folder, steps=STEPS, method=TakingTurns, **changes) -> ScriptedTrainer:
    folder.mkdir(exist_ok=True)
    trainer = ScriptedTrainer(folder, steps, method=method, policies=two_policies(), **changes)
    trainer.fit()
    return trainer


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """A run that takes turns, and its folder."""
    folder = tmp_path_factory.mktemp("turns")
    return run(folder), folder


TURNS = {"reasoner": [1, 3, 7], "judge": [2, 4, 6, 8]}


def test_each_policy_is_trained_in_its_turn(taken):
    trainer, _ = taken
    assert trainer.weights.steps_of == TURNS
    assert {name: trainer.policies.version(name) for name in TURNS} == {"reasoner": 7, "judge": 8}
    for one in trainer.updated:
        assert any(one["advantages"]), "there was something to learn"
    recorded = {
        step: {name.split("/")[1].split("_")[0] for name in found} for step, found in trainer.recorded.items()
    }
    for step in TURNS["reasoner"]:
        assert "solver" in recorded[step] and "verifier" not in recorded[step]
    assert all(recorded[step] == {"verifier"} for step in TURNS["judge"]) and recorded[5] == set()


def test_tokens_carry_the_version_of_their_own_policy(taken):
    _, folder = taken
    for line in batches(folder):
        for row in line["rows"]:
            ((_, version),), policy = row[2], row[9]
            assert version == max((step for step in TURNS[policy] if step < line["step"]), default=0)


def test_only_weights_that_changed_are_sent_and_all_to_an_engine_that_slept(taken, tmp_path):
    trainer, folder = taken
    received = trainer.async_rollout_manager.received
    for policy, steps in TURNS.items():
        assert [version for name, version, _ in received if name == policy] == [0, *steps]
    sleepy = run(tmp_path, sleeps=True)
    assert batches(tmp_path) == batches(folder)
    assert len(sleepy.async_rollout_manager.received) > len(received)


def test_both_may_be_trained_in_one_step(tmp_path):
    trainer = run(tmp_path, method=Together)
    assert trainer.weights.steps_of["reasoner"] == list(range(1, STEPS + 1))
    both = trainer.weights.steps_of["judge"]
    assert both and {one["policy"] for one in trainer.updated if one["step"] == both[0]} == set(TURNS)
    losses = {name for name in trainer.metrics if name.endswith("pg_loss")}
    assert losses == {f"{policy}/actor/pg_loss" for policy in TURNS}


def test_unknown_policies_are_refused_by_name(tmp_path):
    class Astray(Schedule):
        def trained(self, step):
            return Trained(policies=frozenset({"critic"}))

    class Confused(TakingTurns):
        Schedule = Astray

    message = r"Astray.trained names the policies \['critic'\], expected some of"
    with pytest.raises(ValueError, match=message):
        run(tmp_path, method=Confused)


def test_greedy_rows_are_refused_by_name(tmp_path):
    """A greedy look at a problem is no row: its tokens have no log-probability to train."""

    class Greedy(TakingTurns):
        def first_requests(self, problem, step):
            asked = super().first_requests(problem, step)
            return [replace(one, sampling={"solver": {"temperature": 0.0}}) for one in asked]

    with pytest.raises(ValueError, match=r"trajectory p\S+#\d was decoded at temperature 0, where"):
        run(tmp_path, method=Greedy)


@settings(max_examples=5)
@example(stop=5, segments=True, sleeps=True)  # after the step in which nobody is trained
@given(stop=st.integers(1, STEPS - 1), segments=st.booleans(), sleeps=st.booleans())
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path_factory, stop, segments, sleeps):
    folder = tmp_path_factory.mktemp("resumed")
    changes = {"save_freq": 1, "overlap": "none", "segments": segments, "sleeps": sleeps}
    whole = run(folder / "whole", **changes)
    run(folder / "a", steps=stop, **changes)
    resumed = run(folder / "a", **changes)
    assert batches(folder / "a") == batches(folder / "whole")
    assert resumed.weights.steps_of == whole.weights.steps_of
    assert resumed.policies.state_dict() == whole.policies.state_dict()
