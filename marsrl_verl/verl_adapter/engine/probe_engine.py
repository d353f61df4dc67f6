"""verl's FSDP engine with the measurements of a method's probe beside the log-probabilities.

The micro-batch itself requests them, so that every other pass runs as upstream.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine.base import EngineRegistry

from marsrl_verl.attention.measure import Measure, MeasuredRows
from marsrl_verl.core.rows import RESPONSE_MASK
from marsrl_verl.verl_adapter.engine.shared_prefix_engine import SharedPrefixFSDPEngine, sharing

MEASURE_KEY = "probe_measure"
"""`package.module:Class` of the measure; absent: none."""
SETTINGS_KEY = "probe_settings"
COLUMNS_KEY = "probe_columns"
"""Names of the jagged columns (R, T) that it reads."""


class ProbeFSDPEngine(SharedPrefixFSDPEngine):
    """Upstream behaviour: `forward_step` returns log-probabilities and entropies only."""

    _measure: Measure | None = None

    def forward_step(self, micro_batch: TensorDict, loss_function: Any, forward_only: bool) -> Any:
        """Runs as upstream; with a measure the output has its results, too."""
        target = tu.get_non_tensor_data(data=micro_batch, key=MEASURE_KEY, default=None)
        if target is None:
            return super().forward_step(micro_batch, loss_function, forward_only)
        if sharing(micro_batch):
            raise ValueError(
                f"{target} reads whole rows, and this batch has share_prefixes: set one of them only"
            )
        if self.use_ulysses_sp:
            raise ValueError(
                f"{target} with Ulysses sequence parallelism: each rank sees a part of the heads, and what "
                "it measures in them is not put together; set ulysses_sequence_parallel_size=1"
            )
        settings = tu.get_non_tensor_data(data=micro_batch, key=SETTINGS_KEY, default={})
        measure = resolve_name(target)(settings)
        model: Any = getattr(self.module, "module", self.module)  # FSDP1 keeps the model below
        with measure.around(model, self._measured_rows(micro_batch)):
            self._measure = measure
            try:
                return super().forward_step(micro_batch, loss_function, forward_only)
            finally:
                self._measure = None

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Any]:
        """Prepares outputs as upstream, with the measurements of the pass that just ran."""
        result = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        if self._measure is not None:
            offsets = micro_batch["input_ids"].offsets()
            for name, values in self._measure.outputs().items():
                # Log-probabilities stand one place to the left of their token, and verl reads them there.
                result[name] = torch.nested.nested_tensor_from_jagged(
                    values.roll(-1), offsets.to(values.device)
                )
        return result

    def _measured_rows(self, micro_batch: TensorDict) -> MeasuredRows:
        names = tu.get_non_tensor_data(data=micro_batch, key=COLUMNS_KEY, default=())
        packed = bool(tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True))
        offsets = micro_batch["input_ids"].offsets().cpu()
        return MeasuredRows(
            offsets,
            micro_batch[RESPONSE_MASK].offsets().diff().cpu(),
            {name: micro_batch[name].values().cpu() for name in names},
            packed=packed,
            padding=self._get_packed_pad_size(int(offsets[-1])) if packed else 0,
            device=get_device_id(),
        )


def register_engine() -> None:
    """Lets this process's workers build this engine, with NVIDIA GPUs or on the CPU platform.

    Upstream behaviour: verl's own engine is registered for cuda and npu, and one for a device and its vendor
    goes before it; none is registered for cpu.
    """
    known = EngineRegistry._engines["language_model"]
    places = [("fsdp2", "cpu", None), ("fsdp", "cuda", "nvidia"), ("fsdp2", "cuda", "nvidia")]
    for backend, device, vendor in places:
        if ((device, vendor) if vendor else device) not in known[backend]:
            EngineRegistry.register("language_model", backend, device, vendor)(ProbeFSDPEngine)
