"""Rows on a rank: from what the trainer sends (`batch.PolicyBatch`) to what verl's engine and losses take."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from marsrl_verl.core.rows import RESPONSE_MASK
from marsrl_verl.verl_adapter.engine.batch import (
    INPUT_IDS,
    PROMPT_LENGTH,
    ROW_ID,
    TEMPERATURE,
)


def with_token_columns(data: TensorDict) -> TensorDict:
    """Add what verl reads and can be had from `input_ids` and `response_mask`: `position_ids`, `prompts`,
    `responses`, `loss_mask`, all jagged; ids become int64, a temperature that all rows have one number."""
    ids, prompt_lengths = data[INPUT_IDS], data.pop(PROMPT_LENGTH)
    offsets, values = ids.offsets(), ids.values().long()
    lengths = offsets.diff()
    position = torch.arange(len(values)) - torch.repeat_interleave(offsets[:-1], lengths)
    in_prompt = position < torch.repeat_interleave(prompt_lengths, lengths)
    data[INPUT_IDS] = torch.nested.nested_tensor_from_jagged(values, offsets)
    data["position_ids"] = torch.nested.nested_tensor_from_jagged(position, offsets)
    data["prompts"] = _jagged(values[in_prompt], prompt_lengths)
    data["responses"] = _jagged(values[~in_prompt], lengths - prompt_lengths)
    data["loss_mask"] = data[RESPONSE_MASK]
    temperatures = data[TEMPERATURE]
    if bool((temperatures == temperatures[0]).all()):
        # verl leaves logits alone at the number 1, and fused kernels take a number only.
        tu.assign_non_tensor(data, temperature=float(temperatures[0]))
    return data


def _jagged(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.nested.nested_tensor_from_jagged(values, offsets)


class HeldRows:
    """Rows that a rank keeps for the rest of a step, so that their tokens are sent once."""

    def __init__(self) -> None:
        self._rows: TensorDict | None = None
        self._place: dict[int, int] = {}

    def hold(self, data: TensorDict) -> None:
        """Keep rows, and let go of those before."""
        self._place = {number: place for place, number in enumerate(data[ROW_ID].tolist())}
        self._rows = with_token_columns(data)

    def complete(self, data: TensorDict) -> TensorDict:
        """The rows that `data` names by `row_id`, with its columns and settings; where it brings tokens of
        its own, these.

        Raises:
            RuntimeError: a row is not held.
        """
        if data.get(INPUT_IDS, None) is not None:
            return with_token_columns(data)
        wanted = data[ROW_ID].tolist()
        if self._rows is None or (missing := [number for number in wanted if number not in self._place]):
            named = wanted[:4] if self._rows is None else missing[:4]
            raise RuntimeError(
                f"rows {named} are not on this rank, which holds {len(self._place)}: call hold_rows first, "
                "with the same ranks"
            )
        places = [self._place[number] for number in wanted]
        if places == list(range(len(self._place))):
            rows = TensorDict(dict(self._rows.items()), batch_size=self._rows.batch_size)
        else:
            rows = tu.index_select_tensor_dict(self._rows, places)
        for name, value in data.items():
            rows[name] = value
        return rows

    def release(self) -> None:
        """Keep nothing."""
        self._rows, self._place = None, {}


def responses_only(output: TensorDict, data: TensorDict) -> TensorDict:
    """What a pass found, of the response tokens alone.

    verl's outputs have a value for each token of a row, in the place before it.

    Args:
        output: jagged columns (S, P + T), and metrics.
        data: the rows of the pass, as the engine took them.
    """
    ends, lengths = data[INPUT_IDS].offsets()[1:].tolist(), data[RESPONSE_MASK].offsets().diff()
    spans = [(end - length - 1, end - 1) for end, length in zip(ends, lengths.tolist(), strict=True)]
    for name, value in list(output.items()):
        if isinstance(value, torch.Tensor) and value.is_nested:
            values = value.values().float()
            output[name] = _jagged(torch.cat([values[start:end] for start, end in spans]), lengths)
    return output
