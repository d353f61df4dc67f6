"""The decision whether a trajectory is forked after a tool call, as a pure function.

The paper (arXiv 2507.19849, §3.1) compares the entropy of the first tokens after a result with that of the
first tokens of the trajectory's beginning and forks where a probability that grows with the difference
exceeds a threshold. Its code draws with that probability, and takes the entropy of what was written before
the call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.arpo.budget import Supplements
from marsrl_verl.rollout.entropy import entropy_from_top
from marsrl_verl.rollout.generation import Completion
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import Needs, Settings, limits
from marsrl_verl.settings.rules import OwnFunction, Rule, offers

KEY = "marsrl.algo.branching.law"
ENTROPY = "entropy"
"""Need that a function may declare (`settings.rules.needs`)."""


class BranchLaw(Choice):
    """Law by which a trajectory is forked after a tool's result (`BranchingConfig.law`)."""

    THRESHOLD = "threshold"
    BERNOULLI = "bernoulli"
    RANDOM = "random"
    OFF = "off"


class EntropyOf(Choice):
    """Definition of ΔH, the change of entropy by a result (`BranchingConfig.entropy`)."""

    RESULT = "result"
    """Entropy of the first tokens after the result, less that of the first tokens of the trajectory's root:
    means over the tokens, of the whole distribution."""
    CALL = "call"
    """Entropy of the first tokens of the turn that made the call, less that of the first turn that the
    trajectory wrote itself (released code), so that nothing after the result is looked at and a trajectory's
    first difference is 0. Sums over the tokens, of the likeliest tokens' terms alone: a short turn has a low
    one."""


@dataclass(frozen=True, slots=True)
class ForkPlace:
    """A place after a tool's results where a trajectory may be forked."""

    turn: int
    """Turns with calls that the trajectory has written, shared ones included."""
    calls: Sequence[Mapping[str, Any]]
    """Calls of the last of these turns: `tool`, `arguments`, `outcome` (`ok` if it worked), `tokens` that
    were read of the result, and whether these are `cut`."""
    max_forks: int
    """Most forks possible here."""
    rng: np.random.Generator
    entropy_change: float | None = None
    """ΔH, from -1 to 1; None if the function does not need `entropy`, or no token was sampled."""


@offers(ENTROPY)
class WantsForks(Protocol):
    """Decides whether a trajectory is forked here, or into how many forks; True: as many as are possible."""

    def __call__(self, place: ForkPlace) -> bool | int:
        """See the class."""


class BranchingConfig(Settings):
    """Rule by which trajectories are forked, and its limits (ARPO, arXiv 2507.19849, §3.1).

    P = clip(base_probability + entropy_weight * ΔH, 0, 1) (eq. 6).
    """

    law: Rule[BranchLaw, WantsForks] = BranchLaw.THRESHOLD
    """After a tool's result a trajectory is forked where P = α + β ΔH exceeds τ (`threshold`, the paper);
    with probability P (`bernoulli`, released code); with probability α (`random`); never (`off`: independent
    trajectories); or as a function of yours decides, (place) -> bool or a number of forks
    (docs/guides/new_method.md)."""
    roots: int | None = limits(None, ge=1, why="null is half of the group")
    """Trajectories that begin at the prompt (N); null: half of `group_size`. Forks take the other places, and
    further roots what forks leave."""
    beam: int = limits(2, ge=2, why="a fork adds a trajectory")
    """Trajectories that a forked one becomes, itself included (Z)."""
    base_probability: float = limits(0.5, ge=0.0, le=1.0, fix="0.5 is the paper's.")
    """Probability of a fork where entropy has not changed (α)."""
    entropy_weight: float = limits(0.2, fix="0.2 is the paper's.")
    """Weight of a change of entropy ΔH, from -1 to 1, in the probability (β)."""
    threshold: float = limits(
        0.5, ge=0.0, le=1.0, why="of a probability", needs=Needs("law", BranchLaw.THRESHOLD)
    )
    """Probability above which `threshold` forks (τ). With α = τ, as in the paper, it forks wherever
    entropy rises."""
    entropy: EntropyOf = EntropyOf.RESULT
    """ΔH: `result`, mean entropy of the first tokens after the result less that of the first tokens of the
    root; `call`, as the released code has it, of the turn before the call (docs/methods/arpo.md)."""
    entropy_tokens: int = limits(20, ge=1, why="an entropy is of tokens")
    """Number of first tokens (k)."""
    top_log_probs: int = limits(20, ge=1, why="entropies are made of them")
    """Likeliest tokens that the engine returns at each of them; the mass of the others is bounded on both
    sides. vLLM returns 20 at most, unless its `max_logprobs` is raised."""
    supplements: Supplements = Supplements.TOGETHER
    """Places that no fork takes: `together`, filled with new roots as soon as it is certain that none can;
    `one_by_one`, with one new root when all others have ended, and so on (released code)."""

    @property
    def by_entropy(self) -> bool:
        """True if the law looks at entropies."""
        if isinstance(self.law, OwnFunction):
            return ENTROPY in self.law.needs
        return self.law in (BranchLaw.THRESHOLD, BranchLaw.BERNOULLI)

    @property
    def forks(self) -> int:
        """Most forks at one place."""
        return 0 if self.law is BranchLaw.OFF else self.beam - 1

    def probability(self, change: float | None) -> float:
        """Returns P.

        Args:
            change: ΔH; None: it is not known, or does not count.
        """
        weighted = self.entropy_weight * change if change is not None and self.by_entropy else 0.0
        return min(1.0, max(0.0, self.base_probability + weighted))

    def decide_forks(self, change: float | None, draws: Sequence[float]) -> list[bool]:
        """Decides for each of `forks` tries whether it is a fork.

        Args:
            change: ΔH; None where no token was sampled: nothing is forked by entropy.
            draws: (forks,) uniform in [0, 1).
        """
        if len(draws) != self.forks:
            raise ValueError(f"{len(draws)} draws, expected {self.forks}: one for each fork")
        if self.by_entropy and change is None:
            return [False] * self.forks
        chance = self.probability(change)
        if self.law is BranchLaw.THRESHOLD:
            return [chance > self.threshold] * self.forks
        return [draw < chance for draw in draws]


_SHOWN = ("tool", "arguments", "outcome", "tokens", "cut")


def own_forks(
    law: OwnFunction[WantsForks],
    turn: int,
    events: Sequence[Mapping[str, Any]],
    max_forks: int,
    rng: np.random.Generator,
    change: float | None,
) -> list[bool]:
    """Decides on the possible forks after the results of a trajectory's last turn by a function of the
    user's, which is shown nothing that depends on time.

    Args:
        events: all of the trajectory's calls.
        change: ΔH.

    Raises:
        RuleError: the function raised, or returned no valid number.
    """
    calls = [{name: one[name] for name in _SHOWN} for one in events if one["turn"] == turn - 1]
    found = law.call(KEY, ForkPlace(turn, calls, max_forks, rng, change))
    if isinstance(found, bool | np.bool_):
        return [bool(found)] * max_forks
    if not isinstance(found, int | np.integer) or not 0 <= found <= max_forks:
        raise law.refuse(KEY, repr(found), f"True, False or a number of forks from 0 to {max_forks}")
    return [at < int(found) for at in range(max_forks)]


def token_entropies(completion: Completion, of: EntropyOf, vocab_size: int) -> NDArray[np.float64]:
    """Returns (T,) the entropies in nats of a completion's tokens, from the likeliest tokens that it has.

    With `call` as the released code: the sum of -p log p over the m likeliest tokens and the sampled one, the
    mass of all others left out.
    """
    top = completion.top
    if top is None:
        return np.zeros(0)
    if of is EntropyOf.RESULT:
        return entropy_from_top(top, vocab_size)
    known, own = top.log_probs.astype(np.float64), completion.log_probs.astype(np.float64)
    listed = _terms(known).sum(axis=1)
    outside = (top.ids != completion.token_ids[:, None]).all(axis=1)
    return listed + np.where(outside, _terms(own), 0.0)


def _terms(log_probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """-p log p"""
    finite = np.where(np.isfinite(log_probs), log_probs, 0.0)
    return np.where(np.isfinite(log_probs), -np.exp(finite) * finite, 0.0)


def turn_entropy(entropies: Sequence[float], of: EntropyOf, vocab_size: int) -> float | None:
    """Returns the entropy of a turn's first tokens in units of the largest that a token can have, ln |V|:
    their mean, with `call` their sum. None without a token."""
    if not entropies:
        return None
    total = math.fsum(entropies) / math.log(max(2, vocab_size))
    return total if of is EntropyOf.CALL else total / len(entropies)
