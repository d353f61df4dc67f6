"""One stage input, `n` independent model calls: the rollout of every MarsRL stage.

Token in, token out: the prompt is tokenised once with the chat template, and the ids that the engine
sampled are the ids that are trained. A long response may take several rounds: each adds a segment to the
tokens that are there already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from marsrl_verl.core.inert_text import valid_unicode
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.types import FinishReason, Message, Sample, SamplingSettings, StageInput
from marsrl_verl.rollout.control_tokens import ControlTokenRemover, control_tokens


class EngineUnavailableError(RuntimeError):
    """The engine itself is gone (not one request of it): the run cannot go on."""


FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
"""Regular ends as vLLM and OpenAI-compatible endpoints name them."""


@dataclass(slots=True)
class Completion:
    """What the engine answered to one call."""

    token_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason
    policy_version: int = 0


class CompletionClient(Protocol):
    """Sends one prompt to the engine."""

    async def complete(
        self, request_id: str, prompt_ids: list[int], settings: SamplingSettings, max_tokens: int, n: int
    ) -> list[Completion]:
        """Sample `n` completions of at most `max_tokens` tokens each. Calls with one `request_id` go to one
        server."""
        ...


@dataclass(slots=True)
class ChatTokenizer:
    """A Hugging Face tokenizer with the settings that prompts are built with."""

    tokenizer: Any
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `apply_chat_template` (`data.apply_chat_template_kwargs`)."""
    end_ids: frozenset[int] = frozenset()
    """Further ids that end a response, beside the tokenizer's end-of-sequence token (a model's
    generation config may name several)."""
    _remover: ControlTokenRemover | None = field(default=None, init=False, repr=False, compare=False)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a chat, ending where the assistant's answer begins.

        The template alone writes control tokens: those that a message spells out (data may, or a class of
        prompts) are taken out of it.
        """
        encoded = self.tokenizer.apply_chat_template(
            [
                {
                    name: self.without_control_tokens(value) if isinstance(value, str) else value
                    for name, value in message.items()
                }
                for message in messages
            ],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **self.template_kwargs,
        )
        ids = encoded["input_ids"]
        return list(ids[0] if ids and isinstance(ids[0], list) else ids)

    def opens_thinking(self, prompt_ids: list[int]) -> bool:
        """Whether the template itself has opened a thinking block that the answer must close."""
        tail = self.tokenizer.decode(prompt_ids[-8:], skip_special_tokens=False)
        return tail.rstrip().endswith("<think>")

    def text(self, token_ids: list[int]) -> str:
        """The response as text, without control tokens.

        A response becomes part of other roles' prompts, where an end of turn that it contains, as a token
        or spelt out, would end the turn it is quoted in. Tags of the thinking part stay.
        """
        ends = {self.tokenizer.eos_token_id, *self.end_ids}
        ids = [token for token in token_ids if token not in ends]
        decoded = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return self.without_control_tokens(str(decoded))

    def without_control_tokens(self, text: str) -> str:
        """The text with a gap in place of each spelt-out control token (see `control_tokens`), and without
        halves of surrogate pairs, which no tokenizer takes."""
        if self._remover is None:
            self._remover = ControlTokenRemover(control_tokens(self.tokenizer))
        return self._remover.remove(valid_unicode(text))


async def answer(
    stage_input: StageInput,
    settings: SamplingSettings,
    client: CompletionClient,
    chat: ChatTokenizer,
) -> list[Sample]:
    """Sample the `n` responses of one stage input, or the next segments of its unfinished ones.

    Args:
        stage_input: the prompt and how many responses it wants.
        settings: sampling settings of its role.
        client: the engine.
        chat: the tokenizer.

    Returns:
        Unscored samples: `stage_input.n`, or one for each of `stage_input.unfinished`. Where a segment is
        full but the role's limit is not reached, the finish reason is `SEGMENT`. A chat that the template
        refuses, a prompt over the role's limit, a request that the engine refuses and completions that it
        did not return give samples without new tokens and a finish reason that says so.

    Raises:
        EngineUnavailableError: the engine is gone.
    """
    if stage_input.unfinished:
        continued = [
            _continue(stage_input, sample, settings, client, chat) for sample in stage_input.unfinished
        ]
        return list(await asyncio.gather(*continued))
    if stage_input.prefix is not None:
        return await _branch(stage_input, stage_input.prefix, settings, client, chat)
    # In the event loop on purpose: fast tokenizers must not be used from two threads at a time.
    try:
        prompt_ids = chat.prompt_ids(stage_input.messages)
    except Exception as error:  # a chat that the template refuses is data, like a refused request
        return _empty(stage_input, [], FinishReason.ERROR, f"chat template: {type(error).__name__}: {error}")
    if len(prompt_ids) > settings.max_prompt_tokens:
        note = f"prompt has {len(prompt_ids)} tokens, {stage_input.role} takes {settings.max_prompt_tokens}"
        return _empty(stage_input, prompt_ids, FinishReason.PROMPT_TOO_LONG, note)
    try:
        completions = await client.complete(
            _route(stage_input),
            prompt_ids,
            settings.for_request(stage_input.group_id, 0),
            settings.room(0),
            stage_input.n,
        )
    except EngineUnavailableError:
        raise
    except Exception as error:  # a refused request is data: it is counted and the run goes on
        return _empty(stage_input, prompt_ids, FinishReason.ERROR, f"{type(error).__name__}: {error}")
    samples = [
        _sample(_unanswered(stage_input, k, prompt_ids), completion, settings, chat)
        for k, completion in enumerate(completions[: stage_input.n])
    ]
    note = f"the engine returned {len(completions)} of {stage_input.n} completions"
    return samples + _empty(stage_input, prompt_ids, FinishReason.ABORTED, note)[len(samples) :]


async def _branch(
    stage_input: StageInput,
    prefix: Sample,
    settings: SamplingSettings,
    client: CompletionClient,
    chat: ChatTokenizer,
) -> list[Sample]:
    """`n` continuations of one beginning. The response limit holds for the whole response."""
    begun = [
        replace(prefix, sample_id=f"{stage_input.group_id}#{k}", group_id=stage_input.group_id)
        for k in range(stage_input.n)
    ]
    try:
        completions = await client.complete(
            _route(stage_input),
            prefix.prompt_ids + prefix.response_ids,
            settings.for_request(stage_input.group_id, len(prefix.response_ids)),
            settings.room(len(prefix.response_ids)),
            stage_input.n,
        )
    except EngineUnavailableError:
        raise
    except Exception as error:  # as in `answer`
        note = f"{type(error).__name__}: {error}"
        return [_without_segment(sample, FinishReason.ERROR, note) for sample in begun]
    note = f"the engine returned {len(completions)} of {stage_input.n} completions"
    answered = [
        _sample(before, completion, settings, chat)
        for before, completion in zip(begun, completions, strict=False)
    ]
    missing = [_without_segment(sample, FinishReason.ABORTED, note) for sample in begun[len(answered) :]]
    return answered + missing


async def _continue(
    stage_input: StageInput,
    sample: Sample,
    settings: SamplingSettings,
    client: CompletionClient,
    chat: ChatTokenizer,
) -> Sample:
    """The sample with its next segment."""
    try:
        completions = await client.complete(
            _route(stage_input),
            sample.prompt_ids + sample.response_ids,
            settings.for_request(sample.sample_id, len(sample.response_ids)),
            settings.room(len(sample.response_ids)),
            1,
        )
    except EngineUnavailableError:
        raise
    except Exception as error:  # as in `answer`; what was sampled before stays
        note = f"{type(error).__name__}: {error}"
        return _without_segment(sample, FinishReason.ERROR, note)
    if not completions:
        note = "the engine returned no next segment"
        return _without_segment(sample, FinishReason.ABORTED, note)
    return _sample(sample, completions[0], settings, chat)


def _route(stage_input: StageInput) -> str:
    """The id under which one server is asked for all requests that begin alike, since it holds their common
    beginning in its cache: the group's, or that of the response which several groups continue from different
    places."""
    return stage_input.group_id if stage_input.prefix is None else stage_input.prefix.sample_id


def _without_segment(sample: Sample, reason: FinishReason, note: str) -> Sample:
    """The sample ended by a round that added no token, which is a segment of length 0."""
    segments = [*sample.segments, (len(sample.response_ids), sample.policy_version)]
    return replace(sample, finish_reason=reason, error=note, segments=segments)


def _sample(
    before: Sample, completion: Completion, settings: SamplingSettings, chat: ChatTokenizer
) -> Sample:
    """`before` with the completion's tokens as a further segment."""
    response_ids = before.response_ids + completion.token_ids
    reason = completion.finish_reason
    full = len(completion.token_ids) >= settings.room(len(before.response_ids))
    if reason is FinishReason.LENGTH and full and len(response_ids) < settings.max_new_tokens:
        reason = FinishReason.SEGMENT
    ended = reason is not FinishReason.SEGMENT  # nobody reads half a response
    text = chat.text(response_ids) if ended else ""
    opened = ended and chat.opens_thinking(before.prompt_ids)
    earlier = before.segments if before.response_ids else []
    return Sample(
        sample_id=before.sample_id,
        group_id=before.group_id,
        prompt_ids=before.prompt_ids,
        response_ids=response_ids,
        rollout_log_probs=before.rollout_log_probs + completion.log_probs,
        finish_reason=reason,
        text=text,
        final_text=final_text(text, thinking_opened=opened),
        policy_version=completion.policy_version,
        segments=[*earlier, (len(response_ids), completion.policy_version)],
        trainer_log_probs=before.trainer_log_probs,
    )


def _unanswered(
    stage_input: StageInput,
    k: int,
    prompt_ids: list[int],
    reason: FinishReason = FinishReason.SEGMENT,
    note: str | None = None,
) -> Sample:
    return Sample(
        sample_id=f"{stage_input.group_id}#{k}",
        group_id=stage_input.group_id,
        prompt_ids=prompt_ids,
        response_ids=[],
        rollout_log_probs=[],
        finish_reason=reason,
        text="",
        final_text="",
        error=note,
    )


def _empty(stage_input: StageInput, prompt_ids: list[int], reason: FinishReason, note: str) -> list[Sample]:
    return [_unanswered(stage_input, k, prompt_ids, reason, note) for k in range(stage_input.n)]
