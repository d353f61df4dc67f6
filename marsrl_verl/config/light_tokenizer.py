"""A model's tokenizer and chat template as transformers has them, without its import, which takes seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marsrl_verl.config import hf_folder
from marsrl_verl.core.request import Message
from marsrl_verl.core.sanitize import valid_unicode


class LightTokenizer:
    """Those parts of a model's tokenizer that `rollout.chat_tokenizer.ChatTokenizer` asks for, and the
    numbers of tokens under the model's own template."""

    def __init__(self, folder: Path, template_arguments: dict[str, Any] | None = None) -> None:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer

        self.chat_template = hf_folder.chat_template(folder)
        if self.chat_template is None:
            raise ValueError(f"{folder} has no chat template")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise
        environment.filters["tojson"] = _to_json
        self._template = environment.from_string(self.chat_template)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        named = _special_tokens(folder)
        self._arguments = {**named, **(template_arguments or {})}
        self.all_special_tokens = tuple(named.values())
        self.added_tokens_decoder: Mapping[int, Any] = self._tokenizer.get_added_tokens_decoder()
        end = named.get("eos_token")
        self.eos_token_id: int | None = None if end is None else self._tokenizer.token_to_id(end)
        self.name_or_path = str(folder)

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool = False,
        tools: Any = None,
        **arguments: Any,
    ) -> Any:
        """The chat as text, or as token ids."""
        text = self._render(messages, add_generation_prompt, tools)
        return {"input_ids": self.encode(text)} if tokenize else text

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], **_options: Any) -> str:
        """The text of token ids, control tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def text(self, text: str) -> int:
        """Tokens of plain text."""
        return len(self.encode(valid_unicode(text)))

    def chat(self, messages: Sequence[Message], enough: int = 0) -> int:
        """Tokens of a chat up to where the answer begins; below `enough` a bound will do, which spares most
        of the time."""
        rendered = self._render(messages)
        if rendered.isascii() and len(rendered) < enough:
            return len(rendered)  # no token is less than a character
        return self.text(rendered)

    def _render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, tools: Any = None
    ) -> str:
        given = {**self._arguments, "messages": list(messages), "tools": tools}
        return str(self._template.render(**given, add_generation_prompt=add_generation_prompt))


def open_tokenizer(folder: Path | None, arguments: dict[str, Any] | None = None) -> LightTokenizer | None:
    """Opens the fast tokenizer of a model folder; None without one, or without a chat template."""
    if folder is None or not (folder / "tokenizer.json").is_file() or hf_folder.chat_template(folder) is None:
        return None
    return LightTokenizer(folder, arguments)


def _special_tokens(folder: Path) -> dict[str, str]:
    """`bos_token` and the like, which templates may write."""
    named = hf_folder.tokenizer_config(folder).items()
    texts = {name: one.get("content") if isinstance(one, dict) else one for name, one in named}
    return {name: text for name, text in texts.items() if name.endswith("_token") and isinstance(text, str)}


def _raise(message: str) -> None:
    raise ValueError(f"the chat template refuses the chat: {message}")


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=options.get("indent"))
