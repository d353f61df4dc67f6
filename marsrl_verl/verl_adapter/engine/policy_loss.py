"""The loss of an update: verl's `ppo_loss` with a method's policy loss (`core.method.LossSpec`), with what
that one reads beside verl's arguments, and with means over turns."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import masked_sum
from verl.workers.utils import losses as verl_losses

from marsrl_verl.core.method import LossSpec
from marsrl_verl.core.rows import RESPONSE_MASK
from marsrl_verl.core.sequence import TURN
from marsrl_verl.settings.choices import LossMean
from marsrl_verl.verl_adapter.engine.batch import ROWS_IN_UPDATE, TURNS_IN_UPDATE

SPEC_KEY, MEAN_KEY = "loss_spec", "loss_mean"
"""The batch's `LossSpec`, and its `LossMean` or None (verl's `loss_agg_mode`)."""
COLUMN = "loss/"
"""Begins the names of the columns that `LossSpec.columns` and a mean over turns ask for."""


@dataclasses.dataclass(frozen=True, slots=True)
class LossInputs:
    """What a policy loss can read beside verl's arguments, of a micro-batch of R rows and at most T response
    tokens, and of its mini-batch, all ranks and micro-batches together. Rows that only fill up a batch count
    for nothing."""

    columns: Mapping[str, torch.Tensor]
    """(R, T) each, by name: what `LossSpec.columns` asks for, 0 behind a row's end."""
    settings: Mapping[str, Any]
    """`LossSpec.settings`."""
    tokens: int
    """Tokens in the loss, of the mini-batch."""
    sequences: int
    """Rows with such a token, of the mini-batch."""
    turns: int
    """Their turns, of the mini-batch: a row whose tokens have no turn is one. As `sequences`, unless the
    column `turn` is asked for."""
    ranks: int
    """Data-parallel ranks, over which FSDP averages gradients: a sum over the mini-batch is that of the
    micro-batches' sums times this."""


_inputs: ContextVar[LossInputs | None] = ContextVar("loss_inputs", default=None)


def loss_inputs() -> LossInputs:
    """What the policy loss that calls this can read.

    Raises:
        RuntimeError: it is not called by an update's policy loss.
    """
    found = _inputs.get()
    if found is None:
        raise RuntimeError("loss_inputs() is for policy losses, while an update computes them")
    return found


def register_loss(name: str) -> None:
    """Import a policy loss that is named `package.module:function` and put it into verl's registry under that
    name, in this process; a name without a colon has to be there.

    Raises:
        ValueError: there is no such loss.
    """
    if name in core_algos.POLICY_LOSS_REGISTRY:
        return
    module, colon, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"policy loss {name!r}: {error}") from error
    if not callable(found):
        raise ValueError(
            f"policy loss {name!r}: expected package.module:function, or one of verl's: "
            f"{', '.join(sorted(core_algos.POLICY_LOSS_REGISTRY))}"
        )
    core_algos.register_policy_loss(name)(found)


def update_loss(
    loss: functools.partial[Any], *, model_output: Any, data: TensorDict, dp_group: Any = None
) -> Any:
    """verl's loss as the batch asks for it.

    Upstream behaviour: `global_batch_size` comes with the batch and counts rows of padding; a policy loss is
    given five columns and no other; no mean knows turns.

    Args:
        loss: verl's `ppo_loss` with the actor's configuration as its `config`.
        model_output, data, dp_group: as the engine calls it.
    """
    spec: LossSpec = tu.get_non_tensor_data(data, SPEC_KEY, default=LossSpec())
    mean = tu.get_non_tensor_data(data, MEAN_KEY, default=None)
    inputs = _read(data, spec)
    tu.assign_non_tensor(data, global_batch_size=max(inputs.sequences, 1))
    if spec.name is not None:
        loss = _with_policy_loss(loss, spec.name)
    token = _inputs.set(inputs)
    try:
        if mean is None:
            return loss(model_output=model_output, data=data, dp_group=dp_group)
        mask = torch.nested.to_padded_tensor(data[RESPONSE_MASK], 0).bool()
        with _averaged_with(turn_weights(mask, inputs, LossMean(mean)), LossMean(mean)):
            return loss(model_output=model_output, data=data, dp_group=dp_group)
    finally:
        _inputs.reset(token)


def _read(data: TensorDict, spec: LossSpec) -> LossInputs:
    # A rank's micro-batch lies in one mini-batch, so that its rows agree.
    return LossInputs(
        {
            name.removeprefix(COLUMN): torch.nested.to_padded_tensor(data[name], 0)
            for name in data.keys()  # noqa: SIM118  (a TensorDict iterates over rows)
            if name.startswith(COLUMN)
        },
        spec.settings,
        int(data["batch_num_tokens"]),
        int(data[ROWS_IN_UPDATE][0]),
        int(data[TURNS_IN_UPDATE][0]),
        int(data["dp_size"]),
    )


def _with_policy_loss(loss: functools.partial[Any], name: str) -> functools.partial[Any]:
    """verl's loss with another policy loss than the actor's configuration names."""
    register_loss(name)
    config = loss.keywords["config"]
    named = dataclasses.replace(config.policy_loss, loss_mode=name)
    return functools.partial(
        loss.func, **{**loss.keywords, "config": dataclasses.replace(config, policy_loss=named)}
    )


def turn_weights(mask: torch.Tensor, inputs: LossInputs, mean: LossMean) -> torch.Tensor:
    """(R, T) what a token's loss counts for in the mean over the mini-batch; 0 where `mask` is.

    Args:
        mask: (R, T) tokens in the loss.
        inputs: of the micro-batch, with the column `turn`.
        mean: over all turns, or over sequences of the mean over their turns.
    """
    turns = inputs.columns[TURN].long()[mask]
    rows = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)[mask]
    pairs, place, tokens = torch.unique(
        torch.stack([rows, turns]), dim=1, return_inverse=True, return_counts=True
    )
    found = 1.0 / tokens[place]
    if mean is LossMean.TURN:
        found = found / max(inputs.turns, 1)
    else:
        turns_of_row = torch.bincount(pairs[0], minlength=len(mask))
        found = found / turns_of_row[rows] / max(inputs.sequences, 1)
    weights = torch.zeros(mask.shape, dtype=found.dtype, device=mask.device)
    weights[mask] = found
    return weights


@contextmanager
def _averaged_with(weights: torch.Tensor, mean: LossMean) -> Iterator[None]:
    """Have policy loss, entropy bonus and KL term sum their tokens' losses with these weights.

    Upstream behaviour: all three call `agg_loss`, by the name that their module has for it, with
    `loss_agg_mode`, which knows no turns.
    """
    callers: list[Any] = []

    def agg_loss(caller: Any, loss_mat: Any, loss_mask: Any, loss_agg_mode: str, **batch: Any) -> Any:
        callers.append(caller)
        return masked_sum(loss_mat * weights.to(loss_mat.dtype), loss_mask) * batch.get("dp_size", 1)

    upstream = [(module, module.agg_loss) for module in (core_algos, verl_losses)]
    for module, _ in upstream:
        module.agg_loss = functools.partial(agg_loss, module)
    try:
        yield
    finally:
        for module, function in upstream:
            module.agg_loss = function
    if core_algos not in callers:
        raise RuntimeError(
            f"marsrl.training.loss_mean = {mean}: the policy loss averages by itself, so that it would have "
            "no effect; its mean has to be verl's, called as core_algos.agg_loss"
        )
