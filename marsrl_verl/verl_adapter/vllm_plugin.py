"""The `vllm.general_plugins` entry point: runs in every vLLM process, before a model is built."""

from __future__ import annotations

from marsrl_verl.verl_adapter.loopback import keep_stores_on_loopback
from marsrl_verl.verl_adapter.platform_choice import on_cpu_platform


def load() -> None:
    """Keeps the stores of a run on one machine on its loopback interface, and applies the CPU platform's
    changes to vLLM; for anybody else does nothing."""
    keep_stores_on_loopback()
    if on_cpu_platform():
        from marsrl_verl.verl_adapter.cpu.template.process import use_template_for_multiprocessing
        from marsrl_verl.verl_adapter.cpu.vllm_linear import keep_expert_weights, keep_linear_weights

        keep_linear_weights()
        keep_expert_weights()
        use_template_for_multiprocessing()
