"""The rollout: a tree of tool-using trajectories, each of which goes on by itself.

A trajectory samples the first k tokens after a result, decides by their entropy whether a fork is wanted
(`branching`), and samples on. A fork goes on after the result and before these tokens, so that it shares
prompt, calls and results with the trajectory that it leaves. `budget` decides when a wish is granted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marsrl_verl.algos.arpo.advantages import NODE, node_column
from marsrl_verl.algos.arpo.branching import BranchLaw, EntropyOf, own_forks, token_entropies, turn_entropy
from marsrl_verl.algos.arpo.budget import Birth, Budget
from marsrl_verl.algos.arpo.config import Config
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.trajectory import FinishReason, Fork, RolloutOutput, Trajectory
from marsrl_verl.rollout.agent_loop import Agent, ReadResult, Step
from marsrl_verl.rollout.context import RolloutContext
from marsrl_verl.rollout.tool_protocol.base import ToolFormat, ToolProtocol
from marsrl_verl.rollout.tool_protocol.chat import ChatProtocol
from marsrl_verl.rollout.tool_protocol.tags import TagProtocol
from marsrl_verl.settings.rules import OwnFunction

PROGRAM = "marsrl_verl.algos.arpo.rollout:ToolTree"
"""The workflow, as requests name it."""


class ToolTree:
    """Implements `marsrl_verl.rollout.context.Rollout`.

    Args:
        config: settings of the method.
    """

    pauses = grows = calls_tools = grades_each = True

    def __init__(self, config: Config) -> None:
        self.config = config

    @classmethod
    def from_settings(cls, settings: Any) -> ToolTree:
        """Returns the program of the `marsrl` node's method."""
        return cls(settings.algo)

    @classmethod
    def forks(cls, settings: Config) -> bool:
        return settings.branching.law is not BranchLaw.OFF

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        return await _Round(self.config, request, context).run()


@dataclass(slots=True)
class _Path:
    """A trajectory of the tree in progress."""

    agent: Agent
    birth: Birth
    fork: Fork | None = None
    probing: bool = False
    """If true, it is sampling tokens whose entropies are looked at."""
    entropies: list[float] = field(default_factory=list)
    """Entropies of these tokens so far."""
    entropy: float | None = None
    """Entropy of the last turn that was probed."""
    baseline: float | None = None
    """Entropy that it is compared with."""
    read: list[ReadResult] = field(default_factory=list)
    """Places after results at which it can be forked, since its birth."""
    parts: list[tuple[int, int]] = field(default_factory=list)
    """(end, node) of the parts of its response before the turn that is being written."""

    @property
    def number(self) -> int:
        return self.birth.number

    def state(self) -> dict[str, Plain]:
        """Returns the state for a later round."""
        return {
            "agent": self.agent.state(),
            "birth": [self.birth.parent, self.birth.level, self.birth.forkable],
            "probing": self.probing,
            "entropies": list(self.entropies),
            "entropy": self.entropy,
            "baseline": self.baseline,
            "read": [[one.turn, one.calls, one.tokens, one.events, one.told] for one in self.read],
            "parts": [list(one) for one in self.parts],
        }


class _Round:
    """One round of a request."""

    def __init__(self, config: Config, request: RolloutRequest, context: RolloutContext) -> None:
        self.config, self.request, self.context = config, request, context
        self.branching = config.branching
        self.budget: Budget = config.budget(request.n)
        self.branches = self.budget.roots < self.budget.size
        tools, tags = context.tools.schemas, config.protocol is ToolFormat.TAGS
        self.protocol: ToolProtocol = (
            TagProtocol(tools) if tags else ChatProtocol(context.turn_parser(config.parser), tools)
        )
        self.paths: dict[int, _Path] = {}
        self.wishes: dict[int, list[list[bool]]] = {}
        self.ended: set[int] = set()
        self._born: set[int] = set()
        """Numbers of the trajectories that began in this round and in earlier ones."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> RolloutOutput:
        """Runs until all trajectories have ended or used the round's tokens."""
        self._resume()
        for path in list(self.paths.values()):
            if path.agent.finish is None:
                self._start(path)
        self._grow()
        try:
            while self._tasks:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                self._tasks -= done  # others have begun in the meantime
                for task in done:
                    task.result()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        return await self._output()

    def _resume(self) -> None:
        before = self.request.resume
        if before is None:
            return
        state: Any = before.state
        self.wishes = {number: [list(one) for one in some] for number, some in state["wishes"].items()}
        self.ended = set(state["ended"])
        for one in before.trajectories:
            self._born.add(one.number)
            if one.paused:
                self.paths[one.number] = self._resumed(one)

    def _resumed(self, one: Trajectory) -> _Path:
        saved: Any = one.state
        agent, role = saved["agent"], self.request.role
        chat = self.context.conversation(one.number, role, (), prefix=one.sequence, state=agent["chat"])
        tools, limits = self.context.tools, self.config.agent_limits
        return _Path(
            Agent.resumed(chat, self.protocol, tools, limits, agent, [dict(event) for event in one.events]),
            Birth(one.number, *saved["birth"]),
            one.fork,
            saved["probing"],
            list(saved["entropies"]),
            saved["entropy"],
            saved["baseline"],
            [ReadResult(*place) for place in saved["read"]],
            [(end, node) for end, node in saved["parts"]],
        )

    # --- growth --------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Begins the trajectories that have become certain."""
        for birth in self.budget.allot(self.wishes, self.ended).births:
            if birth.number not in self._born:
                self._born.add(birth.number)
                parent = birth.parent
                path = self._root(birth) if parent is None else self._fork(birth, self.paths[parent])
                self.paths[birth.number] = path
                self._start(path)

    def _root(self, birth: Birth) -> _Path:
        chat = self.context.conversation(
            birth.number, self.request.role, self.request.messages, tools=self.protocol.template_tools
        )
        path = _Path(Agent(chat, self.protocol, self.context.tools, self.config.agent_limits), birth)
        path.probing = self._probes(path)
        return path

    def _fork(self, birth: Birth, parent: _Path) -> _Path:
        at = parent.read[birth.level - parent.birth.level - 1]
        agent = parent.agent.fork(birth.number, at)
        path = _Path(agent, birth, Fork(parent.agent.chat.trajectory_id, at.tokens))
        path.parts = [one for one in parent.parts if one[0] <= at.tokens]
        if self.branching.entropy is EntropyOf.RESULT:
            path.baseline = parent.baseline
        path.probing = self._probes(path)
        return path

    def _start(self, path: _Path) -> None:
        self._tasks.add(asyncio.ensure_future(self._follow(path)))

    # --- one trajectory ------------------------------------------------------------------------

    async def _follow(self, path: _Path) -> None:
        """Follows a trajectory up to its end, or the round's."""
        agent = path.agent
        while True:
            step = await self._write(path)
            if step is Step.PAUSED:
                return
            if path.probing:
                self._probed(path)
            if step is Step.PART:
                continue
            if step is Step.ENDED or not await agent.call():
                break
            self._has_read(path)
        self.ended.add(path.number)
        self._grow()

    async def _write(self, path: _Path) -> Step:
        if not path.probing:
            return (await path.agent.write())[0]
        one = self.branching
        left = one.entropy_tokens - path.agent.chat.run_tokens
        step, found = await path.agent.write(max_tokens=left, top_log_probs=one.top_log_probs)
        path.entropies += token_entropies(found, one.entropy, self.context.vocab_size).tolist()
        return step

    def _probes(self, path: _Path) -> bool:
        """True if the turn that begins is probed. This never depends on what other trajectories did, so that
        a request's tokens do not depend on the order of completion."""
        if not (self.branches and self.branching.by_entropy and path.birth.forkable):
            return False
        turn = path.agent.turn
        if self.branching.entropy is EntropyOf.CALL:
            return turn < self.budget.levels
        return path.baseline is None or path.birth.level < turn <= self.budget.levels

    def _probed(self, path: _Path) -> None:
        """Takes in the entropy of a turn's first tokens."""
        found = turn_entropy(path.entropies, self.branching.entropy, self.context.vocab_size)
        path.probing, path.entropies, path.entropy = False, [], found
        if path.baseline is None:
            path.baseline = found
        if self.branching.entropy is EntropyOf.RESULT and path.agent.turn > path.birth.level:
            self._decide(path)

    def _has_read(self, path: _Path) -> None:
        """Notes that the results of a turn are in the response."""
        agent = path.agent
        path.parts.append((len(agent.chat), self._node(path, agent.turn - 1)))
        if not self.branches or agent.turn > self.budget.levels:
            return
        path.read.append(agent.place())
        if not self.branching.by_entropy or self.branching.entropy is EntropyOf.CALL:
            self._decide(path)
        path.probing = self._probes(path)

    def _decide(self, path: _Path) -> None:
        """Decides how many forks are wanted after the last results."""
        if not path.birth.forkable:
            return
        change = None
        if self.branching.by_entropy and path.entropy is not None and path.baseline is not None:
            change = path.entropy - path.baseline
        turn, events, rule = path.agent.turn, path.agent.events, self.branching
        rng = self.context.rng("fork", path.number, turn)
        if own := isinstance(rule.law, OwnFunction):
            decisions = own_forks(rule.law, turn, events, rule.forks, rng, change)
        else:
            decisions = rule.decide_forks(change, rng.random(rule.forks).tolist())
        events[-1] |= {
            "entropy": path.entropy if rule.by_entropy else None,
            "entropy_change": change,
            "fork_probability": None if own else rule.probability(change),
            "forks_wanted": sum(decisions),
        }
        self.wishes.setdefault(path.number, []).append(decisions)
        self._grow()

    def _node(self, path: _Path, turn: int) -> int:
        return path.number * (self.config.call_limit + 2) + turn

    # --- the round's end -----------------------------------------------------------------------

    async def _output(self) -> RolloutOutput:
        waiting = self.budget.allot(self.wishes, self.ended).waiting
        # One that may yet be forked stays: a later round has no tokens of trajectories that have ended.
        over = [path for path in self.paths.values() if path.agent.finish and path.number not in waiting]
        ended = [self._trajectory(path, path.agent.finish) for path in over]
        for one, reward in zip(ended, await self.context.score(ended), strict=True):
            one.reward = reward
        names = {path.number for path in over}
        going = [self._trajectory(path, None) for path in self.paths.values() if path.number not in names]
        state = {"wishes": self.wishes, "ended": sorted(self.ended)} if going else None
        members = sorted([*ended, *going], key=lambda one: one.number)
        return RolloutOutput(self.request.group_id, members, state)

    def _trajectory(self, path: _Path, finish: FinishReason | None) -> Trajectory:
        agent = path.agent
        if finish is None:
            ends: dict[str, Any] = {"finish": FinishReason.PAUSED, "state": path.state(), "detail": None}
        else:
            ends = {"finish": finish, "detail": agent.detail, "failed_by": agent.failed_by}
            if self.config.protocol is ToolFormat.CHAT:
                # The response has the results too, as turns of others: what counts is the answer to them.
                ends["final_text"] = agent.chat.turn_final_text()
        found = agent.chat.trajectory(events=agent.events, fork=path.fork, **ends)
        (sequence,) = found.sequences
        last = (len(sequence), self._node(path, agent.turn))
        sequence.annotations[NODE] = np.asarray(node_column([*path.parts, last]))
        return found
