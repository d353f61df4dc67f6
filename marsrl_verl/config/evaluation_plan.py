"""What each evaluation of a run does, and what it costs at most."""

from __future__ import annotations

from dataclasses import dataclass

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.evaluation.suite import AFTER, ALONE, BEFORE
from marsrl_verl.evaluation.workflow import method_evaluation
from marsrl_verl.settings.evaluation import EvaluationConfig


def evaluation_at(settings: EvaluationConfig, tag: str) -> EvaluationConfig:
    """The settings of one evaluation: with `in_between` during training, else as they are."""
    return settings if tag in (BEFORE, AFTER, ALONE) else settings.between()


@dataclass(frozen=True, slots=True)
class EvaluationCost:
    """Upper bounds of one evaluation, the greedy pass included."""

    problems: int
    runs: int
    responses: int
    tokens: int
    """That the trained model generates."""


def evaluation_cost(settings: MarsRLConfig, tag: str, held_out: int, prompts: Prompts) -> EvaluationCost:
    """What an evaluation generates if no run ends early and every response is as long as its role may write;
    what a frozen policy answers is not generated here.

    Args:
        settings: the `marsrl` node.
        tag: as in `evaluation_at`.
        held_out: problems in the validation files.
        prompts: the object of `marsrl.prompts`.
    """
    one = evaluation_at(settings.evaluation, tag)
    problems = held_out if one.problems is None else min(held_out, one.problems)
    runs = problems * (one.samples_per_problem + one.greedy)
    method = method_class(settings.algo.name)
    every = method_evaluation(method, settings.algo, one, prompts).most_calls
    calls = {role: count for role, count in every.items() if role not in settings.frozen_roles}
    tokens = sum(count * settings.roles[role].max_new_tokens for role, count in calls.items())
    return EvaluationCost(problems, runs, runs * sum(calls.values()), runs * tokens)
