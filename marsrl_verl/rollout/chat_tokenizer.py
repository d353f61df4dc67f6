"""A tokenizer with its chat template: messages to token ids, token ids to text that may be quoted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from marsrl_verl.core.request import Message
from marsrl_verl.core.sanitize import valid_unicode
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.sequence import TokenIds, token_ids
from marsrl_verl.core.thinking import CLOSE, OPEN
from marsrl_verl.core.trajectory import Trajectory

_SHOWN = 8
"""Last tokens of a prompt among which a template opens a thinking block."""
_REMEMBERED = 1000
_CONTENT = "the content of a turn"
_MARKER = re.compile(r"<\S+>|\[\S+\]")
_PIPED = re.compile(r"<[|｜]\S*[|｜]>")


def control_tokens(tokenizer: Any) -> frozenset[str]:
    """The added tokens whose spelling in a prompt would be read as control: end of turn, roles, tool calls.

    All special tokens are, and of the others those that look like markers (`<｜User｜>`) or that the chat
    template writes (`<tool_call>`). Tags of the thinking part are not, nor added words and HTML tags.

    Upstream behaviour: `all_special_tokens` of transformers 5 has the named ones alone (`eos_token`, …), and
    a tokenizer may have role markers that are not flagged as special (DeepSeek-R1-Distill).
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    added = {str(token): bool(token.special) for token in tokenizer.added_tokens_decoder.values()}
    named = dict.fromkeys(map(str, tokenizer.all_special_tokens), True)
    return frozenset(
        token
        for token, special in {**added, **named}.items()
        if token.strip() and token not in (OPEN, CLOSE)
        if special or _PIPED.fullmatch(token) or (_MARKER.fullmatch(token) and token in template)
    )


class ControlTokenRemover:
    """Takes spelt-out `control_tokens` out of texts, in time linear in their length."""

    def __init__(self, tokens: frozenset[str]) -> None:
        # The longest first, so that no rest of a token stays where another one is its beginning.
        ordered = sorted(tokens, key=lambda token: (-len(token), token))
        self._tokens = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        # No token may come into being where another one was taken out, so a gap stays: a character that
        # is in no token.
        self._gap = next(gap for gap in (" ", "\n", "\ufffd") if not any(gap in token for token in tokens))

    def remove(self, text: str) -> str:
        """The text with a gap in place of each control token."""
        return text if self._tokens is None else self._tokens.sub(self._gap, text)


class TemplateBuilder(Protocol):
    """Builds what the chat template writes when a chat grows. The chat so far is not rendered again."""

    def merge(
        self,
        previous: list[dict[str, Any]],
        updated: list[dict[str, Any]],
        tail: list[int],
        tools: list[dict[str, Any]],
    ) -> list[int]:
        """The last token ids of a chat and those of its new messages.

        Args:
            previous: the messages so far, the assistant's last turn included.
            updated: with the new ones.
            tail: the last ids of the chat so far, its last turn closed.
            tools: schemas that the template was given.

        Returns:
            `tail` (with some templates less what belongs to the new messages) and what the template writes
            of the new messages, up to where the assistant's next turn begins.
        """


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
    _opened: dict[bytes, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def vocab_size(self) -> int:
        """Tokens that can be sampled, added ones included. (Rows of a model beyond them are padding.)"""
        return len(self.tokenizer)

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The token ids of a chat, ending where the assistant's answer begins.

        The template alone writes control tokens: those that a message spells out (data may, or a class of
        prompts) are taken out of it.
        """
        encoded = self.tokenizer.apply_chat_template(
            [self.clean(message) for message in messages],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **({"tools": list(tools)} if tools else {}),
            **self.template_kwargs,
        )
        ids = encoded["input_ids"]
        return list(ids[0] if ids and isinstance(ids[0], list) else ids)

    def clean(self, message: Message) -> dict[str, Any]:
        """The message without spelt-out control tokens."""
        return {
            name: self.without_control_tokens(value) if isinstance(value, str) else value
            for name, value in message.items()
        }

    def turn_end(self) -> list[int]:
        """Ids that the template writes after the content of an assistant's turn. Raises ValueError: the
        template does not show the content as it is."""
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _CONTENT}]
        shown = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=False, tokenize=False, **self.template_kwargs
        )
        _, found, end = str(shown).rpartition(_CONTENT)
        if not found:
            raise ValueError(f"the chat template does not show the content {_CONTENT!r} as it is: {shown!r}")
        return list(self.tokenizer.encode(end, add_special_tokens=False))

    def raw_ids(self, text: str) -> TokenIds:
        """The ids of a text that is no turn of its own, without control tokens."""
        return token_ids(self.tokenizer.encode(self.without_control_tokens(text), add_special_tokens=False))

    def opens_thinking(self, prompt_ids: TokenIds) -> bool:
        """True if the template itself has opened a thinking block that the answer must close."""
        shown = prompt_ids[-_SHOWN:]
        key = shown.tobytes()  # of a template's prompts nearly always the same
        if key not in self._opened:
            if len(self._opened) >= _REMEMBERED:
                self._opened.clear()
            self._opened[key] = self.decode(shown).rstrip().endswith("<think>")
        return self._opened[key]

    def text(self, ids: ArrayLike) -> str:
        """The response as text, without control tokens.

        A response becomes part of other roles' prompts, where an end of turn that it contains, as a token
        or spelt out, would end the turn it is quoted in. Tags of the thinking part stay.
        """
        ends = {self.tokenizer.eos_token_id, *self.end_ids}
        return self.without_control_tokens(
            self.decode([one for one in token_ids(ids).tolist() if one not in ends])
        )

    def decode(self, ids: ArrayLike) -> str:
        """The text of token ids, control tokens included."""
        listed = token_ids(ids).tolist()
        return str(
            self.tokenizer.decode(listed, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def without_control_tokens(self, text: str) -> str:
        """The text with a gap in place of each spelt-out control token (see `control_tokens`), and without
        halves of surrogate pairs, which no tokenizer takes."""
        if self._remover is None:
            self._remover = ControlTokenRemover(control_tokens(self.tokenizer))
        return self._remover.remove(valid_unicode(text))


def sampled_text(one: Trajectory, chat: ChatTokenizer) -> str | None:
    """Text that the policy of a trajectory's one sequence chose; None where nothing else wrote in it."""
    if len(one.sequences) != 1 or one.sequences[0].response_mask.all():
        return None
    return sampled_part(one.sequences[0], one.text, chat)[1]


def sampled_part(sequence: TokenSequence, text: str, chat: ChatTokenizer) -> tuple[TokenIds, str]:
    """Ids and text that the policy chose: what tools and templates wrote is none of its style."""
    mask = sequence.response_mask.astype(bool)
    if mask.all():
        return sequence.response_ids, text
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
    return sequence.response_ids[mask], "\n".join(
        chat.text(sequence.response_ids[begin:end]) for begin, end in edges
    )


def check_builder(chat: ChatTokenizer, builder: TemplateBuilder) -> None:
    """Compares a chat that grows by a message with the template's rendering of all of it.

    What precedes the new message is not compared: some templates drop the thinking part of earlier turns,
    which a growing chat keeps.

    Raises:
        ValueError: they differ, so no conversation of several turns is possible with this template.
    """
    question: list[dict[str, Any]] = [{"role": "user", "content": "1 + 1?"}]
    answered = [*question, {"role": "assistant", "content": "It is 2."}]
    grown = [*answered, {"role": "user", "content": "And 2 + 2?"}]
    end = chat.turn_end()
    added = [*end, *builder.merge(answered, grown, list(end), [])[len(end) :]]
    rendered = chat.prompt_ids(grown)
    if rendered[-len(added) :] != added:
        raise ValueError(
            "a chat of several turns can't be continued token by token with this chat template: of "
            f"{grown} it writes {chat.decode(rendered)!r}, and after the assistant's turn alone "
            f"{chat.decode(added)!r}"
        )
