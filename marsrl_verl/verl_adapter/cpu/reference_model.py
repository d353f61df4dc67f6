"""The reference policy without an accelerator."""

from __future__ import annotations

from typing import Any


def keep_reference_in_place() -> None:
    """Let verl build a model that is only read without moving it between devices.

    Upstream behaviour: `FSDPEngine._build_fsdp_module` keeps such a model in pinned memory, with the
    `CPUOffloadPolicy` that its module names, and only a machine with an accelerator has pinned memory. Here
    main memory is where everything is computed. Training with `offload_policy` is refused on the CPU.
    """
    from verl.workers.engine.fsdp import transformer_impl

    def nowhere(**_: Any) -> None:
        return None

    transformer_impl.CPUOffloadPolicy = nowhere
