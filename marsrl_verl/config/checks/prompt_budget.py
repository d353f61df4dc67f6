"""Whether each role's prompts leave room for a problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.light_tokenizer import LightTokenizer, open_tokenizer
from marsrl_verl.config.prompt_budget import RoleBudget, plan_prompts, text_tokens
from marsrl_verl.core.prompts import NO_PROBLEM
from marsrl_verl.core.request import Message
from marsrl_verl.data.files import chat_characters
from marsrl_verl.rewards.loading import ClassLoadError
from marsrl_verl.settings.issues import ConfigError, ConfigIssue


def prompt_budgets(ctx: Context) -> list[RoleBudget]:
    """The budget of every role that a model of ours plays; measured where the model's tokenizer is here."""
    arguments = dict(ctx.config.data.apply_chat_template_kwargs or {})
    counter = open_tokenizer(ctx.model_folder(), arguments)
    longest = max((report.longest_question for report in ctx.files), key=len, default="")
    prompts = ctx.prompts()
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
        fix = "Repair the prompts' class, or the chat template of the model."
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
