"""What may change when a run continues: every setting is in one of four classes.

A resumed run is built from the new settings, and then takes weights, the optimizer's moments, pools and the
position in the data from the checkpoint. So a changed setting either acts from the next step on, or the
checkpoint does not fit it. A key that no rule names is bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from marsrl_verl.config.node import chosen_method
from marsrl_verl.config.reference import ABSENT, default_of, leaves
from marsrl_verl.config.unused_keys import FIXED_KEYS, INERT_KEYS
from marsrl_verl.core.method import Method


class Rule(Enum):
    """What becomes of a changed setting."""

    ACTS = "acts"
    """It acts from the next step on."""
    FOLDER = "folder"
    """It acts, but evaluations in the run's folder were made with the old value: only in another
    folder."""
    BOUND = "bound"
    """The checkpoint does not fit another value."""
    INERT = "inert"
    """The trainer does not read it."""


ACTS = (
    "name", "dry_run", "marsrl.dry_run", "marsrl.run", "marsrl.hardware", "marsrl.training",
    "marsrl.off_policy", "marsrl.watch", "marsrl.metrics",
    "marsrl.pipeline.overlap", "marsrl.pipeline.step_prompt_budget", "marsrl.pipeline.updates_per_step",
    "marsrl.pipeline.samples_per_update", "marsrl.pipeline.max_request_staleness",
    "marsrl.pipeline.min_groups", "marsrl.evaluation.before", "marsrl.evaluation.after",
    "marsrl.evaluation.every", "marsrl.evaluation.greedy",
    # Limits of a call, and how many at once: a score that comes is the same.
    "marsrl.reward.*.timeout_s", "marsrl.reward.*.max_failed_frac",
    "marsrl.reward.*.max_unanswered_frac", "marsrl.reward.*.kwargs.processes",
    "marsrl.policies.*.endpoint.base_urls", "marsrl.policies.*.endpoint.api_key_env",
    "marsrl.policies.*.endpoint.api_key_file",
    "marsrl.policies.*.endpoint.timeout_s", "marsrl.policies.*.endpoint.max_concurrent_requests",
    "marsrl.policies.*.endpoint.retries", "marsrl.policies.*.endpoint.backoff_s",
    "marsrl.policies.*.endpoint.max_failed_frac",
    "marsrl.tools.*.places", "marsrl.tools.*.retries", "marsrl.tools.*.backoff_s",
    "marsrl.tools.*.summary.endpoint.base_urls", "marsrl.tools.*.summary.endpoint.api_key_env",
    "marsrl.tools.*.summary.endpoint.api_key_file", "marsrl.tools.*.summary.endpoint.timeout_s",
    "marsrl.tools.*.summary.endpoint.max_concurrent_requests",
    "marsrl.tools.*.summary.endpoint.retries", "marsrl.tools.*.summary.endpoint.backoff_s",
    # Loss, optimizer, sizes of batches, how the ranks and the engine compute.
    "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout",
    "actor_rollout_ref.actor.optim.override_optimizer_config.fused",
    "actor_rollout_ref.actor.optim.override_optimizer_config.foreach",
    "actor_rollout_ref.nccl_timeout",
    # A changed controller begins anew (`verl_adapter.trainer.reward_kl`).
    "algorithm.use_kl_in_reward", "algorithm.kl_penalty", "algorithm.kl_ctrl",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.model.enable_activation_offload", "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.model.use_liger", "actor_rollout_ref.model.use_fused_kernels",
    "actor_rollout_ref.model.fused_kernel_options", "actor_rollout_ref.model.use_shm",
    "actor_rollout_ref.model.tiled_mlp", "actor_rollout_ref.model.override_config.attn_implementation",
    "data.use_shm", "data.filter_overlong_prompts_workers",
    "reward", "ray_kwargs",
    "trainer.total_epochs", "trainer.total_training_steps", "trainer.save_freq",
    "trainer.max_actor_ckpt_to_keep", "trainer.resume_mode", "trainer.resume_from_path", "trainer.logger",
    "trainer.project_name", "trainer.experiment_name", "trainer.wandb_proxy", "trainer.val_only",
    "trainer.ray_wait_register_center_timeout",
    # Together they make the number of ranks, which is compared for itself.
    "trainer.nnodes", "trainer.n_gpus_per_node",
)  # fmt: skip

FOLDER = (
    "data.val_files", "data.val_max_samples", "trainer.default_local_dir",
    "marsrl.evaluation", "marsrl.prompts", "marsrl.reward", "marsrl.roles", "marsrl.policies",
    "marsrl.tools",
    "reward.custom_reward_function", "custom_reward_function",
)  # fmt: skip

BOUND = (
    # Stages, pools, draws, and a method's state.
    "marsrl.algo", "marsrl.pipeline", "marsrl.run.seed",
    # Whose weights are whose.
    "marsrl.default_policy", "marsrl.policies.*.kind", "marsrl.policies.*.model",
    "marsrl.roles.*.policy",
    # The position in the data.
    "data",
    # Weights and moments, and how they lie in the ranks' files.
    "actor_rollout_ref.model", "actor_rollout_ref.hybrid_engine",
    "actor_rollout_ref.actor.strategy", "actor_rollout_ref.actor.freeze_vision_tower",
    "actor_rollout_ref.actor.qat",
    "actor_rollout_ref.actor.optim.optimizer", "actor_rollout_ref.actor.optim.optimizer_impl",
    "actor_rollout_ref.actor.optim.override_optimizer_config",
    "actor_rollout_ref.actor.fsdp_config.strategy", "actor_rollout_ref.actor.fsdp_config.model_dtype",
    "actor_rollout_ref.actor.fsdp_config.fsdp_size", "actor_rollout_ref.actor.fsdp_config.use_orig_params",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
    "actor_rollout_ref.actor.fsdp_config.qat", "actor_rollout_ref.actor.fsdp_config.turbo_config",
    # The generators' states come from the checkpoint.
    "actor_rollout_ref.actor.fsdp_config.seed",
    "trainer.device", "trainer.default_hdfs_dir", "trainer.checkpoint_callback_class",
)  # fmt: skip

_RULES: dict[str, Rule] = {
    **{item.key: Rule.INERT for item in (*INERT_KEYS, *FIXED_KEYS)},
    **dict.fromkeys(BOUND, Rule.BOUND),
    **dict.fromkeys(FOLDER, Rule.FOLDER),
    **dict.fromkeys(ACTS, Rule.ACTS),
}
_NAMED = ("reward", "roles", "policies", "tools")
"""Nodes of ours with an entry for each role, policy or tool."""
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?(\.?[A-Za-z_][\w.]*)\s*[,}]")


def rule_of(key: str, method: type[Method] | None = None) -> Rule | None:
    """The class of a setting: that of the longest rule that is the key or a node above it; None: no rule.

    Args:
        method: says which of its settings (`marsrl.algo`) act from the next step on; None: of no method.
    """
    parts = key.split(".")
    if (
        method is not None
        and parts[:2] == ["marsrl", "algo"]
        and parts[2:3]
        and method.Config.is_resumable(parts[2])
    ):
        return Rule.ACTS
    if parts[0] == "marsrl" and parts[1:2] and parts[1] in _NAMED and len(parts) > 3:
        parts[2] = "*"  # whatever the role, policy or tool
    for depth in range(len(parts), 0, -1):
        if (rule := _RULES.get(".".join(parts[:depth]))) is not None:
            return rule
    return None


def changed_settings(new: Any, raw: Any, old: Any) -> Iterator[tuple[str, Any, Any, Rule]]:
    """Settings that differ: key, new and old value, class. One that follows from another that differs is left
    out.

    Args:
        new: the resolved configuration as plain dictionaries.
        raw: the same with interpolations as written.
        old: the record of the run that is continued.
    """
    values, before = dict(leaves(new)), dict(leaves(old))
    differing = {
        key: (values.get(key), before.get(key))
        for key in {**values, **before}
        if _differs(key, values, before)
    }
    written = dict(leaves(raw))
    algo = new.get("marsrl", {}).get("algo")
    method = None if algo is None else chosen_method(algo)
    for key, (value, was) in differing.items():
        if not _follows(key, written.get(key), differing):
            yield key, value, was, rule_of(key, method) or Rule.BOUND


def _differs(key: str, new: dict[str, Any], old: dict[str, Any]) -> bool:
    if key in new and key in old:
        return bool(plain(new[key]) != plain(old[key]))
    if new.get(key, old.get(key)) in ({}, None) or _is_node(key, new) or _is_node(key, old):
        return False  # an empty dictionary, or one whose entries are looked at
    # An entry of a free dictionary came or went; a key of ours or of verl's came or went with a version.
    return default_of(key) is ABSENT


def _is_node(key: str, values: dict[str, Any]) -> bool:
    return any(other.startswith(f"{key}.") for other in values)


def _follows(key: str, written: Any, differing: dict[str, Any]) -> bool:
    if not isinstance(written, str):
        return False
    parent = key.rpartition(".")[0]
    names = [f"{parent}{name}" if name.startswith(".") else name for name in _REFERENCE.findall(written)]
    return any(other == name or other.startswith(f"{name}.") for name in names for other in differing)


def plain(value: Any) -> Any:
    """A value that compares by what it means: one file as a list of one, paths as absolute ones."""
    if isinstance(value, list):
        items = [plain(item) for item in value]
        return items[0] if len(items) == 1 else items
    if isinstance(value, str) and value and Path(value).expanduser().exists():
        return str(Path(value).expanduser().absolute())
    return value
