"""Ranges and choices of verl's keys, which it would check late or not at all: declared as ours are."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from pydantic import ConfigDict, Field, create_model

from marsrl_verl.config.checks.context import Context
from marsrl_verl.settings.declaration import Settings, limits
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.reading import find_issues

_ROLLOUT, _ACTOR, _OPTIM = (f"actor_rollout_ref.{node}" for node in ("rollout", "actor", "actor.optim"))
_KL = "algorithm.kl_ctrl"
_TRAINER_TYPES = ("fp32", "bf16", "fp16", "float32", "bfloat16", "float16")


class _VerlSettings(Settings):
    model_config = ConfigDict(strict=True)


def _least(least: float, why: str, kind: Any = float, fix: str = "") -> Any:
    return kind | None, limits(..., ge=least, why=why, fix=fix)


def _choice(*names: str, why: str = "") -> Any:
    extra: Any = {"why": why}
    return Enum("Choice", {name: name for name in names}), Field(..., strict=False, json_schema_extra=extra)


_ENGINES = tuple(
    f"actor_rollout_ref.{node}" for node in ("actor", "actor.fsdp_config", "ref", "ref.fsdp_config")
)
_DECLARED: dict[str, Any] = {
    "data.train_batch_size": _least(1, "a step has a problem", int),
    "data.dataloader_num_workers": _least(0, "0 reads in the driver"),
    "trainer.device": _choice("cuda", "cpu"),
    "trainer.nnodes": _least(1, "a run has a node", int),
    "trainer.n_gpus_per_node": _least(1, "a node has a rank", int),
    "trainer.total_epochs": _least(1, "an epoch is a pass over the data", int),
    "trainer.total_training_steps": _least(
        1, "a run trains a step", int, "Set it to 1 or more; to evaluate alone set trainer.val_only=true."
    ),
    "trainer.max_actor_ckpt_to_keep": _least(
        1,
        "so many of the newest checkpoints are kept",
        int,
        "Set it to 1 or more, or to null to keep all.",
    ),
    **{f"{node}.strategy": _choice("fsdp2", why="The trainer drives FSDP2.") for node in _ENGINES},
    "actor_rollout_ref.model.lora_rank": (
        int,
        limits(
            ..., ge=0, le=512, why="vLLM has room for so much", fix="32 is a usual choice; 0 is no adapter."
        ),
    ),
    "actor_rollout_ref.model.lora_alpha": _least(1, "it scales the adapter", int),
    "reward.num_workers": _least(1, "somebody has to score the responses"),
    f"{_ROLLOUT}.nnodes": _least(0, "0 is no node of the engine's own"),
    f"{_ROLLOUT}.n_gpus_per_node": _least(1, "a node of the engine has a GPU"),
    f"{_ROLLOUT}.agent.num_workers": _least(1, "somebody has to ask the engine"),
    f"{_ROLLOUT}.dtype": _choice("auto", "half", "float16", "bfloat16", "float", "float32"),
    f"{_ROLLOUT}.max_num_seqs": _least(1, "the engine decodes at least one sequence"),
    f"{_ROLLOUT}.max_num_batched_tokens": _least(1, "the engine reads at least one token"),
    f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": _least(1, "weights travel in buckets"),
    f"{_ROLLOUT}.gpu_memory_utilization": (
        float,
        limits(..., gt=0, le=1, why="a part of the GPU's memory", fix="0.6 is a usual choice."),
    ),
    f"{_ACTOR}.ppo_epochs": _least(1, "a step has an update"),
    f"{_ACTOR}.clip_ratio": _least(0, "a ratio is clipped to 1 minus and 1 plus it"),
    f"{_ACTOR}.clip_ratio_low": _least(0, "a ratio is clipped to 1 minus it"),
    f"{_ACTOR}.clip_ratio_high": _least(0, "a ratio is clipped to 1 plus it"),
    f"{_ACTOR}.clip_ratio_c": (
        float,
        limits(..., gt=1, why="verl's loss wants it so", fix="3.0 is the default."),
    ),
    f"{_KL}.type": _choice("fixed", "adaptive"),
    f"{_KL}.kl_coef": _least(0, "a policy is not paid for its distance from the reference"),
    f"{_KL}.horizon": (float, limits(..., gt=0, why="rows over which the coefficient adapts")),
    f"{_KL}.target_kl": (float, limits(..., gt=0, why="nats per token that the controller keeps to")),
    f"{_ACTOR}.fsdp_config.dtype": _choice(*_TRAINER_TYPES),
    f"{_ACTOR}.fsdp_config.model_dtype": _choice(*_TRAINER_TYPES),
    "trainer.save_freq": _least(-1, "steps between checkpoints; -1 saves none", int),
    f"{_OPTIM}.lr": (
        float,
        limits(
            ..., ge=0, le=1, why="it is the optimizer's step", fix="1e-6 is a usual choice for large models."
        ),
    ),
    f"{_OPTIM}.lr_warmup_steps": _least(-1, "-1 is by lr_warmup_steps_ratio", int),
    f"{_OPTIM}.weight_decay": _least(0, "it shrinks the weights"),
    f"{_OPTIM}.clip_grad": (
        float,
        limits(
            ..., gt=0, why="it is the largest norm of a gradient", fix="1.0 is verl's; 1000 clips nothing."
        ),
    ),
    f"{_OPTIM}.lr_warmup_steps_ratio": (
        float,
        limits(..., ge=0, le=1, why="a part of the steps", fix="0.0 is none."),
    ),
    f"{_OPTIM}.lr_scheduler_type": _choice("constant", "cosine"),
}
_MODEL = create_model("VerlValues", __base__=_VerlSettings, **_DECLARED)


def check_values(ctx: Context) -> Iterator[ConfigIssue]:
    """Values of verl's keys against what is declared here."""
    yield from find_issues(_MODEL, {key: ctx.get(key) for key in _DECLARED}, "")
    if ctx.get(f"{_OPTIM}.lr") == 0 and not ctx.get("trainer.val_only"):
        ctx.notes.append(
            f"{_OPTIM}.lr is 0: the weights stay as they are. To evaluate alone set trainer.val_only=true."
        )
