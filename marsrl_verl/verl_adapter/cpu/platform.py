"""verl's platform interface, answered for a machine without accelerator.

Upstream behaviour: verl 0.9.1 ships platforms for NVIDIA, ROCm and Ascend, and falls back to NVIDIA.
Ray hands out *logical* GPUs here (`ray_init.num_gpus`), because verl's placement groups ask for them.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _memory_info(*_args: Any, **_kwargs: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _device_properties(*_args: Any, **_kwargs: Any) -> SimpleNamespace:
    return SimpleNamespace(name="cpu", total_memory=psutil.virtual_memory().total, multi_processor_count=0)


_TORCH_CPU_ADDITIONS = {
    **dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"),
        lambda *_a, **_k: 0,
    ),
    **dict.fromkeys(
        ("reset_peak_memory_stats", "reset_max_memory_allocated", "empty_cache", "ipc_collect"), _nothing
    ),
    "mem_get_info": _memory_info,
    "get_device_properties": _device_properties,
    "get_device_name": lambda *_a, **_k: "cpu",
    "get_rng_state": lambda *_a, **_k: torch.get_rng_state(),
    "set_rng_state": lambda state, *_a, **_k: torch.set_rng_state(state),
    **dict.fromkeys(("manual_seed", "manual_seed_all"), torch.manual_seed),
}


def complete_torch_cpu() -> None:
    """Adds to `torch.cpu` the functions that verl calls on every device module; existing ones stay. verl
    compares the module with `torch.cpu` itself, so a wrapper would not do."""
    for name, function in _TORCH_CPU_ADDITIONS.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """A platform whose device is the host: gloo, shared memory, logical GPUs."""

    device_name = vendor_name = "cpu"
    device_module = torch.cpu
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def __init__(self) -> None:
        super().__init__()
        complete_torch_cpu()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Never auto-detected: only VERL_PLATFORM=cpu selects it.
        return False

    def current_device(self) -> Any:
        # Callers write `.to(get_device_id())`, which takes a device string as well as an index.
        return "cpu"

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return contextlib.nullcontext()

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        # False selects shared memory for the weight transfer to vLLM.
        return False
