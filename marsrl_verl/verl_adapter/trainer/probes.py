"""What a method wants to know of its sequences from the trainer's forward pass (`core.method.Probe`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Probe
from marsrl_verl.core.rows import RowRef
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
    """Run the trainer's forward pass over a policy's rows and annotate their sequences with what it finds.

    Args:
        probe: what is asked.
        batch: the rows in their slots.
        compute_log_prob: the workers' method.
        temperature: at which tokens are sampled, by role.
        version: of the weights that the workers have.

    Raises:
        RuntimeError: the workers do not measure it.
    """
    data = batch.ids(temperature)
    columns = _input_columns(probe, batch)
    for name, column in columns.items():
        data[name] = column
    tu.assign_non_tensor(
        data, calculate_entropy=probe.entropies, compute_loss=False, **{SHARE_KEY: batch.plan.share_prefixes}
    )
    if probe.measure is not None:
        metadata = {
            MEASURE_KEY: probe.measure,
            SETTINGS_KEY: dict(probe.settings),
            COLUMNS_KEY: tuple(columns),
        }
        tu.assign_non_tensor(data, **metadata)
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
