"""The weights of a checkpoint as an engine loads them: Hugging Face folders, and PEFT folders of adapters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from marsrl_verl.reporting.files import write_json_atomic
from marsrl_verl.reporting.manifest import CheckpointError, describe, manifest_path
from marsrl_verl.verl_adapter.checkpoint.files import check_manifest

ACTOR = "actor"
"""verl's name of the folder with what is trained."""
ADAPTERS = "adapters"
"""The folder beside the weights with a PEFT folder for each adapter (`engine.adapter_engine`)."""
MERGED_FROM = "merged_from.json"
"""File in a merged folder that tells the manifest of its checkpoint."""


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
    checkpoint: Path, target: Path, policies: Sequence[str], dtype: str, *, trust_remote_code: bool = False
) -> Mapping[str, Path]:
    """Hugging Face folders of the models in a checkpoint, below `target`, made by verl's own merger; one that
    is there already is used.

    Args:
        checkpoint: a complete `global_step_N`, all files of which lie here.
        target: where they are made.
        policies: of several models; any name where there is one.
        dtype: number format of the weights, as vLLM names it; `auto`: bfloat16.
        trust_remote_code: as in the model's settings.

    Raises:
        CheckpointError: it is incomplete or damaged, or can't be merged.
    """
    check_manifest(checkpoint)
    source = {"manifest": describe(manifest_path(checkpoint)), "dtype": dtype}
    found = {}
    for policy in policies:
        own = checkpoint / ACTOR / policy
        shards = own if own.is_dir() else checkpoint / ACTOR
        found[policy] = target / policy
        if not _is_merged(found[policy], source):
            _merge(shards, found[policy], dtype, trust_remote_code)
            write_json_atomic(found[policy] / MERGED_FROM, source)
    return found


def _is_merged(folder: Path, source: Mapping[str, object]) -> bool:
    path = folder / MERGED_FROM
    return path.is_file() and json.loads(path.read_text(encoding="utf-8")) == source


def write_adapter(checkpoint: Path, name: str, target: Path) -> Path:
    """Copies a PEFT folder out of a complete checkpoint, with tokenizer and generation config.
    CheckpointError: there is none of that name, or a file is damaged."""
    check_manifest(checkpoint)
    target.mkdir(parents=True)
    for file, content in read_adapters(checkpoint, [name])[name].items():
        (target / file).write_bytes(content)
    for path in (checkpoint / ACTOR / "huggingface").iterdir():
        if path.name != "config.json":  # of a whole model
            shutil.copy(path, target / path.name)
    return target


def merge_adapter(
    base: str, adapter: Path, target: Path, dtype: str, *, trust_remote_code: bool = False
) -> None:
    """Writes a model with an adapter (`write_adapter`) added to its weights: summed in float32, then rounded
    to `dtype`."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    code = {"trust_remote_code": trust_remote_code}
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, **code)
    merged = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    merged.to(torch_dtype(dtype)).save_pretrained(target)
    for path in adapter.iterdir():
        if not (path.name.startswith("adapter_") or (target / path.name).exists()):
            shutil.copy(path, target / path.name)


def _merge(shards: Path, target: Path, dtype: str, trust_remote_code: bool) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", __name__, dtype, "merge", "--backend", "fsdp"),
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
    path = target / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # The merger builds the model in bfloat16 before it gives it the weights.
    write_json_atomic(path, {**config, "dtype": str(torch_dtype(dtype)).removeprefix("torch.")})


def torch_dtype(name: str) -> torch.dtype:
    """A number format by vLLM's name; `auto`: bfloat16."""
    found: torch.dtype = torch.bfloat16 if name == "auto" else getattr(torch, name)
    return found


def _run_merger(dtype: torch.dtype) -> None:
    """Runs verl's merger with the arguments of this process, which does nothing else. Upstream behaviour: it
    rounds all weights with `Tensor.bfloat16`, whatever engines decode with."""
    from verl.model_merger.__main__ import main

    torch.Tensor.bfloat16 = lambda self: self.to(dtype)  # type: ignore[method-assign, assignment, misc]
    main()


if __name__ == "__main__":
    _run_merger(torch_dtype(sys.argv.pop(1)))
