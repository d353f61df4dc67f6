"""Policies that are LoRA adapters on the frozen model, and policies that are models of their own.

With `actor_rollout_ref.model.lora_rank` above 0 every policy that is trained is an adapter, otherwise each
has all weights to itself. Trainer and engines read it in `actor_rollout_ref.rollout.custom`, which verl hands
on as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config.schema import policy_name
from marsrl_verl.core.policy import PolicyKind

_MODELS, _NUMBER, _RATES = "models", "model_number", "learning_rates"
_SHARE = "gpu_memory_utilization"


def adapters(rollout: Any) -> tuple[str, ...]:
    """Names of the adapters, sorted, by `actor_rollout_ref.rollout`; none where all weights are trained."""
    return tuple((rollout.get("custom") or {}).get("adapters") or ())


def unadapted(rollout: Any) -> tuple[str, ...]:
    """Policies that would be adapters and are evaluated as they begin: as the model itself."""
    return tuple((rollout.get("custom") or {}).get("unadapted") or ())


def models(rollout: Any) -> dict[str, str]:
    """Folder or hub id of the model that each policy begins as, sorted by policy; none with adapters."""
    named = (rollout.get("custom") or {}).get(_MODELS) or {}
    return {str(name): str(path) for name, path in named.items()}


def learning_rates(rollout: Any) -> dict[str, float]:
    """Rates of policies that have one of their own, in place of `actor_rollout_ref.actor.optim.lr`."""
    named = (rollout.get("custom") or {}).get(_RATES) or {}
    return {str(name): float(rate) for name, rate in named.items()}


def several_models(rollout: Any) -> bool:
    """True if the run trains more than one model; each then has servers of its own."""
    return len(models(rollout)) > 1


def named_adapters(lora_rank: int, marsrl: Mapping[str, Any]) -> list[str]:
    """The policies of a `marsrl` node that have an adapter; none with rank 0."""
    return _named(marsrl, PolicyKind.LORA) if int(lora_rank) > 0 else []


def named_models(lora_rank: int, path: str, marsrl: Mapping[str, Any]) -> dict[str, str]:
    """The policies of a `marsrl` node that are models of their own, with what they begin as: `path` where
    they name no other. None with a rank above 0."""
    names = [] if int(lora_rank) > 0 else _named(marsrl, PolicyKind.MODEL)
    own = {name: marsrl["policies"].get(name, {}).get("model") or {} for name in names}
    return {name: str(model.get("path") or path) for name, model in own.items()}


def named_rates(marsrl: Mapping[str, Any]) -> dict[str, float]:
    """The rates that roles of a `marsrl` node name (`lr`), by their policies."""
    default, roles = marsrl["default_policy"], marsrl["roles"]
    rates = {policy_name(role, one.get("policy"), default): one.get("lr") for role, one in roles.items()}
    return {name: rate for name, rate in sorted(rates.items()) if rate is not None}


def _named(marsrl: Mapping[str, Any], kind: PolicyKind) -> list[str]:
    """The policies that roles name, sorted: those of this kind, and those of which no kind is said."""
    default, roles, policies = marsrl["default_policy"], marsrl["roles"], marsrl["policies"]
    named = {policy_name(role, one.get("policy"), default) for role, one in roles.items()}
    return sorted(name for name in named if policies.get(name, {}).get("kind") in (None, kind.value))


def part_of(actor_rollout_ref: DictConfig, policy: str) -> DictConfig:
    """verl's node `actor_rollout_ref` as the workers and servers of one of several models have it: its
    weights and its learning rate, the tokenizer of all, and an equal part of the memory that engines take."""
    part = copy.deepcopy(actor_rollout_ref)
    paths = models(part.rollout)
    OmegaConf.set_struct(part, False)
    model, rollout = part.model, part.rollout
    if paths[policy] != model.path:
        model.tokenizer_path = model.get("tokenizer_path") or model.path
        model.hf_config_path = None
        model.path = paths[policy]
    rollout[_SHARE] = float(rollout[_SHARE]) / len(paths)
    part.actor.optim.lr = learning_rates(rollout).get(policy, part.actor.optim.lr)
    rollout.custom[_MODELS] = {policy: paths[policy]}
    rollout.custom[_NUMBER] = list(paths).index(policy)
    OmegaConf.set_struct(part, True)
    return part


def model_number(rollout: Any) -> int:
    """Number of an engine's model among several (`part_of`); 0 where there is one."""
    return int((rollout.get("custom") or {}).get(_NUMBER) or 0)


def engine_ranks(rollout: Any) -> int:
    """GPUs of one engine, by verl's node or its dataclass."""
    tensor, data = int(rollout.tensor_model_parallel_size), int(rollout.data_parallel_size)
    return tensor * data * int(rollout.pipeline_model_parallel_size)


def first_replica(number: int, world_size: int, ranks: int) -> int:
    """The number of the first engine of a model, one of several that all have engines, of so many ranks each,
    on the `world_size` GPUs that train."""
    return number * (world_size // ranks)
