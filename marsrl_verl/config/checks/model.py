"""Checks of the model folder and of the model's shape against the settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marsrl_verl.config import hf_folder
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.model_shapes import largest_weight
from marsrl_verl.settings.issues import ConfigIssue

_MODEL, _ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
_KEY, _TEMPLATE = f"{_MODEL}.path", f"{_MODEL}.custom_chat_template"
_SPLIT = (
    f"{_ROLLOUT}.tensor_model_parallel_size",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
)
_BUCKET = f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
_TRAINED_DTYPE = "actor_rollout_ref.actor.fsdp_config.dtype"
_SMALLEST_CPU_HEAD = 32
_TINY_PROMPTS = "marsrl_verl.demo.prompts:TinyPrompts"
_LARGEST_TINY_VOCABULARY = 1000


def check_model_folder(ctx: Context) -> Iterator[ConfigIssue]:
    """The folder with configuration, weights, tokenizer and chat template, or a hub id."""
    path = str(ctx.get(_KEY) or "")
    folder = Path(path).expanduser()
    if not path:
        fix = f"Set {_KEY}=folder, or a hub id organisation/name."
        yield ConfigIssue(_KEY, "No model is named.", fix, path)
        return
    yield from check_weights(ctx, _KEY, path)
    if folder.is_dir() and not hf_folder.is_hub_id(path):
        yield from _check_tokenizer(ctx, folder)


def check_weights(ctx: Context, key: str, path: str) -> Iterator[ConfigIssue]:
    """The folder with configuration and weights that a key names, or a hub id."""
    folder = Path(path).expanduser()
    if "://" in path:
        ctx.notes.append(f"{path} lies on another file system: not looked at.")
    elif hf_folder.is_hub_id(path):
        yield from _check_hub(ctx, key, path)
    elif not folder.is_dir():
        fix = "Give a model's folder, or a hub id organisation/name."
        yield ctx.issue(key, "There is no such folder.", fix)
    else:
        if not (folder / "config.json").is_file():
            fix = "Give a folder in Hugging Face's layout."
            yield ctx.issue(key, "The folder has no config.json.", fix)
        if not hf_folder.has_weights(folder):
            what = "The folder has no weights (*.safetensors)."
            yield ctx.issue(key, what, "Save the model's weights into it.")


def _check_tokenizer(ctx: Context, folder: Path) -> Iterator[ConfigIssue]:
    own = f"{_MODEL}.tokenizer_path"
    key, place = (own, Path(str(ctx.get(own))).expanduser()) if ctx.get(own) else (_KEY, folder)
    if not place.is_dir() or not hf_folder.has_tokenizer(place):
        what = "The folder has no tokenizer (tokenizer.json or the like)."
        yield ConfigIssue(key, what, f"Save the tokenizer into it, or name its folder in {own}.", place)
    elif hf_folder.chat_template(place) is None and not ctx.get(_TEMPLATE):
        what = "The tokenizer has no chat template, so the roles can't be prompted."
        yield ConfigIssue(key, what, f"Use a chat model, or set {_TEMPLATE}.", place)


def _check_hub(ctx: Context, key: str, hub_id: str) -> Iterator[ConfigIssue]:
    if hf_folder.hub_snapshot(hub_id) is not None:
        return
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    if offline and not ctx.dry_run:
        what = "The model is not in the local cache, and HF_HUB_OFFLINE forbids downloading it."
        yield ctx.issue(key, what, f"Download it first, or set {key} to its folder.")
        return
    ctx.notes.append(
        f"{hub_id} is not here yet: its files are downloaded when the run starts, not checked now."
    )


def check_model_shape(ctx: Context) -> Iterator[ConfigIssue]:
    """Context length, attention heads and vocabulary of a local model against the settings."""
    try:
        shape = ctx.read_model_config() or {}
    except ValueError as error:
        what = f"config.json can't be read: {error}."
        yield ConfigIssue(_KEY, what, "Repair or replace the file.", ctx.model_folder())
        return
    vocabulary = shape.get("vocab_size")
    tiny = isinstance(vocabulary, int) and vocabulary <= _LARGEST_TINY_VOCABULARY
    if ctx.settings.prompts.target == _TINY_PROMPTS and not tiny:
        response_tokens = ctx.settings.roles[ctx.first_role].max_new_tokens
        what = (
            "It would be prompted with the tiny task's prompts (a role's instructions are one word) and "
            f"have {response_tokens} tokens for an answer."
        )
        lengths = "data.max_prompt_length=… and data.max_response_length=…"
        fix = f"Add model=custom, {lengths} (docs/guides/models.md)."
        yield ctx.issue(_KEY, what, fix)
    longest, key = shape.get("max_position_embeddings"), f"{_ROLLOUT}.max_model_len"
    if isinstance(longest, int) and isinstance(ctx.get(key), int) and ctx.get(key) > longest:
        what = f"The model takes at most {longest} tokens (max_position_embeddings)."
        yield ctx.issue(key, what, "Lower the roles' max_prompt_tokens and max_new_tokens (marsrl.roles).")
    yield from _check_bucket(ctx, shape)
    heads, hidden = shape.get("num_attention_heads"), shape.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        return
    for key in _SPLIT:
        if ctx.get(key) > 0 and heads % int(ctx.get(key)):
            what = f"The model's {heads} attention heads can't be split so."
            yield ctx.issue(key, what, "Set it to a divisor.")
    head = shape.get("head_dim") or hidden // heads
    if ctx.on_cpu and head < _SMALLEST_CPU_HEAD:
        what = f"Its attention heads have size {head}; vLLM on the CPU needs {_SMALLEST_CPU_HEAD} or more."
        yield ctx.issue(_KEY, what, "Use a model with larger heads, or a GPU.")


def _check_bucket(ctx: Context, shape: Mapping[str, Any]) -> Iterator[ConfigIssue]:
    """verl sends each weight to the engine whole; it finds out after the model has been loaded."""
    size = 4 if str(ctx.get(_TRAINED_DTYPE)) in ("float32", "fp32") else 2
    needed = -(-size * largest_weight(shape) // (1 << 20))
    if ctx.get(_BUCKET) < needed:
        what = f"The model's largest weight has {needed} MiB, and each must fit into the bucket."
        yield ctx.issue(_BUCKET, what, f"Leave it out, or set it to {needed} or more.")
