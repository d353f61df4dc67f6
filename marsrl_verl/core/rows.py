"""The rows of a training step: selected sequences, packed into flat columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.group import Group
from marsrl_verl.core.sequence import TURN
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import Trajectory

RESPONSE_MASK, ROLLOUT_LOG_PROBS, TOKEN_VERSIONS = "response_mask", "rollout_log_probs", "token_versions"
OLD_LOG_PROBS, REF_LOG_PROBS, ENTROPIES = "old_log_probs", "ref_log_probs", "entropies"
KL_PENALTIES, ADVANTAGES, LOSS_WEIGHTS = "kl_penalties", "advantages", "loss_weights"
STEP_COLUMNS = frozenset(
    (
        RESPONSE_MASK, ROLLOUT_LOG_PROBS, TOKEN_VERSIONS,
        OLD_LOG_PROBS, REF_LOG_PROBS, ENTROPIES, KL_PENALTIES, ADVANTAGES, LOSS_WEIGHTS,
    )
)  # fmt: skip
"""Columns of the step itself; all others are annotations."""


@dataclass(frozen=True, slots=True, order=True)
class RowRef:
    """One sequence of a step's groups."""

    group: int
    """Place of its group among the step's."""
    trajectory: int
    """Place of its trajectory in the group."""
    sequence: int = 0
    """Place among the trajectory's sequences."""


@dataclass(slots=True)
class Rows:
    """B selected sequences with N response tokens in all."""

    groups: list[Group]
    """Groups of the complete units, including those of which nothing is selected."""
    refs: list[RowRef]
    """(B,)"""
    offsets: NDArray[np.int64]
    """(B + 1,) first token of each row in the columns; the last is N."""
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    """(N,) each: `response_mask`, `rollout_log_probs`, `token_versions`, and those that the step computes:
    `old_log_probs`, `entropies`, `ref_log_probs`, annotations; `kl_penalties`, where KL is in the reward:
    what each token costs, 0 where `response_mask` is 0; at last `advantages` as they are trained, 0 where a
    token is masked, and `loss_weights`, where tokens are weighted."""

    @classmethod
    def of(cls, groups: Sequence[Group], refs: Iterable[RowRef], annotations: Sequence[str] = ()) -> Rows:
        """Packs sequences.

        Args:
            groups: of the step.
            refs: the rows, in the order of the batch.
            annotations: become columns too; where a sequence has none, NaN, or -1 among whole numbers and
                for `turn`.
        """
        rows = cls(list(groups), list(refs), np.zeros(1, dtype=np.int64))
        sequences = [rows.sequence(row) for row in range(len(rows.refs))]
        rows.offsets = np.concatenate([[0], np.cumsum([len(one) for one in sequences], dtype=np.int64)])
        rows.columns = {
            RESPONSE_MASK: _packed([one.response_mask for one in sequences], np.uint8),
            ROLLOUT_LOG_PROBS: _packed([one.rollout_log_probs for one in sequences], np.float32),
            TOKEN_VERSIONS: _packed([one.token_versions() for one in sequences], np.int32),
        }
        for name in annotations:
            found = [one.annotations.get(name) for one in sequences]
            dtype = np.result_type(*(one.dtype for one in found if one is not None), np.int8)
            nobody = name != TURN and all(one is None for one in found)
            if nobody or not np.issubdtype(dtype, np.integer):
                dtype = np.dtype(np.float32)
            filler = np.nan if dtype == np.float32 else -1
            parts = [
                np.full(len(one), filler, dtype=dtype) if values is None else values
                for one, values in zip(sequences, found, strict=True)
            ]
            rows.columns[name] = _packed(parts, dtype)
        return rows

    def __len__(self) -> int:
        """Rows."""
        return len(self.refs)

    @property
    def tokens(self) -> int:
        """N."""
        return int(self.offsets[-1])

    def group(self, row: int) -> Group:
        """The group of a row."""
        return self.groups[self.refs[row].group]

    def trajectory(self, row: int) -> Trajectory:
        """The trajectory of a row."""
        return self.group(row).trajectories[self.refs[row].trajectory]

    def sequence(self, row: int) -> TokenSequence:
        """The sequence of a row."""
        return self.trajectory(row).sequences[self.refs[row].sequence]

    def slice(self, row: int) -> slice:
        """The row's part of a column."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    def row_of_token(self) -> NDArray[np.int64]:
        """(N,) the row of each token."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def to_tokens(self, values: NDArray[Any]) -> NDArray[Any]:
        """(N,) a value of each row, (B,), for all of its tokens."""
        return np.repeat(values, np.diff(self.offsets))

    def row_sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """(B,) sums over the rows' tokens of values (N,)."""
        # Differences of a running sum would carry one row's inf, nan or rounding to others.
        filled = np.flatnonzero(np.diff(self.offsets))
        sums = np.zeros(len(self), dtype=np.float64)
        if len(filled):
            sums[filled] = np.add.reduceat(values, self.offsets[filled], dtype=np.float64)
        return sums

    def trained_tokens(self) -> NDArray[np.int64]:
        """(B,) tokens of each row with `response_mask` 1."""
        return np.rint(self.row_sums(self.columns[RESPONSE_MASK])).astype(np.int64)


def _packed(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype=dtype)


TokenAdvantages = dict[str, list[list[tuple[int, float]]]]
"""Trajectory id -> for each of its sequences the (end, advantage) of consecutive parts of the response, in
tokens; an empty list for a sequence that was not trained."""


def token_advantages(rows: Rows, advantages: NDArray[np.float32]) -> TokenAdvantages:
    """The worth of every trained token, as parts of equal advantage. `advantages` (N,) are as they enter
    the loss: 0 where a token is left out of it."""
    found: TokenAdvantages = {}
    for row, ref in enumerate(rows.refs):
        one, values = rows.trajectory(row), advantages[rows.slice(row)]
        ends = [*(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)] if len(values) else []
        parts = found.setdefault(one.trajectory_id, [[] for _ in one.sequences])
        parts[ref.sequence] = [(end, float(values[end - 1])) for end in ends]
    return found
