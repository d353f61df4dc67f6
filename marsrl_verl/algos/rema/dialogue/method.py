"""ReMA in several turns (arXiv 2503.09501, §3.2.2): two agents talk about a problem, and learn from it.

With shared weights both learn from every dialogue; with a policy for each, together or in turn
(`algos.alternation`). Each agent's list of messages is a row of the batch, compared with those of the same
agent about the same problem. The released code differs in what docs/rema.md lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.alternation import Alternation
from marsrl_verl.algos.base import BaseMethod, PromptLimits
from marsrl_verl.algos.estimator import Estimator, estimated_advantages, estimated_rows
from marsrl_verl.algos.mastered_tokens import MasteredTokens
from marsrl_verl.algos.rema.dialogue import config as settings_of
from marsrl_verl.algos.rema.dialogue.evaluation import DIALOGUE, DialogueEvaluation
from marsrl_verl.algos.rema.dialogue.metrics import dialogue_figures, end_of, turns
from marsrl_verl.algos.rema.dialogue.rollout import PROGRAM
from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING, ROLES, DialoguePrompts
from marsrl_verl.algos.turn_ratio import turn_loss
from marsrl_verl.core.advantages import reinforce_plus_plus, turn_discounts
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import LossSpec, MethodTools, RunView, Stage, StagePlan
from marsrl_verl.core.prompts import NO_PROBLEM, PromptShape
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.sequence import LABEL
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.settings.evaluation import EvaluationConfig
from marsrl_verl.settings.issues import ConfigIssue


class ReMA(BaseMethod):
    """One stage of dialogues, one group of them to a problem.

    Args:
        prompts: how the lists of messages begin.
        config: its settings.
        limits: longest prompts; None: problems of every length are asked.
        alternation: whose turn a step is; None: all policies are trained in every step.
    """

    Config = settings_of.Config
    Prompts = DialoguePrompts
    default_prompts = "marsrl_verl.algos.rema.prompts:MathDialogue"
    roles = ROLES
    answering_roles = (REASONING,)
    rewards: ClassVar[Mapping[str, str]] = {META_THINKING: "marsrl_verl.algos.rema.leak:PlanReward"}
    text_roles = frozenset(ROLES)
    stop_strings = frozenset({FINISH})
    rollouts = (PROGRAM,)
    rollout = PROGRAM
    stages = (Stage(DIALOGUE, META_THINKING),)
    kl_in_reward = True
    notes_turns = True
    annotations = frozenset({LABEL})
    resumable = frozenset(
        {
            "estimator",
            "gamma",
            "gamma_turn",
            "normalize_std",
            "mastered_tokens",
            "alternate",
            "loss",
            "guards",
            "overlong",
            "leak_penalty",
        }
    )

    prompts: DialoguePrompts

    def __init__(
        self,
        prompts: DialoguePrompts,
        config: settings_of.Config,
        limits: PromptLimits | None = None,
        alternation: Alternation | None = None,
    ) -> None:
        mastered = MasteredTokens.from_config(config.mastered_tokens)
        super().__init__(prompts, config.group_size, limits, mastered)
        self.config, self.alternation = config, alternation

    @classmethod
    def from_settings(cls, settings: Any, tools: MethodTools) -> ReMA:
        """Build the method from the `marsrl` node."""
        config = settings.algo
        trained = {role: settings.policy_of(role) for role in ROLES if role not in settings.frozen_roles}
        alternation = Alternation.of(config.alternate, ROLES, trained)
        return cls(tools.prompts, config, cls.prompt_limits(settings, tools), alternation)

    @classmethod
    def plan(cls, config: settings_of.Config) -> tuple[StagePlan, ...]:
        """A group for each problem; a dialogue is a row of each agent that a step trains."""
        rows = 1 if config.alternate.enabled else len(ROLES)
        return (StagePlan(DIALOGUE, META_THINKING, 1, True, config.group_size, rows, ROLES),)

    @classmethod
    def opening_prompts(
        cls, config: settings_of.Config, prompts: DialoguePrompts, problem: Problem
    ) -> dict[str, tuple[Message, ...]]:
        """The meta-thinking agent speaks first."""
        return {META_THINKING: prompts.meta_thinking(problem)}

    @classmethod
    def prompt_shapes(cls, config: settings_of.Config, prompts: DialoguePrompts) -> tuple[PromptShape, ...]:
        """The reasoning agent is shown the first instruction."""
        instruction, most = {"instruction": (META_THINKING,)}, {"instruction": config.message_tokens}
        return (
            PromptShape(META_THINKING, prompts.meta_thinking(NO_PROBLEM)),
            PromptShape(REASONING, prompts.reasoning(NO_PROBLEM, ""), instruction, most),
        )

    @classmethod
    def checks(cls, run: RunView) -> list[ConfigIssue]:
        """See `config.checks`."""
        return settings_of.checks(run)

    @classmethod
    def loss(cls, config: settings_of.Config) -> LossSpec:
        """Over turns, as the settings say; what is clipped is logged of each agent."""
        return turn_loss(config.loss, "marsrl.algo.loss", ROLES)

    @classmethod
    def plan_lines(cls, run: RunView) -> list[str]:
        """How long a dialogue can become, and whose turn the steps are."""
        config: settings_of.Config = run.settings.algo
        full = settings_of.full_turns(run)
        lines = [
            f"  dialogues: up to {config.max_turns} turns of two messages of up to {config.message_tokens:,} "
            "tokens; each agent's list of messages is a row",
            f"  messages of full length after a prompt of the limit: room in the lists for {full} "
            f"turn{'' if full == 1 else 's'} of them",
        ]
        trained = {role: run.settings.policy_of(role) for role in ROLES if role not in run.frozen_roles}
        alternation = Alternation.of(config.alternate, ROLES, trained)
        if alternation is not None:
            begins = ", then ".join(alternation.order)
            lines.append(f"  trained in turn: {begins}, {alternation.interval} steps each")
        return lines

    # --- evaluation ----------------------------------------------------------------------------

    @classmethod
    def evaluation(
        cls, config: settings_of.Config, evaluation: EvaluationConfig, prompts: DialoguePrompts
    ) -> DialogueEvaluation:
        """Dialogues as in training."""
        return DialogueEvaluation(prompts)

    @classmethod
    def evaluation_calls(cls, config: settings_of.Config, evaluation: EvaluationConfig) -> Mapping[str, int]:
        """A response of each agent, whatever messages it consists of."""
        return dict.fromkeys(ROLES, 1)

    @classmethod
    def group_metrics(cls, groups: Sequence[Group]) -> dict[str, float]:
        """Accuracy, how dialogues ended, and what their messages are like."""
        return dialogue_figures(groups)

    # --- requests and training -----------------------------------------------------------------

    def first_requests(self, problem: Problem, step: int) -> list[RolloutRequest]:
        """A group of dialogues; none where the problem's prompt is too long."""
        messages = self.prompts.meta_thinking(problem)
        if not self.fits(META_THINKING, messages):
            return []
        identity = (f"{problem.problem_id}/{DIALOGUE}/0", problem, DIALOGUE, META_THINKING, messages)
        return [RolloutRequest(*identity, self.group_size, PROGRAM, created_step=step)]

    def trains(self, groups: Sequence[Group]) -> bool:
        """Whether the estimator has anything to compare: rewards of dialogues, or of one agent's own."""
        return bool(estimated_rows(self.config, groups))

    def train_policies(self, step: int, trained: frozenset[str]) -> frozenset[str]:
        """All of them, or the one whose turn it is."""
        return trained if self.alternation is None else frozenset({self.alternation.due(step)})

    def select(self, groups: Sequence[Group], step: int) -> list[RowRef]:
        """All that the estimator gives an advantage to, of the policies whose turn it is."""
        rows = estimated_rows(self.config, groups)
        if self.alternation is None:
            return rows
        due = self.alternation.due(step)
        return [ref for ref in rows if _policy(groups, ref) == due]

    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """The estimator's; REINFORCE++ with returns of turns."""
        if self.config.estimator is Estimator.GROUP:
            return estimated_advantages(self.config, rows)
        discounts = turn_discounts(rows, token=self.config.gamma, turn=self.config.gamma_turn)
        return reinforce_plus_plus(rows, gamma=discounts).astype(np.float32)

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """The last answer, and how the dialogue went."""
        info = trajectory.scored.info
        found = {name: info.get(name) for name in ("answer", "accuracy", "leak")}
        return {**found, "end": end_of(trajectory), "turns": turns(trajectory)}


def _policy(groups: Sequence[Group], ref: RowRef) -> str:
    return groups[ref.group].trajectories[ref.trajectory].sequences[ref.sequence].policy
