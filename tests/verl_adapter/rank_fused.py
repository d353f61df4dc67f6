"""Fused kernels and Ulysses on verl's own workers, as a program: one process per rank, no Ray.

    python rank_fused.py FOLDER

Every rank takes one training step as `rank_updates.py` does, of random networks with a head that is the
embedding's weight or has one of its own, without fused kernels and with them. What log-probabilities and
gradients were is left in `FOLDER/ranks_<number of ranks>.pt`, and in `FOLDER/shared` that of two ranks which
share every packed sequence, with flash-attention's functions in torch.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rank_updates import OVERRIDES, Bench, Case, Ranks, compose, run_ranks, save

TESTS = Path(__file__).resolve().parents[1]

NETWORKS = ("qwen2_tied", "qwen3_moe_untied")
PASSES = ("plain", "fused", "fused, packed, messages at once")
"""Of several micro-batches, with FSDP's messages held back until the last of them or not. Packed rows have no
padding between them, and sdpa keeps them apart: there is no flash-attention here."""


SHARES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)
"""Before, torch's gloo has no all_to_all."""
SHARED_CASES = {
    "all tokens": Case(attention="flash_attention_2"),
    "few tokens": Case(tokens=60, attention="flash_attention_2"),
}
SHARED = (
    "actor_rollout_ref.model.use_remove_padding=true",
    "actor_rollout_ref.model.use_fused_kernels=true",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
    "trainer.n_gpus_per_node=2",
)


def build(name: str) -> Any:
    """A random network with the tiny task's vocabulary."""
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


class SharingRanks(Ranks):
    """Ranks that share every row: each has all of them, and the first one's outputs are returned."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._dispatch_info = {"actor": [0] * torch.distributed.get_world_size()}

    @staticmethod
    def _everywhere(method: Callable[[Any], Any], data: Any) -> Any:
        from verl.protocol import BatchData

        share = pickle.loads(pickle.dumps(BatchData(data).chunk(1)[0]))
        outputs: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(outputs, method(share))
        return BatchData(outputs[:1]).concat()


def main(folder: Path) -> None:
    paths = {name: save(build(name), folder / name) for name in NETWORKS}
    configs = {name: compose(*OVERRIDES, path) for name, path in paths.items()}
    shared = compose(*OVERRIDES, *SHARED, paths["qwen3_moe_untied"])

    def find(rank: int, world: int) -> dict[str, Any]:
        found = {}
        # One rank says what is right for two. verl's patch for fused kernels is of the class, and stays.
        for how in PASSES[:2] if world == 1 else PASSES[1:]:
            for name, config in configs.items():
                config.marsrl.run.output_dir = str(folder / f"{name}_{how}_{world}_{rank}")
                config.actor_rollout_ref.model.use_fused_kernels = how != "plain"
                config.actor_rollout_ref.model.use_remove_padding = "packed" in how
                bench = Bench(config)
                engine = bench.worker.actor.engine_config
                object.__setattr__(engine, "use_no_sync_for_gradient_accumulation", "at once" not in how)
                found[f"{name} {how}"] = bench.run(Case(rows=2))
        return found

    def find_shared(rank: int, world: int) -> dict[str, Any]:
        sys.path[:0] = [str(TESTS), str(TESTS / "rehearsal")]
        import flash_stand_in  # noqa: F401

        bench = Bench(shared)
        bench.trainer.actor_rollout_wg = SharingRanks(bench.worker)
        return {name: bench.run(case) for name, case in SHARED_CASES.items()}

    run_ranks(configs[NETWORKS[0]], folder, find)
    if SHARES:
        (folder / "shared").mkdir()
        run_ranks(shared, folder / "shared", find_shared, (2,))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
