"""Longest sequence under a role's limits; plain Python, so that the core can import it."""

from __future__ import annotations


def longest_sequence(prompt: int, response: int, together: int | None) -> int:
    """Tokens of the longest sequence under limits of the prompt, the response and, where there is one, of
    both together."""
    return prompt + response if together is None else min(prompt + response, together)
