"""Overlap and engines on GPUs of their own: what is rejected, what the presets and the plan say."""

from __future__ import annotations

import json

import pytest
from composing import skip_without
from messages import assert_checks_refuse, assert_refused, refusals

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.config.memory import estimate_memory
from marsrl_verl.config.model_shapes import PUBLISHED, has_experts, shape_from_config
from marsrl_verl.machine.packages import FLASH, GPU
from marsrl_verl.version import REQUIRED_VERL

OVERLAP = "marsrl.pipeline.overlap"
ROLLOUT = "actor_rollout_ref.rollout"
SYNC = f"{ROLLOUT}.checkpoint_engine.backend"
MODULE = f"{ROLLOUT}.checkpoint_engine.custom_backend_module"
GLOO = {SYNC: "gloo", MODULE: "marsrl_verl.verl_adapter.cpu.weight_sync"}
APART = {f"{ROLLOUT}.nnodes": 1, f"{ROLLOUT}.n_gpus_per_node": 1, "ray_kwargs.ray_init.num_gpus": 2}

EXPERTS = "+marsrl.policies.verifier={kind:model,model:{path:Qwen/Qwen3-30B-A3B}}"
REFUSED = refusals(
    f"""
    unknown | {OVERLAP}=onestep | Did you mean one_step?
    in sequence | {OVERLAP}=one_step marsrl.pipeline.mode=sequential | {OVERLAP} = one_step
        | pipeline=overlapped
    sleeping engine | {OVERLAP}=one_step {ROLLOUT}.free_cache_engine=true | Set it to false
    sync without a second pool | {SYNC}=nccl | Leave it at naive
    second pool without sync | APART | {SYNC} = naive | pipeline=overlapped_two_pools
    GPU sync on CPU | APART {SYNC}=nccl | which chooses gloo
    sync that the workers don't know | APART {SYNC}=gloo | {MODULE} = null | pipeline=overlapped_two_pools
    second machine on CPU | APART GLOO {ROLLOUT}.nnodes=2 ray_kwargs.ray_init.num_gpus=3
        | {ROLLOUT}.nnodes = 2 | one machine
    no nodes | {ROLLOUT}.nnodes=-1 | at least 0
    too few for both | APART GLOO ray_kwargs.ray_init.num_gpus=1 | ray_kwargs.ray_init.num_gpus = 1
        | wait for them forever
    """,
    APART=APART,
    GLOO=GLOO,
)
ACCEPTED = {
    "one pool": {OVERLAP: "one_step"},
    "two pools": {**APART, **GLOO, OVERLAP: "one_step"},
    "two pools in turn": {**APART, **GLOO},
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(checked, case):
    assert_checks_refuse(checked, *REFUSED[case])


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(checked, case):
    checked(ACCEPTED[case])  # raises where a check refuses it


def published(run, *overrides):
    return run(
        "model=qwen3_30b_a3b_thinking_2507 actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Thinking-2507",
        "cluster=4x8xgpu ray_kwargs.ray_init.address=auto",
        *overrides,
    )


def test_the_engine_keeps_its_memory_exactly_when_it_works_beside_the_trainer(run):
    sleeps = {
        name: published(run, f"pipeline={name}").launched.actor_rollout_ref.rollout.free_cache_engine
        for name in ("sequential", "pipelined", "overlapped", "overlapped_two_pools")
    }
    assert sleeps == {
        "sequential": True,
        "pipelined": True,
        "overlapped": False,
        "overlapped_two_pools": False,
    }


def test_two_pools_on_gpus(run):
    config = published(run, "pipeline=overlapped_two_pools", f"{ROLLOUT}.nnodes=2").launched
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.nnodes, rollout.n_gpus_per_node) == (2, 8)
    assert rollout.checkpoint_engine.backend == "nccl"
    assert rollout.checkpoint_engine.custom_backend_module is None
    shape = shape_from_config(PUBLISHED["Qwen/Qwen3-30B-A3B-Thinking-2507"])
    found = estimate_memory(config, shape)
    update = found.update
    assert (
        found.training == update.saved + update.layer + 16 * (shape.parameters // 32) + found.trainer_process
    )
    assert found.decoding == found.engine == found.engine_weights + found.kv_cache + found.engine_reserve


def test_engines_that_do_not_fill_their_pool_are_refused(run):
    done = published(run, "pipeline=overlapped_two_pools", f"{ROLLOUT}.n_gpus_per_node=6")
    assert done.status == 2
    assert "6, the number of GPUs of the engines' pool" in " ".join(done.err.split())


def test_plan_names_overlap_and_pools(run):
    text = run("pipeline=overlapped_two_pools", "dry_run=true").out
    assert "the round of step t+1 is decoded while step t trains" in text
    assert "two pools: 1 rank trains, 1 other decodes; weights travel by gloo" in text
    assert "overlap:" not in run("dry_run=true").out


@pytest.mark.parametrize(
    ("overrides", "mode"),
    [
        (["pipeline=pipelined"], "pois"),
        (["pipeline=sequential"], "pois"),
        (["pipeline=overlapped"], "tis"),
        (["pipeline=overlapped_two_pools"], "tis"),
        ([f"{OVERLAP}=one_step"], "tis"),
        (["pipeline=overlapped", "marsrl.off_policy.mode=sais"], "sais"),
        (["pipeline=overlapped", "marsrl.off_policy.mode=pois"], "pois"),
        (["model=qwen3_30b_a3b_thinking_2507"], "tis"),
        (["model=qwen3_30b_a3b_thinking_2507", "marsrl.off_policy.mode=pois"], "pois"),
        (["model=qwen3_4b_thinking_2507"], "pois"),
        (["model=qwen3_30b_a3b_thinking_2507", "marsrl.roles.solver.top_p=0.95"], "pois"),
        (["model=qwen3_30b_a3b_thinking_2507", "marsrl.roles.verifier.top_k=20"], "pois"),
        (["model=qwen3_30b_a3b_thinking_2507", "algo=rema_json"], "pois"),
        (
            ["model=qwen3_30b_a3b_thinking_2507", "algo=rema_json", "marsrl.algo.train_roles=[reasoning]"],
            "tis",
        ),
        (["policies=model_per_role", EXPERTS], "tis"),
        (["policies=model_per_role", EXPERTS, "marsrl.roles.solver.top_p=0.95"], "pois"),
        ([EXPERTS], "pois"),  # nobody's policy
        (["pipeline=overlapped", "marsrl.roles.solver.top_p=0.95"], "tis"),  # and refused: tokens are older
    ],
)
def test_the_loss_corrects_for_older_weights_where_there_are_no_others(overrides, mode):
    skip_without(overrides)
    arguments = parse_arguments([*overrides, "cluster=cpu"])
    assert typed_settings(compose_config(arguments).config).off_policy.mode == mode


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_experts": 128}, True),
        ({"num_local_experts": 8}, True),
        ({"text_config": {"n_routed_experts": 64}}, True),
        ({"num_experts": None}, False),
        ({"num_experts": 0}, False),
        ({}, False),
        ("no JSON", False),
    ],
)
def test_experts_are_told_by_the_models_files(tmp_path, config, expected):
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    assert has_experts(tmp_path) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-30B-A3B", True),
        ("mistralai/Mixtral-8x7B-v0.1", True),
        ("a/Qwen1.5-MoE-A2.7B", True),
        ("Qwen/Qwen3-4B-Thinking-2507", False),
        ("a/Moeller-7B", False),
        (None, False),
    ],
)
def test_experts_of_a_model_that_is_not_here_are_told_by_its_name(name, expected):
    assert has_experts(name) is expected


def test_the_plan_marks_a_ratio_of_one_for_older_tokens(run):
    assert "marsrl.off_policy.mode=tis\n" in run("pipeline=overlapped", "dry_run=true").out
    text = run("pipeline=overlapped", "marsrl.off_policy.mode=pois", "dry_run=true").out
    assert "! pois: a ratio of 1 for each of them" in text
    assert "at least one version old" not in run("dry_run=true").out


def test_two_pools_on_cpu_ask_ray_for_both(run):
    config = run("pipeline=overlapped_two_pools").launched
    assert config.ray_kwargs.ray_init.num_gpus == 2
    module = config.actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module
    assert module == "marsrl_verl.verl_adapter.cpu.weight_sync"


@pytest.mark.parametrize(("pipeline", "refused"), [("overlapped_two_pools", True), ("overlapped", False)])
def test_weights_over_nccl_need_cupy(run, monkeypatch, pipeline, refused):
    versions = {"verl": REQUIRED_VERL, **GPU, **FLASH}
    del versions["cupy-cuda13x"]
    monkeypatch.setattr("marsrl_verl.config.checks.machine.installed", versions.get)
    done = published(run, f"pipeline={pipeline}")
    assert done.status == (2 if refused else 0)
    assert ("cupy-cuda13x" in done.err) == refused


@pytest.mark.parametrize(
    ("found", "hint"), [(8, "for example 4 each"), (1, "Use cluster=cpu here"), (0, "Use cluster=cpu here")]
)
def test_gpus_of_one_machine_are_shared_out(run, monkeypatch, found, hint):
    monkeypatch.setattr("marsrl_verl.config.checks.machine.count_gpus", lambda: found)
    done = run(
        "model=qwen3_4b_thinking_2507 actor_rollout_ref.model.path=Qwen/Qwen3-4B-Thinking-2507",
        "cluster=8xgpu pipeline=overlapped_two_pools",
    )
    assert_refused(done, "trainer.n_gpus_per_node = 8", hint)


def test_a_transport_that_verl_does_not_know(run):
    done = published(run, "pipeline=overlapped_two_pools", f"{SYNC}=ncll")
    assert_refused(done, f"{SYNC} = ncll", "Did you mean nccl?")


def test_plan_does_not_say_that_the_trainer_waits_where_it_does_not(run):
    moves = "the training state moves to main memory while the engine decodes"
    modes = ("pipelined", "overlapped")
    texts = {name: published(run, "dry_run=true", f"pipeline={name}").out for name in modes}
    assert all("peak while decoding" in text for text in texts.values())
    assert (moves in texts["pipelined"], moves in texts["overlapped"]) == (True, False)
