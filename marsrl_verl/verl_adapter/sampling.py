"""Sampling settings in vLLM's words."""

from __future__ import annotations

from typing import Any

from marsrl_verl.core.types import SamplingSettings

_SEED_RANGE = 2**62
"""vLLM's seeds are signed 64-bit numbers, and the n-th completion of a prompt adds n."""


def sampling_arguments(settings: SamplingSettings, max_tokens: int) -> dict[str, Any]:
    """Keyword arguments of vLLM's `SamplingParams`: how one request's tokens are drawn.

    Args:
        settings: of the request; its seed is used as it is.
        max_tokens: of the answer, the prompt not counted.
    """
    return {
        "max_tokens": max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "seed": None if settings.seed is None else settings.seed % _SEED_RANGE,
    }
