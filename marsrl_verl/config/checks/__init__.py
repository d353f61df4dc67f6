"""Every check that a configuration must pass before anything starts.

A check is a function from `Context` to problems. They run in three rounds; a round starts
only when the one before found nothing, because it relies on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from marsrl_verl.config.checks import (
    batch,
    classes,
    data,
    lengths,
    loggers,
    loss,
    machine,
    model,
    output,
    pipeline,
    policies,
    resume,
    serving,
    tools,
    trial,
    upstream,
)
from marsrl_verl.config.checks.context import Context, typed_settings
from marsrl_verl.config.checks.refused import refuses
from marsrl_verl.config.verl_keys import ESTIMATOR, ESTIMATORS, GROUP_RELATIVE, OUR_ESTIMATOR
from marsrl_verl.rollout.external import checks as frozen
from marsrl_verl.settings.imports import users_line
from marsrl_verl.settings.issues import ConfigError, ConfigIssue
from marsrl_verl.settings.reading import without_effect

Check = Callable[[Context], Iterable[ConfigIssue]]


def check_settings(ctx: Context) -> list[ConfigIssue]:
    """Our own values against their declarations (`config.schema`, `Method.Config`)."""
    typed_settings(ctx.config)
    return []


def check_effects(ctx: Context) -> Iterable[ConfigIssue]:
    """Our settings that another one takes the effect of, as they are declared."""
    return without_effect(ctx.settings, "marsrl")


def check_method(ctx: Context) -> Iterable[ConfigIssue]:
    """The method's own rules."""
    return ctx.settings.algo.checks(ctx)


def check_method_files(ctx: Context) -> Iterable[ConfigIssue]:
    """The method's rules about the prompts' class and the model's files."""
    return ctx.settings.algo.file_checks(ctx)


def check_estimator(ctx: Context) -> list[ConfigIssue]:
    """Checks that advantages are group-relative where the command line names verl's estimator `grpo`."""
    if not ctx.estimator_named:
        return []
    default, chosen = ESTIMATORS[GROUP_RELATIVE], ctx.get(OUR_ESTIMATOR)
    if not ctx.method.Credit.is_group_relative:
        what, fix = f"{ctx.settings.algo.name} has advantages of its own.", "Leave it out."
    elif chosen not in (None, default):
        what = f"The configuration sets {OUR_ESTIMATOR} to {chosen}."
        fix = f"Leave it out, or set {OUR_ESTIMATOR}={default}."
    else:
        return []
    return [ConfigIssue(ESTIMATOR, what, fix, GROUP_RELATIVE)]


ROUNDS: tuple[tuple[Check, ...], ...] = (
    (upstream.check_types, check_settings, output.check_name, upstream.check_values, loggers.check_loggers),
    (
        upstream.check_inert,
        upstream.check_fixed,
        refuses("profiler"),
        loss.check_loss,
        loss.check_clip,
        loss.check_kl,
        trial.check_declaration,
        check_method,
        check_estimator,
        refuses("evaluation"),
        refuses("segments"),
        pipeline.check_rollouts,
        refuses("overlap"),
        pipeline.check_pools,
        pipeline.check_off_policy,
        check_effects,
        pipeline.check_share_prefixes,
        policies.check_policies,
        policies.check_frozen,
        policies.check_rates,
        policies.check_adapters,
        policies.check_models,
        frozen.check_sources,
        tools.check_tools,
        lengths.check_temperatures,
        lengths.check_sequence_limits,
        lengths.check_copies,
        lengths.check_engine_lengths,
        batch.check_parallelism,
        batch.check_rank_share,
        refuses("micro_batches"),
        refuses("cpu"),
        refuses("reading"),
        machine.check_ray_resources,
        machine.check_cpu_cache,
        resume.check_resume_mode,
    ),
    (
        batch.check_updates,
        classes.check_prompts,
        classes.check_answer_form,
        classes.check_rewards,
        model.check_model_folder,
        model.check_model_shape,
        policies.check_target_modules,
        policies.check_model_files,
        check_method_files,
        data.check_data,
        frozen.check_answer_files,
        batch.check_data_size,
        lengths.check_prompt_budget,
        trial.check_trial,
        machine.check_memory,
        machine.check_packages,
        machine.check_gpus,
        machine.check_cluster_address,
        machine.check_job_variables,
        tools.check_start,
        serving.check_server,
        output.check_measured_run,
        output.check_output,
        output.check_disk,
        resume.check_checkpoints,
        resume.check_record,
        resume.check_checkpoint,
    ),
)


VALUES = ROUNDS[:2]
"""Checks of the settings by themselves, without a look at files, packages, GPUs or earlier runs."""


def run_checks(ctx: Context, rounds: tuple[tuple[Check, ...], ...] | None = None) -> None:
    """Runs the rounds, all of them unless others are named (`VALUES`).

    Raises:
        ConfigError: with all problems of the first round that found any.
    """
    for checks in ROUNDS if rounds is None else rounds:
        by_key: dict[str, ConfigIssue] = {}
        broken: list[ConfigIssue] = []
        for check in checks:
            try:
                problems = list(check(ctx))
            except ConfigError as error:
                problems = error.problems
            except Exception as error:
                # Somebody's setting led here, so the message is about settings, not a traceback.
                broken.append(_broken(check, error))
                continue
            for problem in problems:
                by_key.setdefault(f"{problem.key} {problem.value}", problem)
        # A check that fails where others found a problem has most likely met the same problem.
        if found := list(by_key.values()) or broken:
            raise ConfigError(found)


def _broken(check: Check, error: Exception) -> ConfigIssue:
    if (place := users_line(error)) is not None:
        return ConfigIssue("marsrl", f"It raised {type(error).__name__}: {error}.", f"Correct {place}.")
    name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
    return ConfigIssue(
        f"check {name}",
        f"The check could not be finished: {type(error).__name__}: {error}",
        "Look for an unusual value among the settings that you changed. If there is none, this is an error "
        "of marsrl-verl: please report it with the command line.",
    )
