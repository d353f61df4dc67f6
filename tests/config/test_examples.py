"""The commands of `examples/` are accepted by the configuration they are written for."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from example_scripts import (
    EXAMPLES,
    SCRIPTS,
    copy_of,
    hub_id,
    recorded_calls,
    starts_a_run,
    training_arguments,
)
from messages import accepted
from small_files import make_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def published_data(tmp_path_factory) -> Path:
    """A data file with as many problems as the largest published step."""
    return make_data(tmp_path_factory.mktemp("data") / "problems.jsonl", ["2"] * 1024)


@pytest.fixture(scope="session")
def published_pairs(tmp_path_factory) -> Path:
    """As many pairs of answers to judge."""
    rows = [
        {
            "data_source": "pairs",
            "prompt": [{"role": "user", "content": f"Which, {n}?"}],
            "reward_model": {"ground_truth": "A"},
            "extra_info": {"answer_a": "this", "answer_b": "that"},
        }
        for n in range(1024)
    ]
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def calls(tmp_path, published_data, published_pairs):
    """Runs a script with recorders in place of the programs that it calls."""

    def run_script(name: str, *argv: str, changes: dict | None = None) -> list[list[str]]:
        data = published_pairs if "judge" in name else published_data
        environment = {
            "TRAIN_FILES": str(data),
            "VAL_FILES": str(data),
            "MODEL_PATH": hub_id(name),
            "OUTPUT_ROOT": str(tmp_path / "seen by all"),
            "RAY_AUTH_TOKEN": "t",
            **(changes or {}),
        }
        return recorded_calls(name, tmp_path, environment, *argv, *copy_of(name, data))

    return run_script


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_trains_with_an_accepted_configuration(calls, run, name):
    (call,) = filter(starts_a_run, calls(name, "dry_run=true"))
    arguments = training_arguments(call)
    assert "dry_run=true" in arguments
    (path,) = [text.split("=")[1] for text in arguments if text.startswith("actor_rollout_ref.model.path=")]
    assert path == hub_id(name), "the folder that MODEL_PATH names"
    accepted(run, *arguments)


SINGLE_TURN = {
    "rema_single_turn": ("vrp_rl", "mrp_rl", "rema_json", "rema_consistency"),
    "rema_judge": ("vrp_judge", "mrp_judge"),
}


@pytest.mark.parametrize(
    ("name", "algo"),
    [
        (name, algo)
        for name in SCRIPTS
        for kind, algos in SINGLE_TURN.items()
        if name.startswith(kind)
        for algo in algos
    ],
)
def test_a_script_trains_other_presets_with_their_own_numbers(calls, run, name, algo):
    (call,) = calls(name, "dry_run=true", changes={"ALGO": algo})
    arguments = training_arguments(call)
    alone = algo.startswith(("vrp", "mrp"))
    model = next(one for one in ("llama3_8b", "llama3_1_8b", "qwen2_5_7b") if one in name)
    numbers = f"{algo if alone else 'rema_single_turn'}_published_{model}"
    assert f"training={numbers}" in arguments
    assert f"policies={'shared' if alone else 'model_per_role'}" in arguments
    done = accepted(run, *arguments)
    if alone:
        assert "phases: reasoning; each" in done.text and "training epoch(es); 1 time(s)" in done.text
    assert ("JudgePrompts" in done.text) == ("judge" in name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_wants_the_folder_of_the_model(calls, name):
    with pytest.raises(subprocess.CalledProcessError):
        calls(name, changes={"MODEL_PATH": None})


def test_a_job_takes_no_folder_of_the_machine_that_submits_it(calls, tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        calls("submit_ray_job.sh", changes={"OUTPUT_ROOT": None})
    (call,) = calls("submit_ray_job.sh")
    assert f"marsrl.run.output_root={tmp_path / 'seen by all'}" in call


def test_a_job_without_the_cluster_s_token_is_not_submitted(calls, tmp_path):
    none = dict.fromkeys(("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"))
    fresh = {"HOME": str(tmp_path), **none}
    with pytest.raises(subprocess.CalledProcessError) as stopped:
        calls("submit_ray_job.sh", changes=fresh)
    assert stopped.value.returncode == 2
    assert calls("submit_ray_job.sh", changes=fresh | {"RAY_AUTH_MODE": "disabled"})
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("t")
    assert calls("submit_ray_job.sh", changes=fresh)


def test_slurm_starts_ray_on_all_nodes(calls):
    made = [" ".join(call) for call in calls("slurm.sbatch")]
    assert any("srun" in call and "--nodelist=node1" in call and "--head" in call for call in made)
    assert any("srun --nodes=3" in call and "--exclude=node1" in call for call in made)
    started = [call for call in made if "ray start" in call]
    assert all("--num-cpus=96 --num-gpus=8" in call and "--cpus-per-task=96" in call for call in started)
    assert any("marsrl.run.cluster_wait_s=600" in call for call in made), "the other nodes join meanwhile"


def test_kuberay_entrypoint_is_accepted(run, published_data):
    job = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text())
    arguments = [
        f"{text.split('=')[0]}={published_data}" if text.startswith("data.") else text
        for text in training_arguments(shlex.split(job["spec"]["entrypoint"]))
        if not text.startswith("marsrl.run.output_root")
    ]
    done = accepted(
        run, *arguments, "actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Thinking-2507", "dry_run=true"
    )
    cluster = job["spec"]["rayClusterSpec"]
    nodes = 1 + sum(group["replicas"] for group in cluster["workerGroupSpecs"])
    assert f"{nodes * 8} in all" in done.text
