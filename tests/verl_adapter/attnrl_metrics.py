"""A run of trees that logs all of their metrics."""

from __future__ import annotations

from dataclasses import replace

from marsrl_script import SkillModel
from scripted_engine import Reply

from marsrl_verl.core.request import RolloutRequest

SETTINGS = ("algo=attnrl", "marsrl.algo.group_size=4")
LINE_BREAK = "\x14"
"""The byte whose number is the tiny tokenizer's token for a line break."""


def script(item: RolloutRequest, k: int) -> Reply:
    """A skilled reply after two lines, so that a response has steps. Every third problem is too hard."""
    reply = SkillModel(seed=2)(item, k)
    hopeless = sum(item.problem.question.encode()) % 3 == 0
    return replace(reply, text=f"one{LINE_BREAK}two{LINE_BREAK}{'' if hopeless else reply.text}")
