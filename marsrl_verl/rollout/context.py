"""Context of one request: everything that a workflow may do."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from marsrl_verl.core.policy import Policy, PolicySet
from marsrl_verl.core.request import Message, Problem, RolloutRequest, Sampling
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import Plain, TokenIds
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.thinking import CLOSE, OPEN, final_text
from marsrl_verl.core.trajectory import FinishReason, Grading, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, TemplateBuilder
from marsrl_verl.rollout.conversation import Conversation, Failure
from marsrl_verl.rollout.generation import AnswerSource, Completion, Decoding, GenerationClient
from marsrl_verl.rollout.sampler import Sampler
from marsrl_verl.rollout.tool_protocol.chat import TurnParser
from marsrl_verl.tools.base import ToolCall, ToolResult
from marsrl_verl.tools.toolbox import EMPTY, Toolbox

Score = Callable[[RolloutRequest, Sequence[Trajectory]], Awaitable[list[RewardResult]]]
"""The rewards of ended trajectories, at least one, of a request."""


@dataclass(slots=True)
class RolloutResources:
    """Everything that the workflows of a worker are run with."""

    client: GenerationClient
    chat: ChatTokenizer
    score: Score
    policies: PolicySet = field(default_factory=PolicySet)
    sources: Mapping[str, AnswerSource] = field(default_factory=dict)
    """By policy: who answers for those of which only text is known."""
    template_builder: Callable[[], TemplateBuilder] | None = None
    """Makes what lets chats grow, when the first one does."""
    turn_parser: Callable[[str], TurnParser] | None = None
    """Makes what reads the tool calls of a chat template's format, by the format's name."""
    seed: int = 0
    tools: Toolbox = EMPTY
    """Started."""
    _builder: TemplateBuilder | None = field(default=None, init=False)
    _parsers: dict[str, TurnParser] = field(default_factory=dict, init=False)

    def builder(self) -> TemplateBuilder:
        """The writer of what the chat template adds when a chat grows. Raises ValueError: none is known
        here, or the template lets no chat grow."""
        if self._builder is None:
            if self.template_builder is None:
                raise ValueError("chats can't grow here: the rollouts were given no template builder")
            self._builder = self.template_builder()
        return self._builder

    def parser(self, name: str) -> TurnParser:
        """See `RolloutContext.turn_parser`; each is made once."""
        if name not in self._parsers:
            if self.turn_parser is None:
                raise ValueError(f"tool calls in the format {name!r} can't be read here: there is no parser")
            self._parsers[name] = self.turn_parser(name)
        return self._parsers[name]


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that a workflow may call (`marsrl.tools`). Nothing is called any more when its request
    has failed."""

    box: Toolbox
    asking: Callable[[], AbstractContextManager[None]]
    problem: Problem

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools; empty in a run without tools."""
        return self.box.names

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The OpenAI schemas, for chat templates."""
        return self.box.schemas

    async def call(self, call: ToolCall) -> ToolResult:
        """Does one call. Whatever goes wrong is its result."""
        given = self.problem.extra_info.get("tools_kwargs")
        with self.asking():
            return await self.box.call(replace(call, tools_kwargs=given if isinstance(given, dict) else {}))

    def fork(self, parent: str, child: str, calls: int) -> None:
        """Trajectory `child` goes on from where `parent` had made so many calls."""
        self.box.fork(parent, child, calls)


class RolloutContext:
    """Everything that a workflow of one request can use, in one round of it. Implements
    `GenerationClient` for what is generated there.

    Args:
        resources: where the workflow runs.
        request: the rollout request.
        sampling: the run's settings by role.
    """

    def __init__(
        self, resources: RolloutResources, request: RolloutRequest, sampling: Mapping[str, Sampling]
    ) -> None:
        self.request = request
        self._resources, self._sampling = resources, sampling
        self._sampled: Counter[int] = Counter()
        self._conversations: Counter[tuple[int, str]] = Counter()
        self._asked, self._closed, self._quiet = 0, False, asyncio.Event()
        self.score_error: Exception | None = None
        """Error that `score` raised: the reward's failure, not the workflow's."""
        earlier = () if request.resume is None else request.resume.trajectories
        self.gradings = defaultdict(list, {one.trajectory_id: [*one.gradings] for one in earlier})
        """All gradings so far, by trajectory id."""

    @property
    def vocab_size(self) -> int:
        """Tokens that can be sampled: with it, entropies of the likeliest tokens are bounded
        (`rollout.entropy`)."""
        return self._resources.chat.vocab_size

    async def close(self) -> None:
        """Allows no more requests and waits for those under way: other tasks of a workflow that raised go on,
        and must send none in a later round."""
        self._closed = True
        if self._asked:
            await self._quiet.wait()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        if self._closed:
            raise asyncio.CancelledError(f"request {self.request.group_id} has failed")
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1
            if self._closed and not self._asked:
                self._quiet.set()

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        with self._asking():
            client = self._resources.client
            return await client.generate(policy, prompt_ids, decoding, session=session, name=name, n=n)

    def policy(self, role: str) -> Policy:
        """The policy of a role."""
        return self._resources.policies.of(role)

    def sampling(self, role: str) -> Sampling:
        """Returns the role's sampling settings in this request."""
        return self.request.sampling_of(role, self._sampling)

    def conversation(
        self,
        k: int,
        role: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        prefix: TokenSequence | None = None,
        state: Plain = None,
    ) -> Conversation:
        """A chat of trajectory `k` with the role's policy; the only builder of prompts. A chat that the
        template rejects and a prompt over the role's limit are conversations that have ended already.

        Args:
            k: the trajectory's number.
            role: whose policy writes.
            messages: the chat, ending where the policy's turn begins.
            tools: schemas for the chat template.
            prefix: what it has written already, its prompt included; the messages are not rendered again.
            state: of a conversation that was paused (`Conversation.state`), with its sequence as `prefix`.
        """
        sampler, failure = self._sampler(role, k), None
        if prefix is None:
            if state is not None:
                whose = self.request.group_id
                raise ValueError(f"{whose}: a conversation with a state needs its sequence (prefix)")
            prefix, failure = self._begun(role, messages, tools)
        if state is None:
            return Conversation(sampler, k, prefix, messages, tools, failure=failure)
        return Conversation(sampler, k, prefix, state["messages"], state["tools"], run_starts=state["marks"])

    def _begun(
        self, role: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[TokenSequence, Failure | None]:
        policy, limit = self.policy(role).name, self.sampling(role).max_prompt_tokens
        failure: Failure | None = None
        # In the event loop on purpose: fast tokenizers must not be used from two threads at a time.
        try:
            prompt_ids = self._resources.chat.prompt_ids(messages, tools)
        except Exception as error:  # a chat that the template refuses is data, like a refused request
            prompt_ids, failure = [], Failure.of_template(error)
        if len(prompt_ids) > limit:
            note = f"prompt has {len(prompt_ids)} tokens, {role} takes {limit}"
            failure = Failure(FinishReason.PROMPT_TOO_LONG, note)
        return TokenSequence(role, prompt_ids, [], [], policy=policy), failure  # type: ignore[arg-type]

    def turn_parser(self, name: str) -> TurnParser:
        """Returns the parser of the tool calls of a model whose format has this name.

        Raises:
            ValueError: nothing here does.
        """
        return self._resources.parser(name)

    def _sampler(self, role: str, k: int) -> Sampler:
        request, resources, policy = self.request, self._resources, self.policy(role)
        if not policy.trained:
            raise ValueError(
                f"role {role!r} is answered by {policy.name!r}, of which only text is known: use chat"
            )
        # Conversations of one trajectory and role have seeds of their own, in the order of their beginning.
        number = self._conversations[k, role]
        self._conversations[k, role] += 1
        suffix = ("" if role == request.role else f"/{role}") + (f"~{number}" if number else "")
        # All that continues one response begins alike, so one server is asked for it.
        session = request.group_id if request.prefix is None else request.parent_id or request.group_id
        return Sampler(
            self,
            resources.chat,
            resources.builder,
            role=role,
            policy=policy.name,
            sampling=self.sampling(role),
            session=session,
            group_id=request.group_id,
            name_suffix=suffix,
            sampled=self._sampled,
        )

    @property
    def tools(self) -> Tools:
        """The tools of this worker. A workflow whose class says `calls_tools` may have some."""
        return Tools(self._resources.tools, self._asking, self.request.problem)

    async def chat(
        self, k: int, role: str, messages: Sequence[Message], stop: Sequence[str] = ()
    ) -> Trajectory:
        """One answer of a policy of which only text is known.

        Args:
            k: the trajectory's number.
            role: whose policy answers.
            messages: the whole chat.
            stop: strings behind which nothing is used; the answer may go on behind them.
        """
        name = self.policy(role).name
        if name not in self._resources.sources:
            raise ValueError(f"role {role!r} has the policy {name!r}, which answers no chats here")
        request = replace(self.request, role=role)
        sampling = self.sampling(role) if role in self._sampling else None
        with self._asking():
            source = self._resources.sources[name]
            answer = await source.answer(request, k, messages, stop, sampling=sampling)
        return answered(f"{self.request.group_id}#{k}", answer, self._resources.chat)

    async def score(self, trajectories: Sequence[Trajectory], role: str | None = None) -> list[RewardResult]:
        """The rewards of ended trajectories of this request.

        Args:
            trajectories: what is scored.
            role: whose reward scores them; None: the request's.
        """
        if not trajectories:
            return []
        request = self.request if role is None else replace(self.request, role=role)
        with self._asking():
            try:
                results = await self._resources.score(request, trajectories)
            except Exception as error:
                self.score_error = error
                raise
        for one, result in zip(trajectories, results, strict=True):
            self.gradings[one.trajectory_id].append(Grading.of(request.role, result))
        return results

    def rng(self, *names: str | int) -> np.random.Generator:
        """A generator derived from (seed, group id, names), without state."""
        return derive_generator(self._resources.seed, "rollout", self.request.group_id, *names)


def answered(trajectory_id: str, answer: ChatAnswer, chat: ChatTokenizer) -> Trajectory:
    """An answer as an unscored trajectory without sequences. The trained model's control tokens are taken out
    of it, since its text becomes part of that model's prompts."""
    content = chat.without_control_tokens(answer.content)
    reasoning = chat.without_control_tokens(answer.reasoning).strip()
    return Trajectory(
        trajectory_id,
        sequences=[],
        finish=answer.finish,
        text=f"{OPEN}\n{reasoning}\n{CLOSE}\n\n{content}" if reasoning else content,
        final_text=final_text(content),
        detail=answer.detail,
    )


class Rollout(Protocol):
    """A workflow: one request in, one round's output out.

    Built once per worker: by `from_settings(settings)`, where its class has that, from the `marsrl` node (its
    method's settings are `settings.algo`); else without arguments. Its class says what it supports by the
    attributes `pauses`, `grows`, `calls_tools` and `grades_each`; one that is left out is False, as is
    `forks(settings)`.

    `pauses`: it goes on with `request.resume`, so that responses may take several rounds
    (`marsrl.pipeline.max_segments`). `grows`: it begins trajectories in later rounds
    (`RolloutOutput.state`), so that parts of a group say nothing about the whole. `calls_tools`: it calls
    `context.tools`, so that `marsrl.tools` has an effect. `grades_each`: a trajectory's reward is what its
    role's reward class gives it, so that it can be graded again alone. `forks(settings)`, a class method:
    with these settings of the method it begins trajectories where others had called tools, and tells
    `context.tools` (`fork`, as `agent_loop.Agent.fork` does), so that tools that keep state have to follow.
    """

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        """Begins the request, or goes on with `request.resume`, until all trajectories ended or the round's
        tokens are used."""
