"""`cluster=cpu` of a tiny model and of a real one."""

from __future__ import annotations

import json
import os

import pytest
from messages import accepted
from small_files import SHAPE, make_model

from marsrl_verl.config import cpu_defaults

SMOLLM2 = SHAPE | {"model_type": "llama", "hidden_size": 576, "vocab_size": 49_152, "num_attention_heads": 9}


@pytest.fixture
def real_model(tmp_path):
    """A folder of a model as large as SmolLM2 whose weights take no space."""
    folder = make_model(tmp_path / "real")
    (folder / "config.json").write_text(json.dumps(SMOLLM2 | {"intermediate_size": 1536}))
    with open(folder / "model.safetensors", "wb") as file:
        file.truncate(269_060_552)
    return folder


def composed(run, model, *words):
    lengths = ("data.max_prompt_length=100", "data.max_response_length=100")
    done = accepted(
        run, "cluster=cpu", "model=custom", f"actor_rollout_ref.model.path={model}", *lengths, *words
    )
    return done.launched


@pytest.mark.parametrize(
    ("flags", "dtype", "short"), [({"avx512_bf16"}, "bfloat16", "bf16"), ({"avx2"}, "float32", "fp32")]
)
def test_a_real_model_computes_in_what_the_processor_multiplies(
    run, real_model, monkeypatch, flags, dtype, short
):
    monkeypatch.setattr(cpu_defaults, "_processor_flags", lambda: frozenset(flags))
    actor_rollout_ref = composed(run, real_model).actor_rollout_ref
    assert actor_rollout_ref.rollout.dtype == dtype
    for part in (actor_rollout_ref.actor, actor_rollout_ref.ref):
        assert part.fsdp_config.mixed_precision.param_dtype == short
        assert part.fsdp_config.mixed_precision.reduce_dtype == "fp32"
        assert part.fsdp_config.dtype == "float32", "the weights that are trained"


def test_a_tiny_model_computes_in_float32_row_by_row(run, model, monkeypatch):
    monkeypatch.setattr(cpu_defaults, "_processor_flags", lambda: frozenset({"avx512_bf16"}))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = composed(run, model)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert rollout.dtype == "float32"
    assert actor.fsdp_config.mixed_precision.param_dtype == "fp32"
    assert (actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu) == (False, 32)
    assert config.marsrl.training.share_prefixes is False
    assert config.ray_kwargs.ray_init.runtime_env.env_vars.OMP_NUM_THREADS == "1"


def test_a_real_model_shares_prefixes_and_uses_the_processors(run, real_model, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    config = composed(run, real_model, "trainer.n_gpus_per_node=2")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.marsrl.training.share_prefixes is True
    assert (actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu) == (True, None)
    assert (rollout.log_prob_use_dynamic_bsz, rollout.log_prob_micro_batch_size_per_gpu) == (True, None)
    assert config.ray_kwargs.ray_init.runtime_env.env_vars.OMP_NUM_THREADS == "4"


def test_rows_of_a_real_model_can_be_kept_apart(run, real_model):
    config = composed(run, real_model, "training=separate_rows")
    assert config.marsrl.training.share_prefixes is False
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 32


def test_a_number_of_threads_in_the_environment_stays(run, real_model, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert composed(run, real_model).ray_kwargs.ray_init.runtime_env.env_vars.OMP_NUM_THREADS == "3"


def test_the_bucket_holds_the_largest_weight(run, real_model):
    checkpoint_engine = composed(run, real_model).actor_rollout_ref.rollout.checkpoint_engine
    assert checkpoint_engine.update_weights_bucket_megabytes == 108  # 49,152 x 576 x 4 bytes


def test_a_bucket_that_is_too_small_is_refused_before_the_start(run, real_model):
    key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
    done = run("cluster=cpu", "model=custom", f"actor_rollout_ref.model.path={real_model}", f"{key}=64")
    assert done.status == 2
    said = " ".join(done.err.split())
    assert f"{key} = 64" in said
    assert "largest weight has 108 MiB" in said
    assert "set it to 108 or more" in said


def test_a_layers_experts_may_be_the_largest_weight(tmp_path):
    folder = make_model(tmp_path / "experts")
    experts = {"num_experts": 128, "moe_intermediate_size": 768, "hidden_size": 2048, "vocab_size": 151_936}
    (folder / "config.json").write_text(json.dumps(SHAPE | experts))
    assert cpu_defaults.weight_bucket(str(folder)) == 2048 * 128 * 2 * 768 * 4 // 2**20


def test_a_model_that_is_not_here_counts_as_real():
    assert cpu_defaults.is_real("Qwen/Qwen2.5-0.5B-Instruct")
    assert not cpu_defaults.is_real(None)
    assert cpu_defaults.weight_bucket("Qwen/Qwen2.5-0.5B-Instruct") == 2048, "its embedding has 520 MiB"
    assert not cpu_defaults.shares_prefixes("Qwen/Qwen2.5-0.5B-Instruct"), "its layers are not known"
    assert cpu_defaults.weight_bucket(None) == 64


def test_layers_with_a_window_share_no_prefixes(run, real_model):
    assert composed(run, real_model).marsrl.training.share_prefixes is True
    path = real_model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sliding_window": 512}))
    assert composed(run, real_model).marsrl.training.share_prefixes is False
    done = run(f"cluster=cpu model=custom actor_rollout_ref.model.path={real_model} training=shared_prefixes")
    assert done.status == 2 and "layers of sliding_attention" in " ".join(done.err.split())


@pytest.mark.parametrize("name", ["num_local_experts", "n_routed_experts"])
def test_experts_have_several_names_and_text_models_a_part_of_their_own(tmp_path, name):
    folder = make_model(tmp_path / "model")
    text = {name: 128, "moe_intermediate_size": 768, "hidden_size": 2048, "vocab_size": 151_936}
    (folder / "config.json").write_text(json.dumps({"text_config": text}))
    assert cpu_defaults.weight_bucket(str(folder)) == 2048 * 128 * 2 * 768 * 4 // 2**20


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ({}, 64),
    ],
)
def test_a_containers_quota_limits_the_threads(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cpu_defaults.processors(tmp_path) == expected
