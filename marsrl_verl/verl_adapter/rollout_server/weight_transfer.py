"""verl's weight transfer between a trainer's rank and the engine beside it, through the run's own sockets.

Both sides name the socket by themselves; `weight_sockets` says where it lies and why.
"""

from __future__ import annotations

import os
from typing import Any

from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from marsrl_verl.config.models import engine_ranks, first_replica, model_number
from marsrl_verl.verl_adapter.rollout_server.weight_sockets import own_socket, use_own_sockets


class OwnSocketAdapter(ServerAdapter):
    """The sender. Upstream behaviour: the constructor makes the socket's name of the Ray job's number, and
    takes the engine that the rank belongs to for the only one on its GPUs."""

    zmq_handle: str

    def __init__(self, *args: Any, config: Any, replica_rank: int = -1, **kwargs: Any) -> None:
        if replica_rank < 0 and (number := model_number(config)):
            ranks = engine_ranks(config)
            first = first_replica(number, int(os.environ["WORLD_SIZE"]), ranks)
            replica_rank = first + int(os.environ["RANK"]) // ranks
        super().__init__(*args, config=config, replica_rank=replica_rank, **kwargs)
        self.zmq_handle = own_socket(self.zmq_handle)


class OwnSocketExtension(vLLMColocateWorkerExtension):
    """The receiver, in vLLM's worker."""

    def _get_zmq_handle(self) -> str:
        return own_socket(super()._get_zmq_handle())


class OwnSocketEngineWorker(CheckpointEngineWorker):
    """The process that feeds an engine on GPUs of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        use_own_sockets()
        super().__init__(*args, **kwargs)
