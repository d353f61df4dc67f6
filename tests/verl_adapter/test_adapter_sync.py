"""How an adapter gets from the trainer to the engines: as files, to every node, and nothing of the model."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fake_ray
import pytest

from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.rollout.generation import EngineUnavailableError

pytest.importorskip("verl", reason="the trainer is verl's")

from marsrl_verl.verl_adapter.rollout_server import rollout_pool
from marsrl_verl.verl_adapter.trainer import engine_trainer
from marsrl_verl.verl_adapter.trainer.engine_trainer import EngineTrainer

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}


class Ray(fake_ray.FakeRay):
    """Calls are done at once."""

    def put(self, value: Any) -> Any:
        return value


class Trainer(EngineTrainer):
    """On two engines, one of them on two nodes; two ranks train."""

    plugin_state = load_plugin_state = None  # type: ignore[assignment]

    def __init__(
        self, *, sleeps: bool = False, kind: PolicyKind = PolicyKind.LORA, names: tuple[str, ...] = ("judge",)
    ) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.policies = PolicySet([Policy(name, kind) for name in names])
        rollout = SimpleNamespace(free_cache_engine=sleeps)
        self.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
        self.engine_versions, self.timing = {}, {}
        self.generation = SimpleNamespace(in_flight=False)
        self.async_rollout_manager = SimpleNamespace(forget_routes=lambda: None)
        self.engines = SimpleNamespace(run=lambda what, work: work())
        self.checkpoint_manager = SimpleNamespace(
            update_weights=lambda version: self.calls.append(("model", version)),
            wake_up_replicas=lambda: self.calls.append(("wake",)),
            sleep_replicas=lambda: self.calls.append(("sleep",)),
        )
        self.actor_rollout_wg = SimpleNamespace(
            export_adapter=lambda policy: [FILES, None],
            update_weights=lambda **named: self.calls.append(("own", *named.values())) or [],
        )
        servers = [[self._server(name) for name in names] for names in (("a0", "a1"), ("b0",))]
        replicas = [SimpleNamespace(servers=some, server_handle=some[0]) for some in servers]
        self.llm_server_manager = SimpleNamespace(get_replicas=lambda: replicas)

    def _server(self, name: str) -> SimpleNamespace:
        """One that notes what it is called for."""

        def noting(what: str) -> Callable[..., None]:
            return lambda *arguments: self.calls.append((what, name, *arguments))

        return fake_ray.actor(
            store_adapter=noting("store"), use_adapter=noting("use"), drop_old_adapters=noting("drop")
        )

    def sync(self, *, after_sleep: bool = False) -> list[tuple[Any, ...]]:
        """What is called for it."""
        self.calls.clear()
        if after_sleep:
            self._sleep_engine()
        self._fit_update_weights()
        return list(self.calls)


@pytest.fixture(autouse=True)
def ray(monkeypatch):
    for module in (engine_trainer, rollout_pool):
        monkeypatch.setattr(module, "ray", Ray())


def test_every_node_has_the_files_before_an_engine_uses_them():
    trainer = Trainer()
    trainer.policies.updated({"judge"}, 4)
    nodes = ("a0", "a1", "b0")
    assert trainer.sync() == [
        *(("store", node, "judge", FILES, 4) for node in nodes),
        *(("use", node, "judge", 4) for node in ("a0", "b0")),
        *(("drop", node, "judge", 4) for node in nodes),
    ]
    assert trainer.sync() == [], "the engines have it"


def test_adapters_outlast_the_engines_sleep_and_only_new_ones_are_sent():
    trainer = Trainer(sleeps=True, names=("judge", "planner"))
    trainer._sleep_engine()
    assert trainer.calls == [], "it sleeps at first"
    first = trainer.sync()
    assert first[0] == ("wake",) and ("model", 0) not in first
    assert [call[0] for call in first].count("use") == 4, "two adapters, two engines"
    assert trainer.sync() == []
    trainer._sleep_engine()
    assert trainer.calls == [("sleep",)]
    assert trainer.sync(after_sleep=True) == [("wake",)], "it slept already, and nothing is sent"
    trainer.policies.updated({"planner"}, 1)
    calls = trainer.sync(after_sleep=True)
    assert calls[:2] == [("sleep",), ("wake",)]
    assert {call[2:4] for call in calls if call[0] == "use"} == {("planner", 1)}


@pytest.mark.parametrize("kind", [PolicyKind.LORA, PolicyKind.MODEL])
def test_engines_that_keep_their_memory_are_neither_woken_nor_put_to_sleep(kind):
    trainer = Trainer(kind=kind)
    assert not {"sleep", "wake"} & {call[0] for call in trainer.sync()}
    assert trainer.sync(after_sleep=True) == []


def test_a_model_goes_the_way_of_verl():
    assert Trainer(kind=PolicyKind.MODEL).sync() == [("model", 0)]


def test_several_models_go_to_engines_of_their_own_and_are_lost_in_sleep():
    trainer = Trainer(kind=PolicyKind.MODEL, names=("judge", "planner"), sleeps=True)
    assert trainer.sync() == [("own", 0, "naive", "judge"), ("own", 0, "naive", "planner")]
    trainer.policies.updated({"planner"}, 1)
    assert trainer.sync() == [("own", 1, "naive", "planner")], "the other one is as the engine has it"
    asleep = trainer.sync(after_sleep=True)
    assert asleep == [("sleep",), ("own", 0, "naive", "judge"), ("own", 1, "naive", "planner")]


@pytest.mark.parametrize("hung", [0, 1])
def test_after_a_refused_sync_the_state_is_saved_unless_a_rank_still_waits(hung):
    """One rank's engine refuses; what the other is at decides whether both can save."""
    trainer = Trainer(kind=PolicyKind.MODEL)

    def refused(what, work):
        raise EngineUnavailableError("the engine can't take the trainer's weights: ValueError: no")

    trainer.engines = SimpleNamespace(run=refused, left_behind=False)
    ranks = [fake_ray.Answer(None), fake_ray.Answer(silent=bool(hung))]
    trainer.actor_rollout_wg.workers = [
        SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda _, answer=one: answer)) for one in ranks
    ]
    with pytest.raises(EngineUnavailableError, match="can't take"):
        trainer._fit_update_weights()
    assert trainer.engines.left_behind == bool(hung)
