"""Sizes of models and the memory estimate, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from composing import has_presets
from messages import assert_refused, commands
from omegaconf import OmegaConf

from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.config.memory import GIB, assumptions, estimate_memory, model_shapes
from marsrl_verl.config.model_shapes import PUBLISHED, shape_from_config
from marsrl_verl.machine.gpus import Gpu

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
SMALL = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 10,
    "tie_word_embeddings": True,
}


def test_parameters_of_a_small_model():
    # Heads of size 4. Queries 8x8, keys and values 8x4 each, output 8x8, biases 8+4+4; feed-forward
    # 3x8x16; two norms of 8. Embedding 10x8, tied; last norm 8.
    layer = 64 + 32 + 32 + 64 + 16 + 384 + 16
    shape = shape_from_config(SMALL)
    assert shape is not None
    assert (shape.head_size, shape.layer_parameters) == (4, layer)
    assert shape.parameters == 80 + 2 * layer + 8


def test_parameters_of_the_published_models():
    # 30.5, 4.0, 1.78, 7.62, 1.24 and 8.03 billion, as their model cards say.
    counts = {name: shape_from_config(config).parameters for name, config in PUBLISHED.items()}
    assert counts == {
        "Qwen/Qwen3-30B-A3B-Thinking-2507": 30_532_122_624,
        "Qwen/Qwen3-4B-Thinking-2507": 4_022_468_096,
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
        "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
        "Qwen/Qwen2.5-Math-7B": 7_615_616_512,
        "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
        "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
        "meta-llama/Meta-Llama-3-8B-Instruct": 8_030_261_248,
    }


def test_unknown_architectures_are_not_guessed():
    assert shape_from_config({**SMALL, "model_type": "mamba"}) is None


def test_estimate_of_the_published_setting(run):
    config = run(
        "model=qwen3_30b_a3b_thinking_2507 actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Thinking-2507",
        "cluster=4x8xgpu ray_kwargs.ray_init.address=auto",
    ).launched
    shape = shape_from_config(PUBLISHED["Qwen/Qwen3-30B-A3B-Thinking-2507"])
    found = estimate_memory(config, shape)
    shard, update = 30_532_122_624 // 32, found.update
    assert (update.weights, update.gradients, update.optimizer) == (4 * shard, 4 * shard, 8 * shard)
    assert found.engine_weights == 30_532_122_624 * 2 // 4
    # Keys and values, 48 layers, 4 heads over 4 GPUs, 128 numbers of 2 bytes.
    assert found.kv_bytes_per_token == 2 * 48 * 1 * 128 * 2
    assert found.kv_cache == int(0.85 * 80 * GIB) - found.engine_weights - 2 * GIB
    assert found.longest_sequences == pytest.approx(found.kv_cache / 24576 / 98304)
    # Two sequences of 98,304 tokens over 8 GPUs.
    assert update.saved == 48 * 24576 * 2048 * 2
    # Two norms; queries, output and it again after the exchange of heads, keys and values of 8 heads; norms
    # of queries and keys; 8 experts' inputs and outputs, and three more of the inputs' size; the residual.
    token = 16 * 2048 + 2 * (3 * 4096 + 2 * 1024) + 6 * (4096 + 512) + 2 * 8 * (5 * 2048 + 4 * 768) + 4 * 2048
    # Weights of two layers, gradients of one in bfloat16, the head's weights and gradient.
    layer, head = shape.layer_parameters, 151936 * 2048
    assert update.layer == 24576 * token + 6 * layer + 4 * head
    # Logits of 512 tokens in bfloat16 and five times in float32; the head, its gradient, and that of a part.
    assert update.head == 24576 * 2048 * 12 + 512 * 151936 * 22 + 8 * head
    assert (update.step, update.accumulated) == (0, 0)
    assert found.trainer_offloaded
    # Two contexts, NCCL in both processes, what the engine keeps asleep.
    assert found.processes == 4 * GIB
    assert found.training == 16 * shard + update.saved + update.layer + 4 * GIB
    assert found.decoding == found.engine_weights + found.kv_cache + 2 * GIB + int(1.5 * GIB)
    assert found.training < 0.92 * 80 * GIB > found.decoding
    # Rank 0 of the first node reads all weights in float32; a node keeps weights and two moments of 8 ranks.
    assert (found.host_loading, found.host_waiting) == (4 * 30_532_122_624, 8 * 12 * shard)
    assert config.actor_rollout_ref.rollout.max_num_seqs == 96
    text = " ".join(assumptions(config, found))
    assert "sharded over 32 ranks" in text
    assert "80 GiB" in text


def test_estimate_on_the_cpu(checked):
    config = checked({}).config
    found = estimate_memory(config, shape_from_config(SMALL))
    assert found.kv_cache == GIB
    assert not found.engine_sleeps
    assert (found.processes, found.update.step) == (0, 0)
    assert found.training == found.update.peak(False) + found.engine_weights + GIB


def test_offload_policy_keeps_the_state_in_main_memory(checked):
    changes = {"actor_rollout_ref.actor.fsdp_config.offload_policy": True, "trainer.device": "cuda"}
    found = estimate_memory(checked(changes, dry_run=True).config, shape_from_config(SMALL))
    assert found.training == found.update.peak(False) - found.update.state + found.engine + found.processes
    assert found.host_waiting == 16 * found.parameters
    assert found.decoding == found.engine + found.processes


RECORDED = json.loads((Path(__file__).parents[2] / "docs/results/training_memory.json").read_text())
HERE = [row for row in RECORDED if has_presets(row["words"])]


@pytest.mark.parametrize("row", HERE, ids=[row["setting"] for row in HERE])
def test_the_plan_is_what_an_update_without_content_takes(row):
    # As benchmarks/training_memory.py counted it, tensor by tensor.
    config = compose_config(parse_arguments([*row["words"], "data=parquet"])).config
    found = estimate_memory(config, *model_shapes(config))
    assert found.update.peak(found.trainer_on_host) / GIB == pytest.approx(row["counted"], rel=0.1)


def test_the_recorded_settings_are_the_six():
    assert len(RECORDED) == 6 and {row["setting"][:3] for row in RECORDED} >= {"30B", "4B,", "two", "1.5"}


def test_weights_of_fewer_ranks_are_shared_by_fewer(run):
    words = (SMALLER, "cluster=8xgpu", "dry_run=true")
    whole, half = (
        memory_of(run(*words, f"actor_rollout_ref.actor.fsdp_config.fsdp_size={size}"), "optimizer")
        for size in (-1, 4)
    )
    assert half == pytest.approx(2 * whole, rel=0.02)


def test_the_optimizers_step_takes_a_copy_unless_it_is_one_kernel(run):
    key = "actor_rollout_ref.actor.optim.override_optimizer_config"
    done = run(BIG, "cluster=8xgpu", f"{key}=null", "dry_run=true")
    # 14.2 GiB of each GPU; with the state and the processes 75.1.
    assert_refused(done, "marsrl.hardware.gpu_gib = 80", "takes 75.1 GiB of each GPU while training")


def memory_of(done, name: str) -> float:
    """GiB of a line of the plan."""
    (line,) = [line for line in done.out.splitlines() if line.startswith(f"  {name}  ")]
    return float(line.split(name)[1].split()[0])


def test_one_gpu_keeps_the_training_state_where_the_plan_has_room(run):
    words = (SMALLER, "cluster=1xgpu", "dry_run=true")
    small, large = run(*words), run(*words, "marsrl.hardware.gpu_gib=139")
    assert "offload_policy: the training state, 59.9 GiB, stays in main memory" in " ".join(small.out.split())
    assert "offload_policy" not in large.out and memory_of(large, "main memory") == 45.0
    # A model of unknown size stays there.
    own = ("model=custom", "actor_rollout_ref.model.path=some/model", "data=parquet")
    unknown = run(*own, "cluster=1xgpu", "--cfg", "job")
    assert OmegaConf.create(unknown.out).actor_rollout_ref.actor.fsdp_config.offload_policy is True


def test_micro_batches_on_a_gpu_are_longer_than_one_short_sequence(run):
    done = run("model=llama3_8b_instruct", "algo=grpo", "cluster=8xgpu", "--cfg", "job", "data=parquet")
    actor = OmegaConf.create(done.out).actor_rollout_ref.actor
    assert actor.ppo_max_token_len_per_gpu == 12288


BIG = "model=qwen3_30b_a3b_thinking_2507 actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Thinking-2507"
SMALLER = "model=qwen3_4b_thinking_2507 actor_rollout_ref.model.path=Qwen/Qwen3-4B-Thinking-2507"


def test_gradients_of_a_step_add_up_on_one_gpu(run):
    done = run(SMALLER, "cluster=1xgpu", "dry_run=true")
    assert done.status == 0
    # 4.02 billion parameters, 4 bytes each.
    assert "accumulated          15.0 GiB  gradients of a step" in done.out
    assert "main memory          59.9 GiB  of a node" in done.out


CACHE = "VLLM_CPU_KVCACHE_SPACE"


@pytest.mark.parametrize("value", ["abc", "0", "nan", "-1"])
def test_the_cache_on_the_processor_is_a_number(run, value):
    done = run("cluster=cpu", f"ray_kwargs.ray_init.runtime_env.env_vars.{CACHE}={value}")
    assert done.status == 2 and "A number of GiB above 0 is expected" in done.err


def test_the_cache_is_a_setting(run, monkeypatch):
    monkeypatch.delenv(CACHE, raising=False)
    assert run("cluster=cpu", f"ray_kwargs.ray_init.runtime_env.env_vars.{CACHE}=3").status == 0


def test_the_cache_is_not_said_twice(run, monkeypatch):
    monkeypatch.setenv(CACHE, "3")
    done = run("cluster=cpu")
    assert done.status == 2 and f"{CACHE}=3" in done.err and "or unset the" in done.err
    assert run("cluster=cpu", f"ray_kwargs.ray_init.runtime_env.env_vars.{CACHE}=3").status == 0


TOO_LARGE = commands(f"""
    overlap | {BIG} cluster=8xgpu pipeline=overlapped | marsrl.hardware.gpu_gib = 80
        | takes 110.0 GiB of each GPU while training: the training state 56.9 GiB, the engine 40.0 GiB
    less | {BIG} cluster=4x8xgpu pipeline=overlapped {ROLLOUT}.gpu_memory_utilization=0.9
        | marsrl.hardware.gpu_gib = 80
        | pipeline=overlapped_two_pools, a lower actor_rollout_ref.rollout.gpu_memory_utilization
    tensor | {BIG} cluster=8xgpu {ROLLOUT}.tensor_model_parallel_size=1
        | {ROLLOUT}.gpu_memory_utilization | Spread the engine over more GPUs
    one GPU | {BIG} cluster=1xgpu | {ROLLOUT}.gpu_memory_utilization | the engine holds 0 tokens
    logits | {BIG} cluster=8xgpu actor_rollout_ref.model.use_fused_kernels=false {ACTOR}=32768
        | marsrl.hardware.gpu_gib | use_fused_kernels=true
    loading | {BIG} cluster=4x8xgpu marsrl.hardware.host_gib=64 | host_gib | takes 113.7 GiB while
    offloading | {BIG} cluster=8xgpu marsrl.hardware.host_gib=256 | host_gib | takes 341.2 GiB for what
    range | {BIG} cluster=4x8xgpu marsrl.hardware.gpu_gib=0 | gpu_gib | above 0
    cpu | {SMALLER} cluster=cpu | VLLM_CPU_KVCACHE_SPACE | one sequence may have 20,480
""")


@pytest.mark.parametrize("case", TOO_LARGE)
def test_a_plan_that_cannot_fit_is_refused(run, case):
    words, key, hint = TOO_LARGE[case]
    assert_refused(run(*words, "dry_run=true"), key, hint)


def test_larger_gpus_hold_more(run):
    words = (BIG, "cluster=8xgpu", "pipeline=overlapped", "dry_run=true")
    assert run(*words, "marsrl.hardware.gpu_gib=141", f"{ROLLOUT}.gpu_memory_utilization=0.4").status == 0


def test_gpus_of_this_machine_that_are_smaller_than_planned(run, monkeypatch):
    small = Gpu(0, "NVIDIA A100-SXM4-40GB", 40960, 4, (8, 0), "580.1")
    monkeypatch.setattr("marsrl_verl.config.checks.machine.count_gpus", lambda: 1)
    monkeypatch.setattr("marsrl_verl.config.checks.machine.list_gpus", lambda: [small])
    words = (SMALLER, "cluster=1xgpu", "marsrl.hardware.host_gib=500")
    assert_refused(run(*words), "marsrl.hardware.gpu_gib = 80", "The smallest GPU of this machine has 40")
    assert run(*words, "marsrl.hardware.gpu_gib=40", f"{ROLLOUT}.gpu_memory_utilization=0.7").status == 0
