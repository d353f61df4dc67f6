"""Ulysses on verl's own workers, as a program: one process per rank, no Ray.

    python rank_ulysses.py FOLDER

One training step as `rank_updates.py` does it, of a random mixture of experts with fused kernels: on one rank
with separate padded rows, and on two that share every packed sequence, with flash-attention's functions in
torch. What log-probabilities and gradients were is left in `FOLDER/ranks_<number of ranks>.pt`.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rank_fused import build
from rank_updates import OVERRIDES, Bench, Case, Ranks, compose, run_ranks, save

TESTS = Path(__file__).resolve().parents[1]
CASES = {
    "packed": Case(attention="flash_attention_2"),
    "few": Case(tokens=60, attention="flash_attention_2"),
}
"""Of all tokens in one micro-batch, and of few in each of several."""
SHARED = (
    "actor_rollout_ref.model.use_remove_padding=true",
    "actor_rollout_ref.model.use_fused_kernels=true",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
    "trainer.n_gpus_per_node=2",
)


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
    sys.path[:0] = [str(TESTS), str(TESTS / "rehearsal")]
    words = [*OVERRIDES, save(build("qwen3_moe_untied"), folder / "model")]
    alone, shared = compose(*words), compose(*words, *SHARED)

    def find_alone(rank: int, world: int) -> Any:
        return Bench(alone).run(Case(rows=2))

    def find_shared(rank: int, world: int) -> dict[str, Any]:
        bench = Bench(shared)
        bench.trainer.actor_rollout_wg = SharingRanks(bench.worker)
        return {name: bench.run(case) for name, case in CASES.items()}

    import flash_stand_in  # noqa: F401

    run_ranks(alone, folder, find_alone, (1,))
    run_ranks(shared, folder, find_shared, (2,))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
