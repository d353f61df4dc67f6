"""verl's continuous-token builder behind `marsrl_verl.rollout.chat_tokenizer.TemplateBuilder`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, check_builder

_BEFORE: list[dict[str, Any]] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]


@dataclass(frozen=True, slots=True)
class ChatTemplateBuilder:
    """Writes new messages as a model's chat template does, token by token. Upstream behaviour: the builder
    renders a user's message after a system's and a user's of its own, which a template that wants roles to
    alternate rejects; such a message is rendered after an assistant's turn. It reads a chat's last ids alone,
    and decides itself which of them it drops (GLM: a sampled token that belongs to the next turn)."""

    builder: Any
    """verl's `ContinuousTokenBuilder`."""

    @classmethod
    def of(cls, chat: ChatTokenizer) -> ChatTemplateBuilder:
        """The builder of a tokenizer's model; ValueError: its template lets no chat grow token by token."""
        kind, kwargs = model_type(chat.tokenizer.name_or_path), chat.template_kwargs
        try:
            made = create_continuous_token_builder(
                chat.tokenizer, hf_model_type=kind, chat_template_kwargs=kwargs
            )
        except ValueError:  # a model of this type with another tokenizer (DeepSeek-R1-Distill-Qwen)
            made = create_continuous_token_builder(
                chat.tokenizer, model_family="default", chat_template_kwargs=kwargs
            )
        found = cls(made)
        check_builder(chat, found)
        return found

    def merge(
        self,
        previous: list[dict[str, Any]],
        updated: list[dict[str, Any]],
        tail: list[int],
        tools: list[dict[str, Any]],
    ) -> list[int]:
        """See `TemplateBuilder`."""
        try:
            merged = self.builder.merge_context_tokens(previous, updated, tail, tools=tools or None)
            return list(merged.token_ids)
        except (TemplateError, TypeError, ValueError):
            # A template whose roles must alternate rejects verl's rendering of a user's turn after two others
            # (and fails when verl then gives it the content as a list).
            added = updated[len(previous) :]
            if [message["role"] for message in added] != ["user"]:
                raise
            delta = self.builder.render_delta_token_id(
                _BEFORE, added, add_generation_prompt=True, tools=tools or None
            )
            return [*tail, *delta]


def model_type(folder: str) -> str | None:
    """The model's type according to its `config.json`; None without one."""
    from transformers import PretrainedConfig

    try:
        found, _ = PretrainedConfig.get_config_dict(folder)
    except OSError:
        return None
    name = found.get("model_type")
    return None if name is None else str(name)
