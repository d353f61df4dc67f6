"""Kinds of layers, from transformers' own configurations and from what their `config.json` holds."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from marsrl_verl.attention.layer_kinds import hidden_layers, layer_kinds, without_influence

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
# model type, its settings -> kinds of layers, those without FCI
MODELS = {
    "qwen2": ({}, {FULL}, []),
    "qwen2 with a window": ({**WINDOW}, {FULL, SLIDING}, []),
    "mistral": ({"sliding_window": 8}, {SLIDING}, []),
    "mistral without a window": ({"sliding_window": None}, {FULL}, []),
    "llama4_text": ({}, {FULL, CHUNKED}, [CHUNKED]),
    "qwen3_next": ({}, {FULL, "linear_attention"}, ["linear_attention"]),
    "jamba": ({"num_hidden_layers": 8}, {FULL, "mamba"}, ["mamba"]),
    "falcon_h1": ({}, {"hybrid"}, ["hybrid"]),
    "lfm2": ({"full_attn_idxs": [1]}, {FULL, "conv"}, ["conv"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_kinds_of_transformers_models(name):
    settings, kinds, others = MODELS[name]
    config = AutoConfig.for_model(name.split()[0], **{"num_hidden_layers": 4, **settings})
    assert layer_kinds(config) == kinds
    assert without_influence(config) == others
    assert hidden_layers(config) == (8 if name == "jamba" else 4)
    written = config.to_dict()
    if written.get("layer_types") or name.startswith("mistral"):
        assert layer_kinds(written) == kinds, "as a folder's config.json has it"


def test_the_text_part_of_a_larger_model_counts():
    config = AutoConfig.for_model(
        "llama4", text_config={"num_hidden_layers": 5}, vision_config={"num_hidden_layers": 2}
    )
    assert layer_kinds(config) == {FULL, CHUNKED} and hidden_layers(config) == 5
    # As such a model's file is published, which leaves the layers to the configuration's class.
    file = {"model_type": "llama4", "text_config": {"attention_chunk_size": 8192, "num_hidden_layers": 5}}
    assert without_influence(file) == [CHUNKED] and hidden_layers(file) == 5


def test_a_window_that_is_switched_off():
    file = {"sliding_window": 4096, "use_sliding_window": False}
    assert layer_kinds(file) == {FULL}


def test_a_file_without_the_number_of_layers():
    with pytest.raises(ValueError, match="num_hidden_layers = None"):
        hidden_layers({"model_type": "new"})
