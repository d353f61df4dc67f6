"""Checks of token limits and sampling settings, and of verl's copies of them."""

from __future__ import annotations

from marsrl_verl.config.checks.context import Context
from marsrl_verl.settings.declaration import RoleSampling
from marsrl_verl.settings.issues import ConfigIssue

_ROLLOUT = "actor_rollout_ref.rollout"


def _asked(ctx: Context) -> dict[str, RoleSampling]:
    """The same of the roles that the run asks: nothing needs room for the others."""
    asked = ctx.method.asked_roles(ctx.settings.algo, ctx.settings.evaluation)
    return {role: one for role, one in ctx.settings.roles.items() if role in asked}


def check_temperatures(ctx: Context) -> list[ConfigIssue]:
    """One log-prob pass serves all roles, so they sample at one temperature, and verl knows it."""
    temperatures = {role: one.temperature for role, one in ctx.settings.roles.items()}
    listed = ", ".join(f"{role} {value}" for role, value in temperatures.items())
    if len(set(temperatures.values())) > 1:
        return [
            ConfigIssue(
                "marsrl.roles.*.temperature",
                "The roles sample at different temperatures, but the trainer recomputes all "
                f"log-probabilities in one pass at one temperature ({_ROLLOUT}.temperature).",
                "Give all roles the same temperature.",
                listed,
            )
        ]
    rollout, trained = ctx.get(f"{_ROLLOUT}.temperature"), next(iter(temperatures.values()))
    if rollout != trained:
        return [
            ConfigIssue(
                f"{_ROLLOUT}.temperature",
                f"The roles sample at {trained}; log-probabilities at another temperature "
                "would belong to another policy.",
                "Leave it out (it follows the roles) and set marsrl.roles.<role>.temperature.",
                rollout,
            )
        ]
    return []


def check_engine_lengths(ctx: Context) -> list[ConfigIssue]:
    """The engine and the trainer must take the longest sequence of any role."""
    roles = _asked(ctx)
    longest_role = max(roles, key=lambda role: roles[role].max_prompt_tokens + roles[role].max_new_tokens)
    longest = roles[longest_role].max_prompt_tokens + roles[longest_role].max_new_tokens
    problems: list[ConfigIssue] = []
    limit = ctx.get(f"{_ROLLOUT}.max_model_len")
    if not isinstance(limit, int) or limit < longest:
        problems.append(
            ConfigIssue(
                f"{_ROLLOUT}.max_model_len",
                f"The {longest_role} needs {roles[longest_role].max_prompt_tokens} prompt + "
                f"{roles[longest_role].max_new_tokens} new = {longest} tokens.",
                f"Leave it out (it follows marsrl.roles), set it to {longest} or more, or lower the role's "
                "limits.",
                limit,
            )
        )
    actor = ctx.config.actor_rollout_ref.actor
    per_gpu, spread = actor.ppo_max_token_len_per_gpu, actor.fsdp_config.ulysses_sequence_parallel_size
    if per_gpu * spread < longest:
        problems.append(
            ConfigIssue(
                "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
                f"A micro-batch holds {per_gpu} x {spread} (Ulysses) = {per_gpu * spread} tokens, but one "
                f"sequence of the {longest_role} can have {longest}.",
                f"Set it to at least {-(-longest // spread)}.",
                per_gpu,
            )
        )
    return problems


def check_copies(ctx: Context) -> list[ConfigIssue]:
    """verl's own length and sampling keys follow the roles; set alone they would say something else."""
    roles, first = _asked(ctx), ctx.settings.roles[ctx.method.roles[0]]
    prompt = max(one.max_prompt_tokens for one in roles.values())
    response = max(one.max_new_tokens for one in roles.values())
    expected = {
        "data.max_prompt_length": (prompt, "max_prompt_tokens"),
        "data.max_response_length": (response, "max_new_tokens"),
        f"{_ROLLOUT}.prompt_length": (prompt, "max_prompt_tokens"),
        f"{_ROLLOUT}.response_length": (response, "max_new_tokens"),
        f"{_ROLLOUT}.top_p": (first.top_p, "top_p"),
        f"{_ROLLOUT}.top_k": (first.top_k, "top_k"),
    }
    return [
        ConfigIssue(
            key,
            f"This key follows the roles and would be {value}; another value has no effect on them.",
            f"Leave it out and set marsrl.roles.<role>.{name}.",
            ctx.get(key),
        )
        for key, (value, name) in expected.items()
        if ctx.get(key) != value
    ]
