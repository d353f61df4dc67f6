"""From trained groups to the padded batch that verl's workers take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from verl import DataProto

from marsrl_verl.core.algorithm import Credit
from marsrl_verl.core.types import Group, Sample
from marsrl_verl.verl_adapter.recorded_rows import ENTROPIES


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One sample of a trained group with its credit."""

    sample: Sample
    role: str
    stage: str
    advantages: tuple[tuple[int, float], ...]
    """(end, advantage) of consecutive parts of the response."""


def training_rows(groups: list[Group], advantages: Credit) -> list[TrainingRow]:
    """The samples that have an advantage and were not trained before, in the order of `groups`. A part of a
    group that was held back and the whole group may be among them; each sample is a row once.

    Raises:
        ValueError: a group of an external Solver's answers, which have no tokens to train.
    """
    for group in groups:
        if any(sample.external for sample in group.samples):
            raise ValueError(f"group {group.input.group_id} holds another model's answers: not to be trained")
    return [
        TrainingRow(sample, group.input.role, group.input.stage, advantages[sample.sample_id])
        for group in groups
        for sample in group.samples
        if sample.sample_id in advantages and sample.sample_id not in group.trained_before
    ]


def trained_samples(batch: DataProto | None) -> list[str]:
    """Ids of the samples in a training batch, padding rows apart; none without a batch."""
    if batch is None:
        return []
    columns = batch.non_tensor_batch
    pairs = zip(columns["sample_id"], columns["is_padding"], strict=True)
    return [str(name) for name, padding in pairs if not padding]


def build_batch(rows: list[TrainingRow], *, pad_token_id: int, row_multiple: int) -> DataProto:
    """Pad rows to the longest prompt (left) and the longest response (right) among them.

    Args:
        rows: B training rows, at least one.
        pad_token_id: fills both sides.
        row_multiple: the number of rows is padded to a multiple of this with copies of the shortest
            row whose `response_mask` is all zero, so they add nothing to loss or normaliser.

    Returns:
        DataProto with `prompts` (B, P), `responses` (B, R), `input_ids`, `attention_mask`,
        `position_ids` (B, P + R), `response_mask`, `rollout_log_probs`, `recorded_log_probs` and
        `recorded_entropies` (NaN where the trainer recorded none), `token_versions`, `advantages`, `returns`
        (B, R), and the columns `uid` (group id), `sample_id`, `role`, `stage`, `is_padding`.
    """
    if not rows:
        raise ValueError("a training batch needs at least one row, found none")
    padding = -len(rows) % row_multiple
    shortest = min(rows, key=lambda row: len(row.sample.prompt_ids) + len(row.sample.response_ids))
    padded = rows + [shortest] * padding
    is_padding = np.array([False] * len(rows) + [True] * padding, dtype=object)

    prompt_width = max(len(row.sample.prompt_ids) for row in padded)
    response_width = max(len(row.sample.response_ids) for row in padded)
    shape = (len(padded), response_width)
    prompts = torch.full((len(padded), prompt_width), pad_token_id, dtype=torch.long)
    responses = torch.full(shape, pad_token_id, dtype=torch.long)
    attention_mask = torch.zeros(len(padded), prompt_width + response_width, dtype=torch.long)
    response_mask = torch.zeros(shape, dtype=torch.long)
    rollout_log_probs = torch.zeros(shape)
    token_versions = torch.zeros(shape, dtype=torch.int32)
    recorded_log_probs = torch.full(shape, torch.nan)
    recorded_entropies = torch.full(shape, torch.nan)
    advantages = torch.zeros(shape)
    for i, row in enumerate(padded):
        prompt, response = row.sample.prompt_ids, row.sample.response_ids
        prompts[i, prompt_width - len(prompt) :] = torch.tensor(prompt)
        responses[i, : len(response)] = torch.tensor(response)
        attention_mask[i, prompt_width - len(prompt) : prompt_width + len(response)] = 1
        if is_padding[i]:
            continue
        response_mask[i, : len(response)] = torch.tensor(row.sample.response_mask)
        rollout_log_probs[i, : len(response)] = torch.tensor(row.sample.rollout_log_probs)
        token_versions[i, : len(response)] = torch.tensor(row.sample.token_versions, dtype=torch.int32)
        recorded = row.sample.trainer_log_probs
        recorded_log_probs[i, : len(recorded)] = torch.tensor(recorded)
        entropies = () if row.sample.marks is None else row.sample.marks.entropies
        recorded_entropies[i, : len(entropies)] = torch.tensor(entropies)
        start = 0
        for end, advantage in row.advantages:
            advantages[i, start:end] = advantage
            start = end
        advantages[i] *= response_mask[i]
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0) * attention_mask,
        "response_mask": response_mask,
        "rollout_log_probs": rollout_log_probs,
        "recorded_log_probs": recorded_log_probs,
        ENTROPIES: recorded_entropies,
        "token_versions": token_versions,
        "advantages": advantages,
        "returns": advantages.clone(),
    }
    columns = {
        "uid": np.array([row.sample.group_id for row in padded], dtype=object),
        "sample_id": np.array([row.sample.sample_id for row in padded], dtype=object),
        "role": np.array([row.role for row in padded], dtype=object),
        "stage": np.array([row.stage for row in padded], dtype=object),
        "is_padding": is_padding,
    }
    batch = DataProto.from_dict(tensors=tensors, non_tensors=columns)
    batch.meta_info["global_token_num"] = attention_mask.sum(dim=1).tolist()
    return batch
