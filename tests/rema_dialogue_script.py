"""Dialogues whose agents say what a script has them say, and what was sampled of each."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scripted_client import PieceTokenizer

from marsrl_verl.algos.rema.dialogue.config import Config
from marsrl_verl.algos.rema.dialogue.rollout import PROGRAM, Dialogue
from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING, ROLES, DialoguePrompts
from marsrl_verl.core.policy import PolicySet
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.generation import Completion
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.testing.client import CharacterBuilder, ScriptedClient

END = "</s>"
Says = Callable[[str, int, int], str]
"""What an agent says: its role, the trajectory's number and the turn -> text, with `</s>` where it ends."""
PROBLEM = Problem("p", "1+1", "2")
ROOM = Sampling(max_new_tokens=400, max_prompt_tokens=100)
RULES = {
    "max_turns", "message_tokens", "finish_stops", "stop_when_truncated", "mask_unfinished", "guards",
    "overlong", "leak_penalty",
}  # fmt: skip
"""Settings of the method that `hold` takes."""


class Words(DialoguePrompts):
    def meta_thinking(self, problem):
        return ({"role": "user", "content": problem.question},)

    def reasoning(self, problem, instruction):
        return ({"role": "user", "content": f"Q {problem.question} I {instruction}"},)


class Talking(ScriptedClient):
    """Implements `GenerationClient`; `sampled` has what it answered, by trajectory and role, in its order."""

    def __init__(self, says: Says, size: int = 1, delays: Callable[[str], int] = lambda name: 0) -> None:
        super().__init__(lambda prompt: "", PieceTokenizer(size))
        self.says, self.delays = says, delays
        self.sampled: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.failing: Mapping[tuple[str, int], Exception | FinishReason] = {}

    async def generate(self, policy, prompt_ids, decoding, *, name, **more) -> list[Completion]:
        number, _, other = name.partition("#")[2].partition("/")
        k, role = int(number), REASONING if other else META_THINKING
        prompt = self.tokenizer.decode(prompt_ids.tolist())
        turn = prompt.count("<assistant>") - 1
        for _ in range(self.delays(name)):
            await asyncio.sleep(0)
        failure = self.failing.get((role, turn))
        if isinstance(failure, Exception):
            raise failure
        text = self.says(role, k, turn)
        run = prompt.rpartition("<assistant>")[2]
        rest = text[len(run) :] if text.startswith(run) else text  # what a template opened is no part of it
        inner = ScriptedClient(lambda _: rest, self.tokenizer, self.version)
        (found,) = await inner.generate(policy, prompt_ids, decoding, name=name, **more)
        if failure is FinishReason.ABORTED:
            found = Completion(found.token_ids[:2], found.log_probs[:2], failure)
        self.sampled[k, role] += found.token_ids.tolist()
        self.requests.append({"role": role, "turn": turn, "decoding": decoding, "prompt": prompt})
        return [found]


def boxed(request: RolloutRequest, one: Trajectory) -> RewardResult:
    """Grades answers like `=2`; of the meta-thinking agent it looks for it as a leak."""
    if request.role == META_THINKING:
        return RewardResult(0.0, {"leak": "=2" in one.final_text})
    assert request.role == REASONING and one.finish is FinishReason.STOP
    return RewardResult(float("=2" in one.final_text), {"answer": one.final_text.rpartition("=")[2]})


@dataclass
class Stage:
    """Where dialogues are held."""

    client: Talking
    rules: dict[str, Any] = field(default_factory=dict)
    n: int = 1
    segment: int | None = None
    policies: PolicySet = field(default_factory=PolicySet)
    sources: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Sampling] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    score: Callable[[RolloutRequest, Trajectory], RewardResult] = boxed

    def request(self) -> RolloutRequest:
        messages = Words().problem(PROBLEM)
        return RolloutRequest("g", PROBLEM, "dialogue", META_THINKING, messages, self.n, PROGRAM)

    def runner(self) -> RolloutRunner:
        async def score(request: RolloutRequest, trajectories: Sequence[Trajectory]) -> list[RewardResult]:
            return [self.score(request, one) for one in trajectories]

        tokenizer = self.client.tokenizer
        made = RolloutRunner(
            self.client, ChatTokenizer(tokenizer, self.template), score, policies=self.policies,
            sources=self.sources, template_builder=lambda: CharacterBuilder(tokenizer),
        )  # fmt: skip
        made._running[PROGRAM] = Dialogue(Config(**{"message_tokens": 60, **self.rules}), Words(), ROLES)
        return made

    def sampling(self) -> dict[str, Sampling]:
        usual = Sampling(max_new_tokens=400, max_prompt_tokens=100, segment_tokens=self.segment)
        return {role: self.limits.get(role, usual) for role in (META_THINKING, REASONING)}

    def hold(self) -> list[Trajectory]:
        """All dialogues to their ends, in as many rounds as it takes; each round has a runner of its own."""
        item, found = self.request(), {}
        for _ in range(1000):
            output = asyncio.run(self.runner().run(item, self.sampling()))
            found |= {one.number: one for one in output.trajectories}
            members = [found[k] for k in sorted(found)]
            if not any(one.paused for one in members):
                return members
            item = item.resumed(RolloutOutput("g", members))
        raise AssertionError("no progress")


def shown(one: Trajectory) -> list[str]:
    """The lists of messages as the template writes them."""
    return [PieceTokenizer().decode(sequence.input_ids().tolist()) for sequence in one.sequences]


def chosen(one: Trajectory, number: int) -> list[int]:
    """The ids of a sequence that are trained."""
    sequence = one.sequences[number]
    return sequence.response_ids[sequence.response_mask.astype(bool)].tolist()


def turns_of(one: Trajectory, number: int) -> dict[int, str]:
    """What is trained of a sequence, by turn."""
    sequence = one.sequences[number]
    turns, ids = sequence.annotations["turn"], sequence.response_ids
    return {
        int(turn): PieceTokenizer().decode(ids[turns == turn].tolist())
        for turn in np.unique(turns)
        if turn >= 0
    }


def talk(role: str, k: int, turn: int) -> str:
    """Two turns, and an answer that is right."""
    if role == META_THINKING:
        return f"Do {turn}.{END}" if turn == 0 else f"Enough. {FINISH} not this"
    return f"Step. {FINISH} {END}" if turn == 0 else f"=2{END}"


def hold(says: Says = talk, n: int = 1, **more: Any) -> list[Trajectory]:
    """The trajectories of `n` dialogues; `RULES` are settings of the method, the rest is the stage's."""
    rules = {name: more.pop(name) for name in list(more) if name in RULES}
    client = more.pop("client", None) or Talking(says)
    return Stage(client, rules, n, **more).hold()


def endless(role: str, k: int, turn: int) -> str:
    """Nobody finishes."""
    return f"Go on {turn}.{END}" if role == META_THINKING else f"=2 {turn}{END}"
