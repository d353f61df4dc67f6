"""Checks of tools: somebody calls them, they have their keys, and they start."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.ray_cluster import joins_cluster
from marsrl_verl.rollout.runner import find_workflow
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.tools.base import ToolConfig, ToolUnavailableError
from marsrl_verl.tools.registry import NODE, can_fork, tool_class
from marsrl_verl.tools.toolbox import LONGEST_PAUSE_S, Toolbox, read_all_secrets

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def check_tools(ctx: Context) -> Iterator[ConfigIssue]:
    """Names that chat templates take, a method that calls tools, time limits within what a round may stand
    still, keys where the settings say."""
    tools, still = ctx.settings.tools, ctx.settings.run.progress_timeout_s
    called = any(cls is None or getattr(cls, "calls_tools", False) for cls in _programs(ctx))
    for name, one in tools.items():
        target = f"{NODE}.{name}.target"
        if not _NAME.fullmatch(name):
            fix = "Choose one of letters, digits, - and _ that begins with a letter."
            yield ConfigIssue(target, "No model could call it by this name.", fix, one.target)
        if (longest := longest_s(name, one)) >= still:
            what = (
                f"A call may take {longest:g} s with all of its attempts, and a round that only waits for it "
                f"would be ended after {still:g} s (marsrl.run.progress_timeout_s)."
            )
            fix = (
                f"Lower it or {NODE}.{name}.retries, or set marsrl.run.progress_timeout_s above {longest:g}."
            )
            yield ctx.issue(f"{NODE}.{name}.timeout_s", what, fix)
        if tool_class(name, one.target).keeps_state:
            yield from _state(ctx, name, one)
        if not called:
            what = f"The rollouts of {ctx.settings.algo.name} call no tools, so it has no effect."
            yield ConfigIssue(target, what, "Leave it out, or choose another method.", one.target)
    try:
        read_all_secrets(tools)
    except ToolUnavailableError as error:
        if ctx.dry_run:
            ctx.notes.append(f"{error}; a run needs it.")
        else:
            yield _issue(ctx, error)


def longest_s(name: str, one: ToolConfig) -> float:
    """Most seconds of a call with all of its attempts and pauses."""
    pauses = sum(min(LONGEST_PAUSE_S, one.backoff_s * 2.0**number) for number in range(one.retries))
    begins = tool_class(name, one.target).begin_s
    return (one.timeout_s + begins) * (one.retries + 1) + pauses


def _state(ctx: Context, name: str, one: ToolConfig) -> Iterator[ConfigIssue]:
    """Checks a tool with state against calls of a trajectory in another worker, and against forks."""
    key, what = (
        f"{NODE}.{name}.target",
        "The tool keeps state from call to call of a trajectory, in one worker",
    )
    if ctx.settings.pipeline.max_segments > 1:
        found = f"{what}; a trajectory that pauses goes on in any."
        yield ConfigIssue(key, found, "Set marsrl.pipeline.max_segments=1.", one.target)
    forks = any(hasattr(cls, "forks") and cls.forks(ctx.settings.algo) for cls in _programs(ctx))
    if forks and not can_fork(tool_class(name, one.target)):
        found = (
            f"{what}; rollouts of {ctx.settings.algo.name} are forked, and forks would read of other calls."
        )
        fix = "Define `fork` in its class (docs/guides/tools.md), or train without forks."
        yield ConfigIssue(key, found, fix, one.target)


def _programs(ctx: Context) -> Iterator[Any]:
    """The classes of the method's workflows; None for one that is not there, as another check says."""
    for program in dict.fromkeys(stage.workflow for stage in ctx.method.stages(ctx.settings.algo)):
        try:
            yield find_workflow(program)
        except ValueError:
            yield None


def check_start(ctx: Context) -> Iterator[ConfigIssue]:
    """Starts the tools once where the rollout workers are on this machine: a run that one of them would end
    is refused before the engines start."""
    if ctx.dry_run or ctx.prepares_data or joins_cluster(ctx.config):
        return
    every = ctx.settings.tools
    tools = {name: one for name, one in every.items() if tool_class(name, one.target).starts_in_launcher}
    try:
        if tools:
            asyncio.run(_start(tools, ctx.settings.run.seed))
    except ToolUnavailableError as error:
        yield _issue(ctx, error)


async def _start(tools: dict[str, ToolConfig], seed: int) -> None:
    box = Toolbox.from_settings(tools, seed=seed, secrets=read_all_secrets(tools))
    await box.start()
    await box.close()


def _issue(ctx: Context, error: ToolUnavailableError) -> ConfigIssue:
    key, _, text = str(error).partition(": ")
    fix = "Put it right, or leave the tool out."
    return ConfigIssue(f"{key}.target", f"{text[:1].upper()}{text[1:]}", fix, ctx.get(f"{key}.target"))
