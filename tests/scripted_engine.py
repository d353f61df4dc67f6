"""Models and engine without a model: answers come from a function, everything else is as in a run.

A request goes through `RolloutRunner`, its workflow and its conversations; the scripted part is the
token client and the source of answers of other models. A token is a byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marsrl_verl.core.request import Message, RolloutRequest, Sampling
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import TokenIds, token_ids
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.engine import LocalEngine
from marsrl_verl.rollout.generation import Completion, Decoding, EngineUnavailableError, TopLogProbs
from marsrl_verl.rollout.runner import RolloutRunner


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted response."""

    text: str
    finish_reason: FinishReason = FinishReason.STOP


Script = Callable[[RolloutRequest, int], Reply]
"""The response number k to a request, or what follows on the request's prefix. A pure function: the same
arguments give the same reply."""

Scorer = Callable[[RolloutRequest, Trajectory], RewardResult]
"""Scores an ended trajectory."""


def score_by_box(item: RolloutRequest, one: Trajectory) -> RewardResult:
    """The plainest grader: the text in the box against the reference answer."""
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", one.final_text)
    answer = boxes[-1] if boxes and one.finished else None
    return RewardResult(float(answer == item.problem.ground_truth), {"answer": answer})


class ByteTokenizer:
    """A token is a byte; no token ends a turn. The template writes `role: content`, a line each."""

    chat_template: str | None = None
    eos_token_id: int | None = None
    all_special_tokens: tuple[str, ...] = ()
    added_tokens_decoder: Mapping[int, Any] = {}
    name_or_path = ""

    def __len__(self) -> int:
        return 256

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **_options: Any) -> dict[str, Any]:
        return {"input_ids": self.encode("\n".join(f"{one['role']}: {one['content']}" for one in messages))}

    def encode(self, text: str, **_options: Any) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], **_options: Any) -> str:
        return bytes(ids).decode(errors="replace")


@dataclass
class ReplyClient:
    """Implements `GenerationClient`: the tokens of a script's replies."""

    script: Script
    chat: ChatTokenizer
    version_of: Callable[[str], int]
    """The version of a policy's weights."""
    requests: dict[str, RolloutRequest] = field(default_factory=dict)
    """By group id, whom the client answers."""

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        group, _, number = (name, "", "") if name in self.requests else name.rpartition("#")
        item = self.requests[group]
        # Of a response that is continued, so much is there.
        done = len(prompt_ids) - len(self.chat.prompt_ids(item.messages))
        version = self.version_of(policy)
        try:
            replies = [self._rest(item, k, done) for k in ([int(number)] if number else range(n))]
        except Exception as error:  # a test's own mistake must not become a failed request
            raise EngineUnavailableError(f"the script failed: {error!r}") from error
        completions = []
        for ids, finish in replies:
            ids, stop = _stopped(ids, decoding.stop)
            if len(ids) > decoding.max_tokens:
                ids, finish, stop = ids[: decoding.max_tokens], FinishReason.LENGTH, None
            positions = np.arange(done, done + len(ids))
            log_probs = self.log_probs(positions, np.array(ids, np.int64), version).astype(np.float32)
            top = self.top(ids, done, decoding.top_log_probs) if decoding.top_log_probs else None
            completions.append(Completion(token_ids(ids), log_probs, finish, stop, version, top))
        return completions

    def _rest(self, item: RolloutRequest, k: int, done: int) -> tuple[list[int], FinishReason]:
        reply = self.script(item, k)
        begun = 0 if item.prefix is None else len(item.prefix)
        return list(reply.text.encode())[done - begun :], reply.finish_reason

    def log_probs(self, positions: np.ndarray, tokens: np.ndarray, version: int) -> np.ndarray:
        """Of sampled tokens."""
        return np.full(len(tokens), -1.0)

    def top(self, ids: Sequence[int], done: int, count: int) -> TopLogProbs:
        """The likeliest tokens: the later, the less sure."""
        likeliest = 0.9 if done == 0 else 0.4
        known = np.log(np.array([likeliest, *[0.9 - likeliest + 1e-6] * (count > 1)], np.float32))
        told = np.full((len(ids), count), -30.0, np.float32)
        told[:, : len(known)] = known
        return TopLogProbs(np.tile(np.arange(count, dtype=np.int32), (len(ids), 1)), told)


def _stopped(ids: list[int], stop: Sequence[str]) -> tuple[list[int], str | None]:
    """Up to the first stop string, and which one it is."""
    text = bytes(ids)
    ends = [(at + len(one), one) for one in stop if (at := text.find(one.encode())) >= 0]
    end, found = min(ends, default=(len(ids), None))
    return ids[:end], found


@dataclass
class ScriptedSource:
    """Implements `AnswerSource`: a script's replies as another model's answers."""

    script: Script
    max_tokens: int

    async def answer(
        self,
        request: RolloutRequest,
        k: int,
        messages: Sequence[Message],
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
    ) -> ChatAnswer:
        reply = self.script(request, k)
        if len(reply.text) > self.max_tokens:
            return ChatAnswer(reply.text[: self.max_tokens], finish=FinishReason.LENGTH)
        return ChatAnswer(reply.text, finish=reply.finish_reason)


class ScriptedEngine(LocalEngine):
    """A `LocalEngine` on a script.

    Args:
        script: what is answered.
        seed: seed of the order in which groups come back; None: in the order of the requests.
        scorer: how answers are scored.
        runner: changes to the `RolloutRunner` (policies, sources, settings).
    """

    client_class = ReplyClient

    def __init__(
        self, script: Script, *, seed: int | None = 0, scorer: Scorer = score_by_box, **runner: Any
    ) -> None:
        self.seed = seed
        self.policy_version = 0
        self.rounds: list[list[RolloutRequest]] = []
        """The requests of every generation round so far."""
        self.chat = ChatTokenizer(ByteTokenizer())
        self.client = self.client_class(script, self.chat, self._version)

        async def score(item: RolloutRequest, members: Sequence[Trajectory]) -> list[RewardResult]:
            return [scorer(item, one) for one in members]

        super().__init__(RolloutRunner(self.client, self.chat, score, **runner))

    def _version(self, policy: str) -> int:
        """The version of a policy's weights."""
        return self.policy_version

    def generate(
        self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]
    ) -> list[RolloutOutput]:
        """Answer and score; shuffled."""
        self.client.requests = {item.group_id: item for item in requests}
        outputs = super().generate(requests, sampling)
        if self.seed is not None:
            order = derive_generator(self.seed, "order", len(self.rounds)).permutation(len(outputs))
            outputs = [outputs[i] for i in order]
        self.rounds.append(list(requests))
        return outputs
