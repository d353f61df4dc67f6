"""Checks of verl's own settings: those that the trainer does not use must stay as they are.

A setting that has no effect is refused when it was changed (against verl's default, or against the
value that our root configuration gives it), never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.errors import Problem
from marsrl_verl.config.reference import default_of


@dataclass(frozen=True, slots=True)
class Inert:
    """A key, or a node with everything below it, that the trainer does not use."""

    key: str
    reason: str
    instead: str


_CREDIT = "Advantages come from the groups' role rewards, not from verl's estimators."
_CREDIT_FIX = "Leave it out; marsrl.algo sets how rewards are credited."
_NO_CRITIC = "No method here trains a critic."
_EVALUATION = "Roles and system are evaluated by the plugin."
_EVALUATION_FIX = "Leave it out; marsrl.evaluation says when and how."
_ROLLOUTS = "Every sample is written below the run's folder."
_REWARDS = "Responses are scored by the class of their role."
_REWARDS_FIX = "Leave it out; set marsrl.reward.<role>.target."

INERT_KEYS: tuple[Inert, ...] = (
    Inert("model_engine", "Only the FSDP2 engine (dp) is driven.", "Leave it at dp."),
    Inert("trainer.use_v1", "The trainer extends verl's V0 trainer.", "Leave it false."),
    Inert("trainer.v1", "The trainer extends verl's V0 trainer.", "Leave it out."),
    Inert("transfer_queue", "Batches travel through the driver, not through TransferQueue.", "Leave it out."),
    Inert("actor_rollout_ref.hybrid_engine", "Training and decoding share the GPUs.", "Leave it true."),
    Inert("actor_rollout_ref.rollout.mode", "The engine always runs as a server.", "Leave it at async."),
    Inert("actor_rollout_ref.rollout.name", "Only vLLM is driven.", "Leave it at vllm."),
    Inert("actor_rollout_ref.rollout.n", "A group is sampled from one row.", "Set marsrl.algo.group_size."),
    Inert("actor_rollout_ref.rollout.do_sample", "Groups are always sampled.", "Leave it true."),
    Inert(
        "actor_rollout_ref.rollout.calculate_log_probs",
        "Samples keep their log-probabilities.",
        "Leave it true.",
    ),
    Inert(
        "actor_rollout_ref.rollout.over_sample_rate", "Every group is decoded to its end.", "Leave it at 0."
    ),
    Inert(
        "actor_rollout_ref.rollout.ignore_eos", "Answers end where the model ends them.", "Leave it false."
    ),
    Inert("actor_rollout_ref.rollout.val_kwargs", _EVALUATION, _EVALUATION_FIX),
    Inert(
        "actor_rollout_ref.rollout.multi_turn", "A stage is one model call without tools.", "Leave it out."
    ),
    Inert("actor_rollout_ref.rollout.agent.default_agent_loop", "Rows are stage inputs.", "Leave it out."),
    Inert(
        "actor_rollout_ref.rollout.agent.agent_loop_config_path", "Rows are stage inputs.", "Leave it out."
    ),
    Inert(
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
        "The trainer needs its own.",
        "Leave it out.",
    ),
    Inert(
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "Mini-batches are cut by number, since the rows of a step vary.",
        "Set marsrl.pipeline.updates_per_step.",
    ),
    Inert(
        "actor_rollout_ref.actor.grad_clip",
        "The engine clips by the optimizer's setting.",
        "Set actor_rollout_ref.actor.optim.clip_grad.",
    ),
    Inert("algorithm", _CREDIT, _CREDIT_FIX),
    Inert("critic", _NO_CRITIC, "Leave it out."),
    Inert("trainer.critic_warmup", _NO_CRITIC, "Leave it out."),
    Inert("trainer.max_critic_ckpt_to_keep", _NO_CRITIC, "Leave it out."),
    Inert("distillation", "No method here distils from a teacher.", "Leave it out."),
    Inert("custom_reward_function", _REWARDS, _REWARDS_FIX),
    Inert("reward_model", _REWARDS, _REWARDS_FIX),
    Inert("reward.custom_reward_function", _REWARDS, _REWARDS_FIX),
    Inert("reward.reward_manager", _REWARDS, _REWARDS_FIX),
    Inert("reward.reward_model", _REWARDS, _REWARDS_FIX),
    Inert("sandbox_fusion", _REWARDS, _REWARDS_FIX),
    Inert("reward.sandbox_fusion", _REWARDS, _REWARDS_FIX),
    Inert(
        "data.gen_batch_size", "A step takes data.train_batch_size problems.", "Set data.train_batch_size."
    ),
    Inert("data.val_batch_size", _EVALUATION, _EVALUATION_FIX),
    Inert("data.reward_fn_key", _REWARDS, _REWARDS_FIX),
    Inert("data.truncation", "Prompts are never truncated; too long ones are not asked.", "Leave it out."),
    Inert("data.tool_config_path", "A stage is one model call without tools.", "Leave it out."),
    Inert("data.function_tool_path", "A stage is one model call without tools.", "Leave it out."),
    Inert("trainer.val_before_train", _EVALUATION, _EVALUATION_FIX),
    Inert("trainer.val_only", _EVALUATION, _EVALUATION_FIX),
    Inert("trainer.test_freq", _EVALUATION, _EVALUATION_FIX),
    Inert("trainer.log_val_generations", _ROLLOUTS, "Leave it out; see marsrl.run.log_rollouts."),
    Inert("trainer.rollout_data_dir", _ROLLOUTS, "Leave it out; see marsrl.run.log_rollouts."),
    Inert("trainer.validation_data_dir", _ROLLOUTS, "Leave it out; see marsrl.run.log_rollouts."),
    Inert("trainer.esi_redundant_time", "Checkpoints follow trainer.save_freq alone.", "Leave it at 0."),
    Inert("skip", "Rollouts are never replayed from another run.", "Leave it out."),
)
"""What the trainer does not use, and what to set instead."""

_OURS: dict[str, Any] = {
    "trainer.use_v1": False,
    "trainer.val_before_train": False,
    "critic.enable": False,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": (
        "marsrl_verl.verl_adapter.rollout_manager.MarsRLAgentLoopManager"
    ),
    "actor_rollout_ref.actor.ppo_mini_batch_size": "${data.train_batch_size}",
    "reward.reward_manager.source": "importlib",
    "reward.reward_manager.name": "MarsRLRewardManager",
    "reward.reward_manager.module.path": "pkg://marsrl_verl.verl_adapter.reward_manager",
}
"""Values that our root configuration gives keys of the table above."""

_CLIPS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
_KL = ("kl_loss_coef", "kl_loss_type")
_NOTHING = object()


def check_inert(ctx: Context) -> list[Problem]:
    """Keys without effect that were changed."""
    problems: list[Problem] = []
    for inert in INERT_KEYS:
        for key, value in _leaves(inert.key, _find(ctx.raw, inert.key)):
            if value is not _NOTHING and not _same(value, _expected(key)):
                problems.append(
                    Problem(
                        key,
                        f"It was changed, but the trainer does not use it. {inert.reason}",
                        inert.instead,
                        value,
                    )
                )
    return problems


def check_clip(ctx: Context) -> list[Problem]:
    """A clip range that can never be reached."""
    actor = ctx.config.actor_rollout_ref.actor
    updates = ctx.settings.pipeline.updates_per_step * int(actor.ppo_epochs)
    if updates > 1 or actor.policy_loss.loss_mode != "vanilla":
        return []
    return [
        Problem(
            key,
            "With one update per step the importance ratio is exactly 1, so nothing is ever clipped.",
            "Leave it out, or raise marsrl.pipeline.updates_per_step or actor_rollout_ref.actor.ppo_epochs.",
            value,
        )
        for key, value in _changed(ctx, _CLIPS)
    ]


def check_kl(ctx: Context) -> list[Problem]:
    """Settings of a KL term that is switched off."""
    if ctx.config.actor_rollout_ref.actor.use_kl_loss:
        return []
    return [
        Problem(
            key,
            "The KL term is switched off (actor_rollout_ref.actor.use_kl_loss = false).",
            "Leave it out, or set actor_rollout_ref.actor.use_kl_loss=true.",
            value,
        )
        for key, value in _changed(ctx, _KL)
    ]


def _changed(ctx: Context, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Those keys of the actor that differ from verl's default, with their values."""
    keys = [f"actor_rollout_ref.actor.{name}" for name in names]
    return [(key, ctx.get(key)) for key in keys if not _same(_find(ctx.raw, key), _expected(key))]


def check_strategy(ctx: Context) -> list[Problem]:
    """The trainer drives FSDP2."""
    key = "actor_rollout_ref.actor.strategy"
    if ctx.get(key) == "fsdp2":
        return []
    return [Problem(key, "The trainer drives FSDP2.", "Leave it out (fsdp2).", ctx.get(key))]


def check_types(ctx: Context) -> list[Problem]:
    """Values of verl's keys against the kind of their default (our own keys have a schema)."""
    problems: list[Problem] = []
    for key, value in _leaves("", {name: node for name, node in ctx.raw.items() if name != "marsrl"}):
        try:
            default = default_of(key)
        except KeyError:
            continue
        kind = _kind_expected(default)
        if kind is not None and not _fits(value, kind):
            problems.append(
                Problem(key, f"Expected {kind}, as verl's default {default!r}.", f"Set it to {kind}.", value)
            )
    return problems


def _kind_expected(default: Any) -> str | None:
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, (int, float)):
        return "a number"
    return None


def _fits(value: Any, kind: str) -> bool:
    if value is None or (isinstance(value, str) and ("${" in value or value == "???")):
        return True
    if kind == "true or false":
        return isinstance(value, bool)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _expected(key: str) -> Any:
    if key in _OURS:
        return _OURS[key]
    try:
        return default_of(key)
    except KeyError:
        return _NOTHING


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        return float(value) == float(expected)
    return str(value) == str(expected)


def _find(tree: dict[str, Any], key: str) -> Any:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return _NOTHING
        node = node[part]
    return node


def _leaves(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from _leaves(f"{key}.{name}" if key else str(name), value)
    else:
        yield key, node
