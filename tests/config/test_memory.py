"""Sizes of models and the memory estimate, by hand."""

from __future__ import annotations

import pytest

from marsrl_verl.config.memory import GIB, assumptions, estimate_memory
from marsrl_verl.config.model_shapes import PUBLISHED, shape_from_config

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
    # 30.5, 4.0, 1.78 and 7.62 billion, as their model cards say.
    counts = {name: shape_from_config(config).parameters for name, config in PUBLISHED.items()}
    assert counts == {
        "Qwen/Qwen3-30B-A3B-Thinking-2507": 30_532_122_624,
        "Qwen/Qwen3-4B-Thinking-2507": 4_022_468_096,
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    }


def test_unknown_architectures_are_not_guessed():
    assert shape_from_config({**SMALL, "model_type": "mamba"}) is None


def test_estimate_of_the_published_setting(run):
    config = run(
        "model=qwen3_30b_a3b_thinking_2507",
        "actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Thinking-2507",
        "cluster=4x8xgpu",
        "ray_kwargs.ray_init.address=auto",
    ).launched
    shape = shape_from_config(PUBLISHED["Qwen/Qwen3-30B-A3B-Thinking-2507"])
    found = estimate_memory(config, shape)
    shard = 30_532_122_624 // 32
    assert (found.train_weights, found.gradients, found.optimizer) == (4 * shard, 4 * shard, 8 * shard)
    assert found.engine_weights == 30_532_122_624 * 2 // 4
    # Keys and values, 48 layers, 4 heads over 4 GPUs, 128 numbers of 2 bytes.
    assert found.kv_bytes_per_token == 2 * 48 * 1 * 128 * 2
    assert found.kv_cache == int(0.7 * 80 * GIB) - found.engine_weights - 2 * GIB
    assert found.longest_sequences == pytest.approx(found.kv_cache / 24576 / 98304)
    # 98,304 tokens of one sequence over 8 GPUs.
    assert found.activations == 48 * 12288 * 2048 * 2
    assert found.logits == 2 * 12288 * 151936 * 4
    assert found.trainer_offloaded
    assert found.training == sum((16 * shard, found.gathered, found.activations, found.logits))
    assert found.decoding == found.engine_weights + found.kv_cache
    assert found.training < 80 * GIB > found.decoding
    text = " ".join(assumptions(config, found))
    assert "sharded over 32 ranks" in text
    assert "80 GiB" in text


def test_estimate_on_the_cpu(checked):
    config = checked({}).config
    found = estimate_memory(config, shape_from_config(SMALL))
    assert found.kv_cache == GIB
    assert found.gathered == 0
    assert not found.engine_sleeps
    state = found.train_weights + found.gradients + found.optimizer
    assert found.training == state + found.activations + found.logits + found.engine_weights + GIB


def test_offload_policy_keeps_the_state_in_main_memory(checked):
    changes = {"actor_rollout_ref.actor.fsdp_config.offload_policy": True, "trainer.device": "cuda"}
    found = estimate_memory(checked(changes, dry_run=True).config, shape_from_config(SMALL))
    assert found.training == found.activations + found.logits + found.engine_weights + found.kv_cache
    assert found.decoding == found.engine_weights + found.kv_cache
