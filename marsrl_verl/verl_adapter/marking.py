"""Steps of responses into the trainer's batch, and what its forward pass found back onto the samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from verl import DataProto
from verl.trainer.ppo.ray_trainer import left_right_2_no_padding, no_padding_2_padding
from verl.utils import tensordict_utils as tu

from marsrl_verl.core.algorithm import Algorithm
from marsrl_verl.core.steps import Steps
from marsrl_verl.core.types import Marks, Sample
from marsrl_verl.verl_adapter.batch import TrainingRow


def rows_to_mark(samples: Sequence[Sample], role: str, stage: str) -> list[TrainingRow]:
    """Rows without credit for the samples that have tokens."""
    return [
        TrainingRow(sample, role, stage, ((len(sample.response_ids), 0.0),))
        for sample in samples
        if sample.response_ids
    ]


def mark_samples(
    samples: Sequence[Sample],
    batch: DataProto,
    algorithm: Algorithm,
    compute_log_prob: Callable[[Any], Any],
    *,
    backend: str,
    version: int,
) -> None:
    """Run the trainer's forward pass over a batch and keep what it finds on the samples.

    Args:
        samples: those that are marked, where they have tokens.
        batch: their rows, arranged for the ranks.
        algorithm: cuts steps, and says whether their influence is wanted.
        compute_log_prob: the workers' method.
        backend: what computes the influence.
        version: the policy version of the workers' weights.
    """
    steps_of = {one.sample_id: algorithm.cut(one.response_ids) for one in samples if one.response_ids}
    add_step_columns(batch, steps_of)
    data = left_right_2_no_padding(batch.to_tensordict())
    delta = algorithm.influence_delta()
    tu.assign_non_tensor(
        data,
        calculate_entropy=algorithm.marks_entropies(),
        compute_loss=False,
        fci_delta=delta or 0,
        fci_backend=backend,
    )
    output = compute_log_prob(data)
    wanted = {"log_probs": True, "influence": bool(delta), "entropy": algorithm.marks_entropies()}
    if delta and tu.get(output, "influence") is None:
        raise RuntimeError(
            "the workers returned no influence: FCI needs our engine, which is registered for NVIDIA GPUs "
            "and for the processor (verl_adapter/fci_engine.py)"
        )
    names = [name for name, asked in wanted.items() if asked]
    found = {name: no_padding_2_padding(tu.get(output, name), data).float() for name in names}
    set_marks(samples, batch, steps_of, found, version)


def add_step_columns(batch: DataProto, steps_of: Mapping[str, Steps]) -> None:
    """Give the batch `step_ids` and `step_measured`, (B, R).

    The first step is not measured, nor one that closes the thinking part or comes after it (AttnRL, arXiv
    2509.26628, released code).
    """
    shape = batch.batch["responses"].shape
    step_ids = torch.full(shape, -1, dtype=torch.int64)
    measured = torch.zeros(shape, dtype=torch.bool)
    for row, name in enumerate(batch.non_tensor_batch["sample_id"]):
        steps = steps_of[name]
        ids = torch.tensor(steps.step_ids())
        step_ids[row, : len(ids)] = ids
        measured[row, : len(ids)] = (ids > 0) & (ids < steps.thinking)
    batch.batch["step_ids"], batch.batch["step_measured"] = step_ids, measured


def set_marks(
    samples: Sequence[Sample],
    batch: DataProto,
    steps_of: Mapping[str, Steps],
    found: Mapping[str, torch.Tensor],
    version: int,
) -> None:
    """Set `marks` and `trainer_log_probs` of the samples in the batch.

    Recorded are the log-probabilities of the tokens that these very weights sampled; of a response of several
    segments the earlier ones were sampled by others, and have NaN.

    Args:
        samples: those that were marked.
        batch: the batch, in any order, with rows of padding.
        steps_of: steps by sample id.
        found: (B, R) each: `log_probs`, and where they were computed `influence`, that of each token's step,
            and `entropy`.
        version: the policy version that computed them.
    """
    padding = batch.non_tensor_batch["is_padding"]
    row_of = {name: row for row, name in enumerate(batch.non_tensor_batch["sample_id"]) if not padding[row]}
    for sample in samples:
        row = row_of.get(sample.sample_id)
        if row is None:
            continue
        steps = steps_of[sample.sample_id]
        length = len(sample.response_ids)
        log_probs = found["log_probs"][row, :length].tolist()
        by_step: tuple[float, ...] = ()
        entropies: tuple[float, ...] = ()
        if "influence" in found:
            first = torch.tensor([steps.start(step) for step in range(len(steps))])
            by_step = tuple(found["influence"][row, first].tolist())
        if "entropy" in found:
            entropies = tuple(found["entropy"][row, :length].tolist())
        sample.trainer_log_probs = [
            value if sampled_by == version else math.nan
            for value, sampled_by in zip(log_probs, sample.token_versions, strict=True)
        ]
        sample.marks = Marks(steps, tuple(log_probs), by_step, entropies)
