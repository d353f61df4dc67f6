"""The tool task's tokenizer: two digits are a token, and so are tags, syllables and fixed phrases.

Tags of the tag protocol are ordinary words, those of tool calls added tokens that are not special, as in
Qwen's tokenizers. Any ASCII text survives encoding and decoding unchanged.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from studies.tiny.tokenizer import END, PAD, UNKNOWN, alternatives, assemble
from studies.toy_tasks.tool_task.problems import ATTRIBUTES, PYTHON, SEARCH, SYLLABLES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ROLE_MARKERS = {role: f"<|{role}|>" for role in ("system", "user", "assistant", "tool")}
SPECIALS = (PAD, END, UNKNOWN, *ROLE_MARKERS.values())
CALL_TAGS = ("<tool_call>", "</tool_call>")
TAGS = tuple(
    f"<{slash}{name}>" for name in ("think", SEARCH, PYTHON, "result", "answer") for slash in ("", "/")
)
LOOK_UP, COMPUTE, AGAIN, ANSWER, GUESS = "look up", "compute", "again", "answer", "guess"
THOUGHTS = (LOOK_UP, COMPUTE, AGAIN, ANSWER, GUESS)
"""What the policy thinks before it acts: all there is to decide."""
SEARCH_CALL, PYTHON_CALL = (
    f'{{"name": "{tool}", "arguments": {{"{argument}": "'
    for tool, argument in ((SEARCH, "query"), (PYTHON, "code"))
)
CALL_END = '"}}'
WORDS = (
    *TAGS,
    *THOUGHTS,
    *(f"{attribute} " for attribute in ATTRIBUTES),
    SEARCH_CALL,
    PYTHON_CALL,
    CALL_END,
    "Compute ",
    "What is ",
    "the ",
    "of ",
    " times ",
    "print(",
    "\\boxed{",
    "Page 1 (",
    "): ",
    ", ",
    "see ",
    *SYLLABLES,
    *(syllable.capitalize() for syllable in SYLLABLES),
)
_CHARACTERS = tuple(dict.fromkeys(string.digits + string.printable))
_NUMBERS = tuple(f"{number:02d}" for number in range(100))
"""Facts and factors are a token each; of a product two digits are, from the left."""

CHAT_TEMPLATE = (
    "{%- if tools -%}"
    "{{- '<|system|>' -}}"
    "{%- for tool in tools -%}{{- tool['function']['name'] + ' ' -}}{%- endfor -%}"
    "{{- '<tool_call></tool_call><|end|>' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
"""Tools are told by their names: what they take is learnt in the warm start."""


def vocabulary() -> dict[str, int]:
    """Every token with its id."""
    return {
        token: index for index, token in enumerate((*SPECIALS, *CALL_TAGS, *_CHARACTERS, *_NUMBERS, *WORDS))
    }


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer as transformers knows it, chat template included."""
    return assemble(
        vocabulary(), rf"{alternatives(WORDS)}|[0-9]{{2}}", ROLE_MARKERS, CHAT_TEMPLATE, CALL_TAGS
    )
