"""Sampling settings in vLLM's words."""

from __future__ import annotations

from typing import Any

from marsrl_verl.core.types import SamplingSettings


def sampling_arguments(settings: SamplingSettings, max_tokens: int) -> dict[str, Any]:
    """Keyword arguments of vLLM's `SamplingParams`: how tokens are drawn, at most `max_tokens`."""
    return {
        "max_tokens": max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
    }
