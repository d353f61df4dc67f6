"""The longest prompt that each role can be given, against its limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marsrl_verl.config.light_tokenizer import LightTokenizer
from marsrl_verl.core.prompts import PromptShape
from marsrl_verl.core.request import Message
from marsrl_verl.settings.declaration import RoleSampling

_CHARACTERS_PER_TOKEN = 4
"""Rough size of a token of English text, used where there is no tokenizer."""


@dataclass(frozen=True, slots=True)
class RoleBudget:
    """One role's prompts in tokens."""

    role: str
    fixed: int
    """Chat template and wording, without the problem and other roles' responses."""
    longest: int
    """The longest that can come up: every earlier answer at its limit."""
    limit: int
    """`max_prompt_tokens`."""
    parts: str
    """Summands of `longest`, in words."""
    unknown: tuple[str, ...]
    """Texts of the data's rows that `longest` leaves out, since no data was read."""
    measured: bool
    """True when `fixed` and the problem were counted by the model's tokenizer."""

    @property
    def fits(self) -> bool:
        """True if no prompt can exceed the limit."""
        return self.longest <= self.limit and not self.unknown


def text_tokens(counter: LightTokenizer | None, text: str) -> int:
    """Tokens of plain text; computed from its characters without a counter."""
    return _rough_text(text) if counter is None else counter.text(text)


def plan_prompts(
    shapes: Sequence[PromptShape],
    roles: Mapping[str, RoleSampling],
    counter: LightTokenizer | None,
    longest_question: str,
    elsewhere: Mapping[str, int] | None = None,
    row_texts: Mapping[str, str] | None = None,
    openings: Mapping[str, tuple[Sequence[Message], Sequence[Message]]] | None = None,
) -> list[RoleBudget]:
    """The budget of every role whose prompts the method describes, the first one's first.

    Args:
        shapes: `Method.prompt_shapes`.
        roles: the limits.
        counter: None where the model is not here; sizes are then computed from characters.
        longest_question: of the data; empty when unknown, the first role's limit then stands for it.
        elsewhere: tokens of the longest response of a role that another model plays.
        row_texts: the longest texts of the data's rows that prompts show beside the question; one that is not
            there is unknown.
        openings: by role that reads the whole chat of the data, its prompt of the longest problem, and
            without one (`Method.opening_prompts`); the others read the question.
    """
    chat, text = (counter.chat, counter.text) if counter is not None else (_rough_chat, _rough_text)
    fixed = {one.role: chat(one.wording) for one in shapes}
    responses = {role: one.max_new_tokens for role, one in roles.items()} | dict(elsewhere or {})
    first = shapes[0].role
    question = text(longest_question) if longest_question else roles[first].max_prompt_tokens - fixed[first]
    whole = {role: chat(asked) - chat(bare) for role, (asked, bare) in (openings or {}).items()}
    budgets = []
    for one in (shape for shape in shapes if shape.role in roles):
        shown = {
            name: one.max_tokens.get(name, max(responses.get(writer, 0) for writer in writers))
            for name, writers in one.shown.items()
        }
        known = row_texts or {}
        given = {name: text(known[name]) for name in one.row_texts if name in known}
        # A prompt with texts of its row has them in it, which are counted apart.
        problem = question if one.row_texts else whole.get(one.role, question)
        parts = [f"wording {fixed[one.role]:,}", f"problem {problem:,}"]
        budgets.append(
            RoleBudget(
                role=one.role,
                fixed=fixed[one.role],
                longest=fixed[one.role] + problem + sum(given.values()) + sum(shown.values()),
                limit=roles[one.role].max_prompt_tokens,
                parts=" + ".join([*parts, *(f"{name} {count:,}" for name, count in (given | shown).items())]),
                unknown=tuple(name for name in one.row_texts if name not in known),
                measured=counter is not None,
            )
        )
    return budgets


def _rough_text(text: str) -> int:
    return -(-len(text) // _CHARACTERS_PER_TOKEN)


def _rough_chat(messages: Sequence[Message]) -> int:
    return sum(_rough_text(message["content"]) + 4 for message in messages) + 4
