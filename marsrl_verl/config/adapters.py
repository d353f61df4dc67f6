"""Which policies are LoRA adapters on the frozen model.

With `actor_rollout_ref.model.lora_rank` above 0 every policy that is trained is one. Trainer and engines are
told their names by `actor_rollout_ref.rollout.custom`, verl's place for what it hands on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marsrl_verl.config.schema import policy_name
from marsrl_verl.core.policy import PolicyKind

KEY = "adapters"


def adapters(rollout: Any) -> tuple[str, ...]:
    """The names, sorted; none where all weights are trained.

    Args:
        rollout: `actor_rollout_ref.rollout`, as verl hands it on.
    """
    custom = rollout.get("custom") or {}
    return tuple(custom.get(KEY) or ())


def named_adapters(lora_rank: int, marsrl: Mapping[str, Any]) -> list[str]:
    """The policies of a `marsrl` node that have an adapter.

    Args:
        lora_rank: 0: none has.
    """
    if int(lora_rank) <= 0:
        return []
    default, roles = marsrl["default_policy"], marsrl["roles"]
    named = {policy_name(role, one.get("policy"), default) for role, one in roles.items()}
    kinds = {name: one.get("kind") for name, one in marsrl["policies"].items()}
    return sorted(name for name in named if kinds.get(name) in (None, PolicyKind.LORA.value))
