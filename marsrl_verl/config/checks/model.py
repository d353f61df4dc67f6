"""Checks of the model folder and of the model's shape against the settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from marsrl_verl.config import hf_folder
from marsrl_verl.config.checks.context import Context
from marsrl_verl.settings.issues import ConfigIssue

_KEY = "actor_rollout_ref.model.path"
_SMALLEST_CPU_HEAD = 32
_TINY_PROMPTS = "marsrl_verl.demo.prompts:TinyPrompts"
_LARGEST_TINY_VOCABULARY = 1000


def check_model_folder(ctx: Context) -> list[ConfigIssue]:
    """The folder with configuration, weights, tokenizer and chat template, or a hub id."""
    path = str(ctx.get(_KEY) or "")
    if not path:
        return [
            ConfigIssue(
                _KEY, "No model is named.", f"Set {_KEY}=folder, or a hub id organisation/name.", path
            )
        ]
    if "://" in path:
        ctx.notes.append(f"{path} lies on another file system: not looked at.")
        return []
    folder = Path(path).expanduser()
    if hf_folder.is_hub_id(path):
        return _check_hub(ctx, path)
    if not folder.is_dir():
        return [
            ConfigIssue(
                _KEY,
                "There is no such folder.",
                "Give a model's folder, or a hub id organisation/name.",
                path,
            )
        ]
    problems: list[ConfigIssue] = []
    if not (folder / "config.json").is_file():
        problems.append(
            ConfigIssue(
                _KEY, "The folder has no config.json.", "Give a folder in Hugging Face's layout.", path
            )
        )
    if not hf_folder.has_weights(folder):
        problems.append(
            ConfigIssue(
                _KEY, "The folder has no weights (*.safetensors).", "Save the model's weights into it.", path
            )
        )
    return problems + _check_tokenizer(ctx, folder)


def _check_tokenizer(ctx: Context, folder: Path) -> list[ConfigIssue]:
    key, place = _KEY, folder
    separate = ctx.get("actor_rollout_ref.model.tokenizer_path")
    if separate:
        key, place = "actor_rollout_ref.model.tokenizer_path", Path(str(separate)).expanduser()
    if not place.is_dir() or not hf_folder.has_tokenizer(place):
        return [
            ConfigIssue(
                key,
                "The folder has no tokenizer (tokenizer.json or the like).",
                "Save the tokenizer into it, or name its folder in actor_rollout_ref.model.tokenizer_path.",
                place,
            )
        ]
    if hf_folder.chat_template(place) is None and not ctx.get("actor_rollout_ref.model.custom_chat_template"):
        return [
            ConfigIssue(
                key,
                "The tokenizer has no chat template, so the roles can't be asked.",
                "Use a chat model, or set actor_rollout_ref.model.custom_chat_template.",
                place,
            )
        ]
    return []


def _check_hub(ctx: Context, hub_id: str) -> list[ConfigIssue]:
    if hf_folder.hub_snapshot(hub_id) is not None:
        return []
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    if offline and not ctx.dry_run:
        return [
            ConfigIssue(
                _KEY,
                "The model is not in the local cache, and HF_HUB_OFFLINE forbids downloading it.",
                f"Download it first, or set {_KEY} to its folder.",
                hub_id,
            )
        ]
    ctx.notes.append(
        f"{hub_id} is not here yet: its files are downloaded when the run starts, not checked now."
    )
    return []


def check_tiny_world(ctx: Context) -> list[ConfigIssue]:
    """The tiny world's prompts and lengths belong to models with its few dozen tokens."""
    if ctx.settings.prompts.target != _TINY_PROMPTS:
        return []
    folder = ctx.model_folder()
    if folder is not None and (folder / "config.json").is_file():
        try:
            vocabulary = hf_folder.read_config(folder).get("vocab_size")
        except ValueError:
            return []  # reported by the check of the model's shape
        if isinstance(vocabulary, int) and vocabulary <= _LARGEST_TINY_VOCABULARY:
            return []
    longest = ctx.settings.roles[ctx.first_role].max_new_tokens
    return [
        ConfigIssue(
            _KEY,
            f"It would be asked with the tiny world's prompts (a role's instructions are one word) and "
            f"have {longest} tokens for a solution.",
            "Add model=custom, data.max_prompt_length=… and data.max_response_length=… (docs/own_model.md).",
            ctx.get(_KEY),
        )
    ]


def check_model_shape(ctx: Context) -> list[ConfigIssue]:
    """Context length, attention heads and vocabulary of a local model against the settings."""
    folder = ctx.model_folder()
    if folder is None or not (folder / "config.json").is_file():
        return []
    try:
        shape = hf_folder.read_config(folder)
    except ValueError as error:
        return [
            ConfigIssue(_KEY, f"config.json can't be read: {error}.", "Repair or replace the file.", folder)
        ]
    return [*_check_context(ctx, shape), *_check_heads(ctx, shape)]


def _check_context(ctx: Context, shape: dict[str, Any]) -> list[ConfigIssue]:
    longest, limit = shape.get("max_position_embeddings"), ctx.get("actor_rollout_ref.rollout.max_model_len")
    overridden = (ctx.get("actor_rollout_ref.model.override_config") or {}).get("max_position_embeddings")
    longest = overridden or longest
    if not isinstance(longest, int) or not isinstance(limit, int) or limit <= longest:
        return []
    return [
        ConfigIssue(
            "actor_rollout_ref.rollout.max_model_len",
            f"The model takes at most {longest} tokens (max_position_embeddings).",
            "Lower the roles' max_prompt_tokens and max_new_tokens (marsrl.roles).",
            limit,
        )
    ]


def _check_heads(ctx: Context, shape: dict[str, Any]) -> list[ConfigIssue]:
    heads, hidden = shape.get("num_attention_heads"), shape.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        return []
    problems: list[ConfigIssue] = []
    for key in (
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
        "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
    ):
        parts = ctx.get(key)
        if isinstance(parts, int) and parts > 0 and heads % parts:
            problems.append(
                ConfigIssue(
                    key,
                    f"The model's {heads} attention heads can't be split so.",
                    "Set it to a divisor.",
                    parts,
                )
            )
    head = shape.get("head_dim") or hidden // heads
    if ctx.on_cpu and head < _SMALLEST_CPU_HEAD:
        problems.append(
            ConfigIssue(
                _KEY,
                f"Its attention heads have size {head}; vLLM on the CPU needs {_SMALLEST_CPU_HEAD} or more.",
                "Use a model with larger heads, or a GPU.",
                ctx.get(_KEY),
            )
        )
    return problems
