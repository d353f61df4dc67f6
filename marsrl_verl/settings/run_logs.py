"""`marsrl.run.rollout_log`: files of rollouts that grow large."""

from __future__ import annotations

from pydantic import Field

from marsrl_verl.settings.declaration import Settings, limits


class RolloutLogConfig(Settings):
    """Storage of rollouts (`marsrl.run.log_rollouts`)."""

    compress_above_mb: int = limits(16, ge=0, why="0 compresses every file")
    """A step's or an evaluation's file above about so many mebibytes is written as `.jsonl.gz`."""
    max_mb: int | None = limits(None, ge=1, why="null leaves nothing out")
    """Above about so many mebibytes, before compression, a step's file has some of its problems alone, with
    all of their trajectories, chosen by a checksum of their ids."""
    token_columns: list[str] = Field(default_factory=list)
    """Columns of trained tokens to keep (`trained/step_N.parquet`), two bytes a token each before
    compression: `rollout_log_probs`, `old_log_probs`, `ref_log_probs`, `entropies`, `loss_weights`,
    `kl_penalties`, and what the method notes of tokens. Advantages, masks and policy versions are kept in any
    case."""
    keep_gb: float | None = limits(None, gt=0.0, why="null keeps all")
    """Above so many gibibytes the files of the oldest steps are deleted."""
