"""Keep vLLM's linear weights loadable on CPU."""

from __future__ import annotations

from typing import Any


def keep_linear_weights() -> None:
    """Make vLLM's CPU linear layers multiply with their live weight.

    Upstream behaviour: `vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm` packs the
    weight of every linear layer and empties `layer.weight`, so the first weight sync from the trainer
    finds no parameter to load into. A plain `torch.nn.functional.linear` keeps it in place.
    """
    import torch
    from vllm.model_executor.layers import utils

    def dispatch_plain_linear(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    vars(utils)["dispatch_cpu_unquantized_gemm"] = dispatch_plain_linear
    _rebind_importers(dispatch_plain_linear)


def _rebind_importers(replacement: Any) -> None:
    """Modules that imported the function by name before the plugin ran hold the old one."""
    import sys

    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and hasattr(module, "dispatch_cpu_unquantized_gemm"):
            vars(module)["dispatch_cpu_unquantized_gemm"] = replacement
