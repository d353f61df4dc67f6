"""Dynamic masking of well-mastered positive tokens (UloRL, arXiv 2507.19766, §3.2, Eq. 9 and 10).

A token of a correct response that the model samples almost surely has nothing to teach; training it
further takes entropy away. It is left out of the loss while entropy is below a target, and the loss is
still divided by all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.rows import ENTROPIES, OLD_LOG_PROBS, RESPONSE_MASK, Rows
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import Switched, limits


class EntropyScope(Choice):
    """Tokens whose mean entropy is compared with the target."""

    SEQUENCE = "sequence"
    """The mean over the sample's own tokens, as in Eq. 10."""
    BATCH = "batch"
    """The mean over all trained tokens of the step."""
    ROLE = "role"
    """The mean over the step's trained tokens of the sample's role."""


class MasteredTokensConfig(Switched):
    """Dynamic masking of well-mastered positive tokens (UloRL, §3.2)."""

    enabled: bool = False
    """Leave them out of the loss; the loss is still divided by all tokens."""
    probability: float = limits(0.99, gt=0.0, le=1.0, fix="0.99 is the paper's.")
    """A token is mastered from this probability on (τ)."""
    target_entropy: float = limits(
        0.2, gt=0.0, why="nothing is masked at or above it", fix="0.2 is the paper's."
    )
    """Tokens are left out only while entropy is below it, nats (σ)."""
    scope: EntropyScope = EntropyScope.SEQUENCE
    """Entropy that is compared: the sample's own (`sequence`, as in the equation), that of all the step's
    tokens (`batch`), or that of its role's tokens (`role`)."""


@dataclass(frozen=True, slots=True)
class MasteredTokens:
    """Tokens that are left out."""

    config: MasteredTokensConfig = field(default_factory=MasteredTokensConfig)

    def mastered(self, rows: Rows, advantages: NDArray[np.float32]) -> NDArray[np.bool_]:
        """(N,) tokens that are well mastered and positive, from advantages (N,) and `old_log_probs` under the
        weights about to be updated."""
        columns = rows.columns
        known = np.exp(columns[OLD_LOG_PROBS]) >= np.float32(self.config.probability)
        return columns[RESPONSE_MASK].astype(bool) & (advantages > 0) & known

    def masks(self, rows: Rows, advantages: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        """(N,) mastered tokens that are left out of the loss, from `entropies` of the full distributions of
        the same forward pass too, nats; None where nothing is masked at all."""
        if not self.config.enabled:
            return None
        low = self._mean_entropies(rows) < self.config.target_entropy
        return self.mastered(rows, advantages) & rows.to_tokens(low)

    def _mean_entropies(self, rows: Rows) -> NDArray[np.float64]:
        """(B,) the mean entropy that applies to each row."""
        mask = rows.columns[RESPONSE_MASK].astype(bool)
        sums = rows.row_sums(np.where(mask, rows.columns[ENTROPIES], 0.0))
        counts = rows.trained_tokens()
        scope = self.config.scope
        if scope is EntropyScope.SEQUENCE:
            return sums / np.maximum(counts, 1)
        labels = ["" if scope is EntropyScope.BATCH else rows.sequence(row).role for row in range(len(rows))]
        means = np.zeros(len(rows))
        for label in set(labels):
            chosen = np.array([one == label for one in labels])
            means[chosen] = sums[chosen].sum() / max(counts[chosen].sum(), 1)
        return means
