"""ReMA in several turns (arXiv 2503.09501, §3.2.2): two agents talk about a problem, and learn from it.

With shared weights both learn from every dialogue; with a policy for each, together or in turn
(`core.alternation`). Each agent's list of messages is a row of the batch, compared with those of the same
agent about the same problem. The released code differs in what docs/methods/rema.md lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.rema.dialogue import config as settings_of
from marsrl_verl.algos.rema.dialogue.evaluation import (
    DIALOGUE,
    DialogueEvaluation,
    dialogue_figures,
    end_of,
    turns,
)
from marsrl_verl.algos.rema.dialogue.rollout import PROGRAM
from marsrl_verl.algos.rema.prompts import (
    AGENTS,
    FINISH,
    META_THINKING,
    REASONING,
    ROLES,
    DialoguePrompts,
    MathDialogue,
)
from marsrl_verl.core.alternation import Alternating
from marsrl_verl.core.credit import EstimatorCredit, LossSpec
from marsrl_verl.core.credit.advantages import reinforce_plus_plus, turn_discounts
from marsrl_verl.core.credit.turn_ratio import turn_loss
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, Traits
from marsrl_verl.core.prompts import NO_PROBLEM, PromptShape, Shown, no_text
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.sequence import LABEL
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.settings.evaluation import EvaluationConfig


class DialogueCredit(EstimatorCredit):
    """The estimator's advantages, REINFORCE++ with returns of turns; the loss is over turns."""

    config: settings_of.Config

    @classmethod
    def loss(cls, config: settings_of.Config) -> LossSpec:
        """Returns the loss over turns, as the settings say; clipping is logged for each agent."""
        return turn_loss(config.loss, "marsrl.algo.loss", ROLES)

    def returns(self, rows: Rows) -> NDArray[np.float64]:
        """Returns (N,) whitened returns, discounted by token and by turn."""
        discounts = turn_discounts(rows, token=self.config.gamma, turn=self.config.gamma_turn)
        return reinforce_plus_plus(rows, gamma=discounts)


class ReMA(Method):
    """One stage of dialogues, one group of them to a problem."""

    Config = settings_of.Config
    Prompts = MathDialogue
    Credit = DialogueCredit
    Schedule = Alternating
    roles = AGENTS

    config: settings_of.Config
    prompts: DialoguePrompts

    @classmethod
    def stages(cls, config: settings_of.Config) -> tuple[Stage, ...]:
        """A group for each problem; a dialogue is a row of each agent that a step trains."""
        rows = 1 if config.alternate.enabled else len(ROLES)
        size = config.group_size
        return (Stage(DIALOGUE, META_THINKING, size, rollout=PROGRAM, writers=ROLES, rows_per_response=rows),)

    @classmethod
    def traits(cls, config: settings_of.Config) -> Traits:
        """Messages are turns, and the agents are labels in the loss's metrics."""
        return Traits(has_turn_ids=True, annotations=frozenset({LABEL}), stop_strings=frozenset({FINISH}))

    @classmethod
    def opening_prompts(
        cls, config: settings_of.Config, prompts: DialoguePrompts, problem: Problem
    ) -> dict[str, tuple[Message, ...]]:
        """Returns the meta-thinking agent's prompt, also from prompts that word a single turn as well."""
        return {META_THINKING: prompts.meta_thinking(problem)}

    @classmethod
    def prompt_shapes(
        cls,
        config: settings_of.Config,
        prompts: DialoguePrompts,
        problem: Problem = NO_PROBLEM,
        shown: Shown = no_text,
    ) -> tuple[PromptShape, ...]:
        """The reasoning agent is shown the first instruction."""
        instruction, most = {"instruction": (META_THINKING,)}, {"instruction": config.message_tokens}
        return (
            PromptShape(META_THINKING, prompts.meta_thinking(problem)),
            PromptShape(REASONING, prompts.reasoning(problem, shown("instruction")), instruction, most),
        )

    @classmethod
    def evaluation(
        cls, config: settings_of.Config, evaluation: EvaluationConfig, prompts: DialoguePrompts
    ) -> DialogueEvaluation:
        """Returns the evaluation by dialogues as in training."""
        return DialogueEvaluation(prompts)

    @classmethod
    def trial(cls, role: str, index: int, number: int) -> tuple[str, Mapping[str, Any]]:
        """Lets a dialogue end after two turns."""
        if role == META_THINKING:
            return ("Go on." if number == 0 else FINISH), {}
        return super().trial(role, index, number)

    @classmethod
    def group_metrics(cls, groups: Sequence[Group]) -> dict[str, float]:
        """Returns accuracy, the ends of dialogues, and figures of their messages."""
        return dialogue_figures(groups)

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """Returns the last answer, its accuracy, and figures of the dialogue."""
        info = trajectory.scored.info
        found = {name: info.get(name) for name in ("answer", "accuracy", "leak")}
        return {**found, "end": end_of(trajectory), "turns": turns(trajectory)}
