"""What rollout programs run in: their contexts and the programs themselves, once per worker."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from marsrl_verl.core.policy import Policy, PolicySet
from marsrl_verl.core.request import Message, Problem, RolloutRequest, Sampling
from marsrl_verl.core.scheduler.checks import check_members
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import Plain, TokenIds, check_plain
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, TemplateBuilder
from marsrl_verl.rollout.context import Rollout
from marsrl_verl.rollout.conversation import Conversation, Failure
from marsrl_verl.rollout.frozen.source import AnswerSource, answered
from marsrl_verl.rollout.generation import Completion, Decoding, EngineUnavailableError, GenerationClient
from marsrl_verl.rollout.sampler import Sampler
from marsrl_verl.rollout.single_call import SingleCall
from marsrl_verl.rollout.tool_protocol.chat import TurnParser
from marsrl_verl.settings.blame import blamed
from marsrl_verl.tools.base import ToolCall, ToolResult
from marsrl_verl.tools.toolbox import EMPTY, Toolbox

BUILT_IN: Mapping[str, Callable[[], Rollout]] = {"single_call": SingleCall}
"""Programs that every method may name in `RolloutRequest.rollout`."""

Score = Callable[[RolloutRequest, Sequence[Trajectory]], Awaitable[list[RewardResult]]]
"""The rewards of ended trajectories, at least one, of a request."""


def find_program(name: str, programs: Mapping[str, Callable[[], Rollout]] = BUILT_IN) -> Any:
    """The class of the program of that name: a built-in one, or a method's as `package.module:Class`.

    Raises:
        ValueError: there is none.
    """
    if name in programs:
        return programs[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"there is no rollout program {name!r}; known: {', '.join(sorted(programs))}, or one of your own "
            "as package.module:Class"
        )
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ValueError(f"the rollout program {name!r} can't be loaded: {error}") from error
    if not callable(getattr(cls, "run", None)):
        raise ValueError(f"{name!r} is no rollout program: {attribute} has no method `run`")
    return cls


def load_program(
    name: str, programs: Mapping[str, Callable[[], Rollout]] = BUILT_IN, settings: Any = None
) -> Rollout:
    """The program of that name, built; a class with `from_settings` is given the `marsrl` node.

    Raises:
        ValueError: there is none.
    """
    cls = find_program(name, programs)
    made: Rollout = cls.from_settings(settings) if hasattr(cls, "from_settings") else cls()
    return made


@dataclass(slots=True)
class RolloutRunner:
    """Runs the programs of requests."""

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
    programs: Mapping[str, Callable[[], Rollout]] = field(default_factory=lambda: BUILT_IN)
    seed: int = 0
    settings: Any = None
    """The `marsrl` node, which programs are built with."""
    tools: Toolbox = EMPTY
    """Started."""
    _running: dict[str, Rollout] = field(default_factory=dict, init=False)
    _builder: TemplateBuilder | None = field(default=None, init=False)
    _parsers: dict[str, TurnParser] = field(default_factory=dict, init=False)

    async def run(self, request: RolloutRequest, sampling: Mapping[str, Sampling]) -> RolloutOutput:
        """One round of a request. What its program raises, or a tool in it, ends this request's trajectories
        (ERROR) and nothing else.

        Raises:
            EngineUnavailableError: the engine is gone.
            ValueError: there is no such program.
            Exception: what `score` raised.
        """
        if request.rollout not in self._running:
            self._running[request.rollout] = load_program(request.rollout, self.programs, self.settings)
        context = RequestContext(self, request, sampling)
        try:
            output = await self._running[request.rollout].run(request, context)
            if not isinstance(output, RolloutOutput):
                raise TypeError(f"it returned a {type(output).__name__}, expected a RolloutOutput")
            check_members(request, _members(request), output)
            check_plain(output.state, f"{output.group_id}: state")
            for one in output.trajectories:
                check_plain(one.state, f"{one.trajectory_id}: state")
                check_plain(one.events, f"{one.trajectory_id}: events")
                check_plain([one.text, one.final_text, one.detail], f"{one.trajectory_id}: texts")
                if not one.paused and (len(one.sequences) > 1 or not one.text):
                    self._add_texts(one)
            return output
        except EngineUnavailableError:
            raise
        except Exception as error:  # a bad rollout is data; `RequestWatch` sees a program that always fails
            await context.close()
            if context.score_error is not None:
                raise context.score_error from None
            return await self._failed(request, error)

    async def _failed(self, request: RolloutRequest, error: Exception) -> RolloutOutput:
        """What is left of a request whose program raised: ended trajectories, with the tokens of earlier
        rounds."""
        earlier, members = _members(request), []
        detail = f"rollout program {request.rollout}: {blamed(error)}"
        for k in range(request.n):
            fresh = Trajectory(f"{request.group_id}#{k}", self._begun(request), FinishReason.PAUSED)
            before = earlier.get(k, fresh)
            if before.paused:
                sequences = [one.extend((), (), one.version) for one in before.sequences]
                ended = replace(before, sequences=sequences, finish=FinishReason.ERROR, state=None)
                ended.detail, ended.failed_by = detail, request.rollout
                members.append(ended)
        for one, reward in zip(members, await self.score(request, members), strict=True):
            one.reward = reward
        return RolloutOutput(request.group_id, members)

    def _begun(self, request: RolloutRequest) -> list[TokenSequence]:
        """How a trajectory of the request begins."""
        policy = self.policies.of(request.role)
        if request.prefix is not None:
            return [request.prefix]
        return [TokenSequence(request.role, [], [], [], policy=policy.name)] if policy.trained else []  # type: ignore[arg-type]

    def _add_texts(self, trajectory: Trajectory) -> None:
        """What each sequence read and wrote, which request and trajectory do not tell."""
        for sequence in trajectory.sequences:
            if len(sequence):
                sequence.prompt_text = self.chat.text(sequence.prompt_ids)
                sequence.text = self.chat.text(sequence.response_ids)

    def builder(self) -> TemplateBuilder:
        """What the chat template writes when a chat grows. ValueError: this runner knows none, or the
        template lets no chat grow."""
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


def _members(request: RolloutRequest) -> dict[int, Trajectory]:
    """The trajectories of earlier rounds, by number."""
    return {} if request.resume is None else {one.number: one for one in request.resume.trajectories}


class RequestContext:
    """Implements `marsrl_verl.rollout.context.RolloutContext` for one round of one request, and
    `GenerationClient` for what is asked in it."""

    def __init__(
        self, runner: RolloutRunner, request: RolloutRequest, sampling: Mapping[str, Sampling]
    ) -> None:
        self.request = request
        self._runner, self._sampling = runner, sampling
        self._sampled: Counter[int] = Counter()
        self._conversations: Counter[tuple[int, str]] = Counter()
        self._asked, self._closed, self._quiet = 0, False, asyncio.Event()
        self.score_error: Exception | None = None
        """What `score` raised: the reward's failure, not the program's."""

    @property
    def vocab_size(self) -> int:
        return self._runner.chat.vocab_size

    async def close(self) -> None:
        """Let nothing more be asked, and wait for what was: other tasks of a program that raised go on, and
        must not ask in a later round."""
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
            client = self._runner.client
            return await client.generate(policy, prompt_ids, decoding, session=session, name=name, n=n)

    def policy(self, role: str) -> Policy:
        return self._runner.policies.of(role)

    def sampling(self, role: str) -> Sampling:
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
        """See `RolloutContext`. A chat that the template refuses and a prompt over the role's limit are
        conversations that have ended already."""
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
            prompt_ids = self._runner.chat.prompt_ids(messages, tools)
        except Exception as error:  # a chat that the template refuses is data, like a refused request
            prompt_ids, failure = [], Failure.of_template(error)
        if len(prompt_ids) > limit:
            note = f"prompt has {len(prompt_ids)} tokens, {role} takes {limit}"
            failure = Failure(FinishReason.PROMPT_TOO_LONG, note)
        return TokenSequence(role, prompt_ids, [], [], policy=policy), failure  # type: ignore[arg-type]

    def turn_parser(self, name: str) -> TurnParser:
        return self._runner.parser(name)

    def _sampler(self, role: str, k: int) -> Sampler:
        request, runner, policy = self.request, self._runner, self.policy(role)
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
            runner.chat,
            runner.builder,
            role=role,
            policy=policy.name,
            sampling=self.sampling(role),
            session=session,
            group_id=request.group_id,
            name_suffix=suffix,
            sampled=self._sampled,
        )

    @property
    def tools(self) -> _RequestTools:
        return _RequestTools(self._runner.tools, self._asking, self.request.problem)

    async def chat(
        self, k: int, role: str, messages: Sequence[Message], stop: Sequence[str] = ()
    ) -> Trajectory:
        name = self.policy(role).name
        if name not in self._runner.sources:
            raise ValueError(f"role {role!r} has the policy {name!r}, which answers no chats here")
        with self._asking():
            answer = await self._runner.sources[name].answer(self.request, k, messages, stop)
        return answered(f"{self.request.group_id}#{k}", answer, self._runner.chat)

    async def score(self, trajectories: Sequence[Trajectory], role: str | None = None) -> list[RewardResult]:
        if not trajectories:
            return []
        request = self.request if role is None else replace(self.request, role=role)
        with self._asking():
            try:
                return await self._runner.score(request, trajectories)
            except Exception as error:
                self.score_error = error
                raise

    def rng(self, *names: str | int) -> np.random.Generator:
        return derive_generator(self._runner.seed, "rollout", self.request.group_id, *names)


@dataclass(frozen=True, slots=True)
class _RequestTools:
    """A toolbox for one request, in which nothing is called any more when the request has failed."""

    box: Toolbox
    asking: Callable[[], AbstractContextManager[None]]
    problem: Problem

    @property
    def names(self) -> tuple[str, ...]:
        return self.box.names

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        return self.box.schemas

    async def call(self, call: ToolCall) -> ToolResult:
        tools_kwargs = self.problem.extra_info.get("tools_kwargs")
        with self.asking():
            return await self.box.call(
                replace(call, tools_kwargs=tools_kwargs if isinstance(tools_kwargs, dict) else {})
            )

    def fork(self, parent: str, child: str, calls: int) -> None:
        self.box.fork(parent, child, calls)
