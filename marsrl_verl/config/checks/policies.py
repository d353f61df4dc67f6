"""Checks of policies: each role has one that can play it, and each is somebody's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from marsrl_verl.config import hf_folder
from marsrl_verl.config.checks.context import Context
from marsrl_verl.core.policy import SHARED, PolicyKind
from marsrl_verl.settings.choices import DefaultPolicy
from marsrl_verl.settings.issues import ConfigIssue, did_you_mean
from marsrl_verl.settings.reading import no_such_choice

_NODE = "marsrl.policies"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


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


def check_frozen(ctx: Context) -> Iterator[ConfigIssue]:
    """Roles that a frozen policy can play."""
    settings, method = ctx.settings, ctx.method
    for role, name in ctx.frozen_roles.items():
        key, kind = f"marsrl.roles.{role}.policy", settings.policies[name].kind
        if not method.roles[role].may_be_frozen:
            what = (
                f"A policy of kind {kind} gives text alone, and {settings.algo.name} needs the tokens of the "
                f"{role}'s responses."
            )
            yield ctx.issue(key, what, "Leave it out, or choose a method with a role that text is enough of.")
        elif kind is PolicyKind.JSONL and role != ctx.first_role:
            what = f"Its file answers problems, as the {ctx.first_role} does; the {role} is shown more."
            yield ctx.issue(key, what, f"Use a policy of kind {PolicyKind.ENDPOINT}.")


_MODEL, _ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
_RANK = f"{_MODEL}.lora_rank"
_ALL_LINEAR, _PROJECTION = "all-linear", "_proj"
_SHAPES = {
    "lora_alpha": 16,
    "target_modules": _ALL_LINEAR,
    "exclude_modules": None,
    "target_parameters": None,
}
"""verl's other settings of LoRA, with its defaults."""
_ENGINE_KEYS = ("enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank")
_EMBEDDINGS = ("embed_tokens", "lm_head")


def check_target_modules(ctx: Context) -> Iterator[ConfigIssue]:
    """Layers that get adapters are there: PEFT passes over a name without one, unless no name has any."""
    key, folder = f"{_MODEL}.target_modules", ctx.model_folder()
    named = ctx.get(key)
    if int(ctx.get(_RANK) or 0) <= 0 or folder is None or named in (None, _ALL_LINEAR):
        return
    try:
        layers = [name.removesuffix(".weight") for name in hf_folder.tensor_names(folder)]
    except (OSError, ValueError):
        return  # what can't be read is reported where the model is looked at
    patterns = {named: named}  # PEFT takes a text as a pattern of the whole name
    if not isinstance(named, str):
        patterns = {str(one): rf"(.*\.)?{re.escape(str(one))}" for one in named}
    last = {layer.rpartition(".")[2] for layer in layers if layer.endswith(_PROJECTION)}
    for one, pattern in patterns.items():
        if layers and not any(re.fullmatch(pattern, layer) for layer in layers):
            near = did_you_mean(one, last)
            fix = f"Did you mean {near[0]}? " if near else ""
            yield ctx.issue(key, f"The model has no layer {one}.", f"{fix}It has {', '.join(sorted(last))}.")


def check_adapters(ctx: Context) -> Iterator[ConfigIssue]:
    """LoRA adapters, and what does not go with them."""
    settings, rank = ctx.settings, int(ctx.get(_RANK) or 0)
    if rank <= 0:
        with_adapters = [name for name, one in settings.policies.items() if one.kind is PolicyKind.LORA]
        if with_adapters or settings.default_policy is DefaultPolicy.LORA_PER_ROLE:
            what = "Adapters have no rank."
            yield ctx.issue(_RANK, what, f"Set {_RANK}=32, or choose policies=lora_per_role.")
        for name, default in _SHAPES.items():
            if (ctx.get(f"{_MODEL}.{name}") or default) != default:
                what = f"It has no effect with {_RANK} = 0."
                yield ctx.issue(f"{_MODEL}.{name}", what, f"Leave it out, or set {_RANK}.")
        return
    if ctx.get(f"{_ROLLOUT}.load_format") == "dummy":
        what = "The engines are sent adapters alone, so they have to read the model themselves."
        yield ctx.issue(f"{_ROLLOUT}.load_format", what, "Leave it out (auto), or set it to safetensors.")
    if "hf_model" in (ctx.get("actor_rollout_ref.actor.checkpoint.save_contents") or ()):
        key = "actor_rollout_ref.actor.checkpoint.save_contents"
        what = "verl would write a model whose weights have the names of one with adapters."
        yield ctx.issue(key, what, "Leave hf_model out: each adapter is saved as a PEFT folder.")
    if ctx.get(f"{_MODEL}.target_parameters"):
        what = "vLLM applies adapters to modules alone."
        yield ctx.issue(f"{_MODEL}.target_parameters", what, "Leave it out.")
    modules = ctx.get(f"{_MODEL}.target_modules")
    named = list(modules) if isinstance(modules, list) else [str(modules)]
    if any(one in name for one in _EMBEDDINGS for name in named):
        what = "The engine applies no adapters to embeddings."
        yield ctx.issue(f"{_MODEL}.target_modules", what, "Name linear layers alone, or all-linear.")
    for name in _ENGINE_KEYS:
        if ctx.get(key := f"{_ROLLOUT}.engine_kwargs.vllm.{name}") is not None:
            yield ctx.issue(key, "It follows from the adapters of the run.", "Leave it out.")
    qat = "actor_rollout_ref.actor.fsdp_config.qat.enable"
    if ctx.get(qat):
        yield ctx.issue(qat, "Quantised weights have no adapters here.", f"Set it to false, or {_RANK}=0.")
