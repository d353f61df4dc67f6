"""Call 1: what the platform allows, and the project's own tests on the GPU."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from benchmarks.gpu_check.checks import Bench, Call, Check, expect
from marsrl_verl.doctor.machine import RAY_PORTS

MIB = 2**20
SHARED_GIB = 4
"""Of /dev/shm: Ray's objects of the checks' runs, with room."""
_IPC = """
import sys, torch
from multiprocessing.connection import Client
connection = Client(sys.argv[1], family="AF_UNIX")
rebuild, arguments = connection.recv()
tensor = rebuild(*arguments)
found = float(tensor.double().sum())
tensor.mul_(2)
torch.cuda.synchronize()
del tensor
connection.send(found)
"""
"""The other process: sums what the first one shares, and doubles it in place."""


def cuda_ipc(bench: Bench) -> None:
    """Two processes see one allocation, as trainer and engine do in a weight sync."""
    from multiprocessing.connection import Listener

    device = bench.cuda()
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    shared = torch.ones(64 * MIB, device=device)
    # A socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory() as folder, Listener(f"{folder}/ipc", family="AF_UNIX") as listener:
        other = subprocess.Popen([sys.executable, "-c", _IPC, f"{folder}/ipc"])
        with listener.accept() as connection:
            start = time.perf_counter()
            connection.send(reduce_tensor(shared))
            found = connection.recv()
            bench.figures |= {"MiB": shared.nbytes // MIB, "seconds": time.perf_counter() - start}
        expect(other.wait(30) == 0, f"the other process ended with status {other.returncode}")
    expect(found == shared.numel(), f"the other process saw {found}, expected {shared.numel()}")
    expect(bool((shared == 2).all()), "what the other process wrote is not seen here")


def vmm(bench: Bench) -> None:
    """Memory is unmapped and mapped again at the same address: vLLM's sleep mode."""
    bench.cuda()
    import torch
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.get_instance()
    with allocator.use_memory_pool(tag="weights"):
        kept = torch.full((256 * MIB,), 3.0, device="cuda")
    with allocator.use_memory_pool(tag="kv_cache"):
        dropped = torch.ones(256 * MIB, device="cuda")
    address, before = kept.data_ptr(), torch.cuda.mem_get_info()[0]
    start = time.perf_counter()
    allocator.sleep(offload_tags=("weights",))
    slept = time.perf_counter()
    freed = torch.cuda.mem_get_info()[0] - before
    allocator.wake_up()
    torch.cuda.synchronize()
    bench.figures |= {
        "freed_MiB": freed // MIB,
        "sleep_s": slept - start,
        "wake_s": time.perf_counter() - slept,
    }
    expect(freed >= 1900 * MIB, f"sleeping freed {freed // MIB} MiB of 2048")
    expect(kept.data_ptr() == address, "the weights came back at another address")
    expect(bool((kept == 3.0).all()), "the weights came back changed")
    dropped.fill_(2.0)  # mapped again, its content is free


def nccl(bench: Bench) -> None:
    """A group of one rank, as a run on one GPU has."""
    device = bench.cuda()
    import torch
    import torch.distributed as dist

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    start = time.perf_counter()
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    values = torch.arange(10.0, device=device)
    dist.all_reduce(values)
    gathered = [torch.empty_like(values)]
    dist.all_gather(gathered, values)
    torch.cuda.synchronize()
    bench.figures |= {
        "version": ".".join(map(str, torch.cuda.nccl.version())),
        "seconds": time.perf_counter() - start,
    }
    expect(bool((gathered[0].cpu() == torch.arange(10.0)).all()), f"gathered {gathered[0].tolist()}")
    dist.destroy_process_group()


def system(bench: Bench) -> None:
    """Shared memory, Ray's ports, pinned memory; what the doctor finds goes into the log."""
    free = shutil.disk_usage("/dev/shm").free / 2**30
    bench.figures |= {"shm_GiB": round(free, 1), "cores": len(os.sched_getaffinity(0))}
    expect(free >= SHARED_GIB, f"/dev/shm has {free:.1f} GiB free, runs need {SHARED_GIB}")
    for port in RAY_PORTS:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
    device = bench.cuda()
    import torch

    pinned = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    start = time.perf_counter()
    pinned.to(device)
    torch.cuda.synchronize()
    bench.figures["to_gpu_GB_s"] = pinned.nbytes / (time.perf_counter() - start) / 1e9
    bench.run([sys.executable, "-c", "from marsrl_verl.commands import doctor; doctor()"])


def attention(bench: Bench) -> None:
    """The kernels' tests, compiled instead of interpreted."""
    bench.tests("tests/attention", "-n", "8")


def ranks(bench: Bench) -> None:
    """The trainer's update on FSDP2 and NCCL; fused kernels with tied and untied heads; the weight sync."""
    files = [f"tests/verl_adapter/{name}.py" for name in ("test_ranks_on_gpu", "test_weight_ipc")]
    # Each of the programs that they start takes some seconds to import verl.
    bench.tests(*files, "-m", "gpu", "-n", "6")


CALL = Call(
    1,
    "platform, kernels, workers",
    5,
    "the platform (CUDA IPC, VMM, NCCL), the Triton kernels, or verl's FSDP2 worker with our engine",
    (
        Check("cuda ipc", 30, cuda_ipc),
        Check("vmm", 30, vmm),
        Check("nccl", 30, nccl),
        Check("system", 30, system),
        Check("attention tests", 110, attention),
        Check("rank tests", 150, ranks),
    ),
)
