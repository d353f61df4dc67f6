"""A run's folder with a real checkpoint, as far as an export reads it, made without a run."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import torch
from omegaconf import OmegaConf

from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.demo.assets import model_path
from marsrl_verl.evaluation.estimators import MetricInfo, Observations
from marsrl_verl.evaluation.suite import EvaluationRecord
from marsrl_verl.reporting.run_folder import FORMAT_VERSION
from marsrl_verl.verl_adapter.checkpoint.files import save_state, write_manifest


def make_run(folder: Path, *words: str, steps: tuple[int, ...] = (2,)) -> Path:
    """The folder of a run on the tiny model, with a checkpoint after each of `steps`."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"format_version": FORMAT_VERSION, "created": "now"}))
    held_out = folder.parent / f"{folder.name}_data.jsonl"
    held_out.write_text(json.dumps({"data_source": "openai/gsm8k"}) + "\n")
    named = ("cluster=cpu", f"name={folder.name}", f"marsrl.run.output_root={folder.parent}", *words)
    config = compose_config(parse_arguments(list(named))).config
    OmegaConf.set_struct(config, False)
    config.marsrl.run.command = ["python", "-m", "recipe.marsrl.main_marsrl", *named]
    run, checksum = config.marsrl.run, hashlib.sha256(held_out.read_bytes()).hexdigest()
    run.data_bytes = {str(held_out): held_out.stat().st_size, str(folder / "gone.parquet"): 7}
    run.data_sha256 = {str(held_out): checksum, str(folder / "gone.parquet"): "5ad"}
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    for step in steps:
        make_checkpoint(folder, step)
    return folder


def make_checkpoint(run: Path, step: int) -> Path:
    """One rank's, of weights that bfloat16 can't hold."""
    from transformers import AutoModelForCausalLM

    folder = run / f"checkpoints/global_step_{step}"
    hub = folder / "actor/huggingface"
    hub.mkdir(parents=True)
    for path in Path(model_path()).iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, hub)
    (folder / "actor/fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    weights = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32).state_dict()
    moved = {name: one + step * 1e-4 for name, one in weights.items()}
    torch.save(moved, folder / "actor/model_world_size_1_rank_0.pt")
    save_state(folder, {"step": step})
    (folder / "data.pt").write_bytes(b"position")
    write_manifest(folder)
    return folder


def write_evaluation(run: Path, tag: str, step: int, right: int) -> None:
    """An evaluation's record: so many of 40 problems were solved."""
    solved = Observations.of((k < right, f"v{k}") for k in range(40))
    record = EvaluationRecord(
        tag=tag,
        step=step,
        confidence=0.95,
        temperature=1.0,
        problems=40,
        samples_per_problem=1,
        seconds=1.0,
        generated_tokens=100,
        observations={"solver_accuracy": solved},
        metrics={"solver_accuracy": MetricInfo("Solver accuracy", "share of correct answers")},
        description="The Solver alone.",
    )
    path = run / "evaluations" / f"{tag}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record.to_json()))
