"""Measurements of sequences by the trainer's forward pass when their samples come back (`core.method.Probe`),
and rows that therefore need no second pass before the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Probe
from marsrl_verl.core.rows import ENTROPIES, OLD_LOG_PROBS, RESPONSE_MASK, RowRef, Rows
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, RECORDED_LOG_PROBS, TRAINER_LOG_PROBS
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.verl_adapter.engine.batch import PADDING, PolicyBatch, jagged
from marsrl_verl.verl_adapter.engine.probe_engine import COLUMNS_KEY, MEASURE_KEY, SETTINGS_KEY
from marsrl_verl.verl_adapter.engine.shared_prefix_engine import SHARE_KEY


def rows_to_probe(groups: Sequence[Group], stage: str, probe: Probe) -> list[RowRef]:
    """The sequences of a stage that the probe has not seen yet, where they have tokens."""
    required = {TRAINER_LOG_PROBS, *probe.outputs}
    if probe.entropies:
        required.add(RECORDED_ENTROPIES)
    return [
        RowRef(at, place, number)
        for at, group in enumerate(groups)
        if group.request.stage == stage
        for place, one in enumerate(group.trajectories)
        for number, sequence in enumerate(one.sequences)
        if len(sequence) and not required <= sequence.annotations.keys()
    ]


def run_probe(
    probe: Probe,
    batch: PolicyBatch,
    compute_log_prob: Callable[[TensorDict], TensorDict],
    *,
    temperature: float | Mapping[str, float],
    version: int,
) -> None:
    """Runs the workers' `compute_log_prob` over a policy's rows and annotates their sequences with the
    results; RuntimeError if the workers do not measure them.

    Args:
        temperature: at which tokens are sampled, by role.
        version: of the weights that the workers have.
    """
    data, columns = batch.ids(temperature), _input_columns(probe, batch)
    for name, column in columns.items():
        data[name] = column
    share = {SHARE_KEY: batch.plan.share_prefixes}
    tu.assign_non_tensor(data, calculate_entropy=probe.entropies, compute_loss=False, **share)
    if probe.measure is not None:
        asked = {MEASURE_KEY: probe.measure, SETTINGS_KEY: dict(probe.settings), COLUMNS_KEY: tuple(columns)}
        tu.assign_non_tensor(data, **asked)
    output = compute_log_prob(data)
    names = {TRAINER_LOG_PROBS: "log_probs", **{name: name for name in probe.outputs}}
    if probe.entropies:
        names[RECORDED_ENTROPIES] = "entropy"
    for annotation, name in names.items():
        found = tu.get(output, name)
        if found is None:
            raise RuntimeError(
                f"probe {probe.name}: the workers returned no {name}. It needs our engine, which is "
                "registered for NVIDIA GPUs and for the processor (verl_adapter/engine/probe_engine.py)"
            )
        values = np.zeros(batch.rows.tokens, dtype=np.float32)
        batch.read(found, values)
        for row in batch.members.tolist():
            sequence = batch.rows.sequence(row)
            sequence.annotations = {**sequence.annotations, annotation: values[batch.rows.slice(row)].copy()}
    for row in batch.members.tolist():
        _record(batch.rows.sequence(row), version)


def _record(sequence: TokenSequence, version: int) -> None:
    """Log-probabilities of tokens that these very weights sampled are recorded; of a response of several
    segments the earlier ones were sampled by others, and keep what was known of them."""
    unknown = np.full(len(sequence), np.nan, dtype=np.float32)
    before = sequence.annotations.get(RECORDED_LOG_PROBS, unknown)
    own = sequence.token_versions() == version
    recorded = np.where(own, sequence.annotations[TRAINER_LOG_PROBS], before)
    sequence.annotations = {**sequence.annotations, RECORDED_LOG_PROBS: recorded.astype(np.float32)}


def _input_columns(probe: Probe, batch: PolicyBatch) -> dict[str, torch.Tensor]:
    """The probe's columns, jagged (S, T); 0 in slots without a row."""
    if probe.inputs is None:
        return {}
    found = {row: probe.inputs(batch.rows.sequence(row)) for row in batch.members.tolist()}
    first = next(iter(found.values()))
    columns = {}
    for name in first:
        filler = np.zeros(1, dtype=first[name].dtype)
        parts = [found[row][name] if row != PADDING else filler for row in batch.slots.tolist()]
        columns[name] = jagged(np.concatenate(parts), np.array([len(part) for part in parts]))
    return columns


Pass = Callable[[list[int]], tuple[torch.Tensor, torch.Tensor]]
"""The workers' pass over some slots: log-probabilities and entropies, jagged."""


def fully_recorded(rows: Rows) -> NDArray[np.bool_]:
    """(B,) rows with a recorded log-probability and entropy for each trained token."""
    missing = np.isnan(rows.columns[RECORDED_LOG_PROBS]) | np.isnan(rows.columns[RECORDED_ENTROPIES])
    return rows.row_sums(missing & rows.columns[RESPONSE_MASK].astype(bool)) == 0


def slots_to_compute(recorded: Sequence[bool], ranks: int, multiple: int = 1) -> list[int]:
    """The slots that are not recorded, as many for every rank and a multiple of `multiple`: recorded ones of
    a rank fill up its part, which is one of `ranks` equal consecutive parts of the batch."""
    size = len(recorded) // ranks
    parts = [range(rank * size, (rank + 1) * size) for rank in range(ranks)]
    most = max(sum(not recorded[slot] for slot in part) for part in parts)
    most += -most % multiple
    needed_first = [sorted(part, key=lambda slot: recorded[slot]) for part in parts]
    return [slot for part in needed_first for slot in sorted(part[:most])]


def fill_log_probs(batch: PolicyBatch, compute: Pass, *, reuse: bool) -> NDArray[np.bool_]:
    """Fills the columns `old_log_probs` and `entropies` of a policy's rows: under the weights about to be
    updated, or with `reuse` as they were recorded, which the loss takes for them.

    Returns:
        (B,) of the step's rows, which were computed here.
    """
    rows, slots = batch.rows, list(range(len(batch)))
    computed = np.zeros(len(rows), dtype=bool)
    if reuse:
        known = fully_recorded(rows)
        recorded = np.where(batch.slots == PADDING, True, known[batch.slots])
        slots = slots_to_compute(recorded.tolist(), batch.plan.ranks, batch.plan.micro_batch_rows)
        for row in batch.members[known[batch.members]].tolist():
            part = rows.slice(row)
            for name, source in ((OLD_LOG_PROBS, RECORDED_LOG_PROBS), (ENTROPIES, RECORDED_ENTROPIES)):
                rows.columns[name][part] = np.nan_to_num(rows.columns[source][part])
    if slots:
        log_probs, entropies = compute(slots)
        batch.read(log_probs, rows.columns[OLD_LOG_PROBS], slots)
        batch.read(entropies, rows.columns[ENTROPIES], slots)
        selected = batch.slots[slots]
        computed[selected[selected != PADDING]] = True
    return computed
