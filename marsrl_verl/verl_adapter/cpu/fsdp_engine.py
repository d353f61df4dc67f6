"""verl's FSDP engine, registered for the device `cpu`."""

from __future__ import annotations

from verl.workers.engine.base import EngineRegistry

from marsrl_verl.verl_adapter.probe_engine import ProbeFSDPEngine


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CPUFSDPEngineWithLMHead(ProbeFSDPEngine):
    """FSDP2 on CPU. Upstream behaviour: the engine is registered for cuda and npu only."""
