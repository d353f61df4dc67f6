"""The programs that `test_ranks_on_gpu.py` starts, as far as a processor can run them: up to the device."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("verl", reason="the ranks are verl's")

import rank_updates
import torch
from fresh_python import run_program
from rank_updates import composed
from test_ranks_on_gpu import VARIANTS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("variant", "untied"), [*((one, False) for one in VARIANTS), ("fused", True)])
def test_the_configuration_is_composed_for_a_gpu(tmp_path, variant, untied):
    config = composed(tmp_path, *VARIANTS[variant], cuda=True, untied=untied)
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    assert config.trainer.device == "cuda"
    assert (actor.fsdp_config.dtype, actor.fsdp_config.offload_policy) == ("float32", False)
    assert model.use_remove_padding is (variant != "padded")
    assert bool(model.use_fused_kernels) is (variant == "fused")
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model.path)
    assert (network.lm_head.weight is network.model.embed_tokens.weight) is not untied


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_program_says_so_in_a_sentence(tmp_path):
    arguments = ("--cuda", "--untied", "--case", rank_updates.WHOLE, *VARIANTS["fused"])
    with pytest.raises(AssertionError, match="no CUDA device"):
        run_program(Path(rank_updates.__file__), tmp_path, *arguments)
