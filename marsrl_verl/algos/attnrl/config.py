"""AttnRL's settings: `marsrl.algo` with `name: attnrl`."""

from __future__ import annotations

from pydantic import Field

from marsrl_verl.algos.attnrl.adaptive_sampling import (
    ExpansionRounding,
    FilterMean,
    FilterRule,
    TreeChoice,
)
from marsrl_verl.algos.attnrl.branch_points import BranchCriterion, BranchRule, FciAggregation
from marsrl_verl.algos.attnrl.response_trees import AdvantageRule
from marsrl_verl.algos.attnrl.step_cutter import StepEnds
from marsrl_verl.algos.base import BaseConfig
from marsrl_verl.attention.choices import FciBackend
from marsrl_verl.settings.declaration import Switched, limits

SOLVER = "solver"
"""Its one role."""
_NEVER = "with a weight of 1 for the past nothing ever changes"


class AdaptiveBatchConfig(Switched):
    """How many problems a step asks for (AttnRL, arXiv 2509.26628, eq. 10)."""

    enabled: bool = False
    """Adapt the number of problems, so that about `target_samples` of them are worth training. Without it,
    and in the first steps, it is `data.train_batch_size`."""
    target_samples: int | None = limits(None, ge=1, why="null is that of all expanded problems")
    """Samples to train per step (B'); null: `data.train_batch_size` problems with all responses expanded."""
    smoothing: float = limits(0.9, ge=0.0, lt=1.0, why=_NEVER, fix="0.9 is the default.")
    """Weight of the number so far (λ)."""
    min_problems: int = limits(1, ge=1, why="a step has a problem")
    """Fewest problems of a step."""
    max_problems: int | None = limits(None, ge=1, why="null is four times data.train_batch_size")
    """Most problems of a step; null: four times `data.train_batch_size`."""


class Config(BranchRule, BaseConfig):
    """Trees of responses (AttnRL, arXiv 2509.26628); `group_size` is the number of first responses."""

    name: str = "attnrl"
    """The method."""
    group_size: int = limits(6, ge=2, why="advantages compare the responses of a group")
    """First responses to a problem (G)."""
    delta: int | None = limits(None, ge=1, why="a step does not influence itself")
    """Least distance in steps from which attention counts as influence (Δ, eq. 6); null: what the class of
    the prompts names, 4 as in the paper, and 1 in the tiny world, whose responses have five steps at most."""
    num_continuations: int = limits(2, ge=1, why="a branch has a continuation")
    """Continuations from each branch point (T)."""
    fci_aggregation: FciAggregation = FciAggregation.SUM
    """What later steps' attention to a step amounts to: its `sum` (eq. 5), which grows with the number of
    later steps and so favours early ones, or its `mean`."""
    step_ends: StepEnds = StepEnds.BREAKS
    """Where a step ends: `breaks` (after the line breaks between two lines, however many tokens spell them),
    or `tokens` (after each single token with a blank line, released code)."""
    filter: FilterRule = FilterRule.RELEASED
    """Which problems are expanded: `released` (of those whose first responses are all right, the ones above
    their mean influence; all others), `paper` (those with at least the mean influence of all, eq. 8 to the
    letter), `none` (all). First responses of the others are trained, unless they are all right."""
    filter_mean: FilterMean = FilterMean.CUMULATIVE
    """`cumulative`: over all problems so far. `ema`: an exponential moving average over steps."""
    filter_decay: float = limits(0.9, ge=0.0, lt=1.0, why=_NEVER, fix="0.9 is the default.")
    """Weight of the past with `filter_mean=ema`."""
    expansion: ExpansionRounding = ExpansionRounding.ROUND
    """How many responses are expanded, exp(-accuracy) x group_size (eq. 9): to the nearest (`round`), up
    (`ceil`, released code), or `all` of them."""
    tree_choice: TreeChoice = TreeChoice.RANDOM
    """Which ones, where not all: at `random`, or the `minority` of right or wrong ones first (released
    code)."""
    keep_unbranched: bool = True
    """Train first responses that are not expanded as well; the released code drops them."""
    advantage_rule: AdvantageRule = AdvantageRule.ATTNRL
    """`attnrl` (eq. 2 and 3), or `treerl_original`, the formula of TreeRL's released code."""
    fci_backend: FciBackend = FciBackend.AUTO
    """What computes the influence: `triton`, `chunked` (plain torch) or the fitting one (`auto`)."""
    adaptive_batch: AdaptiveBatchConfig = Field(default_factory=AdaptiveBatchConfig)
    """How many problems a step asks for."""

    @property
    def needs_influence(self) -> bool:
        """Whether branch points or the filter look at FCI."""
        return self.criterion is BranchCriterion.FCI or self.filter is not FilterRule.NONE

    @property
    def samples_per_problem(self) -> int:
        """Samples of a problem whose responses are all expanded: G (1 + N T)."""
        return self.group_size * (1 + self.num_branch_points * self.num_continuations)

    def most_problems(self, configured: int) -> int:
        """Most problems of a step: `configured` unless their number is adapted."""
        batch = self.adaptive_batch
        return (batch.max_problems or 4 * configured) if batch.enabled else configured
