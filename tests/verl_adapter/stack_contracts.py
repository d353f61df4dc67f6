"""What the package takes from vLLM and transformers, checked by reading their sources: there are two stacks,
the CPU's, which is installed where the tests run, and that of GPUs (the extra `gpu`).

`contracts.yaml` has the rest of vLLM's names; `broken` looks at all of them. `make check-gpu-sources` fetches
the sources that are not installed.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from contracts import AT_LEAST, PRESENT, SIGNATURES
from static_sources import NotFoundError, Sources

STACKED = ("vllm", "transformers")
"""Packages of which the stacks have different versions."""

_ATTENTION_CALL = ["module", "query", "key", "value", "attention_mask"]
BEGINS_WITH: dict[str, list[str]] = {
    # attention.collector and shared_prefix_engine stand in for these, and hand on what they are given.
    "transformers.integrations.sdpa_attention:sdpa_attention_forward": _ATTENTION_CALL,
    "transformers.integrations.flash_attention:flash_attention_forward": _ATTENTION_CALL,
    "transformers.integrations.flex_attention:flex_attention_forward": _ATTENTION_CALL,
    # rollout_server.server: called by position.
    "vllm.v1.engine.async_llm:AsyncLLM.add_request": ["self", "request_id", "prompt", "params"],
    "vllm.v1.engine.async_llm:AsyncLLM.generate": ["self", "prompt", "sampling_params", "request_id"],
    "vllm.lora.request:LoRARequest": ["lora_name", "lora_int_id", "lora_path"],
}
"""The first parameters of functions that are called by position, or whose place ours takes."""

READ: tuple[str, ...] = (
    # Models and tokenizers.
    "transformers:AutoConfig.from_pretrained",
    "transformers:AutoModelForCausalLM.from_pretrained",
    "transformers:AutoTokenizer.from_pretrained",
    "transformers:DynamicCache",
    "transformers:GenerationConfig",
    "transformers:LlamaForCausalLM",
    "transformers:PretrainedConfig",
    "transformers:PreTrainedModel",
    "transformers:PreTrainedTokenizerFast",
    "transformers:Qwen3Config",
    "transformers:Qwen3ForCausalLM",
    "transformers.utils.logging:disable_progress_bar",
    # The registry of attention functions; an instance's own entry hides the class's.
    "transformers.modeling_utils:ALL_ATTENTION_FUNCTIONS",
    "transformers.utils.generic:GeneralInterface._local_mapping",
    "transformers.modeling_flash_attention_utils:lazy_import_flash_attention",
    # Answers of the engine, and what shows that it works.
    "vllm.outputs:RequestOutput.finished",
    "vllm.outputs:RequestOutput.outputs",
    "vllm.outputs:CompletionOutput.token_ids",
    "vllm.outputs:CompletionOutput.logprobs",
    "vllm.outputs:CompletionOutput.finish_reason",
    "vllm.inputs:TokensPrompt.prompt_token_ids",
    "vllm.lora.request:LoRARequest.lora_int_id",
    "vllm.v1.engine.async_llm:AsyncLLM.model_config",
    "vllm.v1.engine.async_llm:AsyncLLM.vllm_config",
    "vllm.v1.engine.async_llm:AsyncLLM.output_processor",
    "vllm.v1.engine.output_processor:OutputProcessor.request_states",
    "vllm.v1.engine.output_processor:RequestState.detokenizer",
    "vllm.exceptions:VLLMValidationError",
    # rollout_server.forced_tokens.
    "vllm.v1.engine.async_llm:AsyncLLM.get_tokenizer",
    "vllm.v1.structured_output.backend_xgrammar:XgrammarGrammar.matcher",
    "vllm.v1.structured_output.backend_xgrammar:XgrammarGrammar.ctx",
)
"""Names and attributes, of instances too, that are read."""

CONTAINS: dict[str, tuple[str, ...]] = {
    # rollout_server.prefill_counters reads them by name.
    "vllm.v1.metrics.loggers": (
        "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:request_prefill_time_seconds",
    ),
    # endpoints.answer has what they mean.
    "vllm.v1.engine": ('"stop"', '"length"', '"abort"'),
    # pyproject.toml: how our plugin is found in vLLM's processes.
    "vllm.plugins": ("vllm.general_plugins",),
    # What verl says to every worker, and `environment.over_verls_variables` with it.
    "vllm.envs": (
        "VLLM_DISABLE_COMPILE_CACHE", "VLLM_LOGGING_LEVEL", "VLLM_BATCH_INVARIANT",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_USE_FLASHINFER_SAMPLER",
    ),
}  # fmt: skip
"""Words that a module's source has."""

SAME: dict[str, tuple[str, ...]] = {
    # generate_group: n completions of a request, whose seeds count up, and their flat log-probabilities.
    "vllm.v1.engine.parallel_sampling:ParentRequest": (),
    "vllm.logprobs:append_logprobs_for_next_position": (),
    "vllm.v1.engine.logprobs:LogprobsProcessor._update_sample_logprobs": (),
    "vllm.v1.engine.output_processor:RequestOutputCollector": (),
    # 0.24.0 raises ValueError where 0.27.1 raises VLLMValidationError, and makes ids of texts in one thread.
    "vllm.v1.engine.async_llm:AsyncLLM.add_request": ("54c07d5b9ddab9a0",),
    "vllm.v1.engine.async_llm:AsyncLLM.abort": (),
    "vllm.v1.engine.async_llm:AsyncLLM.check_health": (),
    "vllm.v1.engine.async_llm:AsyncLLM.add_lora": (),
    # Which tokens a structure forces: the same class compiles it here and in the engine's core.
    "vllm.v1.structured_output.backend_xgrammar:XgrammarBackend": (),
    "vllm.v1.structured_output.backend_xgrammar:validate_xgrammar_grammar": (),
    "vllm.v1.structured_output.request:get_structured_output_key": (),
    # Packed rows, and masks that are left as they are: verl's packed passes, shared prefixes, FCI.
    "transformers.masking_utils:_preprocess_mask_arguments": (),
    "transformers.masking_utils:find_packed_sequence_indices": (),
    "transformers.integrations.sdpa_attention:sdpa_attention_forward": (),
    "transformers.integrations.flash_attention:flash_attention_forward": (),
    "transformers.integrations.flex_attention:flex_attention_forward": (),
    "transformers.modeling_flash_attention_utils:_flash_attention_forward": (),
    "transformers.modeling_flash_attention_utils:lazy_import_flash_attention": (),
}
"""Code whose inner order we rely on: it is as in the installed stack, where the tests run it, or it was read
and has one of these fingerprints."""


def broken(sources: Sources, installed: Sources, packages: tuple[str, ...] = STACKED) -> list[str]:
    """What of all contracts does not hold for these sources; empty where all do.

    Args:
        installed: the stack where the tests run.
        packages: that are looked at.
    """
    checks: tuple[tuple[Mapping[str, Any], Callable[[str, Any], str]], ...] = (
        (SIGNATURES, lambda name, expected: _unlike(sources.parameters(name), expected)),
        (BEGINS_WITH, lambda name, first: _unlike(sources.parameters(name)[: len(first)], first)),
        (AT_LEAST, lambda name, some: _lacking(sources.parameters(name), some)),
        (dict.fromkeys([*PRESENT, *READ]), lambda name, _: "" if sources.find(name) else "is nothing"),
        (CONTAINS, lambda name, words: _lacking([w for w in words if w in sources.text(name)], set(words))),
        (SAME, lambda name, read: _unread(name, sources, installed, read)),
    )
    found = []
    for table, difference in checks:
        for name, expected in table.items():
            if re.split("[.:]", name)[0] in packages:
                try:
                    said = difference(name, expected)
                except NotFoundError as error:
                    said = str(error)
                found += [f"{name}: {said}"] if said else []
    return found


def fingerprint(sources: Sources, name: str) -> str:
    """Of a definition's source without its spaces."""
    found = sources.find(name)
    text = ast.get_source_segment(sources.text(found.module), found.node) or ""
    return hashlib.sha256("".join(text.split()).encode()).hexdigest()[:16]


def _unlike(parameters: list[str], expected: list[str]) -> str:
    return "" if parameters == expected else f"takes {parameters}, expected {expected}"


def _lacking(there: list[str], expected: set[str]) -> str:
    missing = sorted(expected - set(there))
    return f"lacks {', '.join(missing)}" if missing else ""


def _unread(name: str, sources: Sources, installed: Sources, read: tuple[str, ...]) -> str:
    here = fingerprint(sources, name)
    if here in (fingerprint(installed, name), *read):
        return ""
    return f"is not what it is in the installed stack; read it, then add {here} to its fingerprints"
