"""Weights from the trainer's processes to the engine's, over gloo.

Upstream behaviour: verl's checkpoint engines between two pools need NVIDIA, Ascend or RDMA hardware. This one
needs a network card: trainer rank 0 broadcasts buckets of weights to every process that feeds an engine.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from verl.checkpoint_engine.base import (
    CheckpointEngine,
    CheckpointEngineRegistry,
    TensorMeta,
    merge_weight_chunks,
    split_weight_chunks,
)

from marsrl_verl.config.pools import CPU_SYNC

_TIMEOUT = timedelta(minutes=10)
_ALIGNMENT = 16
"""Bytes: a weight's place in a bucket must suit its number format."""
_OUTSIDE = -1
"""Rank of the trainer's other processes: they help to gather weights and send none."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Address at which the processes of a sync find each other."""

    host: str
    port: int


def _listening_store(host: str) -> dist.TCPStore:
    """A store that listens at the host's address alone; torch's own socket is on all interfaces."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    return dist.TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=_TIMEOUT,
        master_listen_fd=listener.detach(),
    )


@CheckpointEngineRegistry.register(CPU_SYNC)
class GlooWeightSync(CheckpointEngine):
    """Broadcast of weights in buckets of `bucket_size` bytes, each behind a header that lists its weights;
    `is_master` is the trainer's rank 0, which sends."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._bucket_size = bucket_size
        self._is_master = is_master
        self._store: dist.TCPStore | None = None
        self._group: dist.ProcessGroupGloo | None = None
        self._place: tuple[int, int] | None = None

    def prepare(self) -> Meeting | None:
        """The sender's address; None in all other processes."""
        if not self._is_master:
            return None
        host = ray.util.get_node_ip_address().strip("[]")
        if self._store is None:
            self._store = _listening_store(host)
        return Meeting(host, self._store.port)

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Arguments of `init_process_group` for every trainer process and every process at an engine."""
        meeting, size = metadata[0], 1 + rollout_world_size

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "world_size": [size] * len(ranks), "meeting": [meeting] * len(ranks)}

        trainer = [0] + [_OUTSIDE] * (actor_wg_world_size - 1)
        return arguments(trainer), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, world_size: int, meeting: Meeting) -> None:
        """Joins the group of a sync; kept from one sync to the next."""
        if self._place == (rank, world_size):
            return
        if self._place is not None:
            raise RuntimeError(
                f"weight sync: this process had rank and size {self._place}, now {(rank, world_size)}; "
                "engines cannot join or leave a run"
            )
        self._place = (rank, world_size)
        if rank == _OUTSIDE:
            return
        if self._store is None:
            self._store = dist.TCPStore(meeting.host, meeting.port, is_master=False, timeout=_TIMEOUT)
        self._group = dist.ProcessGroupGloo(self._store, rank, world_size, _TIMEOUT)

    def finalize(self) -> None:
        """Does nothing: only the group is kept."""

    @torch.no_grad()
    async def send_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], global_steps: int | None = None
    ) -> None:
        """Broadcast all weights; in the trainer's other processes only gather them."""
        if self._group is None:
            for _ in weights:
                pass  # producing a sharded weight is collective over the trainer's processes
            return
        metas: list[TensorMeta] = []
        bucket = torch.empty(self._bucket_size, dtype=torch.uint8)
        filled = 0
        async for meta, chunk in split_weight_chunks(weights, self._bucket_size):
            filled = -(-filled // _ALIGNMENT) * _ALIGNMENT
            if filled + meta.chunk_size > self._bucket_size:
                await self._send_bucket(metas, bucket, last=False)
                metas, filled = [], 0
            meta.offset = filled
            bucket[filled : filled + meta.chunk_size] = chunk.cpu()
            metas.append(meta)
            filled += meta.chunk_size
        await self._send_bucket(metas, bucket[:filled], last=True)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Names and weights in the order in which they are sent."""
        async for name, weight in merge_weight_chunks(self._receive_chunks(), self._bucket_size):
            yield name, weight

    async def _send_bucket(self, metas: list[TensorMeta], bucket: torch.Tensor, last: bool) -> None:
        header = torch.frombuffer(bytearray(pickle.dumps((metas, last))), dtype=torch.uint8)
        await self._broadcast(torch.tensor([len(header), len(bucket)]))
        await self._broadcast(header)
        await self._broadcast(bucket)

    async def _receive_chunks(self) -> AsyncGenerator[tuple[TensorMeta, torch.Tensor], None]:
        last = False
        while not last:
            sizes = await self._broadcast(torch.zeros(2, dtype=torch.int64))
            header = await self._broadcast(torch.empty(int(sizes[0]), dtype=torch.uint8))
            bucket = await self._broadcast(torch.empty(int(sizes[1]), dtype=torch.uint8))
            metas, last = pickle.loads(header.numpy().tobytes())
            for meta in metas:
                yield meta, bucket[meta.offset : meta.offset + meta.chunk_size]

    async def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        if (group := self._group) is None:
            raise RuntimeError("weight sync: init_process_group was not called in this process")
        # In a thread, so that the process answers other calls while it waits for the sender.
        await asyncio.to_thread(lambda: group.broadcast(tensor, root=0).wait())  # type: ignore[attr-defined]
        return tensor
