"""Keep vLLM's linear weights, and those of experts, loadable on CPU."""

from __future__ import annotations

import sys
from typing import Any


def keep_linear_weights() -> None:
    """Makes vLLM's CPU linear layers multiply with their live weight. Upstream behaviour:
    `vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm` packs the weight of every linear layer
    and empties `layer.weight`, so the first weight sync from the trainer finds no parameter to load into. A
    plain `torch.nn.functional.linear` keeps it in place."""
    import torch
    import vllm.model_executor.layers.utils  # noqa: F401  (so that it is among the modules)

    def dispatch_plain_linear(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    # Modules that imported the function by name before the plugin ran hold the old one.
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and hasattr(module, "dispatch_cpu_unquantized_gemm"):
            vars(module)["dispatch_cpu_unquantized_gemm"] = dispatch_plain_linear


def keep_expert_weights() -> None:
    """Makes vLLM's CPU layers of experts multiply with their live weights, expert by expert.
    Upstream behaviour: `vllm.model_executor.layers.fused_moe.cpu_fused_moe.CPUFusedMOE` pads and packs the
    weights of all experts, where their sizes allow it, into new parameters without `weight_loader`; the first
    weight sync ends with "'Parameter' object has no attribute 'weight_loader'"."""
    from vllm.model_executor.layers.fused_moe.cpu_fused_moe import CPUFusedMOE

    CPUFusedMOE.check_grouped_gemm = lambda self, layer: (False, "none")
    CPUFusedMOE._pad_moe_intermediate_for_grouped_gemm = lambda self, layer: None
