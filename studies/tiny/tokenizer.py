"""The tiny task's tokenizer: numbers, signed terms and the words of the protocol are single tokens.

Every printable ASCII character is a token of its own; numbers from 10 to 99, terms from `+1` to `-9`
and the words below are longer tokens, so any ASCII text survives encoding and decoding unchanged and
a worked solution stays short. A term is one token so that the next term of a problem is found by its
predecessor, which two attention heads learn quickly. Other characters become `<|unk|>`.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unk|>"
ROLE_MARKERS = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIALS = (PAD, END, UNKNOWN, *ROLE_MARKERS.values())

WORDS = (
    "Compute ",
    "Verify",
    "Correct the solution:",
    "\\boxed{",
    " vs ",
    " ok",
    " bad",
    "Correctness:",
    " Correct",
    " Wrong",
)
"""The words of the protocol, each one token."""

_CHARACTERS = tuple(dict.fromkeys(string.digits + "+-=}\n" + string.printable))
_NUMBERS = tuple(str(number) for number in range(10, 100))
_TERMS = tuple(f"{sign}{digit}" for sign in "+-" for digit in range(1, 10))
_NUMBER_OR_TERM = r"[1-9][0-9]|[+-][1-9](?![0-9])"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def vocabulary(words: Sequence[str] = WORDS) -> dict[str, int]:
    """Every token with its id; `words` are those of a task's protocol."""
    return {token: index for index, token in enumerate((*SPECIALS, *_CHARACTERS, *_NUMBERS, *_TERMS, *words))}


def build_tokenizer(words: Sequence[str] = WORDS) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers knows it, chat template included; `words` as in `vocabulary`."""
    return assemble(
        vocabulary(words), f"{alternatives(words)}|{_NUMBER_OR_TERM}", ROLE_MARKERS, CHAT_TEMPLATE
    )


def alternatives(words: Iterable[str]) -> str:
    """A regular expression of the words, the longest first."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def assemble(
    ids: Mapping[str, int],
    words: str,
    role_markers: Mapping[str, str],
    chat_template: str,
    added: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """A tokenizer of words and characters.

    Args:
        ids: every token's.
        words: a regular expression of the tokens that are longer than a character.
        role_markers: the special tokens that begin a message, by role.
        chat_template: as transformers has it.
        added: tokens that are found before any word, and are not special.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(dict(ids), unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{words}|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    specials = (PAD, END, UNKNOWN, *role_markers.values())
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=list(role_markers.values()),
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
        padding_side="left",
    )


def save_tokenizer(folder: str | Path, tokenizer: PreTrainedTokenizerFast | None = None) -> None:
    """Writes a tokenizer's files into a model folder; the tiny task's where none is given.

    The chat template goes into `tokenizer_config.json` as well as into its own file, so that readers
    which know only one of the two places find it; the class is named as every release of transformers
    knows it.
    """
    tokenizer = tokenizer or build_tokenizer()
    tokenizer.save_pretrained(folder)
    path = Path(folder) / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = tokenizer.chat_template
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n")
