"""Checks of token limits and sampling settings, and of verl's copies of them."""

from __future__ import annotations

from dataclasses import asdict

from marsrl_verl.config.asked_roles import asked_roles
from marsrl_verl.config.checks.context import ROLES, Context
from marsrl_verl.config.schema import RoleSampling
from marsrl_verl.settings.issues import ConfigIssue

_ROLLOUT = "actor_rollout_ref.rollout"
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 2.0
"""vLLM refuses higher ones at the first request, and raises lower ones to 0.01 with a warning only, so that
log-probabilities would belong to another policy."""


def temperature_problems(key: str, value: float, why_not_zero: str) -> list[ConfigIssue]:
    """A sampling temperature above 0 that the engine takes as it is."""
    if LOWEST_TEMPERATURE <= value <= HIGHEST_TEMPERATURE:
        return []
    limits = f"vLLM samples at {LOWEST_TEMPERATURE:g} to {HIGHEST_TEMPERATURE:g}."
    return [
        ConfigIssue(
            key,
            why_not_zero if value == 0 else limits,
            f"Set a number from {LOWEST_TEMPERATURE:g} to {HIGHEST_TEMPERATURE:g}.",
            value,
        )
    ]


def role_sampling(ctx: Context) -> dict[str, RoleSampling]:
    """Sampling settings by role."""
    return {role: getattr(ctx.settings.roles, role) for role in ROLES}


def _asked(ctx: Context) -> dict[str, RoleSampling]:
    """The same of the roles that the run asks: nothing needs room for the others."""
    asked = asked_roles(ctx.settings.algo.correction_rounds, ctx.settings.evaluation.correction_rounds)
    return {role: one for role, one in role_sampling(ctx).items() if role in asked}


def check_role_limits(ctx: Context) -> list[ConfigIssue]:
    """Each role's own numbers."""
    problems: list[ConfigIssue] = []
    for role, one in role_sampling(ctx).items():
        base = f"marsrl.roles.{role}"
        for name in ("max_prompt_tokens", "max_new_tokens"):
            if asdict(one)[name] < 1:
                problems.append(
                    ConfigIssue(
                        f"{base}.{name}",
                        "Expected at least one token.",
                        "Set a positive number.",
                        asdict(one)[name],
                    )
                )
        if not 0.0 < one.top_p <= 1.0:
            problems.append(
                ConfigIssue(
                    f"{base}.top_p", "Expected a number above 0, at most 1.", "1.0 keeps all.", one.top_p
                )
            )
        if one.top_k != -1 and one.top_k < 1:
            problems.append(
                ConfigIssue(
                    f"{base}.top_k", "Expected -1 or at least 1.", "-1 keeps the whole vocabulary.", one.top_k
                )
            )
        problems += temperature_problems(
            f"{base}.temperature",
            one.temperature,
            "At temperature 0 all responses of a group are equal, and nothing can be learnt.",
        )
    return problems


def check_temperatures(ctx: Context) -> list[ConfigIssue]:
    """One log-prob pass serves all roles, so they sample at one temperature, and verl knows it."""
    temperatures = {role: one.temperature for role, one in role_sampling(ctx).items()}
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
    rollout = ctx.get(f"{_ROLLOUT}.temperature")
    if rollout != temperatures["solver"]:
        return [
            ConfigIssue(
                f"{_ROLLOUT}.temperature",
                f"The roles sample at {temperatures['solver']}; log-probabilities at another temperature "
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
    roles = _asked(ctx)
    prompt = max(one.max_prompt_tokens for one in roles.values())
    response = max(one.max_new_tokens for one in roles.values())
    expected = {
        "data.max_prompt_length": (prompt, "max_prompt_tokens"),
        "data.max_response_length": (response, "max_new_tokens"),
        f"{_ROLLOUT}.prompt_length": (prompt, "max_prompt_tokens"),
        f"{_ROLLOUT}.response_length": (response, "max_new_tokens"),
        f"{_ROLLOUT}.top_p": (roles["solver"].top_p, "top_p"),
        f"{_ROLLOUT}.top_k": (roles["solver"].top_k, "top_k"),
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
