"""The start-up trial: the method on scripted answers, against what it says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.models import adapters
from marsrl_verl.core.method import Method
from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.evaluation.workflow import WorkflowEvaluation, episode_metrics, is_episode, method_evaluation
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.workflow import LIST_FULL
from marsrl_verl.settings.imports import blamed, source_of
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.rules import RuleError
from marsrl_verl.testing.client import CharacterTokenizer
from marsrl_verl.testing.trial import GROUP_SIZE, Trial, TrialSettings, run_evaluation_trial, run_trial

_NAME = "marsrl.algo.name"
_PROBLEM = Problem("trial", "1 + 1 = ?", "2", row="trial")
_PLACE = re.compile(r"(.*) \((/.+, line \d+)\)\.", re.DOTALL)
"""The user's line at the end of what `blamed` says."""


def check_declaration(ctx: Context) -> Iterator[ConfigIssue]:
    """The method's stages fit each other and its roles."""
    method, algo = ctx.method, ctx.settings.algo
    try:
        stages = method.stages(algo)
        method.traits(algo)
        active = method.active_roles(algo, ctx.settings.evaluation)
    except Exception as error:
        yield _issue(ctx, f"Its stages, traits or roles can't be had: {blamed(error)}.")
        return
    for what, text in _stage_faults(method, stages):
        yield _issue(ctx, what, text)
    if unknown := [role for role in active if role not in method.roles]:
        what = f"active_roles has {', '.join(unknown)}: no role of {', '.join(method.roles)}."
        yield _issue(ctx, what, unknown[0])


def _issue(ctx: Context, what: str, text: str = "") -> ConfigIssue:
    """A fault of the method, to be corrected where it was raised, else where its source has the text."""
    placed = _PLACE.fullmatch(what)
    fix = f"Correct {placed[2] if placed else source_of(ctx.method, text)} (docs/guides/new_method.md)."
    return ctx.issue(_NAME, f"{placed[1]}." if placed else what, fix)


def _raised(ctx: Context, doing: str, error: BaseException) -> ConfigIssue:
    if isinstance(error, RuleError):
        return ctx.issue(error.key, f"{doing} {error.found}.", f"Correct {error.place}.")
    return _issue(ctx, f"{doing} raised {blamed(error)}.")


def _stage_faults(method: type[Method], stages: tuple[Stage, ...]) -> Iterator[tuple[str, str]]:
    """The faults, each with the text that is wrong."""
    if not isinstance(stages, tuple) or not stages or not all(isinstance(one, Stage) for one in stages):
        yield f"stages: expected a tuple of Stage, found {stages!r}.", "stages"
        return
    names = [one.name for one in stages]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"stages has {', '.join(twice)} twice.", twice[0]
    for one in stages:
        if unknown := [role for role in (one.role, *one.writers) if role not in method.roles]:
            known = ", ".join(method.roles)
            yield f"The stage {one.name} has the role {unknown[0]!r}, expected one of {known}.", unknown[0]
        if unknown := [name for name in one.next if name not in names]:
            known = ", ".join(names)
            yield f"The stage {one.name} leads to {unknown[0]!r}, expected one of {known}.", unknown[0]
        if one.writers and one.role not in one.writers:
            yield f"The stage {one.name} is begun by {one.role}, who is none of its writers.", one.role


def check_trial(ctx: Context) -> Iterator[ConfigIssue]:
    """One problem through the method, with short answers and with full ones."""
    if ctx.prepares_data or (prompts := ctx.usable_prompts()) is None:
        return
    settings = _settings(ctx, prompts)
    short = run_trial(settings)
    yield from _faults(ctx, settings, short)
    if short.error is not None or short.too_many is not None:
        return
    faults = [*_evaluation_faults(ctx, settings)]
    yield from faults
    if faults:
        return
    _note_untried(ctx, settings, short)
    _warn_of_nothing(ctx, settings, short)
    _try_lengths(ctx, settings, short)


def _settings(ctx: Context, prompts: Prompts) -> TrialSettings:
    settings, own = ctx.settings, ctx.tokenizer()
    tokenizer = own or CharacterTokenizer()
    sampling = {
        role: Sampling(one.max_new_tokens, one.max_prompt_tokens, max_sequence_tokens=one.max_sequence_tokens)
        if own
        else Sampling(100_000, 100_000)
        for role, one in settings.roles.items()
    }
    roles = {role: settings.policy_of(role) for role in settings.roles}
    kinds = {name: one.kind for name, one in settings.policies.items()}
    kinds |= dict.fromkeys(adapters(ctx.config.actor_rollout_ref.rollout), PolicyKind.LORA)
    policies = [Policy(name, kinds.get(name, PolicyKind.MODEL)) for name in dict.fromkeys(roles.values())]
    problem = next((report.shortest_problem for report in ctx.files if report.shortest_problem), _PROBLEM)
    return TrialSettings(
        cls=ctx.method,
        config=settings.algo.model_copy(update={"group_size": GROUP_SIZE}),
        prompts=prompts,
        chat=ChatTokenizer(tokenizer, {}),
        sampling=sampling,
        policies=PolicySet(policies, roles),
        settings=settings,
        problem=problem,
        problems=int(ctx.config.data.train_batch_size),
    )


def _faults(ctx: Context, settings: TrialSettings, trial: Trial) -> Iterator[ConfigIssue]:
    """Checks what came back from the trial against what the method declares."""
    if trial.error is not None:
        yield _raised(ctx, "In a trial with scripted answers it", trial.error)
        return
    if trial.too_many is not None:
        yield _issue(ctx, f"In a trial {trial.too_many}.")
        return
    stages = {one.name: one for one in settings.cls.stages(settings.config)}
    for group, one in trial.members():
        stage = stages[group.request.stage]
        if one.finish is FinishReason.ERROR:
            yield _issue(ctx, f"In a trial the stage {stage.name} failed: {one.detail}.")
        elif len(one.sequences) > len(stage.roles):
            yield _issue(
                ctx,
                f"A response of the stage {stage.name} had {len(one.sequences)} sequences in a trial, of "
                f"{', '.join(dict.fromkeys(each.role for each in one.sequences))}; its Stage says that "
                f"{', '.join(stage.roles)} write it (Stage.writers), so memory and batches are planned for "
                f"{len(stage.roles)}.",
            )
        elif one.finish is FinishReason.PROMPT_TOO_LONG:
            yield _too_short(ctx, one.detail or "", stage)
        else:
            continue
        return
    for stage in stages.values():
        if (rows := trial.max_rows.get(stage.name, 0)) > stage.max_rows:
            yield _issue(
                ctx,
                f"{rows} sequences of a response of the stage {stage.name} were trained in a trial; its "
                f"Stage says {stage.max_rows} at most (rows_per_response), so memory and batches are "
                f"planned for {stage.max_rows}.",
                "rows_per_response",
            )
        episodes = _episodes(trial, stage)
        if episodes and all(one.finish is FinishReason.LENGTH or one.detail == LIST_FULL for one in episodes):
            yield from _full_list(ctx, settings, episodes[0], stage)


def _episodes(trial: Trial, stage: Stage) -> list[Trajectory]:
    """Those of a workflow."""
    members = [one for group, one in trial.members() if group.request.stage == stage.name]
    return [one for one in members if one.reward is not None and is_episode(one)]


def _full_list(ctx: Context, settings: TrialSettings, one: Trajectory, stage: Stage) -> Iterator[ConfigIssue]:
    """Nothing where `play` itself limited the message."""
    left = {each.role: _limit(settings, each) - len(each) for each in one.sequences}
    least = min(one.sequences, key=lambda each: left[each.role], default=None)
    if least is None or (one.detail != LIST_FULL and left[least.role] > 0):
        return
    role, most = least.role, settings.sampling[least.role].max_new_tokens
    name = "max_new_tokens" if _limit(settings, least) == most else "max_sequence_tokens"
    what = f"In a trial with short answers every episode of the stage {stage.name} ended: {role} had no room."
    fix = "Raise it: what an agent hears counts too, and nothing could be trained."
    yield ctx.issue(f"marsrl.roles.{role}.{name}", what, fix)


def _limit(settings: TrialSettings, one: Sequence) -> int:
    return settings.sampling[one.role].response_limit(one.prompt_ids.size)


def _too_short(ctx: Context, detail: str, stage: Stage) -> ConfigIssue:
    role = next((role for role in stage.roles if f"{role} takes" in detail), stage.role)
    what = f"In a trial with short answers the stage {stage.name} ended here: {detail}."
    fix = "Raise it: nothing could be trained. With it data.max_prompt_length may have to grow."
    return ctx.issue(f"marsrl.roles.{role}.max_prompt_tokens", what, fix)


def _evaluation_faults(ctx: Context, settings: TrialSettings) -> Iterator[ConfigIssue]:
    """Responses of one run of the evaluation against those that the plan counts."""
    if not ctx.evaluates:
        return
    one = ctx.settings.evaluation
    try:
        evaluation = method_evaluation(settings.cls, settings.config, one, settings.prompts)
        counts = run_evaluation_trial(settings, evaluation)
    except Exception as error:
        yield _raised(ctx, "In a trial its evaluation", error)
        return
    most = evaluation.max_calls
    for role, count in counts.items():
        if count > most.get(role, 0):
            yield _issue(
                ctx,
                f"A run of its evaluation had {count} responses of {role} in a trial; its max_calls says "
                f"{most.get(role, 0)}, so that it would cost more than is planned.",
            )


def _note_untried(ctx: Context, settings: TrialSettings, trial: Trial) -> None:
    names = [one.name for one in settings.cls.stages(settings.config)]
    if untried := [name for name in names if name not in trial.reached]:
        ctx.notes.append(f"not tried before the start (no scripted answer led there): {', '.join(untried)}")
    own = settings.cls.next_requests is not Method.next_requests
    if own and not any(one.next for one in settings.cls.stages(settings.config)):
        shipped = settings.cls.__module__.startswith("marsrl_verl.")
        told = ctx.notes if shipped else ctx.warnings
        told.append("next_requests is not called: no stage names one that may follow it (Stage.next)")


def _warn_of_nothing(ctx: Context, settings: TrialSettings, trial: Trial) -> None:
    """Workflows that forget rewards or answers."""
    evaluation = ctx.evaluates and method_evaluation(
        settings.cls, settings.config, ctx.settings.evaluation, settings.prompts
    )
    played = evaluation.stage if isinstance(evaluation, WorkflowEvaluation) else None
    for stage in settings.cls.stages(settings.config):
        episodes = _episodes(trial, stage)
        if not episodes:
            continue
        earned = any(one.value or any(each.reward for each in one.sequences) for one in episodes)
        if not earned and not stage.deferred_reward:
            ends = ", ".join(dict.fromkeys(one.finish.value for one in episodes))
            ctx.warnings.append(
                f"in a trial no episode of the stage {stage.name} earned anything (they ended with {ends}), "
                "though half of the scripted answers are right: does its play call episode.reward(…)?"
            )
        groups = [group for group in trial.groups if group.request.stage == stage.name]
        if stage == played and not episode_metrics(groups):
            ctx.warnings.append(
                f"the evaluation of the stage {stage.name} would show nothing: its play calls neither "
                "episode.answer(…) nor episode.metric(…)"
            )


def _try_lengths(ctx: Context, settings: TrialSettings, short: Trial) -> None:
    """Tries messages of full length: the longest prompts, and warnings of episodes that end early."""
    if isinstance(settings.chat.tokenizer, CharacterTokenizer):
        return
    full = run_trial(settings, full=True)
    if failure := full.too_many if full.error is None else blamed(full.error):
        ctx.warnings.append(f"the trial with messages of their full length failed: {failure}")
    for _, one in (*short.members(), *full.members()):
        for each in one.sequences:
            longest = max(each.prompt_ids.size, ctx.tried_prompts.get(each.role, 0))
            ctx.tried_prompts[each.role] = longest
    ends = {
        one.detail: group.request.stage
        for group, one in full.members()
        if one.finish in (FinishReason.PROMPT_TOO_LONG, FinishReason.ERROR) and one.detail
    }
    for detail, stage in ends.items():
        ctx.warnings.append(
            f"where messages have their full length, episodes of the stage {stage} end early: {detail}; they "
            "earn 0"
        )
