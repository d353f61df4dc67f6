"""A rollout as ARPO's (arXiv 2507.19849), as small as it can be: tools, and forks where entropy rises."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from marsrl_verl.core.trajectory import FinishReason, Fork, RolloutOutput, Trajectory
from marsrl_verl.rollout.conversation import Conversation
from marsrl_verl.rollout.entropy import entropy_from_top

OPEN, CLOSE = "<python>", "</python>"


@dataclass
class Path:
    """A trajectory on its way."""

    chat: Conversation
    fork: Fork | None = None
    step: str = "probe"
    """probe (of the first tokens), decide, write, call, probe, …; at last `ended` or `limit`."""
    called: bool = False
    """Whether what it wrote last ends with a call."""
    calls: int = 0
    baseline: float | None = None
    """Mean entropy of the root's first tokens."""
    entropies: list[float] = field(default_factory=list)
    """Of the probe's tokens so far."""
    result_end: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.step in ("ended", "limit")

    def trajectory(self) -> Trajectory:
        names = ("step", "called", "calls", "baseline", "entropies", "result_end")
        state = {"chat": self.chat.state(), **{name: getattr(self, name) for name in names}}
        ends: dict[str, Any] = {"state": state, "finish": FinishReason.PAUSED}
        if self.ended:
            limit = {"finish": FinishReason.LIMIT, "detail": "call_limit"}
            ends = limit if self.step == "limit" else {}
        return self.chat.trajectory(events=self.events, fork=self.fork, **ends)


class Tree:
    """Begins with `roots` trajectories and forks up to `request.n` of them."""

    pauses = grows = True

    def __init__(self, roots: int, probe: int, most_calls: int) -> None:
        self.roots, self.probe, self.most_calls = roots, probe, most_calls

    @classmethod
    def from_settings(cls, settings) -> Tree:
        return cls(settings.algo.roots, settings.algo.probe_tokens, settings.algo.most_calls)

    async def run(self, request, context) -> RolloutOutput:
        paths, there = [], 0
        for one in () if request.resume is None else request.resume.trajectories:
            there += 1
            if one.paused:
                fields = dict(one.state)
                saved = fields.pop("chat")
                chat = context.conversation(one.number, request.role, (), prefix=one.sequence, state=saved)
                paths.append(Path(chat, one.fork, events=one.events, **fields))
        if not there:
            paths = self._begin(range(min(self.roots, request.n)), context)
        while active := [one for one in paths if not one.ended]:
            there = max(there, *(one.chat.k + 1 for one in paths))
            await asyncio.gather(*[self._to_decision(one, context) for one in active])
            if any(not one.ended and one.step != "decide" for one in active):
                break  # paused; the others wait for them, so that the order of arrival decides nothing
            for one in active:
                if one.step == "decide":
                    if there < request.n and self._is_uncertain(one):
                        paths.append(self._forked(one, there))
                        there += 1
                    one.step = "call" if one.called else "write"
            if there < request.n and all(one.ended for one in paths):
                paths += self._begin(range(there, request.n), context)
        ended = [one.trajectory() for one in paths if one.ended]
        for one, reward in zip(ended, await context.score(ended), strict=True):
            one.reward = reward
        going = [one.trajectory() for one in paths if not one.ended]
        return RolloutOutput(request.group_id, [*ended, *going], {"forks": there} if going else None)

    def _begin(self, numbers, context) -> list[Path]:
        request = context.request
        return [Path(context.conversation(k, request.role, request.messages)) for k in numbers]

    def _is_uncertain(self, one: Path) -> bool:
        return one.calls > 0 and sum(one.entropies) / len(one.entropies) > one.baseline

    def _forked(self, one: Path, k: int) -> Path:
        fork = Fork(one.chat.trajectory_id, one.result_end)
        chat = one.chat.fork(k, at=one.result_end)
        return replace(one, chat=chat, fork=fork, step="write", called=False, events=list(one.events))

    async def _to_decision(self, one: Path, context) -> None:
        """Up to where it may fork, ends, or has used the round's tokens."""
        while one.step != "decide" and not one.ended:
            if one.step == "call":
                await self._call(one)
                continue
            probing = one.step == "probe"
            most = self.probe - one.chat.run_tokens if probing else None
            found = await one.chat.sample(
                max_tokens=most, stop=(CLOSE,), top_log_probs=2 if probing else 0, turn=one.calls
            )
            if found.top is not None:
                one.entropies += entropy_from_top(found.top, context.vocab_size).tolist()
            if found.finish is FinishReason.PAUSED:
                return
            one.called = found.stop is not None
            full = probing and found.finish is FinishReason.LENGTH and one.chat.tokens_left > 0
            if not (one.called or full):
                one.step = "ended"
            elif not probing:
                one.step = "call"
            elif one.baseline is None:
                one.baseline = sum(one.entropies) / len(one.entropies)
                one.step = "call" if one.called else "write"
            else:
                one.step = "decide"

    async def _call(self, one: Path) -> None:
        if one.calls == self.most_calls:
            one.step = "limit"
            return
        code = one.chat.turn_text().rpartition(OPEN)[2].removesuffix(CLOSE)
        result = await python(code)
        one.calls, one.step, one.entropies = one.calls + 1, "probe", []
        one.chat.append_text(f"<result>{result}</result>")
        one.result_end = len(one.chat)
        one.events.append({"tool": "python", "code": code, "result": result})


async def python(code: str) -> str:
    """A tool whose answers come in another order than its calls."""
    for _ in range(sum(map(ord, code)) % 5):
        await asyncio.sleep(0)
    return str(len(code))
