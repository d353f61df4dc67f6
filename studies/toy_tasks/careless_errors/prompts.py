"""Prompts: the tiny task's, for solutions of up to six steps."""

from __future__ import annotations

from marsrl_verl.demo.prompts import TinyPrompts


class CarelessPrompts(TinyPrompts):
    """The tiny task's conversation shapes."""

    # A line for each of up to six operations, then the answer.
    max_steps = 7
