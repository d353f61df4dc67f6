"""verl's weight sync between two processes, without Ray and vLLM: the sender's side starts the receiver's.

    python ipc_weights.py FOLDER [--shared-memory]

Weights go through CUDA IPC on the first GPU, or through shared memory. The largest difference of each that
arrived is left in `FOLDER/received.json`. Through shared memory they go to receivers that fail, too; what the
sender raises is left in `FOLDER/raised.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marsrl_verl.machine.packages import DISTRIBUTION_FOLDER, installed

BUCKET_MIB = 4
SHAPES = {
    "small": (3,),
    "odd": (7, 5),
    "matrix": (512, 300),
    "fills a bucket": (1024, 1024),
    "next": (100, 100),
    "last": (1,),
}
LARGER = {"larger than a bucket": (1024, 2048)}
"""Sent by a handle of its own, which shared memory has none of."""
ROUNDS = 3
FAILURES = ("before", "bucket", "last bucket")


def weights_of(shared: bool, round_: int, device: str):
    import torch

    found = {}
    for name, shape in (SHAPES if shared else {**SHAPES, **LARGER}).items():
        kind = torch.bfloat16 if name == "odd" else torch.float32
        generator = torch.Generator().manual_seed(100 * round_ + len(name))
        found[name] = torch.randn(shape, generator=generator).to(kind).to(device)
    return found


def send(folder: Path, shared: bool) -> None:
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    device = "cpu" if shared else "cuda"
    for round_ in range(ROUNDS):
        sender = BucketedWeightSender(address(folder, "all"), BUCKET_MIB, use_shm=shared)
        asyncio.run(sender.async_send_weights(iter(weights_of(shared, round_, device).items())))


def send_to_one_that_fails(folder: Path, when: str) -> str | None:
    """What it raises."""
    from verl.workers.rollout.vllm_rollout import vllm_rollout

    from marsrl_verl.rollout.generation import EngineUnavailableError

    try:
        sender = vllm_rollout.BucketedWeightSender(address(folder, when), BUCKET_MIB, use_shm=True)
        asyncio.run(sender.async_send_weights(iter(weights_of(True, 0, "cpu").items())))
    except EngineUnavailableError as error:
        return str(error)
    return None


def receive_and_fail(folder: Path, when: str) -> None:
    """As vLLM's worker would: it fails before it connects, at a bucket, or when all is received, and lives
    on."""
    import torch
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

    from marsrl_verl.verl_adapter.rollout_server.weight_transfer import OwnSocketExtension

    def refuse() -> None:
        try:
            {}["loader"]
        except KeyError as error:
            raise ValueError("a weight of 3 into a parameter of 0") from error

    def keep(bucket, is_last):
        if (when == "last bucket" and is_last) or (when == "bucket" and not is_last):
            refuse()

    def received(self):
        if when == "before":
            refuse()
        receiver = BucketedWeightReceiver(address(folder, when), torch.device("cpu"), use_shm=True)
        receiver.receive_weights(keep)

    vLLMColocateWorkerExtension.update_weights_from_ipc = received
    OwnSocketExtension._get_zmq_handle = lambda self: address(folder, when)
    try:
        object.__new__(OwnSocketExtension).update_weights_from_ipc()
    except RuntimeError:
        time.sleep(60)


def receive(folder: Path, shared: bool) -> None:
    import torch
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

    device = torch.device("cpu") if shared else torch.device("cuda", 0)
    found = []
    for round_ in range(ROUNDS):
        expected, differences = weights_of(shared, round_, str(device)), {}

        def keep(bucket, is_last, expected=expected, differences=differences):
            for name, value in bucket:
                differences[name] = float((value.float() - expected[name].float()).abs().max())

        BucketedWeightReceiver(address(folder, "all"), device, use_shm=shared).receive_weights(keep)
        found.append(differences)
    written = folder / "received.partial"
    written.write_text(json.dumps(found))
    written.rename(folder / "received.json")
    # As vLLM's worker it lives on: at its end a fork would drop an answer that is still on its way.
    time.sleep(60)


def address(folder: Path, name: str) -> str:
    return f"ipc://{folder}/{name}"


@contextmanager
def receiving(how: str, receiver: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    process = multiprocessing.get_context(how).Process(target=receiver, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()


def main(folder: Path, shared: bool) -> None:
    with receiving("fork" if shared else "spawn", receive, folder, shared) as receiver:
        send(folder, shared)
        for _ in range(600):
            if receiver.exitcode is not None or (folder / "received.json").exists():
                break
            time.sleep(0.1)
        if receiver.exitcode is not None:
            sys.exit(f"the receiver ended with {receiver.exitcode}")
    if shared:
        raised = {}
        for when in FAILURES:
            with receiving("fork", receive_and_fail, folder, when):
                raised[when] = send_to_one_that_fails(folder, when)
        (folder / "raised.json").write_text(json.dumps(raised))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shared-memory", action="store_true")
    options = parser.parse_args()
    if options.shared_memory:
        os.environ["VERL_PLATFORM"] = "cpu"
        os.environ["VERL_USE_EXTERNAL_MODULES"] = "marsrl_verl.verl_adapter.register"
        if not installed("vllm"):
            sys.path.insert(0, str(DISTRIBUTION_FOLDER))
        # Imported once; receivers are forks.
        import marsrl_verl.verl_adapter.rollout_server.weight_transfer  # noqa: F401
    main(options.folder, options.shared_memory)
