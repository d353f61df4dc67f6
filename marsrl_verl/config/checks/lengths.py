"""Checks of token limits and sampling settings, verl's copies of them, and room for a problem in prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.light_tokenizer import LightTokenizer
from marsrl_verl.config.prompt_budget import RoleBudget, plan_prompts, text_tokens
from marsrl_verl.config.schema import first_sampled_role
from marsrl_verl.core.prompts import NO_PROBLEM
from marsrl_verl.core.request import Message
from marsrl_verl.data.files import chat_characters
from marsrl_verl.rewards.loading import ClassLoadError
from marsrl_verl.settings.declaration import RoleSampling
from marsrl_verl.settings.imports import users_line
from marsrl_verl.settings.issues import ConfigError, ConfigIssue

_FUSED = "actor_rollout_ref.model.use_fused_kernels"
_ROLLOUT = "actor_rollout_ref.rollout"


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
        fix = "Leave it out (it follows the roles) and set marsrl.roles.<role>.temperature."
        yield ctx.issue(key, what, fix)
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
    if ctx.trains and per_gpu * spread < longest:
        what = (
            f"A micro-batch holds {per_gpu} x {spread} (Ulysses) = {per_gpu * spread} tokens, but one "
            f"sequence of the {role} can have {longest}."
        )
        fix = f"Set it to at least {-(-longest // spread)}."
        yield ctx.issue("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", what, fix)


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


def prompt_budgets(ctx: Context) -> list[RoleBudget]:
    """The budget of every role that a model of ours plays; measured where the model's tokenizer is here."""
    counter, prompts = ctx.tokenizer(), ctx.prompts()
    longest = max((report.longest_question for report in ctx.files), key=len, default="")
    shapes = ctx.method.prompt_shapes(ctx.settings.algo, prompts)
    elsewhere = {role: _longest_answer(ctx, policy, counter) for role, policy in ctx.frozen_roles.items()}
    texts: dict[str, str] = {}
    for name, text in ((name, text) for report in ctx.files for name, text in report.row_texts.items()):
        texts[name] = max(texts.get(name, ""), text, key=len)
    budgets = plan_prompts(
        shapes, ctx.settings.roles, counter, longest, elsewhere, texts, _openings(ctx, prompts)
    )
    active = ctx.method.active_roles(ctx.settings.algo, None)
    return [one for one in budgets if one.role in active and one.role not in ctx.frozen_roles]


def _openings(ctx: Context, prompts: Any) -> dict[str, tuple[Sequence[Message], Sequence[Message]]]:
    """By role that is sent the chat of the data: its prompt of the longest problem, and without a problem;
    empty where no data was read."""
    problem = max((report.longest_problem for report in ctx.files), key=chat_characters, default=NO_PROBLEM)
    if problem is NO_PROBLEM:
        return {}
    asked, bare = (
        ctx.method.opening_prompts(ctx.settings.algo, prompts, one) for one in (problem, NO_PROBLEM)
    )
    return {role: (chat, bare[role]) for role, chat in asked.items()}


def _longest_answer(ctx: Context, policy: str, counter: LightTokenizer | None) -> int:
    """Tokens of a frozen policy's longest answer; 0 where that is not known."""
    if policy in ctx.frozen_answers:
        return text_tokens(counter, ctx.frozen_answers[policy].file.longest)
    return ctx.settings.policies[policy].endpoint.max_tokens or 0


def check_prompt_budget(ctx: Context) -> Iterator[ConfigIssue]:
    """A role whose wording alone exceeds its limit could never be asked."""
    try:
        budgets = prompt_budgets(ctx)
    except (ClassLoadError, ConfigError):
        return  # reported by the check of the classes
    except Exception as error:
        what = f"Building a prompt failed with {type(error).__name__}: {error}."
        place = users_line(error)
        fix = f"Correct {place or 'the prompts class, or the chat template of the model'}."
        yield ctx.issue("marsrl.prompts.target", what, fix)
        return
    for one in budgets:
        if one.measured and one.fixed >= one.limit:
            what = f"The {one.role}'s wording alone has {one.fixed} tokens: no room for a problem."
            fix = (
                f"Set it well above {one.fixed}. With model=custom it follows from the {ctx.first_role}'s "
                "limits: raise data.max_prompt_length or data.max_response_length."
            )
            yield ctx.issue(f"marsrl.roles.{one.role}.max_prompt_tokens", what, fix)
