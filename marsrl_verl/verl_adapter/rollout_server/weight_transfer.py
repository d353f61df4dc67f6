"""verl's weight transfer between a trainer's rank and the engine beside it, through the run's own sockets.

Both sides name the socket by themselves; `weight_sockets` says where it lies and why. An engine that fails to
take the weights says so in a file beside it, which ends the sender's wait.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.workers.rollout.vllm_rollout import vllm_rollout
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from marsrl_verl.config.models import engine_ranks, first_replica, model_number
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server.weight_sockets import own_socket, use_own_sockets

_POLL_MS = 1000


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


def refusal(address: str) -> Path:
    """The file in which the engine's side says why it does not take the weights. The run ends then, and its
    folder with it: a file is never one of an earlier sync."""
    return Path(f"{address.removeprefix('ipc://')}.refused")


class ListeningSender(BucketedWeightSender):
    """Raises EngineUnavailableError where the engine's side has failed, with its reason. Upstream behaviour:
    verl's sender waits for it without end."""

    socket: Any

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket = _Answers(self.socket, refusal(self.zmq_handle))


vars(vllm_rollout)["BucketedWeightSender"] = ListeningSender  # what `ServerAdapter` makes


@dataclass(frozen=True, slots=True)
class _Answers:
    """A sender's socket that never waits for a receiver that has failed, connected or not."""

    socket: Any
    refused: Path

    def send_pyobj(self, value: Any) -> None:
        self._wait(zmq.POLLOUT)
        self.socket.send_pyobj(value)

    def recv(self) -> bytes:
        self._wait(zmq.POLLIN)
        return bytes(self.socket.recv())

    def close(self) -> None:
        self.socket.close()

    def _wait(self, event: int) -> None:
        while not self.socket.poll(_POLL_MS, event):
            if self.refused.exists():
                raise EngineUnavailableError(self.refused.read_text())


class OwnSocketExtension(vLLMColocateWorkerExtension):
    """The receiver, in vLLM's worker."""

    def _get_zmq_handle(self) -> str:
        return own_socket(super()._get_zmq_handle())

    def update_weights_from_ipc(self, *args: Any, **kwargs: Any) -> None:
        """Takes the weights as verl's does; if that fails, tells the sender and raises RuntimeError."""
        try:
            super().update_weights_from_ipc(*args, **kwargs)
        except Exception as error:
            cause: BaseException = error
            # Upstream behaviour: verl's clean-up closes shared memory that the traceback still holds.
            while isinstance(cause, BufferError) and cause.__context__ is not None:
                cause = cause.__context__
            what = f"the engine can't take the trainer's weights: {type(cause).__name__}: {cause}"
            path = refusal(self._get_zmq_handle())
            written = path.with_suffix(".written")
            written.write_text(what)
            written.rename(path)
            raise RuntimeError(what) from error


class OwnSocketEngineWorker(CheckpointEngineWorker):
    """The process that feeds an engine on GPUs of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        use_own_sockets()
        super().__init__(*args, **kwargs)
