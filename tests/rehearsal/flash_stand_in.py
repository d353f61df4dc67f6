"""Imported by verl's processes: `attn_implementation=flash_attention_2` without a GPU.

transformers and verl do all that they do with flash-attention, Ulysses included; its two kernels alone are
functions in plain torch. So is flex attention, which takes its place where prefixes are shared, and has no
backward pass on a processor.
"""

from __future__ import annotations

from flash_functions import (
    flash_attn_func,
    flash_attn_varlen_func,
    give_transformers,
    written_out_flex_attention,
)
from transformers import modeling_flash_attention_utils, modeling_utils

give_transformers(flash_attn_func, flash_attn_varlen_func)
# A model asks for it when it is built, by this name.
modeling_utils.lazy_import_flash_attention = modeling_flash_attention_utils.lazy_import_flash_attention
# Upstream behaviour: it raises where flash-attention is not installed, or there is no GPU.
modeling_utils.PreTrainedModel._flash_attn_can_dispatch = lambda *_, **__: True
modeling_utils.ALL_ATTENTION_FUNCTIONS["flex_attention"] = written_out_flex_attention
