"""Measurements that a probe takes inside the trainer's forward pass; needs torch alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from marsrl_verl.attention.collector import InfluenceCollector, collect_influence
from marsrl_verl.attention.layout import OUTSIDE, StepLayout, build_layout

STEP_IDS, STEP_MEASURED = "step_ids", "step_measured"
"""Columns that `InfluenceMeasure` reads: the step of every response token, and whether it is measured."""


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """The rows of one forward pass: R sequences with M tokens in all, M_T of them in responses."""

    offsets: torch.Tensor
    """(R + 1,) first token of each row; the last is M."""
    response_lengths: torch.Tensor
    """(R,) response tokens, which end their row."""
    columns: Mapping[str, torch.Tensor]
    """(M_T,) each: the columns of the probe's `inputs`, row after row."""
    packed: bool
    """True if the model sees one packed row; otherwise it sees right-padded rows."""
    padding: int = 0
    """Tokens after the packed row."""
    device: Any = "cpu"
    """Device that the model runs on."""


class Measure(Protocol):
    """Built for each forward pass from the probe's settings."""

    def around(self, module: torch.nn.Module, rows: MeasuredRows) -> AbstractContextManager[None]:
        """The forward pass of `rows` runs inside the block."""
        ...

    def outputs(self) -> dict[str, torch.Tensor]:
        """(M,) each, a value per token: what the pass showed."""
        ...


class InfluenceMeasure:
    """Forward Context Influence (arXiv 2509.26628, eq. 5 and 6) of every token's step.

    Args:
        settings: `delta`, the least distance in steps, and `backend`, what computes it
            (`attention.choices.FciBackend`).
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._delta, self._backend = int(settings["delta"]), str(settings["backend"])
        self._collector: InfluenceCollector | None = None

    @contextmanager
    def around(self, module: torch.nn.Module, rows: MeasuredRows) -> Iterator[None]:
        """Collects from the model's attention."""
        layout = influence_layout(rows, self._delta).to(rows.device)
        with collect_influence(module, layout, self._backend) as self._collector:
            yield

    def outputs(self) -> dict[str, torch.Tensor]:
        """`influence`; 0 in the prompt and where a step is not measured."""
        if self._collector is None:
            raise RuntimeError("nothing was measured yet: outputs() belongs after the pass inside around()")
        return {"influence": self._collector.by_token()[self._collector.layout.token_index]}


def influence_layout(rows: MeasuredRows, delta: int) -> StepLayout:
    """The steps of the rows as the model sees these; the prompt is a row's step 0."""
    total, lengths = int(rows.offsets[-1]), rows.offsets.diff()
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    column = torch.arange(total) - rows.offsets[:-1][owner]
    in_response = column >= (lengths - rows.response_lengths)[owner]
    steps = torch.zeros(total, dtype=torch.int64)
    steps[in_response] = rows.columns[STEP_IDS].long() + 1
    measured = torch.zeros(total, dtype=torch.bool)
    measured[in_response] = rows.columns[STEP_MEASURED].bool()
    if rows.packed:
        outside = torch.full((rows.padding,), OUTSIDE)
        return build_layout(
            torch.cat([steps, outside]),
            torch.cat([measured, torch.zeros(rows.padding, dtype=torch.bool)]),
            delta=delta,
            sequence_ids=torch.cat([owner, torch.full((rows.padding,), len(lengths))]),
        )
    padded_steps = torch.full((len(lengths), int(lengths.max())), OUTSIDE)
    padded_steps[owner, column] = steps
    padded_measured = torch.zeros(padded_steps.shape, dtype=torch.bool)
    padded_measured[owner, column] = measured
    return build_layout(padded_steps, padded_measured, delta=delta)
