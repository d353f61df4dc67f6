"""Ulysses on verl's own workers, as a program: one process per rank, no Ray.

    python rank_ulysses.py FOLDER

One training step as `rank_updates.py` does it, of a random mixture of experts with fused kernels: on one rank
with separate padded rows, and on two that share every packed sequence, with flash-attention's functions in
torch. What log-probabilities and gradients were is left in `FOLDER/<case>.pt`.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rank_fused import build
from rank_updates import OVERRIDES, Bench, Case, Ranks, fork_ranks, join_ranks

TESTS = Path(__file__).resolve().parents[1]
ROWS = Case(rows=2)
PACKED = {
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


def run_rank(config: Any, cases: dict[str, Case], folder: Path, rank: int, world: int, port: int) -> None:
    join_ranks(rank, world, port)
    config.marsrl.run.output_dir = str(folder / f"run_{world}_{rank}")
    bench = Bench(config)
    if world > 1:
        bench.trainer.actor_rollout_wg = SharingRanks(bench.worker)
    found = {name: bench.run(case) for name, case in cases.items()}
    if rank == 0:
        for name, one in found.items():
            torch.save(one, folder / f"{name}.pt")
    torch.distributed.destroy_process_group()


def main(folder: Path) -> None:
    sys.path[:0] = [str(TESTS), str(TESTS / "rehearsal")]
    from marsrl_verl.config.command_line import parse_arguments
    from marsrl_verl.config.compose import compose_config
    from marsrl_verl.verl_adapter.environment import prepare_environment
    from studies.tiny.tokenizer import build_tokenizer

    build("qwen3_moe_untied").save_pretrained(folder / "model")
    build_tokenizer().save_pretrained(folder / "model")
    words = [*OVERRIDES, f"actor_rollout_ref.model.path={folder / 'model'}"]
    alone, shared = (compose_config(parse_arguments([*words, *more])).config for more in ((), SHARED))
    prepare_environment(alone)
    # What takes the time is imported once; the ranks are forks of this process.
    import flash_stand_in  # noqa: F401

    import marsrl_verl.verl_adapter.run.task_runner  # noqa: F401

    fork_ranks(1, lambda rank, port: run_rank(alone, {"rows": ROWS}, folder, rank, 1, port))
    fork_ranks(2, lambda rank, port: run_rank(shared, PACKED, folder, rank, 2, port))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
