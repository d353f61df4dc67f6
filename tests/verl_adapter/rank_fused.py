"""Fused kernels on verl's own workers, as a program: one process per rank, no Ray.

    python rank_fused.py FOLDER

Every rank takes one training step as `rank_updates.py` does, of random networks with a head that is the
embedding's weight or has one of its own, without fused kernels and with them. What log-probabilities and
gradients were is left in `FOLDER/ranks_<number of ranks>.pt`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from rank_updates import OVERRIDES, Bench, Case, compose, run_ranks, save

NETWORKS = ("qwen2_tied", "qwen2_untied", "qwen3_moe_untied")
PASSES = ("plain", "fused", "fused, packed, messages at once")
"""Of several micro-batches, with FSDP's messages held back until the last of them or not. Packed rows have no
padding between them, and sdpa keeps them apart: there is no flash-attention here."""


def build(name: str) -> Any:
    """A random network with the tiny world's vocabulary."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    from studies.tiny.tokenizer import vocabulary

    shape: dict[str, Any] = {
        "vocab_size": len(vocabulary()), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512,
        "tie_word_embeddings": not name.endswith("untied"), "initializer_range": 0.1,
    }  # fmt: skip
    torch.manual_seed(7)
    if name.startswith("qwen3_moe"):
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 32}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **experts)).float()
    return Qwen2ForCausalLM(Qwen2Config(**shape)).float()


def main(folder: Path) -> None:
    configs = {name: compose(*OVERRIDES, save(build(name), folder / name)) for name in NETWORKS}

    def find(rank: int, world: int) -> dict[str, Any]:
        found = {}
        # One rank says what is right for two. verl's patch for fused kernels is of the class, and stays.
        for how in PASSES if world == 1 else PASSES[1:]:
            for name, config in configs.items():
                config.marsrl.run.output_dir = str(folder / f"{name}_{how}_{world}_{rank}")
                config.actor_rollout_ref.model.use_fused_kernels = how != "plain"
                config.actor_rollout_ref.model.use_remove_padding = "packed" in how
                bench = Bench(config)
                engine = bench.worker.actor.engine_config
                object.__setattr__(engine, "use_no_sync_for_gradient_accumulation", "at once" not in how)
                found[f"{name} {how}"] = bench.run(Case(rows=2))
        return found

    run_ranks(configs[NETWORKS[0]], folder, find)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
