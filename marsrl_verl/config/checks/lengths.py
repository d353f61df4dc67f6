"""Checks of token limits and sampling settings, and of verl's copies of them."""

from __future__ import annotations

from collections.abc import Iterator

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.schema import first_sampled_role
from marsrl_verl.settings.declaration import RoleSampling
from marsrl_verl.settings.issues import ConfigIssue

_FUSED = "actor_rollout_ref.model.use_fused_kernels"
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def _active_roles(ctx: Context) -> dict[str, RoleSampling]:
    """The settings of the roles that take part in the run: nothing needs room for the others."""
    names = ctx.method.active_roles(ctx.settings.algo, ctx.settings.evaluation)
    return {role: one for role, one in ctx.settings.roles.items() if role in names}


def check_temperatures(ctx: Context) -> Iterator[ConfigIssue]:
    """verl's copy is the first sampled role's; roles that differ need log-probabilities by row, which fused
    kernels do not compute."""
    key = f"{_ROLLOUT}.temperature"
    temperatures = {
        role: one.temperature for role, one in ctx.settings.roles.items() if role not in ctx.frozen_roles
    }
    if not temperatures:
        return  # every role is played by a frozen policy: nothing is sampled here
    first = next(iter(temperatures.values()))
    if ctx.get(key) != first:
        what = (
            f"The roles sample at {first}; log-probabilities at another temperature would belong to "
            "another policy."
        )
        yield ctx.issue(
            key, what, "Leave it out (it follows the roles) and set marsrl.roles.<role>.temperature."
        )
    policies = {role: ctx.settings.policy_of(role) for role in temperatures}
    mixed = {
        role: value
        for role, value in temperatures.items()
        if any(policies[role] == policies[other] and value != one for other, one in temperatures.items())
    }
    if mixed and ctx.get(_FUSED):
        listed = ", ".join(f"{role} {value}" for role, value in mixed.items())
        what = f"Fused kernels take one temperature for all rows of a policy, and its roles have {listed}."
        fix = "Set it to false, or give these roles one temperature (marsrl.roles.<role>.temperature)."
        yield ctx.issue(_FUSED, what, fix)


def check_engine_lengths(ctx: Context) -> Iterator[ConfigIssue]:
    """The engine and the trainer must take the longest sequence of any role."""
    roles = _active_roles(ctx)
    role = max(roles, key=lambda name: roles[name].longest_sequence)
    one, longest = roles[role], roles[role].longest_sequence
    needs = f"{one.max_prompt_tokens} prompt + {one.max_new_tokens} new = {longest} tokens"
    if one.max_sequence_tokens is not None:
        needs = f"{longest} tokens (marsrl.roles.{role}.max_sequence_tokens)"
    key = f"{_ROLLOUT}.max_model_len"
    if not isinstance(ctx.get(key), int) or ctx.get(key) < longest:
        what = f"The {role} needs {needs}."
        fix = (
            f"Leave it out (it follows marsrl.roles), set it to {longest} or more, or lower the role's "
            "limits."
        )
        yield ctx.issue(key, what, fix)
    actor = ctx.config.actor_rollout_ref.actor
    per_gpu, spread = actor.ppo_max_token_len_per_gpu, actor.fsdp_config.ulysses_sequence_parallel_size
    if per_gpu * spread < longest:
        what = (
            f"A micro-batch holds {per_gpu} x {spread} (Ulysses) = {per_gpu * spread} tokens, but one "
            f"sequence of the {role} can have {longest}."
        )
        yield ctx.issue(
            f"{_ACTOR}.ppo_max_token_len_per_gpu", what, f"Set it to at least {-(-longest // spread)}."
        )


def check_sequence_limits(ctx: Context) -> Iterator[ConfigIssue]:
    """A limit of prompt and response together leaves room for a response, and takes some away."""
    for role, one in _active_roles(ctx).items():
        key, most = f"marsrl.roles.{role}.max_sequence_tokens", one.max_sequence_tokens
        if most is None:
            continue
        prompt, new = one.max_prompt_tokens, one.max_new_tokens
        if most <= prompt:
            what = f"A prompt may have {prompt} tokens (max_prompt_tokens), which leaves none for a response."
            fix = f"Set it above {prompt}, or lower max_prompt_tokens."
        elif most < new:
            what = f"A response may have {new} tokens (max_new_tokens), which it never reaches."
            fix = f"Set it to {new} or more, or lower max_new_tokens to what a response may have."
        elif most >= prompt + new:
            what = (
                f"A prompt and a response have {prompt} + {new} = {prompt + new} tokens: it limits nothing."
            )
            fix = "Set it to less, or to null."
        else:
            continue
        yield ctx.issue(key, what, fix)


def check_copies(ctx: Context) -> Iterator[ConfigIssue]:
    """verl's own length and sampling keys follow the roles; set alone they would say something else."""
    roles = _active_roles(ctx).values()
    first = ctx.settings.roles[first_sampled_role(ctx.config.marsrl, tuple(ctx.method.roles))]
    prompt = max(one.max_prompt_tokens for one in roles)
    response = max(one.max_new_tokens for one in roles)
    for key, value, name in (
        ("data.max_prompt_length", prompt, "max_prompt_tokens"),
        ("data.max_response_length", response, "max_new_tokens"),
        (f"{_ROLLOUT}.prompt_length", prompt, "max_prompt_tokens"),
        (f"{_ROLLOUT}.response_length", response, "max_new_tokens"),
        (f"{_ROLLOUT}.top_p", first.top_p, "top_p"),
        (f"{_ROLLOUT}.top_k", first.top_k, "top_k"),
    ):
        if ctx.get(key) != value:
            what = f"This key follows the roles and would be {value}; another value has no effect on them."
            yield ctx.issue(key, what, f"Leave it out and set marsrl.roles.<role>.{name}.")
