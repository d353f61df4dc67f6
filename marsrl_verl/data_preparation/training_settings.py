"""Settings that the preparation takes from the training configuration: model, prompts, sampling, grader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.checks import run_checks
from marsrl_verl.config.checks.context import Context, typed_settings
from marsrl_verl.config.checks.data import prompt_lengths
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config, first_role
from marsrl_verl.config.verl_keys import FIRST
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.stage import Stage
from marsrl_verl.data.files import PromptLengths
from marsrl_verl.rewards.running import RewardRunner
from marsrl_verl.rollout.runner import find_workflow
from marsrl_verl.rollout.single_call import SingleCall
from marsrl_verl.settings.issues import ConfigError, ConfigIssue
from marsrl_verl.verl_adapter.components import sampling_settings


def training_config(overrides: tuple[str, ...]) -> DictConfig:
    """The training configuration that the words of a training command give, composed and checked as in a dry
    run: this machine need not be the one that trains, and the data that is being prepared isn't there yet.
    ConfigError: training would reject it too."""
    if any(FIRST in word for word in overrides):
        role = first_role(parse_arguments([word for word in overrides if FIRST not in word]))
        overrides = tuple(word.replace(FIRST, role) for word in overrides)
    composed = compose_config(parse_arguments(list(overrides)))
    run_checks(Context(config=composed.config, raw=composed.raw, dry_run=True, prepares_data=True))
    return composed.config


def prompt_lengths_of(config: DictConfig) -> PromptLengths | None:
    """Returns the measure of the problems' prompts; None if the model's tokenizer is not on this machine."""
    return prompt_lengths(Context(config=config, raw={}, dry_run=True, prepares_data=True))


def answering_role(config: DictConfig) -> str:
    """Returns the role that answers the problems: the first one of the training's method."""
    return _first_stage(config).role


def answering_workflow(config: DictConfig) -> str:
    """The workflow that answers them, as in the method's evaluation."""
    return _first_stage(config).workflow


def _first_stage(config: DictConfig) -> Stage:
    algo = typed_settings(config).algo
    return method_class(algo.name).stages(algo)[0]


def _is_single_call(config: DictConfig) -> bool:
    return find_workflow(answering_workflow(config)) is SingleCall


def _active_roles(config: DictConfig) -> tuple[str, ...]:
    """The roles whose tokens are sampled: a program of the method's may call all of them."""
    if _is_single_call(config):
        return (answering_role(config),)
    algo = typed_settings(config).algo
    return method_class(algo.name).active_roles(algo, None)


def check_policies(config: DictConfig) -> None:
    """Checks that the start model answers for all roles that the method's program calls; ConfigError: one of
    them has a frozen policy."""
    frozen = {} if _is_single_call(config) else typed_settings(config).frozen_roles
    for role in _active_roles(config):
        if role in frozen:
            what = "The start model answers for all roles here: the pass rates would be another system's."
            fix = "Leave it out, or give answers that the method has recorded (--from-answers)."
            raise ConfigError([ConfigIssue(f"marsrl.roles.{role}.policy", what, fix, frozen[role])])


def answer_sampling(config: DictConfig) -> dict[str, Sampling]:
    """Returns how answers are sampled in training, by role, in one piece: segments are a matter of training.

    Each problem has a generator of its own, so that its answers depend neither on the others nor on
    interruptions.
    """
    settings = typed_settings(config)
    configured = sampling_settings(settings)
    return {
        role: replace(configured[role], segment_tokens=None, seed=settings.run.seed)
        for role in _active_roles(config)
    }


def make_grader(config: DictConfig) -> RewardRunner:
    """One object of the role's reward class, with training's time limit."""
    role = answering_role(config)
    spec = typed_settings(config).reward[role]
    return RewardRunner.load(role, spec.target, spec.kwargs, spec.timeout_s)


_GRADES_DEPEND_ON = ("marsrl.reward.<role>.target", "marsrl.reward.<role>.kwargs")
_ROLES = "marsrl.roles"
_OF_A_PROGRAM = ("marsrl.algo", _ROLES, "marsrl.tools")
"""Settings that the answers of a program of the method's may depend on beside the first role's."""
_OF_TRAINING = "lr"
"""A role's setting that no answer depends on."""
_ANSWERS_DEPEND_ON = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "actor_rollout_ref.model.custom_chat_template",
    "actor_rollout_ref.rollout.dtype",
    "actor_rollout_ref.rollout.engine_kwargs.vllm",
    "data.apply_chat_template_kwargs",
    "marsrl.prompts.target",
    "marsrl.prompts.kwargs",
    "marsrl.roles.<role>.temperature",
    "marsrl.roles.<role>.top_p",
    "marsrl.roles.<role>.top_k",
    "marsrl.roles.<role>.max_prompt_tokens",
    "marsrl.roles.<role>.max_new_tokens",
    "marsrl.roles.<role>.max_sequence_tokens",
    "marsrl.run.seed",
    *_GRADES_DEPEND_ON,
)
"""Without settings of where and how fast they are computed (tensor parallelism, batch sizes)."""


def grader_settings(config: DictConfig) -> dict[str, Any]:
    """Returns the settings that the grades depend on, by name."""
    return _values(config, _GRADES_DEPEND_ON)


def answer_settings(config: DictConfig, answers: int) -> dict[str, Any]:
    """Returns the settings that answers and grades depend on, by name."""
    keys = _ANSWERS_DEPEND_ON + (() if _is_single_call(config) else _OF_A_PROGRAM)
    found = _values(config, keys)
    for role in found.get(_ROLES, {}).values():
        role.pop(_OF_TRAINING, None)
    return {"answers per problem": answers, **found}


def _values(config: DictConfig, keys: tuple[str, ...]) -> dict[str, Any]:
    role = answering_role(config)
    found = {key: OmegaConf.select(config, key) for key in (key.replace("<role>", role) for key in keys)}
    return {
        key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        for key, value in found.items()
    }
