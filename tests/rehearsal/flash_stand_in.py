"""Imported by verl's processes: `attn_implementation=flash_attention_2` without a GPU.

transformers and verl do all that they do with flash-attention, Ulysses included; its two kernels alone are
functions in plain torch.
"""

from __future__ import annotations

from flash_functions import flash_attn_func, flash_attn_varlen_func, give_transformers
from transformers import PreTrainedModel

give_transformers(flash_attn_func, flash_attn_varlen_func)
# Upstream behaviour: it raises where flash-attention is not installed, or there is no GPU.
PreTrainedModel._flash_attn_can_dispatch = lambda *_, **__: True
