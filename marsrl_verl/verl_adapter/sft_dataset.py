"""Rows of verl's SFT trainer whose answers hold results of tools: these are read, and not learnt."""

from __future__ import annotations

import re
from typing import Any

import torch
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

from marsrl_verl.rollout.tool_protocol.tags import RESULT

_RESULT = re.compile(rf"\s*<{RESULT}>.*?</{RESULT}>", re.DOTALL)


class ToolResultsMasked(MultiTurnSFTDataset):  # type: ignore[misc]  # verl is untyped
    """verl's dataset of `messages`, without a loss on `<result>…</result>` inside an answer, as in a run
    whose calls are tags. verl's own has a loss on all of an assistant's messages and on no others, which is
    right where results are messages of role `tool`.

    In a run: data.custom_cls.path=pkg://marsrl_verl.verl_adapter.sft_dataset
    data.custom_cls.name=ToolResultsMasked.
    """

    # verl's __getitem__ joins what this returns message by message, and has no other place for a mask.
    def _process_single_message(
        self, index: int, message: dict[str, Any], *rest: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        ids, loss_mask, attention_mask, more = super()._process_single_message(index, message, *rest, **named)
        if message["role"] == "assistant":
            loss_mask = loss_mask * ~self._of_results(ids)
        return ids, loss_mask, attention_mask, more

    def _of_results(self, ids: torch.Tensor) -> torch.Tensor:
        """(tokens,) true for tokens that begin inside a result. One that also ends the call before it is the
        model's own."""
        text = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        again = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        if again["input_ids"] != ids.tolist():
            raise ValueError(
                "the tokenizer reads its own text otherwise, so nobody knows where a tool's result begins: "
                f"{text[:200]!r}"
            )
        begins = torch.tensor([begin for begin, _ in again["offset_mapping"]])
        found = torch.zeros(len(ids), dtype=torch.bool)
        for span in _RESULT.finditer(text):
            found |= (span.start() <= begins) & (begins < span.end())
        return found
