"""Checks of policies: each role has one, each is somebody's; adapters, and models of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from marsrl_verl.config import hf_folder
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.model import check_weights
from marsrl_verl.config.checks.refused import refuses
from marsrl_verl.config.models import models, several_models
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.core.policy import SHARED, PolicyKind
from marsrl_verl.rollout.runner import find_workflow
from marsrl_verl.settings.choices import DefaultPolicy
from marsrl_verl.settings.issues import ConfigIssue, did_you_mean
from marsrl_verl.settings.reading import no_such_choice

_NODE = "marsrl.policies"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_MODEL = "actor_rollout_ref.model"
_PATH, _RANK, _TEMPLATE = f"{_MODEL}.path", f"{_MODEL}.lora_rank", f"{_MODEL}.custom_chat_template"
_TARGETS, _ALL_LINEAR = f"{_MODEL}.target_modules", "all-linear"


def check_policies(ctx: Context) -> Iterator[ConfigIssue]:
    """Names on both sides."""
    settings = ctx.settings
    for name, policy in settings.policies.items():
        if name == SHARED or not _NAME.fullmatch(name):
            taken = "The model's own policy has this name."
            what = taken if name == SHARED else "Folders and adapters are named by it."
            fix = "Choose another of letters, digits, - and _."
            yield ConfigIssue(f"{_NODE}.{name}.kind", what, fix, policy.kind)
    known = (SHARED, *settings.policies)
    for role, one in settings.roles.items():
        if one.policy is not None and one.policy not in known:
            what = f"There is no such policy in {_NODE}."
            yield no_such_choice(f"marsrl.roles.{role}.policy", one.policy, known, what)
    used = {settings.policy_of(role) for role in settings.roles}
    for name, policy in settings.policies.items():
        if name not in used:
            what = "No role names it, so it has no effect."
            fix = f"Set marsrl.roles.<role>.policy={name}, or leave it out."
            yield ConfigIssue(f"{_NODE}.{name}.kind", what, fix, policy.kind)


def check_rates(ctx: Context) -> Iterator[ConfigIssue]:
    """Learning rates of roles belong to policies that are trained, one to each."""
    settings, common = ctx.settings, "actor_rollout_ref.actor.optim.lr"
    sharing: dict[str, list[str]] = {}
    for role in settings.roles:
        sharing.setdefault(settings.policy_of(role), []).append(role)
    stages = [stage for stage in ctx.method.stages(settings.algo) if stage.trained]
    writers = {role for stage in stages for role in stage.written_by(ctx.frozen_roles)}
    trained = {name for name, roles in sharing.items() if not writers.isdisjoint(roles)}
    rates = {settings.policy_of(role) for role, one in settings.roles.items() if one.lr is not None}
    if (left := sorted(trained - rates)) and ctx.get(common) == 0 and not ctx.get("trainer.val_only"):
        whose = f" of {', '.join(left)}" if trained & rates else ""
        ctx.notes.append(
            f"{common} is 0: the weights{whose} stay as they are. To evaluate alone set "
            "trainer.val_only=true."
        )
    for role, one in settings.roles.items():
        if one.lr is None:
            continue
        key, policy = f"marsrl.roles.{role}.lr", settings.policy_of(role)
        beside = [other for other in sharing[policy] if settings.roles[other].lr != one.lr]
        if policy not in trained:
            yield ctx.issue(key, f"Its policy {policy} is not trained.", "Leave it out.")
        elif len(trained) == 1:
            what = f"The run trains one policy, {policy}, whose rate is {common}."
            fix = f"Set {common}={one.lr}, or choose policies=lora_per_role or policies=model_per_role."
            yield ctx.issue(key, what, fix)
        elif beside:
            what = f"It shares the policy {policy} with {', '.join(beside)}: a policy has one rate."
            words = [f"marsrl.roles.{other}.lr={one.lr}" for other in beside]
            yield ctx.issue(key, what, f"Set {' '.join(words)} too.")


def _calls_tools(ctx: Context, role: str) -> bool:
    """True where the role's responses go on behind what tools answer, token by token."""
    programs = {stage.workflow for stage in ctx.method.stages(ctx.settings.algo) if role in stage.roles}
    return any(getattr(find_workflow(name), "calls_tools", False) for name in programs)


def check_frozen(ctx: Context) -> Iterator[ConfigIssue]:
    """Roles that a frozen policy can play."""
    settings = ctx.settings
    for role, name in ctx.frozen_roles.items():
        own = settings.roles[role].policy is not None
        key = f"marsrl.roles.{role}.policy" if own else "marsrl.default_policy"
        kind = settings.policies[name].kind
        if not ctx.method.roles[role].may_be_frozen and (ctx.trains or _calls_tools(ctx, role)):
            what = (
                f"A policy of kind {kind} gives text alone, and {settings.algo.name} needs the tokens of the "
                f"{role}'s responses."
            )
            yield ctx.issue(key, what, "Leave it out, or choose a method with a role that text is enough of.")
        elif kind is PolicyKind.JSONL and role != ctx.first_role:
            what = f"Its file answers problems, as the {ctx.first_role} does; the {role} is shown more."
            yield ctx.issue(key, what, f"Use a policy of kind {PolicyKind.ENDPOINT}.")


def check_target_modules(ctx: Context) -> Iterator[ConfigIssue]:
    """Layers that get adapters are there: PEFT passes over a name without one, unless no name has any."""
    folder, named = ctx.model_folder(), ctx.get(_TARGETS)
    if int(ctx.get(_RANK) or 0) <= 0 or folder is None or named in (None, _ALL_LINEAR):
        return
    try:
        layers = [name.removesuffix(".weight") for name in hf_folder.tensor_names(folder)]
    except (OSError, ValueError):
        return  # what can't be read is reported where the model is looked at
    patterns = {named: named}  # PEFT takes a text as a pattern of the whole name
    if not isinstance(named, str):
        patterns = {str(one): rf"(.*\.)?{re.escape(str(one))}" for one in named}
    last = {layer.rpartition(".")[2] for layer in layers if layer.endswith("_proj")}
    for one, pattern in patterns.items():
        if layers and not any(re.fullmatch(pattern, layer) for layer in layers):
            near = did_you_mean(one, last)
            fix = f"Did you mean {near[0]}? " if near else ""
            what = f"The model has no layer {one}."
            yield ctx.issue(_TARGETS, what, f"{fix}It has {', '.join(sorted(last))}.")


def check_adapters(ctx: Context) -> Iterator[ConfigIssue]:
    """LoRA adapters, and what does not go with them."""
    settings, ranked = ctx.settings, int(ctx.get(_RANK) or 0) > 0
    with_adapters = any(one.kind is PolicyKind.LORA for one in settings.policies.values())
    if not ranked and (with_adapters or settings.default_policy is DefaultPolicy.LORA_PER_ROLE):
        yield ctx.issue(_RANK, "Adapters have no rank.", f"Set {_RANK}=32, or choose policies=lora_per_role.")
    yield from refuses("adapters")(ctx)
    modules = ctx.get(_TARGETS)
    named = list(modules) if isinstance(modules, list) else [str(modules)]
    if ranked and any(one in name for one in ("embed_tokens", "lm_head") for name in named):
        what = "The engine applies no adapters to embeddings."
        yield ctx.issue(_TARGETS, what, f"Name linear layers alone, or {_ALL_LINEAR}.")


def check_models(ctx: Context) -> Iterator[ConfigIssue]:
    """Checks for settings that do not go with policies that are models of their own."""
    settings, rollout, first = ctx.settings, ctx.config.actor_rollout_ref.rollout, str(ctx.get(_PATH))
    if int(ctx.get(_RANK) or 0) > 0:
        kinds = {name: one.kind for name, one in settings.policies.items()}
        keys = [f"{_NODE}.{name}.kind" for name, kind in kinds.items() if kind is PolicyKind.MODEL]
        if settings.default_policy is DefaultPolicy.MODEL_PER_ROLE:
            keys.append("marsrl.default_policy")
        what = f"With {_RANK} above 0 every trained policy is an adapter on one model."
        for key in keys:
            yield ctx.issue(key, what, f"Set {_RANK}=0, or choose policies=lora_per_role.")
    elif several_models(rollout):
        if own_pool_gpus(rollout):
            what = (
                f"Engines with GPUs of their own serve one model, and this run trains {len(models(rollout))}."
            )
            fix = "Choose pipeline=overlapped or pipelined, or adapters on one model: policies=lora_per_role."
            yield ctx.issue("actor_rollout_ref.rollout.nnodes", what, fix)
        name = settings.policy_of(ctx.first_role)
        path = models(rollout).get(name, first)
        if ctx.prepares_data and path != first:
            what = f"Data are prepared with the model that answers problems, the {ctx.first_role}'s."
            yield ctx.issue(_path_key(name), what, f"Leave it out here, and set {_PATH}={path}.")
    else:
        what = "It is the only model of the run, whose path another key names."
        for name, path in models(rollout).items():
            if path != first:
                yield ctx.issue(_path_key(name), what, f"Leave it out, and set {_PATH}={path}.")


def check_model_files(ctx: Context) -> Iterator[ConfigIssue]:
    """The folders of other models than the run's first, and whether they speak in the same tokens."""
    for name, path in models(ctx.config.actor_rollout_ref.rollout).items():
        if path != str(ctx.get(_PATH)):
            yield from check_weights(ctx, _path_key(name), path)
            yield from _check_tokens(ctx, _path_key(name), path)


def _check_tokens(ctx: Context, key: str, path: str) -> Iterator[ConfigIssue]:
    own = str(ctx.get(f"{_MODEL}.tokenizer_path") or ctx.get(_PATH))
    ours, theirs = hf_folder.local_folder(own), hf_folder.local_folder(path)
    if ours is None or theirs is None:
        ctx.notes.append(f"whether {path} ({key}) has the tokenizer of {own}: not both are here.")
        return
    if not hf_folder.same_tokens(ours, theirs):
        what = f"Its tokenizer differs from that of {own}, in whose tokens all prompts are written."
        fix = "Use a model with the same tokenizer; save that one's files into its folder if it has none."
        yield ctx.issue(key, what, fix)
        return
    template = hf_folder.chat_template(theirs)
    if not ctx.get(_TEMPLATE) and template not in (None, hf_folder.chat_template(ours)):
        ctx.warnings.append(
            f"{path} ({key}) has a chat template of its own; it is prompted with that of {own} "
            f"({_TEMPLATE} names one for all)"
        )


def _path_key(name: str) -> str:
    return f"{_NODE}.{name}.model.path"
