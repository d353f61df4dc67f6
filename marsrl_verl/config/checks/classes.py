"""Checks of the classes that the configuration names: imported and constructed once, here; and of what they
can't do with rows of the data, or hardly as their user means it: kinds of problems that the reward does not
know, and prompts that ask a role to answer that is not to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.reward_function import COMPUTE_SCORE, REWARD_FUNCTION
from marsrl_verl.core.method import answering_roles
from marsrl_verl.core.prompts import NO_PROBLEM, interface, target_of
from marsrl_verl.core.request import Problem
from marsrl_verl.data.benchmarks import BENCHMARKS
from marsrl_verl.data.files import FileReport, Remark
from marsrl_verl.rewards.base import RoleReward, UngradableError
from marsrl_verl.rewards.by_ability import DEFAULT_REWARDS
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.rewards.running import THREADS
from marsrl_verl.settings.declaration import ClassSpec
from marsrl_verl.settings.imports import source_of
from marsrl_verl.settings.issues import ConfigIssue

Look = Callable[[Problem], Iterator[Remark]]
_REWARDS = "reward=exact, reward=math_verify or reward=hybrid, or a class of yours"
_BOX = re.compile(r"\\(?:boxed|fbox)\b")


def check_rewards(ctx: Context) -> Iterator[ConfigIssue]:
    """`marsrl.reward.<role>` for every role: a class, and time limits within what a round may stand still."""
    still = ctx.settings.run.progress_timeout_s
    ended = f"would be ended after {still:g} s (marsrl.run.progress_timeout_s)."
    for role, spec in ctx.settings.reward.items():
        key = f"marsrl.reward.{role}"
        if spec.timeout_s >= still:
            fix = f"Lower it, or set marsrl.run.progress_timeout_s above {spec.timeout_s:g}."
            yield ctx.issue(f"{key}.timeout_s", f"A round that only waits for one score {ended}", fix)
        reward = _load(f"{key}.target", spec, RoleReward, _REWARDS)
        if not isinstance(reward, ConfigIssue):
            own = reward.longest_s(THREADS)
            if own is not None and own >= still:
                what = (
                    f"The reward's own limits allow a call {own:g} s (up to {THREADS} wait for its "
                    f"processes), and a round that only waits for it {ended}"
                )
                fix = (
                    "Lower its timeout_s, raise its processes, or set marsrl.run.progress_timeout_s above "
                    f"{own:g}."
                )
                yield ctx.issue(f"{key}.kwargs", what, fix)
            reward.close()
        elif spec.target == COMPUTE_SCORE:  # under the key that named it
            yield ConfigIssue(f"{REWARD_FUNCTION}.path", reward.what, reward.fix, spec.kwargs["path"])
        elif spec.target == ctx.method.roles[role].reward:
            place = source_of(ctx.method, spec.target)
            yield replace(reward, fix=f"{reward.fix} {place} names it (Role.reward).")
        else:
            yield reward


def check_prompts(ctx: Context) -> Iterator[ConfigIssue]:
    """`marsrl.prompts`."""
    method = ctx.method
    examples = f"{target_of(method.Prompts)}, or those of another model=…"
    found = _load("marsrl.prompts.target", ctx.settings.prompts, interface(method.Prompts), examples)
    if isinstance(found, ConfigIssue):
        yield found


def _load(key: str, spec: ClassSpec, base: type[Any], examples: str) -> Any:
    """The constructed object, or the problem."""
    try:
        return load_class(spec.target, spec.kwargs, base)
    except ClassLoadError as error:
        text = str(error).removeprefix(f"{spec.target}: ")
        fix = error.fix or (
            "Name a file and its function: reward.custom_reward_function.path=… and .name=…."
            if spec.target == COMPUTE_SCORE
            else f"Name a class as package.module:ClassName ({examples})."
        )
        return ConfigIssue(key, f"{text[:1].upper()}{text[1:]}.", fix, spec.target)


def row_looks(ctx: Context, closing: ExitStack) -> Look:
    """Looks at a problem of the data with the rewards of the roles that take part; `closing` closes them."""
    rewards: dict[str, RoleReward] = {}
    active = ctx.method.active_roles(ctx.settings.algo, ctx.settings.evaluation)
    for role, spec in ctx.settings.reward.items():
        if role in active:
            with suppress(ClassLoadError):  # reported above
                rewards[role] = load_class(spec.target, spec.kwargs, RoleReward)
                closing.callback(rewards[role].close)
    boxes = _asks_for_a_box(ctx)

    def look(problem: Problem) -> Iterator[Remark]:
        for role, reward in rewards.items():
            yield from _of_reward(role, reward, problem)
        yield from boxes(problem)

    return look


def remarks_of(ctx: Context) -> Iterator[ConfigIssue]:
    """Rows that no reward can grade are rejected; what may be meant is warned of (`ctx.warnings`)."""
    found: dict[Remark, list[FileReport]] = {}
    for report in ctx.files:
        for remark in report.remarks:
            found.setdefault(remark, []).append(report)
    refused: dict[str, list[Remark]] = {}
    for remark, reports in found.items():
        if remark.refused:
            refused.setdefault(remark.key, []).append(remark)
        else:
            ctx.warnings.append(f"{_sentence(remark, reports)}. {remark.fix}")
    for key, remarks in refused.items():
        first = max(remarks, key=lambda one: sum(report.remarks[one].count for report in found[one]))
        sentence = _sentence(first, found[first])
        more = f" (and {len(remarks) - 1} more like it)" if len(remarks) > 1 else ""
        yield ctx.issue(key, f"{sentence}{more}.", first.fix)


def _sentence(remark: Remark, reports: list[FileReport]) -> str:
    """Returns the remark with the number of rows that it is about and the first of them."""
    faults = [one.remarks[remark] for one in reports]
    count, rows = sum(one.count for one in faults), sum(one.rows for one in reports)
    return f"{remark.what}: {count:,} of {rows:,} rows, the first {faults[0].places[0]} (counted from 0)"


def _of_reward(role: str, reward: RoleReward, problem: Problem) -> Iterator[Remark]:
    key = f"marsrl.reward.{role}.target"
    try:
        reward.check_problem(problem)
    except UngradableError as error:
        what, fix = (f"{text[:1].upper()}{text[1:]}" for text in (error.what, error.fix))
        yield Remark(key, what, f"{fix}.", refused=True)
    ability, graded = problem.ability.casefold(), reward.graded_ability
    if graded is not None and ability != graded and ability in DEFAULT_REWARDS:
        what = f"Rows have the ability {ability}, and {key} compares answers as {graded}"
        yield Remark(key, what, "reward=by_ability grades each kind by its own rules.")


def _asks_for_a_box(ctx: Context) -> Look:
    r"""Remarks on problems whose text asks for `\boxed{}`, where it is shown to a role that does not answer
    (`Role.answers`) and whose own wording has no box."""
    # A warning and no refusal: a problem may speak of a box without asking for one, and a published run of
    # this kind may be what is to be repeated.
    algo, method, answering = ctx.settings.algo, ctx.method, set(answering_roles(ctx.method))
    if (prompts := ctx.usable_prompts()) is None or not answering:
        return lambda problem: iter(())

    def boxed(problem: Problem) -> set[str]:
        asked = method.opening_prompts(algo, prompts, problem)
        others = asked.keys() - answering
        return {role for role in others if any(_BOX.search(one["content"]) for one in asked[role])}

    if not method.opening_prompts(algo, prompts, NO_PROBLEM).keys() - answering:
        return lambda problem: iter(())
    own = boxed(NO_PROBLEM)

    def look(problem: Problem) -> Iterator[Remark]:
        if not _BOX.search(problem.question):
            return
        for role in sorted(boxed(problem) - own):
            what = f"The role {role} is not to answer, and is shown problems that ask for a boxed answer"
            fix = (
                "Take the request off (prepare_data --source, --question-column or --strip-after); prompts "
                "of roles that answer ask for a box themselves."
            )
            yield Remark(f"marsrl.roles.{role}", what, fix)

    return look


def check_answer_form(ctx: Context) -> list[ConfigIssue]:
    """Warns where no prompt of a benchmark's problems says how the answer is to be written: models that box
    none by themselves then solve nothing. Pairs have verdicts."""
    prompts = ctx.usable_prompts()
    if prompts is None or all(BENCHMARKS[name].pairs for name in ctx.settings.evaluation.benchmarks):
        return []
    opening = ctx.method.opening_prompts(ctx.settings.algo, prompts, NO_PROBLEM)
    texts = [one["content"] for role in answering_roles(ctx.method) for one in opening.get(role, ())]
    if texts and not any(map(_BOX.search, texts)):
        ctx.warnings.append(
            "No prompt of the benchmarks' problems asks for a boxed answer, which rewards look for. Where "
            "the model gives none by itself: 'marsrl.prompts.kwargs.solver_instruction=\"…\"', or prompts "
            "of your own (docs/guides/evaluation.md, Benchmarks)."
        )
    return []
