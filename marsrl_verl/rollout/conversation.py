"""A sequence that grows: the only builder of prompts.

Token in, token out: the ids that the engine sampled stay as they are, and what a chat template, a tool or
another agent says is appended as ids of its own, with mask 0. Whatever goes wrong with a request is how the
conversation ended (`finish`, `detail`), not an exception, unless the engine itself is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from marsrl_verl.core.request import Message
from marsrl_verl.core.sequence import Plain, TokenIds, token_ids
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.generation import Completion, EngineUnavailableError
from marsrl_verl.rollout.growing_sequence import GrowingSequence, Part
from marsrl_verl.rollout.sampler import Sampler, nothing, stopped

_TAIL = 64
"""Tokens at the end of a chat that decide what a template writes next."""


class Failure(NamedTuple):
    """Why a conversation can't go on."""

    finish: FinishReason
    detail: str
    failed_by: str | None = None
    """See `Trajectory.failed_by`."""

    @property
    def of_request(self) -> bool:
        """True if the request itself failed, not the chat template or the prompt's length."""
        return self.failed_by is None and self.finish is not FinishReason.PROMPT_TOO_LONG

    @classmethod
    def of_template(cls, error: Exception) -> Failure:
        """The chat template rejects the messages."""
        return cls(FinishReason.ERROR, f"chat template: {type(error).__name__}: {error}", "chat template")


class Conversation:
    """Tokens that one policy reads and writes in trajectory `k`, and their chat.

    Args:
        sampler: where its tokens come from.
        k: the trajectory's number.
        begun: prompt and response as the round found them.
        messages: the chat before the turn that is being written.
        tools: schemas that the template was given.
        run_starts: (position, messages) where a run of sampled tokens begins; None: at 0.
        failure: why it cannot be sampled at all.
    """

    def __init__(
        self,
        sampler: Sampler,
        k: int,
        begun: TokenSequence,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        run_starts: Sequence[tuple[int, int]] | None = None,
        failure: Failure | None = None,
    ) -> None:
        self._sampler, self.k, self._tools = sampler, k, tuple(tools)
        self._growing = GrowingSequence(begun)
        self._messages = [dict(message) for message in messages]
        self._run_starts = (
            [(0, len(self._messages))] if run_starts is None else [(at, count) for at, count in run_starts]
        )
        self._sampled_n = 0
        self._failure = failure
        self.finish: FinishReason | None = None if failure is None else failure.finish
        """Finish reason of the last sampling."""
        self.detail: str | None = None if failure is None else failure.detail
        """Reason why it has no regular end."""

    def __len__(self) -> int:
        """Response tokens."""
        return len(self._growing)

    @property
    def failed_by(self) -> str | None:
        """Name of what failed, if it is not the source of the tokens."""
        return None if self._failure is None else self._failure.failed_by

    @property
    def trajectory_id(self) -> str:
        """Id of the trajectory that it is part of."""
        return f"{self._sampler.group_id}#{self.k}"

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Tokenizer of its tokens."""
        return self._sampler.chat

    @property
    def tokens_left(self) -> int:
        """Tokens until the role's limit of a response, or of prompt and response together."""
        limit = self._sampler.sampling.response_limit(self._growing.begun.prompt_ids.size)
        return max(0, limit - len(self))

    @property
    def run_tokens(self) -> int:
        """Tokens sampled since something was appended, or a stop string ended a completion: of the turn that
        is being written, whatever rounds and requests they came in."""
        return len(self) - self._run_starts[-1][0]

    # --- sampling ------------------------------------------------------------------------------

    async def sample(
        self,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_log_probs: int = 0,
        structured: Mapping[str, Any] | None = None,
        turn: int | None = None,
    ) -> Completion:
        """Lets the policy write on.

        Args:
            max_tokens: most tokens of this completion; beside it the role's limits hold.
            stop: strings that end it, also where one began in an earlier completion of the same run.
            top_log_probs: see `Decoding`.
            structured: see `Decoding`. A grammar begins anew with every request, so such a completion is
                never split: limits of a round don't hold for it. Tokens that the grammar forced
                (`Completion.forced`) get mask 0.
            turn: noted of its tokens (annotation `turn`).

        Returns:
            What was added. `finish` is PAUSED where the round's tokens are used: the conversation goes on in
            a later round, and the workflow must end this one. LENGTH: one of the other limits.
            PROMPT_TOO_LONG, ERROR, ABORTED: it can't go on, `detail` says why.

        Raises:
            EngineUnavailableError: the engine is gone.
        """
        limit = self._limit(max_tokens, single_request=structured is not None)
        if isinstance(limit, FinishReason):
            return self._take(nothing(limit), 0, max_tokens, (), turn)
        name = f"{self.trajectory_id}{self._sampler.name_suffix}"
        completions, missing = await self._completions(1, name, limit, stop, top_log_probs, structured)
        if not completions:
            return self._failed(missing)
        return self._take(completions[0], limit, max_tokens, stop, turn)

    async def sample_n(
        self,
        n: int,
        *,
        stop: Sequence[str] = (),
        structured: Mapping[str, Any] | None = None,
        turn: int | None = None,
    ) -> list[Conversation]:
        """`n` conversations that go on from here, k = 0 … n-1: one engine request. Arguments as `sample`."""
        members = [self._twin(k) for k in range(n)]
        limit = self._limit(None, single_request=structured is not None)
        if isinstance(limit, FinishReason):
            for one in members:
                one._take(nothing(limit), 0, None, (), turn)
            return members
        request_suffix = f"+{self._sampled_n}" if self._sampled_n else ""
        self._sampled_n += 1
        name = f"{self._sampler.group_id}{self._sampler.name_suffix}{request_suffix}"
        completions, missing = await self._completions(n, name, limit, stop, 0, structured)
        for one, completion in zip(members, completions, strict=False):
            one._take(completion, limit, None, stop, turn)
        for one in members[len(completions) :]:
            one._failed(missing)
        return members

    def _limit(self, max_tokens: int | None, *, single_request: bool) -> int | FinishReason:
        """Returns how many tokens may be requested, or the finish reason if none may."""
        if self._failure is not None:
            return self._failure.finish
        sampling, remaining = self._sampler.sampling, self.tokens_left
        if remaining == 0 or (max_tokens is not None and max_tokens < 1):
            return FinishReason.LENGTH
        if sampling.segment_tokens is not None and not single_request:
            remaining = min(remaining, sampling.segment_tokens - self._sampler.sampled[self.k])
            if remaining < 1:
                return FinishReason.PAUSED
        return remaining if max_tokens is None else min(remaining, max_tokens)

    async def _completions(
        self, n: int, name: str, limit: int, stop: Sequence[str], top: int, structured: Any
    ) -> tuple[list[Completion], Failure]:
        """The engine's answer, and why there is no more of it."""
        decoding = self._sampler.decoding(limit, stop, top, structured)
        try:
            found = (await self._sampler.ask(self.input_ids(), name, len(self), n, decoding))[:n]
        except EngineUnavailableError:
            raise
        except Exception as error:  # a refused request is data: it is counted and the run goes on
            return [], Failure(FinishReason.ERROR, f"{type(error).__name__}: {error}")
        return found, Failure(FinishReason.ABORTED, f"the engine returned {len(found)} of {n} completions")

    def _take(
        self,
        completion: Completion,
        limit: int,
        max_tokens: int | None,
        stop: Sequence[str],
        turn: int | None,
    ) -> Completion:
        """Adds what the engine answered to a request for `limit` tokens."""
        if stop:
            completion = stopped(completion, self._run(), stop, self._sampler.chat)
        count = len(completion.token_ids)
        if count:
            log_probs, mask = completion.log_probs, np.ones(count, dtype=np.uint8)
            if completion.forced is not None:
                mask[completion.forced] = 0
                log_probs = np.where(completion.forced, np.float32(0), log_probs)
            number = -1 if turn is None else turn
            self._growing.add(Part(completion.token_ids, log_probs, mask, completion.version, number))
            self._sampler.sampled[self.k] += count
        wanted = self.tokens_left > 0 and (max_tokens is None or count < max_tokens)
        is_full = completion.finish is FinishReason.LENGTH and 0 < limit <= count
        if is_full and wanted and self._sampler.sampling.segment_tokens is not None:
            completion = replace(completion, finish=FinishReason.PAUSED)
        self.finish = completion.finish
        if completion.finish is FinishReason.STOP:
            self._begin_run()
        elif completion.finish is FinishReason.ABORTED and self._failure is None:
            self._failed(Failure(FinishReason.ABORTED, "the engine gave the request up"))
        return completion

    def _failed(self, failure: Failure) -> Completion:
        self._failure, self.finish, self.detail = failure, failure.finish, failure.detail
        return nothing(failure.finish)

    # --- appending -----------------------------------------------------------------------------

    def append(self, messages: Sequence[Message]) -> None:
        """Adds messages after the turn that was written, and opens the assistant's next one. Where a stop
        string or a limit ended the turn, it is closed first. All of it has mask 0. What exceeds the role's
        limit of a response is left out; `sample` then says LENGTH.

        A template that rejects them ends the conversation (ERROR).

        Raises:
            ValueError: nothing was written since the last messages, or no chat can grow with this template.
        """
        if self._failure is not None:
            return
        if not self.turn_ids().size:
            raise ValueError(
                f"{self.trajectory_id}: messages were appended to an empty turn of {self._sampler.role}; "
                "give all messages at once, after the policy has written"
            )
        chat = self._sampler.chat
        answered = [*self._messages, {"role": "assistant", "content": self.turn_text()}]
        grown = [*answered, *map(chat.clean, messages)]
        builder = self._sampler.builder()
        try:
            self._close_turn()
            tail = self.input_ids()[-_TAIL:].tolist()
            merged = builder.merge(answered, grown, tail, [dict(tool) for tool in self._tools])
        except Exception as error:  # a chat that the template refuses is data, like a refused request
            self._failed(Failure.of_template(error))
            return
        pairs = enumerate(zip(tail, merged, strict=False))
        unchanged = next((k for k, (old, new) in pairs if old != new), min(len(tail), len(merged)))
        remaining = len(self) - (len(tail) - unchanged)
        begun = len(self._growing.begun)
        if remaining < begun:  # what an earlier round has handed over is trained as it is
            lost = f"it drops the last {begun - remaining} tokens of what an earlier round has written"
            self._failed(Failure(FinishReason.ERROR, f"chat template: {lost}", "chat template"))
            return
        self._growing.cut(remaining)
        self._add_context(token_ids(merged[unchanged:]))
        self._messages = grown
        self._begin_run()

    def append_text(self, text: str) -> None:
        """Adds text inside the turn (a tool's result), without control tokens, with mask 0; up to the role's
        limit of a response, as `append`."""
        if self._failure is None:
            self._add_context(self._sampler.chat.raw_ids(text))
            self._begin_run()

    def _close_turn(self) -> None:
        end, tail = self._sampler.chat.turn_end(), self._growing.response_ids()
        there = next((n for n in range(len(end), 0, -1) if tail[-n:].tolist() == end[:n]), 0)
        self._add_context(token_ids(end[there:]))

    def _add_context(self, ids: TokenIds) -> None:
        """Adds tokens that no policy sampled, as far as the role's limit of a response reaches."""
        self._growing.add(Part.of_context(ids[: self.tokens_left]))

    def _begin_run(self) -> None:
        """Begins a run of sampled tokens here."""
        self._run_starts.append((len(self), len(self._messages)))

    # --- what is there -------------------------------------------------------------------------

    def input_ids(self) -> TokenIds:
        """(P + T,) prompt and response."""
        return self._growing.input_ids()

    def _run(self) -> TokenIds:
        return self._growing.response_ids()[self._run_starts[-1][0] :]

    def turn_ids(self) -> TokenIds:
        """The assistant's turn so far, texts inside it included."""
        begins_at = next(at for at, count in self._run_starts if count == len(self._messages))
        return self._growing.response_ids()[begins_at:]

    def turn_text(self) -> str:
        """Returns the turn as text, without control tokens."""
        return self._sampler.chat.text(self.turn_ids())

    def turn_final_text(self) -> str:
        """Returns the part of the turn that others may see: what follows its thinking part."""
        ids = self.input_ids()
        before = ids[: len(ids) - self.turn_ids().size]
        return final_text(self.turn_text(), thinking_opened=self._sampler.chat.opens_thinking(before))

    def texts(self) -> tuple[str, str]:
        """The whole response as text, and what others may see of it."""
        chat, response = self._sampler.chat, self._growing.response_ids()
        if not response.size:
            return "", ""
        text = chat.text(response)
        return text, final_text(text, thinking_opened=chat.opens_thinking(self._growing.begun.prompt_ids))

    def trajectory(self, **fields: Any) -> Trajectory:
        """The trajectory that is this one conversation, as it is now, unscored. Paused (or not begun) it has
        no texts: half a response has no use.

        Args:
            fields: of `Trajectory`, beside what a conversation knows or in its place (`state`, `events`,
                another `finish`).
        """
        finish = fields.pop("finish", self.finish or FinishReason.PAUSED)
        text, final = ("", "") if finish is FinishReason.PAUSED else self.texts()
        known = {"text": text, "final_text": final, "detail": self.detail, "failed_by": self.failed_by}
        return Trajectory(self.trajectory_id, [self.sequence()], finish, **{**known, **fields})

    def sequence(self) -> TokenSequence:
        """Returns everything that the policy has read and written. The tokens that this round added are parts
        of their own in `versions`, one of length 0 if there are none."""
        return self._growing.sequence()

    def state(self) -> Plain:
        """Returns what a later round needs beside the sequence to go on (`RolloutContext.conversation`)."""
        return {
            "messages": [dict(message) for message in self._messages],
            "tools": [dict(tool) for tool in self._tools],
            "marks": [list(start) for start in self._run_starts],
        }

    def fork(self, k: int, at: int | None = None) -> Conversation:
        """Another conversation for trajectory `k`, with the first `at` response tokens (all). What the round
        has sampled of them counts for it too. A failure after them is not its own, nor is a request that
        failed there: it sends its own, so that its tokens do not depend on when it began."""
        at = len(self) if at is None else at
        begun = self.sequence().truncate(at)
        sampled = self._sampler.sampled
        sampled[k] = sampled[self.k] - self._growing.sampled_after(at)
        run_starts = [start for start in self._run_starts if start[0] <= at]
        messages = self._messages[: run_starts[-1][1]]
        failure = self._failure
        if failure is not None and (at < len(self) or failure.of_request):
            failure = None
        return Conversation(
            self._sampler, k, begun, messages, self._tools, run_starts=run_starts, failure=failure
        )

    def _twin(self, k: int) -> Conversation:
        begun, run_starts, failure = self._growing.begun, self._run_starts, self._failure
        twin = Conversation(
            self._sampler, k, begun, self._messages, self._tools, run_starts=run_starts, failure=failure
        )
        twin._growing = self._growing.copy()
        return twin
