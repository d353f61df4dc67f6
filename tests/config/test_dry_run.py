"""The plan that `dry_run=true` prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from messages import accepted
from omegaconf import OmegaConf


def test_plan_of_the_default(run, tmp_path):
    done = run("dry_run=true", "data.train_batch_size=32", "name=look")
    assert (done.status, done.err, done.launched) == (0, "", None)
    text = " ".join(done.out.split())
    for part in (
        "cluster picked from the machine",
        "verifier_2 verifier 2 64 512 yes",
        "groups, at most 288",
        "responses, at most 2,304 (8 per group)",
        "multiple of 32 (ranks x updates x micro-batch)",
        "counted by the model's tokenizer",
        "Memory per rank, estimated",
        "KV cache 1.0 GiB",
        "assumed: ",
        "train 256 problems",
        "an epoch is 8 steps",
    ):
        assert part in text, part
    path = Path(done.out.strip().splitlines()[-1].split(": ")[1])
    assert path == tmp_path / "outputs" / "plans" / "look.yaml"
    written = OmegaConf.load(path)
    assert written.marsrl.run.name == "look"
    assert written.actor_rollout_ref.rollout.name == "vllm"
    # The run's own folder must not look used.
    assert not (tmp_path / "outputs" / "look").exists()


def test_plan_of_the_published_setting(run):
    text = accepted(
        run,
        "model=qwen3_30b_a3b_thinking_2507 actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Thinking-2507",
        "data=parquet data.train_files=null data.val_files=null cluster=4x8xgpu dry_run=true",
    ).text
    for part in (
        "responses, at most 9,216",
        "ranks 4 (32 in all, 8 per sequence)",
        "30.53 billion parameters",
        "longer ones are skipped",
        "data.train_files is not set: the data was not looked at.",
        "is not here yet",
    ):
        assert part in text, part


def test_plan_names_segments(run):
    done = run("marsrl.pipeline.max_segments=4", "marsrl.pipeline.min_group=3", "dry_run=true")
    assert done.status == 0
    text = " ".join(done.out.split())
    assert "a response takes up to 4 rounds, tokens in each: solver 12 verifier 16 corrector 12" in text
    assert "groups train in parts of at least 3 responses" in text
    assert "segments:" not in run("dry_run=true").out


def test_adapters_on_a_processor_are_slow(run):
    said = "on a processor vLLM decodes adapters many times slower"
    assert said in run("dry_run=true", "policies=lora").text
    assert said not in run("dry_run=true", "policies=model_per_role").text


def test_sequential_plan_names_its_rounds(run):
    assert "sequential: 5 generation rounds per step" in run("dry_run=true", "pipeline=sequential").text


def test_help_lists_groups_and_options(run):
    done = run("--help")
    assert done.status == 0
    assert "marsrl_balanced" in done.text
    assert "_gpu" not in done.out.split("cluster")[1].splitlines()[0]


def test_shown_configuration_is_yaml(run):
    done = run("--cfg", "job", "cluster=cpu")
    assert OmegaConf.create(done.out).marsrl.algo.group_size == 8


def test_dry_run_imports_nothing_heavy(tmp_path, base_overrides):
    code = (
        "import sys\n"
        "from marsrl_verl.config.application import main\n"
        "status = main(sys.argv[1:], lambda config: 1)\n"
        "heavy = {'torch', 'verl', 'ray', 'vllm', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *base_overrides, "dry_run=true"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
