"""What rollout programs run in: their contexts and the programs themselves, once per worker."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marsrl_verl.core.policy import Policy, PolicySet
from marsrl_verl.core.request import Message, RolloutRequest, Sampling
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, TemplateBuilder
from marsrl_verl.rollout.context import Rollout
from marsrl_verl.rollout.conversation import Conversation
from marsrl_verl.rollout.external.solver import AnswerSource, answered
from marsrl_verl.rollout.generation import GenerationClient
from marsrl_verl.rollout.sampler import RoundTokens, Sampler
from marsrl_verl.rollout.single_call import SingleCall

BUILT_IN: Mapping[str, Callable[[], Rollout]] = {"single_call": SingleCall}
"""Programs that every method may name in `RolloutRequest.rollout`."""

Score = Callable[[RolloutRequest, Sequence[Trajectory]], Awaitable[list[RewardResult]]]
"""The rewards of ended trajectories, at least one, of a request."""


def load_program(
    name: str, programs: Mapping[str, Callable[[], Rollout]] = BUILT_IN, settings: Any = None
) -> Rollout:
    """The program of that name: a built-in one, or a method's as `package.module:Class`.

    Args:
        name: as requests name it.
        programs: the built-in ones.
        settings: the `marsrl` node; a class with `from_settings` is given it, as a method's is.

    Raises:
        ValueError: there is none.
    """
    if name in programs:
        return programs[name]()
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"there is no rollout program {name!r}; known: {', '.join(sorted(programs))}, or one of your own "
            "as package.module:Class"
        )
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the rollout program {name!r} can't be loaded: {error}") from error
    made = cls.from_settings(settings) if hasattr(cls, "from_settings") else cls()
    if not callable(getattr(made, "run", None)):
        raise ValueError(f"{name!r} is no rollout program: {type(made).__name__} has no method `run`")
    return made  # type: ignore[no-any-return]


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
    programs: Mapping[str, Callable[[], Rollout]] = field(default_factory=lambda: BUILT_IN)
    seed: int = 0
    settings: Any = None
    """The `marsrl` node, which programs are built with."""
    _running: dict[str, Rollout] = field(default_factory=dict, init=False)
    _builder: TemplateBuilder | None = field(default=None, init=False)

    async def run(self, request: RolloutRequest, sampling: Mapping[str, Sampling]) -> RolloutOutput:
        """One round of a request.

        Raises:
            EngineUnavailableError: the engine is gone.
            ValueError: there is no such program.
        """
        if request.rollout not in self._running:
            self._running[request.rollout] = load_program(request.rollout, self.programs, self.settings)
        output = await self._running[request.rollout].run(request, RequestContext(self, request, sampling))
        for one in output.trajectories:
            if not one.paused and (len(one.sequences) > 1 or not one.text):
                self._add_texts(one)
        return output

    def _add_texts(self, trajectory: Trajectory) -> None:
        """What each sequence read and wrote, which request and trajectory do not tell."""
        for sequence in trajectory.sequences:
            if len(sequence):
                sequence.prompt_text = self.chat.text(sequence.prompt_ids)
                sequence.text = self.chat.text(sequence.response_ids)

    def builder(self) -> TemplateBuilder:
        """What the chat template writes when a chat grows.

        Raises:
            ValueError: this runner knows none, or the template lets no chat grow.
        """
        if self._builder is None:
            if self.template_builder is None:
                raise ValueError("chats can't grow here: the rollouts were given no template builder")
            self._builder = self.template_builder()
        return self._builder


class RequestContext:
    """Implements `marsrl_verl.rollout.context.RolloutContext` for one round of one request."""

    def __init__(
        self, runner: RolloutRunner, request: RolloutRequest, sampling: Mapping[str, Sampling]
    ) -> None:
        self.request = request
        self._runner, self._sampling = runner, sampling
        self._tokens: dict[int, RoundTokens] = defaultdict(RoundTokens)

    def policy(self, role: str) -> Policy:
        """See `RolloutContext`."""
        return self._runner.policies.of(role)

    def sampling(self, role: str) -> Sampling:
        """See `RolloutContext`."""
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
        sampler, failure = self._sampler(role), None
        if prefix is None:
            prefix, failure = self._begun(role, messages, tools)
        if state is None:
            return Conversation(sampler, k, prefix, messages, tools, failure=failure)
        return Conversation(sampler, k, prefix, state["messages"], state["tools"], marks=state["marks"])

    def _begun(
        self, role: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[TokenSequence, tuple[FinishReason, str] | None]:
        policy, limit, failure = self.policy(role).name, self.sampling(role).max_prompt_tokens, None
        # In the event loop on purpose: fast tokenizers must not be used from two threads at a time.
        try:
            prompt_ids = self._runner.chat.prompt_ids(messages, tools)
        except Exception as error:  # a chat that the template refuses is data, like a refused request
            prompt_ids = []
            failure = FinishReason.ERROR, f"chat template: {type(error).__name__}: {error}"
        if len(prompt_ids) > limit:
            note = f"prompt has {len(prompt_ids)} tokens, {role} takes {limit}"
            failure = FinishReason.PROMPT_TOO_LONG, note
        return TokenSequence(role, prompt_ids, [], [], policy=policy), failure  # type: ignore[arg-type]

    def _sampler(self, role: str) -> Sampler:
        request, runner, policy = self.request, self._runner, self.policy(role)
        if not policy.trained:
            raise ValueError(
                f"role {role!r} is answered by {policy.name!r}, of which only text is known: use chat"
            )
        # All that continues one response begins alike, so one server is asked for it.
        session = request.group_id if request.prefix is None else request.parent_id or request.group_id
        return Sampler(
            runner.client,
            runner.chat,
            runner.builder,
            role=role,
            policy=policy.name,
            sampling=self.sampling(role),
            session=session,
            group_id=request.group_id,
            name_suffix="" if role == request.role else f"/{role}",
            tokens=self._tokens.__getitem__,
        )

    async def chat(self, k: int, role: str, messages: Sequence[Message]) -> Trajectory:
        """See `RolloutContext`."""
        name = self.policy(role).name
        if name not in self._runner.sources:
            raise ValueError(f"role {role!r} has the policy {name!r}, which answers no chats here")
        answer = await self._runner.sources[name].answer(self.request, k, messages)
        return answered(f"{self.request.group_id}#{k}", answer, self._runner.chat)

    async def score(self, trajectories: Sequence[Trajectory]) -> list[RewardResult]:
        """See `RolloutContext`."""
        return await self._runner.score(self.request, trajectories) if trajectories else []

    def rng(self, *names: str | int) -> np.random.Generator:
        """See `RolloutContext`."""
        return derive_generator(self._runner.seed, "rollout", self.request.group_id, *names)
