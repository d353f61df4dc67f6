"""AttnRL's settings, `marsrl.algo` with `name: attnrl`, and the rules between them and those of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from marsrl_verl.algos.attnrl.adaptive_sampling import ExpansionRounding, FilterMean, FilterRule, TreeChoice
from marsrl_verl.algos.attnrl.branch_points import BY_TOKEN, BranchCriterion, BranchRule, FciAggregation
from marsrl_verl.algos.attnrl.branch_scores import INFLUENCES
from marsrl_verl.algos.attnrl.step_cutter import StepDelimiter
from marsrl_verl.attention.choices import FciBackend
from marsrl_verl.attention.layer_kinds import MEASURED, without_influence
from marsrl_verl.core.credit import MaskedConfig
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.settings.choices import Choice, Overlap
from marsrl_verl.settings.declaration import Switched, limits
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.run_view import RunView

SOLVER = "solver"
"""The only role."""
INITIAL, CONTINUATION = "initial", "continuation"
"""The stages."""
_NEVER = "with a weight of 1 for the past nothing ever changes"


class AdvantageRule(Choice):
    """Rule that turns rewards into advantages (`Config.advantage_rule`)."""

    ATTNRL = "attnrl"
    TREERL_ORIGINAL = "treerl_original"


class AdaptiveBatchConfig(Switched):
    """Number of problems of a step (AttnRL, arXiv 2509.26628, eq. 10)."""

    enabled: bool = False
    """If true, the number of problems is adapted, so that about `target_samples` samples are worth training.
    Without it, and in the first steps, it is `data.train_batch_size`."""
    target_samples: int | None = limits(None, ge=1, why="null is that of all expanded problems")
    """Samples to train per step (B'); null: `data.train_batch_size` problems with all responses expanded."""
    smoothing: float = limits(0.9, ge=0.0, lt=1.0, why=_NEVER, fix="0.9 is the default.")
    """Weight of the number so far (λ)."""
    min_problems: int = limits(1, ge=1, why="a step has a problem")
    """Fewest problems of a step."""
    max_problems: int | None = limits(None, ge=1, why="null is four times data.train_batch_size")
    """Most problems of a step; null: four times `data.train_batch_size`."""


class Config(BranchRule, MaskedConfig):
    """Trees of responses (AttnRL, arXiv 2509.26628); `group_size` is the number of first responses."""

    preset_values: ClassVar[Mapping[str, float]] = {
        "actor_rollout_ref.actor.clip_ratio_low": 0.2,
        "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    }
    resumable: ClassVar[frozenset[str]] = frozenset({"fci_backend"})

    name: str = "attnrl"
    """The method."""
    group_size: int = limits(6, ge=2, why="advantages compare the responses of a group")
    """First responses to a problem (G)."""
    delta: int | None = limits(None, ge=1, why="a step does not influence itself")
    """Least distance in steps from which attention counts as influence (Δ, eq. 6); null: that of the prompts'
    class, 4 as in the paper, and 1 in the tiny task, whose responses have five steps at most."""
    num_continuations: int = limits(2, ge=1, why="a branch has a continuation")
    """Continuations from each branch point (T)."""
    fci_aggregation: FciAggregation = FciAggregation.SUM
    """Aggregation of later steps' attention to a step: its `sum` (eq. 5), which grows with the number of
    later steps and so favours early ones, or its `mean`."""
    step_delimiter: StepDelimiter = StepDelimiter.BREAKS
    """Places at which a step ends: `breaks` (after the line breaks between two lines, however many tokens
    spell them), or `tokens` (after each single token with a blank line, released code)."""
    filter: FilterRule = FilterRule.RELEASED
    """Problems that are expanded: `released` (of those whose first responses are all right, the ones above
    their mean influence; all others), `paper` (those with at least the mean influence of all, eq. 8 to the
    letter), `none` (all). First responses of the others are trained, unless they are all right."""
    filter_mean: FilterMean = FilterMean.CUMULATIVE
    """`cumulative`: over all problems so far. `ema`: an exponential moving average over steps."""
    filter_decay: float = limits(0.9, ge=0.0, lt=1.0, why=_NEVER, fix="0.9 is the default.")
    """Weight of the past with `filter_mean=ema`."""
    expansion: ExpansionRounding = ExpansionRounding.ROUND
    """Number of responses that are expanded, exp(-accuracy) x group_size (eq. 9): to the nearest (`round`),
    up (`ceil`, released code), or `all` of them."""
    tree_choice: TreeChoice = TreeChoice.RANDOM
    """Responses that are expanded, if not all are: those drawn at `random`, or the `minority` of right or
    wrong ones first (released code)."""
    train_unbranched: bool = True
    """If true, first responses that are not expanded are trained as well; the released code drops them."""
    advantage_rule: AdvantageRule = AdvantageRule.ATTNRL
    """`attnrl` (eq. 2 and 3), or `treerl_original`, the formula of TreeRL's released code."""
    fci_backend: FciBackend = FciBackend.AUTO
    """Implementation of the influence: `triton`, `chunked` (plain torch) or the fitting one (`auto`)."""
    adaptive_batch: AdaptiveBatchConfig = Field(default_factory=AdaptiveBatchConfig)
    """Number of problems of a step."""

    @property
    def needs_influence(self) -> bool:
        """True if branch points or the filter look at FCI."""
        return INFLUENCES in self.needs or self.filter is not FilterRule.NONE

    @property
    def samples_per_problem(self) -> int:
        """Samples of a problem whose responses are all expanded: G (1 + N T)."""
        return self.group_size * (1 + self.num_branch_points * self.num_continuations)

    def max_problems(self, configured: int) -> int:
        """Most problems of a step: `configured` unless their number is adapted."""
        batch = self.adaptive_batch
        return (batch.max_problems or 4 * configured) if batch.enabled else configured

    def checks(self, run: RunView) -> list[ConfigIssue]:
        """Checks the settings against each other, and pipeline and parallelism against the needs of a
        tree."""
        return [*_inert(self), *_batch(run, self), *_pipeline(run), *_trainer(run), *_influence(run, self)]

    def file_checks(self, run: RunView) -> list[ConfigIssue]:
        """Checks for a distance that no two steps of a response have, and for a model without FCI."""
        return [*_delta(run, self), *_layers(run)] if self.needs_influence else []

    def plan_lines(self, run: RunView) -> list[str]:
        """Describes the distance that a run will use; nothing without influence."""
        if not self.needs_influence:
            return []
        distance = run.prompts().step_distance if self.delta is None else self.delta
        return [f"  influence: attention to a step counts from {distance} step{'s'[: distance > 1]} later on"]


_ALGO = "marsrl.algo"
_BATCH = f"{_ALGO}.adaptive_batch"
_PIPELINE = "marsrl.pipeline"
_MODEL = "actor_rollout_ref.model"
_OVERRIDES = f"{_MODEL}.override_config"


def _inert(config: Config) -> Iterator[ConfigIssue]:
    """Finds settings that have no effect with the others."""
    no_influence, influence = not config.needs_influence, "criterion=fci or a filter"
    cases = {
        "delta": (no_influence, influence),
        "fci_backend": (no_influence, influence),
        "fci_aggregation": (no_influence, influence),
        "top_frac": (config.criterion is not BranchCriterion.FCI, "criterion=fci"),
        "on_too_few": (config.criterion in BY_TOKEN, "a criterion that chooses steps"),
        "filter_mean": (config.filter is FilterRule.NONE, "another filter"),
        "filter_decay": (config.filter_mean is not FilterMean.EMA, "filter_mean=ema"),
        "tree_choice": (config.expansion is ExpansionRounding.ALL, "another expansion"),
    }
    what = "It has no effect with the other settings."
    for name in config.changed(*cases):
        inert, instead = cases[name]
        if inert:
            fix = f"Leave it out, or set {instead}."
            yield ConfigIssue(f"{_ALGO}.{name}", what, fix, getattr(config, name))


def _batch(run: RunView, config: Config) -> Iterator[ConfigIssue]:
    """Checks the limits of an adapted number of problems."""
    batch = config.adaptive_batch
    most = config.max_problems(int(run.get("data.train_batch_size")))
    if not batch.enabled or batch.min_problems <= most:
        return
    if batch.max_problems is not None:
        what = f"Expected at least {batch.min_problems}: it is not below min_problems."
        fix = f"Set {_BATCH}.max_problems to {batch.min_problems} or more."
        yield ConfigIssue(f"{_BATCH}.max_problems", what, fix, batch.max_problems)
    else:
        what = f"It is above the most problems of a step, {most}."
        fix = f"Lower it, or set {_BATCH}.max_problems."
        yield ConfigIssue(f"{_BATCH}.min_problems", what, fix, batch.min_problems)


def _pipeline(run: RunView) -> Iterator[ConfigIssue]:
    """Checks the pipeline: a problem's tree is trained as a whole."""
    pipeline = run.settings.pipeline
    if pipeline.step_prompt_budget is not None and pipeline.mode is Mode.SEQUENTIAL:
        what = "The filter compares the problems of a step, which a budget would cut into several rounds."
        fix = "Leave it at null, or set pipeline=pipelined."
        yield ConfigIssue(f"{_PIPELINE}.step_prompt_budget", what, fix, pipeline.step_prompt_budget)
    if pipeline.overlap is not Overlap.NONE:
        what = "Branch points are chosen by the trainer's forward pass, between two rounds of generation."
        yield ConfigIssue(f"{_PIPELINE}.overlap", what, "Set it to none.", pipeline.overlap)
    for name, what in (
        ("min_group", "A problem's tree is trained as a whole."),
        ("max_request_staleness", "A problem's tree is trained as a whole; a part of it would be missing."),
    ):
        if (value := getattr(pipeline, name)) is not None:
            yield ConfigIssue(f"{_PIPELINE}.{name}", what, "Leave it at null.", value)


def _trainer(run: RunView) -> Iterator[ConfigIssue]:
    """Checks for what the forward pass of FCI can't do, and for a distance without room for branch points."""
    key = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
    if int(run.get(key) or 1) > 1:
        what = "Under sequence parallelism each rank sees a part of the heads, FCI needs all of them."
        yield ConfigIssue(key, what, "Set it to 1.", run.get(key))
    fused = f"{_MODEL}.use_fused_kernels"
    if run.get(fused):
        yield ConfigIssue(fused, "FCI was not tried with fused kernels.", "Set it to false.", True)
    distance = run.settings.algo.min_token_distance
    max_tokens = run.settings.roles[SOLVER].longest_sequence
    if distance >= max_tokens:
        what = (
            f"No branch point is so far from the beginning: prompt and response have at most {max_tokens:,} "
            f"tokens, so {_ALGO}.on_too_few would choose all of them."
        )
        yield ConfigIssue(f"{_ALGO}.min_token_distance", what, "Lower it; 0 is no distance.", distance)


def _influence(run: RunView, config: Config) -> Iterator[ConfigIssue]:
    """Checks the implementation of FCI, and the attention that it is taken from."""
    if not config.needs_influence:
        return
    if run.on_cpu and config.fci_backend is FciBackend.TRITON:
        what = "Triton's kernels need a GPU, and this run trains on the processor."
        yield ConfigIssue(f"{_ALGO}.fci_backend", what, "Use auto or chunked.", config.fci_backend)
    attention = (run.get(_OVERRIDES) or {}).get("attn_implementation")
    if attention == "eager":
        what = "FCI is taken from transformers' registry of attention functions, and eager is not in it."
        fix = "Use sdpa or flash_attention_2."
        yield ConfigIssue(f"{_OVERRIDES}.attn_implementation", what, fix, attention)


def _delta(run: RunView, config: Config) -> Iterator[ConfigIssue]:
    if config.delta is None:
        return
    prompts = run.prompts()
    # The first step is not measured.
    if prompts.max_steps is not None and 1 + config.delta >= prompts.max_steps:
        what = (
            f"Responses to {run.settings.prompts.target} have at most {prompts.max_steps} steps, the first "
            "of which is not measured: all influence would be 0."
        )
        fix = f"Leave it out; {prompts.step_distance} suits them."
        yield ConfigIssue(f"{_ALGO}.delta", what, fix, config.delta)


def _layers(run: RunView) -> Iterator[ConfigIssue]:
    """Finds layers of a local model for which there is no FCI."""
    model = run.model_config()
    if model is not None and (others := without_influence(model)):
        key = f"{_MODEL}.path"
        what = (
            f"The model (type {model.get('model_type')}) has layers of {', '.join(others)}; there is FCI for "
            f"{' and '.join(sorted(MEASURED))} only."
        )
        fix = f"Use another model, or {_ALGO}.criterion=surprisal with {_ALGO}.filter=none."
        yield ConfigIssue(key, what, fix, run.get(key))
