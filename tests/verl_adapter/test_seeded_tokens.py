"""Whose tokens have generators of their own: from the setting to vLLM's sampling parameters."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl", reason="the trainer's observer")
pytest.importorskip("vllm", reason="vLLM's CPU engine")

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.config.node import read_settings
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.verl_adapter.components import sampling_settings
from marsrl_verl.verl_adapter.trainer import observer


def settings_with(seeded_tokens: str) -> MarsRLConfig:
    settings = read_settings({"algo": {"name": "marsrl"}})
    settings.run.seed, settings.run.seeded_tokens = 7, seeded_tokens
    return settings


@pytest.mark.parametrize(("choice", "seed"), [("none", None), ("evaluation", None), ("all", 7)])
def test_rounds_of_training(choice, seed):
    assert {one.seed for one in sampling_settings(settings_with(choice)).values()} == {seed}


@pytest.mark.parametrize(("choice", "seed"), [("none", None), ("evaluation", 7), ("all", 7)])
def test_evaluation(choice, seed, monkeypatch):
    asked: dict = {}

    def evaluate(*_, **arguments):
        asked.update(arguments)
        record = SimpleNamespace(estimates={}, effort={}, skipped=0)
        return SimpleNamespace(record=record, passes=[SimpleNamespace(all_calls=[])])

    monkeypatch.setattr(observer, "evaluate", evaluate)
    watching = object.__new__(observer.TrainingObserver)
    watching._settings = settings_with(choice)
    watching._method = MarsRL
    watching._writer = SimpleNamespace(submit=lambda write: write())
    watching.folder = SimpleNamespace(write_evaluation=lambda *_, **__: None)
    watching.phase = lambda *_: None
    watching.evaluate(None, [], None, {}, "before", 0)
    assert asked["seed"] == seed


def test_a_generator_of_the_processor_still_has_no_offset():
    """Contract: vLLM turns a generator back by its offset when a prompt is read in parts, which a generator
    of the processor refuses, so `cluster=cpu` reads prompts whole. Where this fails, it need not any more."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    assert "get_offset()" in inspect.getsource(GPUModelRunner._bookkeeping_sync)
    with pytest.raises(RuntimeError):
        torch.Generator("cpu").get_offset()
