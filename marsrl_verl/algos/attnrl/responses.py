"""First responses: their steps, the influence of each step, and their branch points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.attnrl.branch_points import (
    BY_TOKEN,
    BranchCriterion,
    BranchPoint,
    ResponseFeatures,
    aggregated_influence,
    choose_branch_points,
)
from marsrl_verl.algos.attnrl.branch_scores import (
    ENTROPIES,
    INFLUENCES,
    BranchScores,
    ResponseView,
    branch_scores,
)
from marsrl_verl.algos.attnrl.config import Config
from marsrl_verl.algos.attnrl.step_cutter import step_cutter
from marsrl_verl.core.method import Probe
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.reasoning_steps import Steps
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, TRAINER_LOG_PROBS
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.settings.rules import OwnFunction

INFLUENCE = "influence"
"""Annotation: the Forward Context Influence of the step that each token is in, (T,)."""
STEP_IDS, STEP_MEASURED = "step_ids", "step_measured"
"""Inputs of FCI's measure: (T,) the step of each token, and whether that step is measured."""
FCI_MEASURE = "marsrl_verl.attention.measure:InfluenceMeasure"


class FirstResponses:
    """Steps, influence and branch points of the first responses in a step.

    Args:
        config: the method's settings.
        tools: the tools that the method is built with.
    """

    def __init__(self, config: Config, tools: MethodTools) -> None:
        self.config, self.seed = config, tools.seed
        self.cutter = step_cutter(tools.tokenizer, config.step_delimiter)
        self.delta = tools.prompts.step_distance if config.delta is None else config.delta
        """Least distance in steps from which later attention counts (arXiv 2509.26628, eq. 6)."""
        self._steps: dict[str, Steps] = {}
        """Steps of responses that were cut in this training step, by trajectory id."""
        self._scores: dict[str, tuple[float, ...]] = {}
        """Scores that a function of the user's gave responses, by trajectory id."""

    def forget(self) -> None:
        """Forgets the responses of a step that is over."""
        self._steps, self._scores = {}, {}

    def steps(self, one: Trajectory) -> Steps:
        """Returns the steps of a response (`StepCutter`)."""
        if one.trajectory_id not in self._steps:
            self._steps[one.trajectory_id] = self.cutter.cut(one.sequence.response_ids.tolist())
        return self._steps[one.trajectory_id]

    def influence(self, one: Trajectory) -> tuple[float, ...] | None:
        """Returns the Forward Context Influence of every step as it was measured; None where it was not."""
        found = one.sequence.annotations.get(INFLUENCE)
        if found is None:
            return None
        steps = self.steps(one)
        return tuple(float(found[steps.start(step)]) for step in range(len(steps)))

    def points(self, one: Trajectory) -> list[BranchPoint]:
        """Returns the branch points of a response; none if it has no token."""
        if not one.tokens:
            return []
        ids, criterion = one.sequence.response_ids.tolist(), self.config.criterion
        by_surprisal = criterion is BranchCriterion.SURPRISAL
        by_step = self.chooses_steps(one)
        own = self._own_scores(one, criterion) if isinstance(criterion, OwnFunction) else ()
        features = ResponseFeatures(
            self.steps(one),
            len(one.sequence.prompt_ids),
            influence=self.aggregated(one) if criterion is BranchCriterion.FCI else (),
            token_scores=() if by_step else own or self._token_scores(one),
            step_scores=own if by_step else (),
            answer_token=self.cutter.first_final_word(ids) if by_surprisal else None,
        )
        return choose_branch_points(features, self.config, self._rng(one))

    def chooses_steps(self, one: Trajectory) -> bool:
        """True if the criterion chooses among the steps of a response, not among its tokens."""
        criterion = self.config.criterion
        if isinstance(criterion, OwnFunction):
            return len(self._own_scores(one, criterion)) == len(self.steps(one))
        return criterion not in BY_TOKEN

    def _own_scores(self, one: Trajectory, rule: OwnFunction[BranchScores]) -> tuple[float, ...]:
        """Returns the scores of a response by a function of the user's, which is called once for each
        response."""
        if one.trajectory_id not in self._scores:
            ids = one.sequence.response_ids.tolist()
            asked = {}
            if INFLUENCES in rule.needs:
                asked[INFLUENCES] = np.asarray(self.aggregated(one))
            if ENTROPIES in rule.needs:
                asked[ENTROPIES] = self._entropies(one)
            texts = [self.cutter.texts[token] for token in ids]
            view = ResponseView(ids, texts, self.steps(one), self._log_probs(one), self._rng(one), asked)
            self._scores[one.trajectory_id] = branch_scores(rule, view)
        return self._scores[one.trajectory_id]

    def _rng(self, one: Trajectory) -> np.random.Generator:
        return derive_generator(self.seed, "branch points", one.trajectory_id)

    def earliest_points(self, one: Trajectory) -> list[BranchPoint]:
        """Returns the points that the same rule chooses without the criterion."""
        rule = self.config.model_copy(update={"criterion": BranchCriterion.EARLIEST})
        features = ResponseFeatures(self.steps(one), len(one.sequence.prompt_ids))
        return choose_branch_points(features, rule, self._rng(one))

    def _token_scores(self, one: Trajectory) -> Sequence[float]:
        """Returns the scores by which a criterion ranks tokens; none if it chooses steps."""
        if self.config.criterion is BranchCriterion.SURPRISAL:
            return [-value for value in self._log_probs(one).tolist()]
        if self.config.criterion is BranchCriterion.ENTROPY:
            return list(self._entropies(one).tolist())
        return ()

    def _log_probs(self, one: Trajectory) -> NDArray[Any]:
        return one.sequence.annotations.get(TRAINER_LOG_PROBS, one.sequence.rollout_log_probs)

    def _entropies(self, one: Trajectory) -> NDArray[Any]:
        found = one.sequence.annotations.get(RECORDED_ENTROPIES)
        if found is None:
            what = f"its entropies were not computed, which criterion={self.config.criterion} needs"
            raise ValueError(f"trajectory {one.trajectory_id}: {what}")
        return found

    def aggregated(self, one: Trajectory) -> tuple[float, ...]:
        """Returns the influence of every step, aggregated over later steps as the settings say."""
        influence = self.influence(one)
        if influence is None:
            raise ValueError(
                f"trajectory {one.trajectory_id}: its Forward Context Influence was not computed, which this "
                "method's branching or filter needs"
            )
        return aggregated_influence(influence, self.delta, self.config.fci_aggregation)

    def influence_probe(self, name: str, *, entropies: bool) -> Probe:
        """Returns the probe that measures FCI on the ranks, and the tokens' entropies if they are wanted
        too."""
        settings = {"delta": self.delta, "backend": str(self.config.fci_backend)}
        measured, found = self._measured_steps, (INFLUENCE,)
        return Probe(name, FCI_MEASURE, settings, measured, found, entropies, shares_prefixes=False)

    def _measured_steps(self, sequence: TokenSequence) -> dict[str, NDArray[Any]]:
        """Returns the steps and which of them are measured: not the first one, nor one that closes the
        thinking part or comes after it (released code)."""
        steps = self.cutter.cut(sequence.response_ids.tolist())
        ids = np.array(steps.step_ids(), dtype=np.int32)
        return {STEP_IDS: ids, STEP_MEASURED: (ids > 0) & (ids < steps.thinking)}
