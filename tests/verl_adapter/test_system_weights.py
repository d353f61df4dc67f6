"""A system without a trainer: which weights its engines load."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="the engines are started by verl")
pytest.importorskip("vllm", reason="verl's servers import it")

from cached_config import composed

from marsrl_verl.config.models import adapters, models, unadapted
from marsrl_verl.core.request import Problem
from marsrl_verl.verl_adapter.run import system
from marsrl_verl.verl_adapter.run.evaluator import SystemEvaluator, named_by_content
from marsrl_verl.verl_adapter.run.system import System

ALONE = ("trainer.val_only=true",)
ROLES = ["corrector", "solver", "verifier"]


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """The node of the engines' settings after the weights are chosen, and the adapters' files."""
    asked = []

    def merge(checkpoint, target, policies, dtype, *, trust_remote_code):
        assert dtype == "float32", "as engines on a processor decode"
        asked.append((checkpoint, tuple(policies), trust_remote_code))
        return {policy: target / policy for policy in policies}

    monkeypatch.setattr(system, "merge_models", merge)
    monkeypatch.setattr(system, "read_adapters", lambda folder, names: {name: {"x": b""} for name in names})

    def choose(*words: str, checkpoint: Path | None = None):
        if checkpoint is not None:
            words += ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}")
        config = copy.deepcopy(composed(*ALONE, f"marsrl.run.output_dir={tmp_path}", *words))
        one = System(config, tmp_path / "weights", say=lambda lines: None)
        return config.actor_rollout_ref, one._choose_weights(), one.step

    choose.asked = asked
    return choose


def test_a_model_as_it_begins(chosen):
    node, files, step = chosen()
    assert (files, step, chosen.asked) == ({}, 0, [])
    assert node.rollout.load_format == "auto" and not node.rollout.free_cache_engine


def test_a_checkpoint_of_one_model(chosen, tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "global_step_12"
    node, files, step = chosen(checkpoint=checkpoint)
    assert chosen.asked == [(checkpoint, ("shared",), False)] and (files, step) == ({}, 12)
    assert node.model.path == str(tmp_path / "weights" / "shared")
    assert node.model.tokenizer_path.endswith("tiny"), "the tokenizer is the one of the start model"


def test_a_checkpoint_of_several_models(chosen, tmp_path):
    checkpoint = tmp_path / "global_step_3"
    node, files, _ = chosen("policies=model_per_role", checkpoint=checkpoint)
    assert chosen.asked == [(checkpoint, tuple(ROLES), False)] and files == {}
    assert models(node.rollout) == {role: str(tmp_path / "weights" / role) for role in ROLES}


def test_adapters_of_a_checkpoint_and_as_they_begin(chosen, tmp_path):
    node, files, _ = chosen("policies=lora_per_role", checkpoint=tmp_path / "global_step_3")
    assert sorted(files) == ROLES and sorted(adapters(node.rollout)) == ROLES and not chosen.asked
    node, files, _ = chosen("policies=lora_per_role", "marsrl.run.if_exists=replace")
    assert not files and not adapters(node.rollout) and sorted(unadapted(node.rollout)) == ROLES
    assert node.model.lora_rank == 0


def test_answers_are_taken_of_the_same_models_methods_and_rewards_alone(tmp_path):
    def whose(*words: str) -> str:
        config = copy.deepcopy(composed(*ALONE, f"marsrl.run.output_dir={tmp_path}", *words))
        one = SystemEvaluator(config)
        try:
            return one._whose()
        finally:
            one.close()

    endpoint = ("policies=endpoint", "marsrl.policies.endpoint.endpoint.base_urls=[http://a/v1]")
    named = "marsrl.policies.endpoint.endpoint.model"
    found = {
        whose(),
        whose("reward=math_verify"),
        whose("marsrl.algo.group_size=4"),
        whose("marsrl.run.seed=7"),
        whose(*endpoint, f"{named}=a"),
        whose(*endpoint, f"{named}=b"),
    }
    assert len(found) == 6
    assert whose("marsrl.evaluation.samples_per_problem=9", "marsrl.evaluation.problems=3") == whose()
    model = tmp_path / "model"
    shutil.copytree(composed(*ALONE).actor_rollout_ref.model.path, model)
    path = f"actor_rollout_ref.model.path={model}"
    before = whose(path)
    assert whose(path) == before
    (model / "generation_config.json").write_text("{} ")
    assert whose(path) != before, "another model lies there"


def test_a_problem_has_the_same_id_whatever_else_is_evaluated():
    def rows(*names: str) -> list[Problem]:
        return [Problem(f"v{k:08d}", "1+1?", "2", row=name) for k, name in enumerate(names)]

    first, second = "a" * 24, "b" * 24
    alone = [one.problem_id for one in named_by_content(rows(first))]
    several = [one.problem_id for one in named_by_content(rows(second, first, first))]
    assert alone == [f"v{'a' * 16}"] and several == [f"v{'b' * 16}", *alone, f"{alone[0]}.1"]
