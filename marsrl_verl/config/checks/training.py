"""Checks of how the trainer computes."""

from __future__ import annotations

from marsrl_verl.config.checks.context import Context
from marsrl_verl.settings.issues import ConfigIssue

_SHARE = "marsrl.training.share_prefixes"
_ACTOR = "actor_rollout_ref.actor"
_ATTENTION = ("sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
"""Attention for which there is a mask of a prefix tree; flex attention stands in for flash attention."""


def check_share_prefixes(ctx: Context) -> list[ConfigIssue]:
    """What a pass over a prefix tree needs."""
    if not ctx.settings.training.share_prefixes:
        return []
    problems = []
    for key, wanted, what, fix in (
        (
            f"{_ACTOR}.use_dynamic_bsz",
            True,
            "Rows that share tokens make micro-batches of uneven numbers of rows.",
            "Use training=shared_prefixes, which cuts micro-batches by tokens.",
        ),
        (
            f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
            1,
            "Sequence parallelism cuts a row where a branch may need what is on the other rank.",
            "Set it to 1.",
        ),
        (
            "actor_rollout_ref.model.use_fused_kernels",
            False,
            "Fused kernels take a row's next token for the one to predict; a branch has several.",
            "Set it to false.",
        ),
        (
            f"{_ACTOR}.fsdp_config.pad_to_length",
            False,
            "The length of a prefix tree is not padded to it.",
            "Set it to false.",
        ),
    ):
        if (value := ctx.get(key)) not in (wanted, None):
            problems.append(ConfigIssue(key, f"{what} ({_SHARE} = true)", fix, value))
    key = "actor_rollout_ref.model.override_config"
    attention = (ctx.get(key) or {}).get("attn_implementation")
    if attention is not None and attention not in _ATTENTION:
        what = f"There is no mask of a prefix tree for it ({_SHARE} = true)."
        problems.append(
            ConfigIssue(f"{key}.attn_implementation", what, f"Use one of {', '.join(_ATTENTION)}.", attention)
        )
    return problems
