"""Workers with NVIDIA GPUs build our engine. Computing with it needs such a GPU; finding it does not."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("verl", reason="the adapter's tests need verl")

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from marsrl_verl.verl_adapter.engine.probe_engine import ProbeFSDPEngine, register_engine


@pytest.fixture
def on_nvidia(monkeypatch):
    """verl takes this process for one with NVIDIA GPUs; what is registered is forgotten afterwards."""
    monkeypatch.setattr(EngineRegistry, "_engines", copy.deepcopy(EngineRegistry._engines))
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "cuda")
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "nvidia")


@pytest.mark.parametrize("backend", ["fsdp", "fsdp2"])
def test_our_engine_goes_before_verls_own(on_nvidia, backend):
    assert EngineRegistry.get_engine_cls("language_model", backend) is FSDPEngineWithLMHead
    register_engine()
    assert EngineRegistry.get_engine_cls("language_model", backend) is ProbeFSDPEngine
    register_engine()  # a second worker of this process


def test_other_devices_keep_theirs(on_nvidia, monkeypatch):
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "metax")
    register_engine()
    assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is FSDPEngineWithLMHead
