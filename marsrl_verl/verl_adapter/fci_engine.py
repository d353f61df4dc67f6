"""verl's FSDP engine with Forward Context Influence beside the log-probabilities.

Asked for by the micro-batch itself (`fci_delta` above 0), so that every other pass runs as upstream.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine.base import EngineRegistry

from marsrl_verl.attention.collector import InfluenceCollector, collect_influence
from marsrl_verl.attention.layout import OUTSIDE, StepLayout, build_layout
from marsrl_verl.verl_adapter.shared_prefix_engine import SharedPrefixFSDPEngine, sharing

DELTA_KEY = "fci_delta"
"""Least distance in steps; 0 or absent: no influence is computed."""
BACKEND_KEY = "fci_backend"
"""What computes it (`attention.column_sums.FciBackend`)."""
STEPS_KEY, MEASURED_KEY = "step_ids", "step_measured"
"""Columns (B, R): the step of every response token, -1 for padding, and whether it is measured."""
INFLUENCE_KEY = "influence"
"""The output: the influence of every token's step, laid out as `log_probs` is."""


class FciFSDPEngine(SharedPrefixFSDPEngine):
    """Upstream behaviour: `forward_step` returns log-probabilities and entropies only. While a measured pass
    runs, the model's attention function is wrapped (`attention.collector`)."""

    _collector: InfluenceCollector | None = None

    def forward_step(self, micro_batch: TensorDict, loss_function: Any, forward_only: bool) -> Any:
        """As upstream; with `fci_delta` the output has `influence` too."""
        delta = int(tu.get_non_tensor_data(data=micro_batch, key=DELTA_KEY, default=0))
        if not delta:
            return super().forward_step(micro_batch, loss_function, forward_only)
        if sharing(micro_batch):
            raise ValueError("FCI reads whole rows, and this batch has share_prefixes: set one of them only")
        if self.use_ulysses_sp:
            raise ValueError(
                "FCI with Ulysses sequence parallelism: each rank sees a part of the heads, and their "
                "largest influence is not put together; set ulysses_sequence_parallel_size=1"
            )
        packed = bool(tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True))
        total = int(micro_batch["input_ids"].offsets()[-1])
        padding = self._get_packed_pad_size(total) if packed else 0
        layout = micro_batch_layout(micro_batch, delta, packed=packed, padding=padding)
        model: Any = getattr(self.module, "module", self.module)  # FSDP1 keeps the model below
        backend = tu.get_non_tensor_data(data=micro_batch, key=BACKEND_KEY, default="auto")
        with collect_influence(model, layout.to(get_device_id()), backend) as collector:
            self._collector = collector
            try:
                return super().forward_step(micro_batch, loss_function, forward_only)
            finally:
                self._collector = None

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Any]:
        """As upstream, with the influence of the pass that just ran."""
        result = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        if self._collector is not None:
            layout = self._collector.layout
            inside = self._collector.by_token()[layout.token_index]
            # Log-probabilities stand one place to the left of their token, and verl reads them there.
            offsets = micro_batch["input_ids"].offsets().to(inside.device)
            result[INFLUENCE_KEY] = torch.nested.nested_tensor_from_jagged(inside.roll(-1), offsets)
        return result


def micro_batch_layout(micro_batch: TensorDict, delta: int, *, packed: bool, padding: int) -> StepLayout:
    """The layout of a micro-batch as the model sees it: one packed row, or right-padded rows.

    Args:
        micro_batch: with nested `input_ids` and the columns `step_ids` and `step_measured`.
        delta: least distance in steps.
        packed: whether padding is removed.
        padding: tokens after the packed row.
    """
    offsets = micro_batch["input_ids"].offsets().cpu()
    total = int(offsets[-1])
    in_response = micro_batch[STEPS_KEY].cpu() != OUTSIDE
    ends, lengths = offsets[1:], in_response.sum(1)
    # Row by row: the response is the end of its sequence.
    place = torch.cat([torch.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)])
    steps = torch.zeros(total, dtype=torch.int64)  # the prompt is step 0
    steps[place] = micro_batch[STEPS_KEY].cpu()[in_response].long() + 1
    measured = torch.zeros(total, dtype=torch.bool)
    measured[place] = micro_batch[MEASURED_KEY].cpu()[in_response].bool()
    owner = torch.repeat_interleave(torch.arange(len(ends)), offsets.diff())
    if packed:
        outside = torch.full((padding,), OUTSIDE)
        return build_layout(
            torch.cat([steps, outside]),
            torch.cat([measured, torch.zeros(padding, dtype=torch.bool)]),
            delta=delta,
            sequence_ids=torch.cat([owner, torch.full((padding,), len(ends))]),
        )
    width = int(offsets.diff().max())
    column = torch.arange(total) - offsets[:-1][owner]
    padded_steps = torch.full((len(ends), width), OUTSIDE)
    padded_steps[owner, column] = steps
    padded_measured = torch.zeros(len(ends), width, dtype=torch.bool)
    padded_measured[owner, column] = measured
    return build_layout(padded_steps, padded_measured, delta=delta)


def register_on_cuda() -> None:
    """Let workers with NVIDIA GPUs build this engine.

    verl's own is registered for the device; one for device and vendor goes before it.
    """
    known = EngineRegistry._engines["language_model"]
    for backend in ("fsdp", "fsdp2"):
        if ("cuda", "nvidia") not in known[backend]:
            EngineRegistry.register(
                model_type="language_model", backend=backend, device="cuda", vendor="nvidia"
            )(FciFSDPEngine)
