"""Every check that a configuration must pass before anything starts.

A check is a function from `Context` to a list of problems. They run in three rounds; a round starts
only when the one before found nothing, because it relies on it.
"""

from __future__ import annotations

from collections.abc import Callable

from marsrl_verl.config.checks import (
    attnrl,
    batch,
    classes,
    data,
    engine,
    evaluation,
    external_solver,
    lengths,
    loggers,
    loss,
    machine,
    memory,
    method,
    model,
    output,
    overlap,
    pipeline,
    prompt_room,
    resume,
    training,
    upstream,
)
from marsrl_verl.config.checks.context import Context
from marsrl_verl.settings.issues import ConfigError, ConfigIssue

Check = Callable[[Context], list[ConfigIssue]]

ROUNDS: tuple[tuple[Check, ...], ...] = (
    (
        upstream.check_types,
        method.check_choices,
        method.check_ranges,
        output.check_name,
        classes.check_reward_limits,
        evaluation.check_loop,
        attnrl.check_attnrl,
        batch.check_sizes,
        engine.check_numbers,
        memory.check_hardware,
        engine.check_names,
        loggers.check_loggers,
        external_solver.check_external_numbers,
    ),
    (
        upstream.check_inert,
        upstream.check_fixed,
        upstream.check_strategy,
        loss.check_loss,
        loss.check_clip,
        loss.check_kl,
        method.check_selection,
        evaluation.check_loop_rounds,
        pipeline.check_segments,
        overlap.check_overlap,
        overlap.check_pools,
        pipeline.check_off_policy,
        attnrl.check_attnrl_run,
        attnrl.check_estimator,
        pipeline.check_mastered_tokens,
        training.check_share_prefixes,
        method.check_train_roles,
        external_solver.check_external_source,
        lengths.check_role_limits,
        lengths.check_temperatures,
        lengths.check_copies,
        lengths.check_engine_lengths,
        batch.check_parallelism,
        batch.check_rank_share,
        batch.check_micro_batches,
        engine.check_engine_split,
        engine.check_cpu,
        engine.check_reading,
        engine.check_ray_resources,
        resume.check_resume_mode,
        resume.check_kept,
    ),
    (
        batch.check_updates,
        classes.check_prompts,
        classes.check_rewards,
        model.check_model_folder,
        model.check_tiny_world,
        model.check_model_shape,
        attnrl.check_attnrl_model,
        attnrl.check_attnrl_delta,
        data.check_data,
        external_solver.check_external_answers,
        batch.check_data_size,
        prompt_room.check_prompt_room,
        memory.check_memory,
        machine.check_packages,
        machine.check_gpus,
        machine.check_job_variables,
        output.check_output,
        resume.check_checkpoints,
        resume.check_record,
        resume.check_checkpoint,
    ),
)


def run_checks(ctx: Context) -> None:
    """Run all rounds.

    Raises:
        ConfigError: with all problems of the first round that found any.
    """
    for checks in ROUNDS:
        by_key: dict[str, ConfigIssue] = {}
        broken: list[ConfigIssue] = []
        for check in checks:
            try:
                problems = check(ctx)
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
    name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
    return ConfigIssue(
        f"check {name}",
        f"The check could not be finished: {type(error).__name__}: {error}",
        "Look for an unusual value among the settings that you changed. If there is none, this is an error "
        "of marsrl-verl: please report it with the command line.",
    )
