"""Rows on a rank: from what the trainer sends (`batch.PolicyBatch`) to what verl's engine and losses take."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from marsrl_verl.core.rows import RESPONSE_MASK
from marsrl_verl.verl_adapter.engine.batch import (
    INPUT_IDS,
    POLICY,
    PROMPT_LENGTH,
    ROW_ID,
    TEMPERATURE,
    jagged,
)


def with_token_columns(data: TensorDict) -> TensorDict:
    """Adds what verl reads and can be had from `input_ids` and `response_mask`: `position_ids`, `prompts`,
    `responses`, `loss_mask`, all jagged; ids become int64, a temperature that all rows have one number."""
    ids, prompt_lengths = data[INPUT_IDS], data.pop(PROMPT_LENGTH)
    offsets, values = ids.offsets(), ids.values().long()
    lengths = offsets.diff()
    position = torch.arange(len(values)) - torch.repeat_interleave(offsets[:-1], lengths)
    in_prompt = position < torch.repeat_interleave(prompt_lengths, lengths)
    data[INPUT_IDS] = torch.nested.nested_tensor_from_jagged(values, offsets)
    data["position_ids"] = torch.nested.nested_tensor_from_jagged(position, offsets)
    data["prompts"] = jagged(values[in_prompt], prompt_lengths)
    data["responses"] = jagged(values[~in_prompt], lengths - prompt_lengths)
    data["loss_mask"] = data[RESPONSE_MASK]
    temperatures = data[TEMPERATURE]
    if bool((temperatures == temperatures[0]).all()):
        # verl leaves logits alone at the number 1, and fused kernels take a number only.
        tu.assign_non_tensor(data, temperature=float(temperatures[0]))
    return data


class HeldRows:
    """Rows that a rank keeps for the rest of a step, so that their tokens are sent once, by policy."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[TensorDict, dict[int, int]]] = {}
        """Rows, and where each is among them by its `row_id`."""

    def hold(self, data: TensorDict) -> None:
        """Keeps a policy's rows, and releases those that it had before."""
        places = {number: place for place, number in enumerate(data[ROW_ID].tolist())}
        self._held[_policy(data)] = with_token_columns(data), places

    def complete(self, data: TensorDict) -> TensorDict:
        """The rows that `data` names by policy and `row_id`, with its columns and settings; where it brings
        tokens of its own, these. RuntimeError if a row is not held."""
        if data.get(INPUT_IDS, None) is not None:
            return with_token_columns(data)
        policy, row_ids = _policy(data), data[ROW_ID].tolist()
        held, places = self._held.get(policy, (None, {}))
        missing = [number for number in row_ids if number not in places]
        if held is None or missing:
            raise RuntimeError(
                f"rows {missing[:4]} of the policy {policy!r} are not on this rank, which holds "
                f"{len(places)} of it: call hold_rows first, with the same ranks"
            )
        chosen = [places[number] for number in row_ids]
        if chosen == list(range(len(places))):
            rows = TensorDict(dict(held.items()), batch_size=held.batch_size)
        else:
            rows = tu.index_select_tensor_dict(held, chosen)
        for name, value in data.items():
            rows[name] = value
        return rows

    def release(self, data: TensorDict) -> None:
        """Keeps nothing more of the policy that `data` names."""
        self._held.pop(_policy(data), None)


def _policy(data: TensorDict) -> str:
    return str(tu.get(data, POLICY))


def responses_only(output: TensorDict, data: TensorDict) -> TensorDict:
    """The output of a pass over the rows in `data`, of the response tokens alone: verl's jagged columns
    (S, P + T) have a value for each token of a row, in the place before it."""
    ends, lengths = data[INPUT_IDS].offsets()[1:].tolist(), data[RESPONSE_MASK].offsets().diff()
    spans = [(end - length - 1, end - 1) for end, length in zip(ends, lengths.tolist(), strict=True)]
    for name, value in list(output.items()):
        if isinstance(value, torch.Tensor) and value.is_nested:
            values = value.values().float()
            output[name] = jagged(torch.cat([values[start:end] for start, end in spans]), lengths)
    return output
