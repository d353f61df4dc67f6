"""Requests, scores and runs on scripted clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.testing.client import CharacterBuilder, CharacterTokenizer, ScriptedClient


class PieceTokenizer(CharacterTokenizer):
    """Tokens of up to `size` characters; of one character, ids are code points."""

    pieces: ClassVar[list[str]] = []
    """Texts of the tokens of several characters, whose ids follow on all code points."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.size = size

    def __len__(self) -> int:
        return sys.maxunicode + 1 + len(self.pieces)

    def _plain(self, text: str) -> list[int]:
        return [self._id(text[at : at + self.size]) for at in range(0, len(text), self.size)]

    def _id(self, piece: str) -> int:
        if len(piece) == 1:
            return ord(piece)
        if piece not in self.pieces:
            self.pieces.append(piece)
        return sys.maxunicode + 1 + self.pieces.index(piece)

    def _text(self, i: int) -> str:
        return chr(i) if i <= sys.maxunicode else self.pieces[i - sys.maxunicode - 1]


def request(group_id: str = "p1/solver.0", n: int = 2, **more: Any) -> RolloutRequest:
    messages = ({"role": "user", "content": "1+1"},)
    return RolloutRequest(group_id, Problem("p1", "1+1", "2"), "solver", "solver", messages, n, **more)


async def no_score(request: RolloutRequest, trajectories: Sequence[Trajectory]) -> list[RewardResult]:
    return [RewardResult(float(len(one.text))) for one in trajectories]


def runner(client: Any, **more: Any) -> RolloutRunner:
    tokenizer = getattr(client, "tokenizer", None) or CharacterTokenizer()
    chat = more.pop("chat", None) or ChatTokenizer(tokenizer, more.pop("template", {}))
    return RolloutRunner(client, chat, no_score, template_builder=lambda: CharacterBuilder(tokenizer), **more)


def run_once(
    client: Any, item: RolloutRequest, sampling: Sampling | Mapping[str, Sampling], **more: Any
) -> RolloutOutput:
    by_role = {item.role: sampling} if isinstance(sampling, Sampling) else sampling
    return asyncio.run(runner(client, **more).run(item, by_role))


def run_rounds(
    client: ScriptedClient, item: RolloutRequest, sampling: Mapping[str, Sampling], **more: Any
) -> tuple[list[Trajectory], int]:
    """The trajectories by number when all have ended, and how many rounds it took."""
    made, rounds = runner(client, **more), 0
    found: dict[str, Trajectory] = {}
    state = None
    while rounds == 0 or any(one.paused for one in found.values()):
        output = asyncio.run(made.run(item, sampling))
        found |= {one.trajectory_id: one for one in output.trajectories}
        state, rounds = output.state, rounds + 1
        item = item.resumed(RolloutOutput(item.group_id, list(found.values()), state))
        assert rounds < 500, "no progress"
    return sorted(found.values(), key=lambda one: one.number), rounds
