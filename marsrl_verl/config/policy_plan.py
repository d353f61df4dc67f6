"""What the plan says about policies with weights of ours."""

from __future__ import annotations

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.memory import model_shapes
from marsrl_verl.config.models import adapters, models, several_models
from marsrl_verl.config.training_memory import adapter_parameters
from marsrl_verl.core.policy import PolicyKind

Row = tuple[str, ...]


def policy_rows(ctx: Context) -> list[Row]:
    """A table of them, role by role, its head first; empty where all roles share the model's own weights."""
    rollout = ctx.config.actor_rollout_ref.rollout
    path, rank = str(ctx.get("actor_rollout_ref.model.path")), ctx.get("actor_rollout_ref.model.lora_rank")
    shapes, adapted, begun = model_shapes(ctx.config), adapters(rollout), models(rollout)
    rows: list[Row] = []
    if adapted:
        each = f"{adapter_parameters(ctx.config, shapes[0]) // len(adapted):,}" if shapes else "?"
        what = f"rank {rank} on {path}"
        rows = [(name, PolicyKind.LORA.value, _roles(ctx, name), each, what) for name in adapted]
    elif several_models(rollout):
        counts = [f"{shape.parameters:,}" for shape in shapes] or ["?"] * len(begun)
        rows = [
            (name, PolicyKind.MODEL.value, _roles(ctx, name), count, begun[name])
            for name, count in zip(begun, counts, strict=True)
        ]
    head = ("policy", "kind", "roles", "parameters", "begins as")
    return [head, *rows] if rows else []


def _roles(ctx: Context, policy: str) -> str:
    return ", ".join(role for role in ctx.settings.roles if ctx.settings.policy_of(role) == policy)
