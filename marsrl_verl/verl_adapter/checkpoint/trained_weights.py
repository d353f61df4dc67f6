"""The weights of a checkpoint as an engine loads them: Hugging Face folders, and PEFT folders of adapters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from marsrl_verl.reporting.files import write_json_atomic
from marsrl_verl.reporting.seal import SEAL_NAME, CheckpointError, describe
from marsrl_verl.verl_adapter.checkpoint.sealed import check_seal

ACTOR = "actor"
"""verl's name of the folder with what is trained."""
ADAPTERS = "adapters"
"""The folder beside the weights with a PEFT folder for each adapter (`engine.adapter_engine`)."""
_SOURCE = "merged_from.json"
"""In a merged folder: the seal of its checkpoint."""


def checkpoint_step(checkpoint: Path) -> int:
    """The step of `global_step_N`."""
    return int(checkpoint.name.rpartition("_")[2])


def read_adapters(checkpoint: Path, names: Sequence[str]) -> dict[str, dict[str, bytes]]:
    """The files of each adapter's PEFT folder. CheckpointError: there is none of that name."""
    found = {}
    for name in names:
        folder = checkpoint / ACTOR / ADAPTERS / name
        if not folder.is_dir():
            raise CheckpointError(f"{checkpoint} has no adapter {name}: {folder} is missing")
        found[name] = {path.name: path.read_bytes() for path in folder.iterdir()}
    return found


def merge_models(
    checkpoint: Path, target: Path, policies: Sequence[str], *, trust_remote_code: bool = False
) -> Mapping[str, Path]:
    """Hugging Face folders of what a checkpoint's ranks wrote, below `target`, made by verl's own merger in
    bfloat16; one that is there already is taken.

    Args:
        checkpoint: a sealed `global_step_N`, all files of which lie here.
        target: where they are made.
        policies: of several models; a single name where there is one model.
        trust_remote_code: as in the model's settings.

    Raises:
        CheckpointError: it is incomplete or damaged, or can't be merged.
    """
    check_seal(checkpoint)
    source = {"seal": describe(checkpoint / SEAL_NAME)}
    found = {}
    for policy in policies:
        shards = checkpoint / ACTOR / policy if len(policies) > 1 else checkpoint / ACTOR
        found[policy] = target / policy
        if not _is_merged(found[policy], source):
            _merge(shards, found[policy], trust_remote_code)
            write_json_atomic(found[policy] / _SOURCE, source)
    return found


def _is_merged(folder: Path, source: Mapping[str, object]) -> bool:
    path = folder / _SOURCE
    return path.is_file() and json.loads(path.read_text(encoding="utf-8")) == source


def _merge(shards: Path, target: Path, trust_remote_code: bool) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"),
        *("--local_dir", str(shards), "--target_dir", str(target)),
        *(["--trust-remote-code"] if trust_remote_code else []),
    ]
    # A process of its own, which gives back the memory that the weights took.
    own = {name: value for name, value in os.environ.items() if name != "VERL_USE_EXTERNAL_MODULES"}
    done = subprocess.run(
        command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        last = done.stdout.strip().splitlines()[-5:]
        raise CheckpointError(
            f"verl's merger can't merge {shards} (exit {done.returncode}): {' '.join(last)}"
        )
