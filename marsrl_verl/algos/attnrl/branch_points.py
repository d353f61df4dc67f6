"""Places at which a response is continued anew: attention-based tree branching and other criteria.

AttnRL (arXiv 2509.26628, §3.2, eq. 7) branches at the N earliest of the steps whose Forward Context
Influence is in the top rho. TreeRL (arXiv 2506.11902, §3.1) branches at the N tokens that were least
probable when they were sampled, which it calls entropy; the TreeRL of AttnRL's authors takes the entropy of
the distribution.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from marsrl_verl.algos.attnrl.branch_scores import ENTROPIES, INFLUENCES, BranchScores
from marsrl_verl.core.reasoning_steps import Steps
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import Settings, limits
from marsrl_verl.settings.rules import OwnFunction, Rule


class BranchCriterion(Choice):
    """Criterion by which branch points are chosen."""

    FCI = "fci"
    """The earliest steps whose influence is in the top share."""
    SURPRISAL = "surprisal"
    """The tokens with the largest -log p, which need not begin a step, before the one that names the answer
    (TreeRL's paper and code)."""
    ENTROPY = "entropy"
    """The tokens that were drawn from the distributions of largest entropy, anywhere in the response but for
    its first and last token (TreeRL in the code of AttnRL's authors, which may choose the first one too)."""
    RANDOM = "random"
    """Steps at random."""
    EARLIEST = "earliest"
    """The earliest steps: FCI's rule without FCI."""
    UNIFORM = "uniform"
    """Steps spread evenly over the response."""


BY_TOKEN = frozenset({BranchCriterion.SURPRISAL, BranchCriterion.ENTROPY})
"""Criteria that choose tokens; the others choose steps."""


class FciAggregation(Choice):
    """Aggregation of later steps' attention to a step into its influence (`Config.fci_aggregation`)."""

    SUM = "sum"
    MEAN = "mean"


def aggregated_influence(
    influence: Sequence[float], delta: int, aggregation: FciAggregation
) -> tuple[float, ...]:
    """Returns the influence of the steps of a whole response from their sums over the steps at least `delta`
    later. All heads and layers of a step are divided by the same number, so that their largest value can be
    divided instead."""
    if aggregation is FciAggregation.SUM:
        return tuple(influence)
    steps = len(influence)
    return tuple(value / max(steps - step - delta, 1) for step, value in enumerate(influence))


class OnTooFew(Choice):
    """Rule for a response in which fewer points than wanted qualify."""

    FEWER = "fewer"
    """The points found, and no others."""
    FILL = "fill"
    """Also the earliest other thinking steps, whatever their score and distance."""
    SPREAD = "spread"
    """Also other thinking steps that keep the distance, the most influential ones first, where a step that
    would leave room for fewer is passed over. A response then has as many points as can stand apart (at most
    N) by every criterion, so that criteria can be compared."""
    REPEAT = "repeat"
    """Like `fill`, with any step but the first, also of the answer; then the points found are taken again, so
    that each response has as many continuations (released code)."""


class BranchRule(Settings):
    """Choice of branch points."""

    criterion: Rule[BranchCriterion, BranchScores] = BranchCriterion.FCI
    """Places at which responses are continued: `fci` (the earliest steps of high influence), `surprisal` (the
    least probable tokens before the answer is named, TreeRL), `entropy` (the tokens drawn from the
    distributions of largest entropy, TreeRL in the code of AttnRL's authors), `random`, `earliest` or
    `uniform` steps; or those of a function of yours, (response) -> scores of its steps or tokens, the highest
    of which are chosen (docs/guides/new_method.md)."""
    num_branch_points: int = limits(2, ge=1, why="a tree branches")
    """Branch points of an expanded response (N)."""
    top_frac: float = limits(0.2, gt=0.0, le=1.0, fix="0.2 is the paper's.")
    """Share of a response's steps that are candidates by their influence (ρ, eq. 7)."""
    min_token_distance: int = limits(0, ge=0, why="0 is no distance")
    """Least tokens between the beginning (prompt included) and a branch point and between two of them. The
    paper has none, its released code 512."""
    on_too_few: OnTooFew = OnTooFew.FILL
    """Points of a response in which too few steps qualify: `fewer` points; `fill` with the earliest other
    ones; `spread` with the most influential other ones that keep the distance, so that every criterion has
    equally many points; `repeat` (as the released code: any later step, then the same points again)."""

    @property
    def needs(self) -> frozenset[str]:
        """Results of the trainer's pass that the criterion reads."""
        if isinstance(self.criterion, OwnFunction):
            return self.criterion.needs
        read = {BranchCriterion.FCI: INFLUENCES, BranchCriterion.ENTROPY: ENTROPIES}.get(self.criterion)
        return frozenset() if read is None else frozenset({read})


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """A place in a response where new continuations begin."""

    token: int
    """Tokens of the response that are kept; what followed is sampled anew."""
    times: int = 1
    """Number of times that the point was taken."""


@dataclass(frozen=True, slots=True)
class ResponseFeatures:
    """Features of a response by which its branch points are chosen."""

    steps: Steps
    prompt_tokens: int
    influence: Sequence[float] = ()
    """FCI of every step; needed by `fci`."""
    token_scores: Sequence[float] = ()
    """-log p of every token, needed by `surprisal`, or the entropy of the distribution that it was drawn
    from, needed by `entropy`; or a function's scores."""
    step_scores: Sequence[float] = ()
    """A function's scores of the steps, if it has none of tokens."""
    answer_token: int | None = None
    """The first token that names the answer: `surprisal` branches before it; None: there is none."""


def choose_branch_points(
    features: ResponseFeatures, rule: BranchRule, rng: np.random.Generator
) -> list[BranchPoint]:
    """Returns the branch points of one response, by position.

    The first step is never chosen, nor one that closes the thinking part or comes after it; `entropy` and a
    function's scores of tokens may choose any token but the first and the last one.

    Returns:
        At most `rule.num_branch_points` points, counted with `times`; none for a response of one step.
    """
    own = isinstance(rule.criterion, OwnFunction)
    if features.token_scores if own else rule.criterion in BY_TOKEN:
        return [BranchPoint(token) for token in sorted(_highest_tokens(features, rule))]
    eligible = range(1, features.steps.thinking)
    candidates = _ordered(features, rule, eligible, rng)
    if rule.on_too_few is OnTooFew.SPREAD:
        chosen = _most_apart(features, candidates, rule, eligible)
    else:
        chosen = _completed(features, _spaced(features, candidates, rule), rule, eligible)
    return [BranchPoint(features.steps.start(step), times) for step, times in sorted(Counter(chosen).items())]


def _ordered(
    features: ResponseFeatures, rule: BranchRule, eligible: range, rng: np.random.Generator
) -> list[int]:
    """Returns the candidates in the order in which they are tried."""
    if rule.criterion is BranchCriterion.FCI:
        return _most_influential(features, rule, eligible)
    if rule.criterion is BranchCriterion.RANDOM:
        return [int(step) for step in rng.permutation(np.array(eligible, dtype=np.int64))]
    if rule.criterion is BranchCriterion.UNIFORM:
        far = [step for step in eligible if _keeps_distance(features, step, (), rule)]
        if len(far) <= rule.num_branch_points:
            return far
        places = (np.arange(rule.num_branch_points) + 0.5) * len(far) / rule.num_branch_points
        return [far[int(place)] for place in places]
    if isinstance(rule.criterion, OwnFunction):
        scores = features.step_scores
        able = [step for step in eligible if scores[step] > -math.inf]
        return sorted(able, key=lambda step: (-scores[step], step))
    return list(eligible)


def _most_influential(features: ResponseFeatures, rule: BranchRule, eligible: range) -> list[int]:
    """Returns the steps at or above the quantile, by position. The quantile is over all steps of the
    response, those that are not measured included with 0; if it is 0, any influence is enough."""
    influence = np.asarray(features.influence, dtype=np.float64)
    if len(influence) != len(features.steps):
        raise ValueError(f"{len(influence)} values of influence for {len(features.steps)} steps")
    if not (influence > 0).any():
        # The released code's threshold then is 0, which every step but the first reaches.
        return list(range(1, len(features.steps))) if rule.on_too_few is OnTooFew.REPEAT else []
    threshold = np.quantile(influence, 1.0 - rule.top_frac)
    if threshold <= 0:
        threshold = influence[influence > 0].min()
    return [step for step in eligible if influence[step] >= threshold]


def _spaced(features: ResponseFeatures, candidates: Sequence[int], rule: BranchRule) -> list[int]:
    """Returns the first candidates that keep the distance to the beginning and to one another."""
    return _extended(features, [], candidates, rule.num_branch_points, rule)


def _extended(
    features: ResponseFeatures, chosen: Sequence[int], others: Iterable[int], most: int, rule: BranchRule
) -> list[int]:
    """Returns the chosen steps and, up to `most` in all, the first of the others that keep the distance."""
    found = list(chosen)
    for step in others:
        if len(found) == most:
            break
        if _keeps_distance(features, step, found, rule):
            found.append(step)
    return found


def _keeps_distance(features: ResponseFeatures, step: int, chosen: Sequence[int], rule: BranchRule) -> bool:
    far = features.prompt_tokens + features.steps.start(step) >= rule.min_token_distance
    return far and all(_gap(features.steps, step, other) >= rule.min_token_distance for other in chosen)


def _most_apart(
    features: ResponseFeatures, candidates: Sequence[int], rule: BranchRule, eligible: range
) -> list[int]:
    """Returns as many steps as can stand apart, at most N: candidates in their order, then the other steps,
    the most influential first if that is known. A step is taken if it leaves room for as many: taking the
    earliest that fits, again and again, gives the most, also between steps that are fixed."""
    most = len(_spaced(features, eligible, rule))
    scores = features.influence or features.step_scores or [0.0] * len(features.steps)
    others = sorted(set(eligible) - set(candidates), key=lambda step: (-scores[step], step))
    chosen: list[int] = []
    for step in [*candidates, *others]:
        if len(chosen) == most:
            break
        fits = _keeps_distance(features, step, chosen, rule)
        if fits and len(_extended(features, [*chosen, step], eligible, most, rule)) == most:
            chosen.append(step)
    return chosen


def _gap(steps: Steps, one: int, other: int) -> int:
    """Counts the tokens between the end of the earlier step and the start of the later one."""
    early, late = min(one, other), max(one, other)
    return steps.start(late) - steps.ends[early]


def _completed(features: ResponseFeatures, chosen: list[int], rule: BranchRule, eligible: range) -> list[int]:
    if rule.on_too_few is OnTooFew.FEWER or len(chosen) == rule.num_branch_points:
        return chosen
    others = eligible if rule.on_too_few is OnTooFew.FILL else range(1, len(features.steps))
    chosen = [*chosen, *(step for step in others if step not in chosen)][: rule.num_branch_points]
    if rule.on_too_few is OnTooFew.REPEAT and chosen:
        chosen = [chosen[at % len(chosen)] for at in range(rule.num_branch_points)]
    return chosen


def _highest_tokens(features: ResponseFeatures, rule: BranchRule) -> list[int]:
    """Returns the N tokens with the highest scores, the higher first; ties by position. The first token is
    left out: a branch there would be the prompt's own continuation."""
    scores, length = features.token_scores, features.steps.ends[-1] if len(features.steps) else 0
    if len(scores) != length:
        what = f"{len(scores)} scores for the {length} tokens of a response"
        raise ValueError(f"criterion {rule.criterion}: {what}")
    if rule.criterion is not BranchCriterion.SURPRISAL:
        end = length - 1
    else:
        end = features.steps.ends[features.steps.thinking - 1] if features.steps.thinking else 0
        if features.answer_token is not None:
            end = min(end, features.answer_token)
    chosen: list[int] = []
    for token in sorted(range(1, end), key=lambda token: (-scores[token], token)):
        if len(chosen) == rule.num_branch_points:
            break
        far = features.prompt_tokens + token >= rule.min_token_distance and scores[token] > -math.inf
        if far and all(abs(token - other) >= rule.min_token_distance for other in chosen):
            chosen.append(token)
    return chosen
