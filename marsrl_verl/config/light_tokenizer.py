"""A model's tokenizer and chat template as transformers has them, without its import, which takes seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marsrl_verl.config import hf_folder
from marsrl_verl.config.prompt_budget import TokenCounter, special_tokens


class LightTokenizer:
    """Those parts of a model's tokenizer that `rollout.chat_tokenizer.ChatTokenizer` asks for."""

    def __init__(self, folder: Path, counter: TokenCounter) -> None:
        self._counter = counter
        self.chat_template = hf_folder.chat_template(folder)
        named = special_tokens(folder)
        self.all_special_tokens = tuple(named.values())
        self.added_tokens_decoder: Mapping[int, Any] = counter.tokenizer.get_added_tokens_decoder()
        end = named.get("eos_token")
        self.eos_token_id: int | None = None if end is None else counter.tokenizer.token_to_id(end)
        self.name_or_path = str(folder)

    def __len__(self) -> int:
        return int(self._counter.tokenizer.get_vocab_size())

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
        text = self._counter.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        return {"input_ids": self.encode(text)} if tokenize else text

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text."""
        return list(self._counter.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], **_options: Any) -> str:
        """The text of token ids, control tokens included."""
        return str(self._counter.tokenizer.decode(list(ids), skip_special_tokens=False))
