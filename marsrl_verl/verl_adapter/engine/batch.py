"""The rows of a training step in the order of the ranks, and what is sent to the workers.

A policy's rows fill *slots*: the workers cut them into `ranks` equal consecutive parts, and every part into
`updates` consecutive mini-batches. Slots without a row hold one token of prompt and one of response whose
mask is 0, so that they add nothing to loss or normaliser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from marsrl_verl.core.group import Group
from marsrl_verl.core.prefix_tree import prefix_order, shared_with_previous
from marsrl_verl.core.rows import RESPONSE_MASK, RowRef, Rows
from marsrl_verl.core.sequence import TURN
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.verl_adapter.engine.balancing import balance_by_prompt, balance_rows

PADDING = -1
"""A slot without a row."""
ROW_ID, TEMPERATURE, ROWS_IN_UPDATE, TURNS_IN_UPDATE = "row_id", "temperature", "n_rows", "n_turns"
INPUT_IDS, PROMPT_LENGTH = "input_ids", "prompt_len"
POLICY = "policy"
"""Name of the policy of all of a batch's rows: several policies may share a group of workers."""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Settings by which a policy's rows are cut."""

    ranks: int
    """Data-parallel ranks."""
    seed: int
    step: int
    micro_batch_rows: int = 1
    """Divisor of the rows of a rank in a mini-batch; 1 where micro-batches are cut by tokens."""
    share_prefixes: bool = False
    """If true, rows with the same prompt stay together, and the workers compute common beginnings once."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyBatch:
    """The rows of one policy in their slots."""

    policy: str
    rows: Rows
    """Rows of the step; this policy's are consecutive, in the order of the slots."""
    slots: NDArray[np.int64]
    """(S,) the row of each slot, `PADDING` where there is none."""
    updates: int
    """Mini-batches."""
    plan: BatchLayout

    def __len__(self) -> int:
        """Slots."""
        return len(self.slots)

    @property
    def members(self) -> NDArray[np.int64]:
        """The rows of this policy, in order."""
        return self.slots[self.slots != PADDING]

    @property
    def padding(self) -> int:
        """Slots without a row."""
        return len(self) - len(self.members)

    def ids(self, temperature: float | Mapping[str, float]) -> TensorDict:
        """The rows themselves, as the workers are sent them, with the policy's name.

        Per slot (S,): `row_id` (its number), `prompt_len`, `temperature`, `n_rows` and `n_turns`: rows with a
        token in the loss, and their turns, in the slot's mini-batch of all ranks. Jagged: `input_ids`
        (S, P + T) int32, `response_mask` (S, T) uint8.

        Args:
            temperature: at which tokens were sampled, by role, where a request sets no other.

        Raises:
            ValueError: a row was decoded greedily.
        """
        sequences = [None if row == PADDING else self.rows.sequence(row) for row in self.slots]
        prompts = [_ONE_TOKEN if one is None else one.prompt_ids for one in sequences]
        responses = [_ONE_TOKEN if one is None else one.response_ids for one in sequences]
        pieces = [piece for pair in zip(prompts, responses, strict=True) for piece in pair]
        prompt_lengths = np.array([len(one) for one in prompts], dtype=np.int64)
        return self._named(
            {
                ROW_ID: torch.arange(len(self)),
                PROMPT_LENGTH: torch.from_numpy(prompt_lengths),
                TEMPERATURE: self._temperatures(temperature),
                ROWS_IN_UPDATE: torch.from_numpy(self._per_update(self._rows_in_loss())),
                TURNS_IN_UPDATE: torch.from_numpy(self._per_update(self._turns_in_loss())),
                INPUT_IDS: jagged(np.concatenate(pieces), prompt_lengths + self._lengths()),
                RESPONSE_MASK: self.column(self.rows.columns[RESPONSE_MASK]),
            }
        )

    def _temperatures(self, of: float | Mapping[str, float]) -> torch.Tensor:
        """(S,) temperatures; slots without a row have that of the first row, so that equal ones stay one."""
        found = np.zeros(len(self), dtype=np.float32)
        for slot, row in enumerate(self.slots.tolist()):
            if row == PADDING:
                continue
            role = self.rows.sequence(row).role
            usual = of[role] if isinstance(of, Mapping) else of
            found[slot] = self.rows.group(row).request.sampling.get(role, {}).get("temperature", usual)
            if found[slot] <= 0:
                raise ValueError(
                    f"trajectory {self.rows.trajectory(row).trajectory_id} was decoded at temperature "
                    f"{found[slot]:g}, where tokens have no log-probability to train: leave such requests "
                    "out in `Credit.keep`"
                )
        sampled = self.slots != PADDING
        found[~sampled] = found[sampled][0] if sampled.any() else 1.0
        return torch.from_numpy(found)

    def column(self, values: NDArray[Any]) -> torch.Tensor:
        """A column of the step's rows, (N,), as jagged (S, T); 0 in slots without a row."""
        filler = np.zeros(1, dtype=values.dtype)
        parts = [values[self.rows.slice(row)] if row != PADDING else filler for row in self.slots.tolist()]
        return jagged(np.concatenate(parts), self._lengths())

    def columns(self, named: Mapping[str, NDArray[Any]], slots: Sequence[int] | None = None) -> TensorDict:
        """Columns (N,) of the step's rows by name, for the slots in question (None: all), with `row_id`."""
        chosen = np.arange(len(self)) if slots is None else np.array(slots, dtype=np.int64)
        part = replace(self, slots=self.slots[chosen])
        columns = {name: part.column(values) for name, values in named.items()}
        return part._named({ROW_ID: torch.from_numpy(chosen), **columns})

    def read(self, computed: torch.Tensor, into: NDArray[Any], slots: Sequence[int] | None = None) -> None:
        """Writes the workers' results, jagged (S', T), into a column (N,) of the step's rows. `slots` are
        those that were computed; None: all."""
        values, offsets = computed.values().float().numpy(), computed.offsets().tolist()  # type: ignore[attr-defined]
        for place, slot in enumerate(range(len(self)) if slots is None else slots):
            if (row := int(self.slots[slot])) != PADDING:
                into[self.rows.slice(row)] = values[offsets[place] : offsets[place + 1]]

    def _named(self, columns: dict[str, torch.Tensor]) -> TensorDict:
        """The columns of all slots, with the policy's name."""
        data = TensorDict(columns, batch_size=[len(self)])  # type: ignore[arg-type]
        return tu.assign_non_tensor(data, **{POLICY: self.policy})

    def _lengths(self) -> NDArray[np.int64]:
        """(S,) response tokens of each slot."""
        lengths = np.diff(self.rows.offsets)
        return np.where(self.slots == PADDING, 1, lengths[self.slots])

    def _rows_in_loss(self) -> NDArray[np.int64]:
        """(S,) 1 where a slot's row has a token in the loss."""
        return np.where(self.slots == PADDING, 0, self.rows.trained_tokens()[self.slots] > 0).astype(np.int64)

    def _turns_in_loss(self) -> NDArray[np.int64]:
        """(S,) turns of a slot's row with a token in the loss; a row without turns is one."""
        turns = self.rows.columns.get(TURN)
        if turns is None:
            return self._rows_in_loss()
        mask = self.rows.columns[RESPONSE_MASK].astype(bool)
        counts = np.zeros(len(self), dtype=np.int64)
        for slot, row in enumerate(self.slots.tolist()):
            if row != PADDING:
                part = self.rows.slice(row)
                counts[slot] = len(np.unique(turns[part][mask[part]]))
        return counts

    def _per_update(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """(S,) the sum over each slot's mini-batch, all ranks together."""
        cut = counts.reshape(self.plan.ranks, self.updates, -1)
        return np.broadcast_to(cut.sum(axis=(0, 2), keepdims=True), cut.shape).reshape(-1).copy()


_ONE_TOKEN = np.zeros(1, dtype=np.int32)


@dataclass(slots=True, eq=False)
class StepBatch:
    """The rows of a step, policy by policy in the order of the workers."""

    rows: Rows
    parts: tuple[PolicyBatch, ...]
    computed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """(B,) rows whose old log-probabilities were computed in this step, those of others being recorded."""

    @property
    def tokens(self) -> int:
        """Prompts and responses of all rows."""
        rows = self.rows
        return rows.tokens + sum(len(rows.sequence(row).prompt_ids) for row in range(len(rows)))


def arrange(
    groups: Sequence[Group],
    refs: Sequence[RowRef],
    layout_of: Callable[[str], BatchLayout],
    updates_of: Callable[[int], int] = lambda rows: 1,
    annotations: Sequence[str] = (),
) -> StepBatch:
    """Orders a step's rows, given in the order of the groups, for their policies' ranks and mini-batches, and
    packs them in that order.

    Args:
        layout_of: how the rows of a policy are cut, by its name.
        updates_of: mini-batches of a policy with so many rows.
        annotations: become columns too.
    """
    sequences = {ref: groups[ref.group].trajectories[ref.trajectory].sequences[ref.sequence] for ref in refs}
    by_policy: dict[str, list[RowRef]] = {}
    for ref in refs:
        by_policy.setdefault(sequences[ref].policy, []).append(ref)
    ordered: list[RowRef] = []
    cuts: list[tuple[str, NDArray[np.int64], int, BatchLayout]] = []
    for policy in sorted(by_policy):
        members, plan = by_policy[policy], layout_of(policy)
        updates = updates_of(len(members))
        order = _order([sequences[ref] for ref in members], plan, updates)
        slots = np.full(len(order), PADDING, dtype=np.int64)
        filled = [slot for slot, place in enumerate(order) if place < len(members)]
        slots[filled] = len(ordered) + np.arange(len(filled))
        ordered += [members[order[slot]] for slot in filled]
        cuts.append((policy, slots, updates, plan))
    rows = Rows.of(groups, ordered, annotations)
    parts = [PolicyBatch(policy, rows, slots, updates, plan) for policy, slots, updates, plan in cuts]
    return StepBatch(rows, tuple(parts))


def _order(sequences: Sequence[TokenSequence], plan: BatchLayout, updates: int) -> list[int]:
    """The row in each slot; numbers from `len(sequences)` on are padding."""
    padding = -len(sequences) % (plan.ranks * updates * plan.micro_batch_rows)
    lengths = [len(one.prompt_ids) + len(one) for one in sequences]
    cut = {"ranks": plan.ranks, "updates": updates, "seed": plan.seed, "step": plan.step}
    filler = [2 * len(_ONE_TOKEN)] * padding
    if not plan.share_prefixes:
        return balance_rows(lengths + filler, padding_rows=padding, **cut)
    prompts = [one.prompt_ids.tobytes() for one in sequences]
    return balance_by_prompt(prompts, _computed_tokens(sequences) + filler, padding_rows=padding, **cut)


def _computed_tokens(sequences: Sequence[TokenSequence]) -> list[int]:
    """Tokens that each row adds to the prefix tree of all rows."""
    ids = [one.input_ids().astype(np.int64) for one in sequences]
    order = prefix_order(ids)
    added = [0] * len(ids)
    for index, common in zip(order, shared_with_previous(ids, order), strict=True):
        added[index] = len(ids[index]) - common
    return added


def jagged(values: NDArray[Any] | torch.Tensor, lengths: NDArray[np.int64] | torch.Tensor) -> torch.Tensor:
    """(S, *) rows of these lengths, laid end to end in `values`."""
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.as_tensor(lengths).cumsum(0)])
    return torch.nested.nested_tensor_from_jagged(torch.as_tensor(values), offsets)
