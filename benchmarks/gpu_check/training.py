"""Training runs on one GPU: their command, what is read of them, and a kill on the way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu_check.checks import (
    HERE,
    MORE_OVERRIDES,
    Bench,
    CheckError,
    end_tree,
    on_processor,
)
from benchmarks.kill_and_resume import recorded
from marsrl_verl.machine.gpus import list_gpus, visible
from marsrl_verl.machine.packages import installed
from marsrl_verl.reporting.manifest import newest_complete

_ACTOR = "actor_rollout_ref.actor"
TOKENS = 32768
"""Of a micro-batch: the presets' is one longest sequence, and the tiny task's sequences are short."""
USUAL_GIB = 80
_QUIET = (
    "marsrl.run.progress=false",
    # Its pages are not carried to a machine without network, and Ray waits 15 seconds for it.
    "ray_kwargs.ray_init.include_dashboard=false",
)
FUSED = "actor_rollout_ref.model.use_fused_kernels"


def attention_settings() -> list[str]:
    """flash-attn where it is installed. Otherwise sdpa, and fused kernels."""
    if installed("flash-attn"):
        return []
    return [
        "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{FUSED}=true",
    ]


def overrides(*own: str, tokens: int = TOKENS, share: float = 0.3) -> list[str]:
    """What the checks' runs have in common; everything else is as in the presets.

    Args:
        own: the run's.
        tokens: of a micro-batch.
        share: of the GPU's memory, which the engine takes.
    """
    more = os.environ.get(MORE_OVERRIDES, "").splitlines()
    if on_processor():
        return ["cluster=cpu", *_QUIET, *(one for one in own if _key(one) != FUSED), *more]
    gpus = visible(list_gpus())
    gib = min(gpu.memory_mib for gpu in gpus) // 1024 if gpus else USUAL_GIB
    return [
        "cluster=1xgpu",
        f"marsrl.hardware.gpu_gib={gib}",
        f"{_ACTOR}.ppo_max_token_len_per_gpu={tokens}",
        f"actor_rollout_ref.rollout.gpu_memory_utilization={share}",
        "actor_rollout_ref.rollout.agent.num_workers=2",
        "reward.num_workers=2",
        *_QUIET,
        *(one for one in attention_settings() if _key(one) not in map(_key, own)),
        *own,
        *more,
    ]


def _key(override: str) -> str:
    return override.partition("=")[0]


def command(folder: Path, name: str, *own: str) -> list[str]:
    """The training program, with a run's name and all of its overrides."""
    return [
        sys.executable,
        "-m",
        "recipe.marsrl.main_marsrl",
        f"name={name}",
        f"marsrl.run.output_root={folder}",
        "trainer.logger=[]",
        *own,
    ]


def plan(bench: Bench, name: str, *own: str) -> str:
    """The run's plan (a dry run), which needs no GPU.

    Raises:
        CheckError: the configuration is rejected.
    """
    return bench.run(command(bench.folder, name, *own, "dry_run=true"))


def train(bench: Bench, name: str, *own: str) -> Path:
    """Runs to the end; the run's folder."""
    bench.run(command(bench.folder, name, *own))
    return bench.folder / name


def train_until_killed(bench: Bench, name: str, step: int, *own: str) -> Path:
    """Starts a run and kills it, with all of its processes, once this step is recorded and has its
    checkpoint.

    Raises:
        CheckError: the run ended before.
    """
    folder = bench.folder / name
    process = subprocess.Popen(
        command(bench.folder, name, *own), cwd=HERE, stdin=subprocess.DEVNULL, stdout=sys.stdout,
        stderr=sys.stdout,
    )  # fmt: skip
    try:
        while process.poll() is None:
            if recorded(folder) >= step and newest_complete(folder / "checkpoints") == step:
                return folder
            time.sleep(0.2)
        raise CheckError(
            f"the run ended with status {process.returncode} before step {step} had a checkpoint"
        )
    finally:
        if process.poll() is None:
            end_tree(process.pid)
            process.wait()
