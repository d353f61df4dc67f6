"""Which evaluation a method has."""

from __future__ import annotations

import inspect

from marsrl_verl.core.method import Method
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.stage import Stage
from marsrl_verl.evaluation.runs import Evaluation
from marsrl_verl.evaluation.single_role import SingleRole
from marsrl_verl.evaluation.workflow import WorkflowEvaluation
from marsrl_verl.rollout.runner import find_program
from marsrl_verl.rollout.workflow import Workflow


def method_evaluation(
    method: type[Method], config: object, evaluation: object, prompts: Prompts
) -> Evaluation:
    """The method's own (`Method.evaluation`); else its first stage's workflow is played, or the role of that
    stage answers.

    Raises:
        ValueError: there is no such rollout program.
    """
    found: Evaluation | None = method.evaluation(config, evaluation, prompts)
    if found is not None:
        return found
    first: Stage = method.stages(config)[0]
    program = find_program(first.program)
    if inspect.isclass(program) and issubclass(program, Workflow):
        return WorkflowEvaluation(first, prompts)
    return SingleRole(first.role, prompts, first.program)
