"""Checks of policies that are models of their own."""

from __future__ import annotations

from collections.abc import Iterator

from marsrl_verl.config import hf_folder
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.model import check_weights
from marsrl_verl.config.models import models, several_models
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.core.policy import PolicyKind
from marsrl_verl.settings.choices import DefaultPolicy
from marsrl_verl.settings.issues import ConfigIssue

_PATH, _RANK = "actor_rollout_ref.model.path", "actor_rollout_ref.model.lora_rank"
_TEMPLATE = "actor_rollout_ref.model.custom_chat_template"
_NODES = "actor_rollout_ref.rollout.nnodes"
_USUAL = "marsrl.default_policy"


def check_models(ctx: Context) -> Iterator[ConfigIssue]:
    """What does not go with models of policies' own."""
    settings, rollout = ctx.settings, ctx.config.actor_rollout_ref.rollout
    if int(ctx.get(_RANK) or 0) > 0:
        keys = [
            f"marsrl.policies.{name}.kind"
            for name, one in settings.policies.items()
            if one.kind is PolicyKind.MODEL
        ]
        keys += [_USUAL] if settings.default_policy is DefaultPolicy.MODEL_PER_ROLE else []
        what = f"With {_RANK} above 0 every trained policy is an adapter on one model."
        for key in keys:
            yield ctx.issue(key, what, f"Set {_RANK}=0, or choose policies=lora_per_role.")
    elif several_models(rollout):
        if own_pool_gpus(rollout):
            what = (
                f"Engines with GPUs of their own serve one model, and this run trains {len(models(rollout))}."
            )
            fix = "Choose pipeline=overlapped or pipelined, or adapters on one model: policies=lora_per_role."
            yield ctx.issue(_NODES, what, fix)
        name = settings.policy_of(ctx.first_role)
        path = models(rollout).get(name, str(ctx.get(_PATH)))
        if ctx.prepares_data and path != str(ctx.get(_PATH)):
            what = f"Data are prepared with the model that answers problems, the {ctx.first_role}'s."
            yield ctx.issue(_key(name), what, f"Leave it out here, and set {_PATH}={path}.")
    else:
        for name, path in models(rollout).items():
            if path != str(ctx.get(_PATH)):
                what = "It is the only model of the run, whose path another key names."
                fix = f"Leave it out, and set {_PATH}={path}."
                yield ctx.issue(_key(name), what, fix)


def check_model_files(ctx: Context) -> Iterator[ConfigIssue]:
    """The folders of other models than the run's first, and whether they speak in the same tokens."""
    for name, path in models(ctx.config.actor_rollout_ref.rollout).items():
        if path != str(ctx.get(_PATH)):
            yield from check_weights(ctx, _key(name), path)
            yield from _check_tokens(ctx, name, path)


def _check_tokens(ctx: Context, name: str, path: str) -> Iterator[ConfigIssue]:
    own = str(ctx.get("actor_rollout_ref.model.tokenizer_path") or ctx.get(_PATH))
    ours, theirs = hf_folder.local_folder(own), hf_folder.local_folder(path)
    if ours is None or theirs is None:
        ctx.notes.append(f"whether {path} ({_key(name)}) has the tokenizer of {own}: not both are here.")
    elif not hf_folder.same_tokens(ours, theirs):
        what = f"Its tokenizer differs from that of {own}, in whose tokens all prompts are written."
        fix = "Use a model with the same tokenizer; save that one's files into its folder if it has none."
        yield ctx.issue(_key(name), what, fix)
    elif not ctx.get(_TEMPLATE) and hf_folder.chat_template(theirs) not in (
        None,
        hf_folder.chat_template(ours),
    ):
        ctx.warnings.append(
            f"{path} ({_key(name)}) has a chat template of its own; it is prompted with that of {own} "
            f"({_TEMPLATE} names one for all)"
        )


def _key(name: str) -> str:
    return f"marsrl.policies.{name}.model.path"
