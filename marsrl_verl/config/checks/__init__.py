"""Every check that a configuration must pass before anything starts.

A check is a function from `Context` to a list of problems. They run in three rounds; a round starts
only when the one before found nothing, because it relies on it.
"""

from __future__ import annotations

from collections.abc import Callable

from marsrl_verl.config.checks import (
    batch,
    classes,
    data,
    lengths,
    machine,
    method,
    model,
    prompt_room,
    upstream,
)
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.errors import ConfigError, Problem

Check = Callable[[Context], list[Problem]]

ROUNDS: tuple[tuple[Check, ...], ...] = (
    (upstream.check_types, method.check_choices, method.check_ranges, method.check_name, batch.check_sizes),
    (
        upstream.check_inert,
        upstream.check_strategy,
        upstream.check_clip,
        upstream.check_kl,
        method.check_selection,
        method.check_train_roles,
        lengths.check_role_limits,
        lengths.check_temperatures,
        lengths.check_copies,
        lengths.check_engine_lengths,
        batch.check_parallelism,
        batch.check_micro_batches,
    ),
    (
        batch.check_updates,
        classes.check_prompts,
        classes.check_rewards,
        model.check_model_folder,
        model.check_model_shape,
        data.check_data,
        batch.check_data_size,
        prompt_room.check_prompt_room,
        machine.check_packages,
        machine.check_gpus,
        machine.check_output,
    ),
)


def run_checks(ctx: Context) -> None:
    """Run all rounds.

    Raises:
        ConfigError: with all problems of the first round that found any.
    """
    for checks in ROUNDS:
        by_key: dict[str, Problem] = {}
        for check in checks:
            for problem in check(ctx):
                by_key.setdefault(f"{problem.key} {problem.value}", problem)
        if by_key:
            raise ConfigError(list(by_key.values()))
