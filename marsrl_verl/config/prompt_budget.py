"""The longest prompt that each role can be given, against its limit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marsrl_verl.config import hf_folder
from marsrl_verl.core.inert_text import valid_unicode
from marsrl_verl.core.prompts import PromptShape
from marsrl_verl.core.request import Message
from marsrl_verl.settings.declaration import RoleSampling

_CHARACTERS_PER_TOKEN = 4
"""Rough size of a token of English text, used where there is no tokenizer."""


class TokenCounter:
    """Counts the tokens of a chat under a model's own template and tokenizer."""

    def __init__(self, folder: Path, template_arguments: dict[str, Any] | None = None) -> None:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer

        template = hf_folder.chat_template(folder)
        if template is None:
            raise ValueError(f"{folder} has no chat template")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise
        environment.filters["tojson"] = _to_json
        self._template = environment.from_string(template)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._arguments = {**special_tokens(folder), **(template_arguments or {})}

    def text(self, text: str) -> int:
        """Tokens of plain text."""
        return len(self.tokenizer.encode(valid_unicode(text), add_special_tokens=False).ids)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, tools: Any = None
    ) -> str:
        """A chat as the template writes it."""
        given = {**self._arguments, "messages": list(messages), "tools": tools}
        return str(self._template.render(**given, add_generation_prompt=add_generation_prompt))

    def chat(self, messages: Sequence[Message], enough: int = 0) -> int:
        """Tokens of a chat up to where the answer begins.

        Args:
            enough: below this number a bound will do, which spares most of the time.
        """
        rendered = self.render(messages)
        if rendered.isascii() and len(rendered) < enough:
            return len(rendered)  # no token is less than a character
        return self.text(rendered)


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
    """What `longest` is the sum of."""
    unknown: tuple[str, ...]
    """Texts of the data's rows that `longest` leaves out, since no data was read."""
    measured: bool
    """True when `fixed` and the problem were counted by the model's tokenizer."""

    @property
    def fits(self) -> bool:
        """Whether no prompt can exceed the limit."""
        return self.longest <= self.limit and not self.unknown


def open_counter(folder: Path | None, arguments: dict[str, Any] | None = None) -> TokenCounter | None:
    """A counter for a model folder with a fast tokenizer; None without one."""
    if folder is None or not (folder / "tokenizer.json").is_file() or hf_folder.chat_template(folder) is None:
        return None
    return TokenCounter(folder, arguments)


def text_tokens(counter: TokenCounter | None, text: str) -> int:
    """Tokens of plain text; computed from its characters without a counter."""
    return _rough_text(text) if counter is None else counter.text(text)


def plan_prompts(
    shapes: Sequence[PromptShape],
    roles: Mapping[str, RoleSampling],
    counter: TokenCounter | None,
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
            name: one.most_tokens.get(name, max(responses.get(writer, 0) for writer in writers))
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


def special_tokens(folder: Path) -> dict[str, str]:
    """`bos_token` and the like, which templates may write."""
    named = hf_folder.tokenizer_config(folder).items()
    texts = {name: one.get("content") if isinstance(one, dict) else one for name, one in named}
    return {name: text for name, text in texts.items() if name.endswith("_token") and isinstance(text, str)}


def _raise(message: str) -> None:
    raise ValueError(f"the chat template refuses the chat: {message}")


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=options.get("indent"))
