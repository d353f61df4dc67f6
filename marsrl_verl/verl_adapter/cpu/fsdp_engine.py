"""verl's FSDP engine, registered for the device `cpu`."""

from __future__ import annotations

from verl.workers.engine.base import EngineRegistry

from marsrl_verl.verl_adapter.fci_engine import FciFSDPEngine


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CPUFSDPEngineWithLMHead(FciFSDPEngine):
    """FSDP2 on CPU. Upstream behaviour: the engine is registered for cuda and npu only."""
