"""The plan's arithmetic of an update against an update without content."""

from __future__ import annotations

import copy

import pytest
from omegaconf import OmegaConf

from benchmarks.training_memory import composed, counted
from marsrl_verl.config.model_shapes import shape_from_config
from marsrl_verl.config.training_memory import training_memory

pytestmark = pytest.mark.slow

MODEL = {
    "model_type": "qwen2",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
    "vocab_size": 8192,
    "tie_word_embeddings": False,
}
MIXTURE = {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "head_dim": 64,
    "decoder_sparse_step": 1,
}
ACTOR, SHARED = "actor_rollout_ref.actor", "actor_rollout_ref.model"


@pytest.fixture(scope="module")
def preset():
    return composed(("model=qwen3_4b_thinking_2507", "cluster=8xgpu"))


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ({}, {}),
        ({}, {f"{SHARED}.use_fused_kernels": False}),
        ({}, {f"{ACTOR}.fsdp_config.fsdp_size": 2}),
        ({}, {"trainer.n_gpus_per_node": 1, f"{ACTOR}.optim.override_optimizer_config": None}),
        ({"tie_word_embeddings": True, "model_type": "qwen3", "head_dim": 64}, {}),
        (MIXTURE, {f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 8}),
    ],
    ids=["fused", "logits", "two ranks share", "one rank, foreach", "tied", "experts"],
)
def test_a_small_update_takes_what_is_planned(preset, model, changes):
    config = copy.deepcopy(preset)
    OmegaConf.update(config, f"{ACTOR}.ppo_max_token_len_per_gpu", 2048)
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    network = {**MODEL, **model}
    shape = shape_from_config(network)
    assert shape is not None
    found, planned = counted(config, network), training_memory(config, shape).peak(False)
    assert planned == pytest.approx(max(found.values()), rel=0.1), found
