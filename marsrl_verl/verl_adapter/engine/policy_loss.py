"""The loss of an update: verl's `ppo_loss` with a method's policy loss (`core.method.LossSpec`), with its
inputs beside verl's arguments (`losses.inputs`), and with means over turns."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.utils.torch_functional import masked_sum
from verl.workers.utils import losses as verl_losses

from marsrl_verl.core.credit import LossSpec
from marsrl_verl.core.rows import RESPONSE_MASK
from marsrl_verl.losses.inputs import LossCall, LossInputs, giving, mean_weights
from marsrl_verl.verl_adapter.engine.batch import ROWS_IN_UPDATE, TURNS_IN_UPDATE

SPEC_KEY, MEAN_KEY = "loss_spec", "loss_mean"
"""The batch's `LossSpec`, and its `LossMean` or None (verl's `loss_agg_mode`)."""
COLUMN = "loss/"
"""Prefix of the columns that `LossSpec.columns` and a mean over turns need."""


def register_loss(name: str) -> None:
    """Puts a policy loss named `package.module:function` into verl's registry under that name, in this
    process; a name without a colon has to be there. ValueError if there is no such loss."""
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
    """verl's `ppo_loss`, with the actor's configuration as its `config`, as the batch specifies it.

    Upstream behaviour: `global_batch_size` comes with the batch and counts rows of padding; a policy loss is
    given five columns and no other; no mean knows turns.
    """
    spec: LossSpec = tu.get_non_tensor_data(data, SPEC_KEY, default=LossSpec())
    mean = tu.get_non_tensor_data(data, MEAN_KEY, default=None)
    actor = loss.keywords["config"]
    inputs = _read(data, spec, mean or actor.loss_agg_mode, actor.loss_scale_factor)
    tu.assign_non_tensor(data, global_batch_size=max(inputs.sequences, 1))
    if spec.name is not None:
        loss = _with_policy_loss(loss, spec.name)
    with giving(inputs) as call, nullcontext() if mean is None else _averaged_over_turns(data, call):
        found, metrics = loss(model_output=model_output, data=data, dp_group=dp_group)
    return found, metrics | _sums(call)


_SHARE, _OF = "share/", "/of"
"""Prefix of the names that `divided_shares` divides, and suffix of the divisors' names."""


def _sums(call: LossCall) -> dict[str, Metric]:
    """Shares that the policy loss logged, as sums over micro-batches; ranks are averaged."""
    found = {}
    for name, (counted, of) in call.shares.items():
        found[f"{_SHARE}{name}"] = Metric(AggregationType.SUM, counted)
        found[f"{_SHARE}{name}{_OF}"] = Metric(AggregationType.SUM, of)
    return found


def divided_shares(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's metrics, one value of each update, with shares in place of their dividends and divisors."""
    found = {name: value for name, value in metrics.items() if not name.startswith(_SHARE)}
    for name in (one.removesuffix(_OF) for one in metrics if one.startswith(_SHARE) and one.endswith(_OF)):
        if (of := float(np.sum(metrics[f"{name}{_OF}"]))) > 0:
            found[name.removeprefix(_SHARE)] = float(np.sum(metrics[name])) / of
    return found


def _read(data: TensorDict, spec: LossSpec, mean: str, scale: float | None) -> LossInputs:
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
        str(mean),
        scale,
    )


def _with_policy_loss(loss: functools.partial[Any], name: str) -> functools.partial[Any]:
    """verl's loss with another policy loss than the actor's configuration names."""
    register_loss(name)
    config = loss.keywords["config"]
    named = dataclasses.replace(config.policy_loss, loss_mode=name)
    return functools.partial(
        loss.func, **{**loss.keywords, "config": dataclasses.replace(config, policy_loss=named)}
    )


@contextmanager
def _averaged_over_turns(data: TensorDict, call: LossCall) -> Iterator[None]:
    """Has policy loss, entropy bonus and KL term weight tokens as `losses.inputs.mean_weights`.

    Upstream behaviour: all three call `agg_loss`, by the name that their module has for it, with
    `loss_agg_mode`, which knows no turns.
    """
    weights = mean_weights(torch.nested.to_padded_tensor(data[RESPONSE_MASK], 0).bool(), call.inputs)
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
    if core_algos not in callers and not call.averaged:
        raise RuntimeError(
            f"marsrl.training.loss_mean = {call.inputs.mean}: the policy loss averages by itself, so that it "
            "would have no effect; it has to call marsrl_verl.losses.inputs.mean_loss, or core_algos.agg_loss"
        )
