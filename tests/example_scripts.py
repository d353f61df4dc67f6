"""What the scripts of `examples/` would start."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from marsrl_verl.config.command_line import evaluating, parse_arguments

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".sh", ".sbatch"))
_MODELS = {
    "qwen3_8b": "Qwen/Qwen3-8B",
    "llama3_8b": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama3_1_8b": "meta-llama/Llama-3.1-8B-Instruct",
    "qwen2_5_7b": "Qwen/Qwen2.5-7B-Instruct",
    "30b": "Qwen/Qwen3-30B-A3B-Thinking-2507",
    "evaluation": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "1_5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "4b": "Qwen/Qwen3-4B-Thinking-2507",
}
_TRAIN, _EVALUATE = "recipe.marsrl.main_marsrl", "recipe.marsrl.main_eval"
_RECORDER = """#!/usr/bin/env python3
import json, os, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""


def hub_id(script: str) -> str:
    """The model that a script is written for."""
    return next((found for part, found in _MODELS.items() if part in script), _MODELS["30b"])


def recorded_calls(
    script: str, folder: Path, environment: Mapping[str, str | None], *argv: str
) -> list[list[str]]:
    """The programs that a script calls, with their arguments; recorders stand in their place.

    Args:
        folder: where the recorders lie and the script is called.
        environment: variables in addition to this process's; None: without it.
    """
    programs, record = folder / "bin", folder / "calls.jsonl"
    programs.mkdir(parents=True, exist_ok=True)
    for name in ("python", "ray", "srun"):
        (programs / name).write_text(_RECORDER)
        (programs / name).chmod(0o755)
    (programs / "scontrol").write_text("#!/bin/sh\nprintf 'node1\\nnode2\\nnode3\\nnode4\\n'\n")
    (programs / "scontrol").chmod(0o755)
    record.write_text("")
    env: dict[str, str | None] = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "CALLS": str(record),
        "SLURM_JOB_NODELIST": "node[1-4]",
        "SLURM_NNODES": "4",
        "SLURM_CPUS_ON_NODE": "96",
        **environment,
    }
    # From somewhere else: nothing in an example depends on where it is called.
    # What the script leaves in the background has been recorded too when it ends.
    subprocess.run(
        ["bash", "-c", '. "$0"; wait', str(EXAMPLES / script), *argv],
        env={name: value for name, value in env.items() if value is not None},
        cwd=folder,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in record.read_text().splitlines()]


def copy_of(script: str, data: object) -> tuple[str, ...]:
    """What names a file in place of the hub's benchmarks, for a script that evaluates."""
    named = ("benchmarks=aime24", f"++marsrl.evaluation.benchmarks.aime24.file={data}")
    return named if "evaluation" in script else ()


def training_arguments(call: list[str]) -> list[str]:
    """What follows `python -m recipe.marsrl.main_marsrl`; of `main_eval` what it makes of that."""
    if _EVALUATE in call:
        return list(evaluating(parse_arguments(call[call.index(_EVALUATE) + 1 :])).overrides)
    return call[call.index(_TRAIN) + 1 :]


def starts_a_run(call: list[str]) -> bool:
    """Whether it is of a program that trains or evaluates."""
    return _TRAIN in call or _EVALUATE in call
