"""What the launcher hands to Ray and to the processes of a run, asks of a cluster, and lets be printed."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from cached_config import composed
from fresh_python import run_fresh
from omegaconf import OmegaConf

from marsrl_verl.machine.packages import DISTRIBUTION_FOLDER
from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.verl_adapter.environment import REGISTER_MODULE, over_verls_variables, prepare_environment
from marsrl_verl.verl_adapter.run import launch
from marsrl_verl.verl_adapter.run.cluster import require_resources
from marsrl_verl.verl_adapter.run.launch import keep_token_private, ray_settings

JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"


@pytest.fixture(autouse=True)
def own_surroundings(monkeypatch):
    """The functions change this process's variables and module path: both are put back."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(os.environ)
    for name in ("RAY_ADDRESS", "PYTHONPATH", "HF_HUB_OFFLINE", JOB, "RAY_OVERRIDE_JOB_RUNTIME_ENV"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


def environment_config(env_vars: dict[str, str] | None = None, model: str = "owner/model"):
    ray = {"ray_init": {"runtime_env": {"env_vars": env_vars or {}}}}
    return OmegaConf.create({"actor_rollout_ref": {"model": {"path": model}}, "ray_kwargs": ray})


def test_what_is_configured_and_the_variables_of_the_run_both_reach_ray():
    environment = "+ray_kwargs.ray_init.runtime_env"
    words = (f"{environment}.env_vars.NCCL_DEBUG=WARN", f"{environment}.working_dir=/work")
    config = composed(*words, "ray_kwargs.ray_init.num_cpus=null", "trainer.n_gpus_per_node=2")
    settings = ray_settings(config, {"PYTHONPATH": "/here", "VLLM_CPU_KVCACHE_SPACE": "7"})
    assert settings["runtime_env"]["working_dir"] == "/work"
    env_vars = settings["runtime_env"]["env_vars"]
    assert env_vars["NCCL_DEBUG"] == "WARN"
    assert env_vars["PYTHONPATH"] == "/here"
    assert env_vars["VLLM_CPU_KVCACHE_SPACE"] == "7", "the run's own value is the later one"
    assert settings["num_gpus"] == 2, "logical ones, as many as ranks"
    assert "num_cpus" not in settings, "an unset value is left to Ray"


@pytest.fixture
def home(tmp_path):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    os.environ |= {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}
    return tmp_path


def test_the_token_of_a_new_ray_is_nobody_else_s(home):
    keep_token_private()
    (token,) = (home / ".ray").iterdir()
    assert token.stat().st_mode & 0o777 == 0o600
    read = run_fresh(
        "import json; from ray._raylet import AuthenticationTokenLoader as Loader\n"
        "print(json.dumps(Loader.instance().get_raw_token(ignore_auth_mode=True)))",
        {"HOME": str(home), "RAY_AUTH_MODE": "token"},
    )
    assert read == token.read_text() and len(read) == 64
    keep_token_private()
    assert token.read_text() == read, "a token that is there is kept"


def test_a_token_that_others_can_read_is_told(home, capsys):
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("t")
    token.chmod(0o644)
    keep_token_private()
    assert f"chmod 600 {token}" in capsys.readouterr().err


@pytest.mark.parametrize("given", [{"RAY_AUTH_TOKEN": "t"}, {"RAY_AUTH_MODE": "disabled"}])
def test_no_token_is_made_where_none_is_read(home, given):
    os.environ |= given
    keep_token_private()
    assert list(home.iterdir()) == []


def test_an_existing_cluster_keeps_its_own_resources():
    os.environ["RAY_ADDRESS"] = "10.0.0.1:6379"
    config = composed("+ray_kwargs.ray_init.num_gpus=4", "ray_kwargs.ray_init.num_cpus=4", cluster="8xgpu")
    settings = ray_settings(config, {"A": "1"})
    assert not {"num_cpus", "num_gpus"} & set(settings)
    assert settings["runtime_env"]["env_vars"]["A"] == "1"


@pytest.mark.parametrize("shown", [False, True])
def test_output_of_workers_is_shown_where_the_run_asks_for_it(shown):
    settings = ray_settings(composed(f"marsrl.run.worker_logs={str(shown).lower()}"), {})
    assert settings["log_to_driver"] is shown
    assert settings["logging_level"] == logging.WARNING


def test_the_configuration_is_not_changed():
    config = composed()
    before = OmegaConf.to_yaml(config)
    ray_settings(config, {"A": "1"})["runtime_env"]["env_vars"]["B"] = "2"
    assert OmegaConf.to_yaml(config) == before


def test_a_run_on_gpus_gets_our_module_and_this_folder_and_no_stand_in():
    env_vars = prepare_environment(environment_config())
    assert env_vars["VERL_USE_EXTERNAL_MODULES"] == REGISTER_MODULE
    assert env_vars["PYTHONPATH"] == os.getcwd()
    assert str(DISTRIBUTION_FOLDER) not in sys.path[:1]
    assert "VERL_PLATFORM" not in env_vars


def test_the_engine_starts_without_flashinfer_unless_it_is_asked_for(monkeypatch):
    name = "VLLM_USE_FLASHINFER_SAMPLER"
    monkeypatch.delenv(name, raising=False)
    assert prepare_environment(environment_config())[name] == "0"
    assert prepare_environment(environment_config({name: "1"}))[name] == "1"
    monkeypatch.setenv(name, "1")
    assert name not in prepare_environment(environment_config())


def test_variables_of_the_configuration_come_first():
    configured = {"VERL_USE_EXTERNAL_MODULES": "mine", "HF_HUB_OFFLINE": "0"}
    env_vars = prepare_environment(environment_config(configured, model=os.getcwd()))
    assert {name: env_vars[name] for name in configured} == configured


def test_a_model_in_a_folder_needs_no_hub(tmp_path: Path):
    assert prepare_environment(environment_config(model=str(tmp_path)))["HF_HUB_OFFLINE"] == "1"
    os.environ.pop("HF_HUB_OFFLINE")
    assert "HF_HUB_OFFLINE" not in prepare_environment(environment_config())
    config = environment_config(model=str(tmp_path))
    config.actor_rollout_ref.rollout = {"custom": {"models": {"judge": "organisation/model"}}}
    assert "HF_HUB_OFFLINE" not in prepare_environment(config), "one of two models may have to be downloaded"


def test_the_users_module_path_stays_behind_ours(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"/theirs{os.pathsep}{os.getcwd()}")
    assert prepare_environment(environment_config())["PYTHONPATH"] == f"{os.getcwd()}{os.pathsep}/theirs"


def test_the_cpu_platform_puts_the_stand_in_first_and_only_once(monkeypatch):
    pytest.importorskip("vllm", reason="the stand-in belongs to vLLM's CPU build")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    config = environment_config({"VERL_PLATFORM": "cpu"})
    first = prepare_environment(config)
    expected = [str(DISTRIBUTION_FOLDER), os.getcwd(), "/theirs"]
    assert first["PYTHONPATH"].split(os.pathsep) == expected
    # This process has the variables now, and a second start must not pile them up.
    assert os.environ["PYTHONPATH"] == first["PYTHONPATH"]
    again = prepare_environment(config)["PYTHONPATH"].split(os.pathsep)
    assert sorted(again) == sorted(expected)
    assert sys.path.count(str(DISTRIBUTION_FOLDER)) == 1


def test_the_key_of_an_endpoint_is_not_handed_to_ray_which_logs_it():
    node = "marsrl.policies.solver.endpoint"
    words = ("policies=solver_endpoint", f"{node}.base_urls=[http://h/v1]", f"{node}.api_key_env=BIG_KEY")
    config = composed(*words)
    os.environ["BIG_KEY"] = "sk-1"
    env_vars = prepare_environment(config)
    assert "sk-1" not in str(ray_settings(config, env_vars))
    assert "sk-1" not in str(config)


def test_a_jobs_variables_and_ours_become_one_environment():
    """What `ray.init` does in the entry point of a job, with Ray's own function."""
    merge = pytest.importorskip("ray.runtime_env.runtime_env")._merge_runtime_env
    theirs = {"PYTHONPATH": "/theirs", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "0", "A": "b"}
    job = {"working_dir": "gcs://package.zip", "env_vars": theirs}
    os.environ[JOB] = json.dumps({"runtime_env": job, "metadata": {"job_submission_id": "1"}})
    os.environ.update(job["env_vars"])  # the entry point has them
    config = composed()
    ours = ray_settings(config, prepare_environment(config))["runtime_env"]
    merged = merge(job, ours, override=os.environ.get("RAY_OVERRIDE_JOB_RUNTIME_ENV") == "1")
    assert merged["working_dir"] == "gcs://package.zip"
    assert merged["env_vars"]["A"] == "b"
    assert merged["env_vars"]["HF_HUB_OFFLINE"] == "0", "the user's word, not our default"
    assert merged["env_vars"]["VERL_PLATFORM"] == "cpu"
    assert merged["env_vars"]["PYTHONPATH"].split(os.pathsep)[-2:] == [os.getcwd(), "/theirs"]


class RayIsAskedError(Exception):
    """Ends a start where Ray would begin."""


@pytest.fixture
def asked_of_ray(monkeypatch) -> dict:
    """The keyword arguments of `ray.init`."""
    ray = pytest.importorskip("ray")
    asked: dict = {}

    def init(**settings) -> None:
        asked.update(settings)
        raise RayIsAskedError

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    for name in ("NCCL_DEBUG", "VLLM_LOGGING_LEVEL", "VLLM_DISABLE_COMPILE_CACHE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)
    return asked


def test_ray_is_started_with_verls_variables_below_those_of_configuration_and_shell(asked_of_ray):
    pytest.importorskip("verl")
    os.environ.update(RAY_ADDRESS="10.0.0.1:6379", VLLM_LOGGING_LEVEL="DEBUG")
    config = composed("+ray_kwargs.ray_init.runtime_env.env_vars.NCCL_DEBUG=INFO", cluster="8xgpu")
    with pytest.raises(RayIsAskedError):
        launch._start(config, "", prepare_environment(config))
    env_vars = asked_of_ray["runtime_env"]["env_vars"]
    # Engines that share vLLM's compile cache corrupt it (vllm-project/vllm#31199).
    assert env_vars["VLLM_DISABLE_COMPILE_CACHE"] == "1" == os.environ["VLLM_DISABLE_COMPILE_CACHE"]
    assert env_vars["TOKENIZERS_PARALLELISM"] == "true"
    assert env_vars["NCCL_DEBUG"] == "INFO"
    assert "VLLM_LOGGING_LEVEL" not in env_vars, "the shell's word reaches the workers by itself"
    assert env_vars["VERL_USE_EXTERNAL_MODULES"] == REGISTER_MODULE
    assert env_vars["VERL_FULL_DETERMINISM"] == "0"


def test_so_is_the_driver_that_is_a_fork_of_the_template(asked_of_ray):
    template_run = pytest.importorskip("marsrl_verl.verl_adapter.run.template_run")
    config = composed()
    environment = {"env_vars": {"NCCL_DEBUG": "INFO"}, "py_executable": "p"}
    connection = {"address": "here", "runtime_env": environment}
    payload = os.memfd_create("payload")
    with os.fdopen(os.dup(payload), "wb") as stream:
        pickle.dump((config, connection, "", {}), stream)
    os.lseek(payload, 0, os.SEEK_SET)
    with pytest.raises(RayIsAskedError):
        template_run.drive(payload)
    assert asked_of_ray["runtime_env"]["py_executable"] == "p"
    assert asked_of_ray["runtime_env"]["env_vars"]["VLLM_DISABLE_COMPILE_CACHE"] == "1"
    assert asked_of_ray["runtime_env"]["env_vars"]["NCCL_DEBUG"] == "INFO"


def test_what_the_configuration_says_to_every_worker():
    pytest.importorskip("verl")
    words = ("actor_rollout_ref.rollout.full_determinism=true", "trainer.logger=[console,rl_insight]")
    config = composed(*words, cluster="8xgpu")
    env_vars = over_verls_variables(config, {})["env_vars"]
    seed = str(config.actor_rollout_ref.rollout.seed)
    expected = {"VERL_FULL_DETERMINISM": "1", "VLLM_BATCH_INVARIANT": "1", "PYTHONHASHSEED": seed}
    expected["VERL_RL_INSIGHT_ENABLE"] = "1"
    assert {name: env_vars[name] for name in expected} == expected


def test_the_name_of_the_jobs_variable_is_rays():
    constants = pytest.importorskip("ray._private.runtime_env.constants")
    assert constants.RAY_JOB_CONFIG_JSON_ENV_VAR == JOB


# --- what the cluster lacks is said before anything waits for it ----------------------------------

SMALL, NODE, FULL = {"CPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}


def a_run(wait: int = 0, address: str | None = "auto"):
    rollout = {"nnodes": 0, "n_gpus_per_node": 8, "tensor_model_parallel_size": 1, "data_parallel_size": 1}
    trainer = {"device": "cpu", "nnodes": 1, "n_gpus_per_node": 1}
    ours, ray = {"run": {"cluster_wait_s": wait}}, {"ray_init": {"address": address}}
    nodes = {"trainer": trainer, "actor_rollout_ref": {"rollout": rollout}, "marsrl": ours, "ray_kwargs": ray}
    return OmegaConf.create(nodes)


class FakeCluster:
    """Nodes and what is free of them, changing with time."""

    def __init__(self, *looks: tuple[list[dict], list[dict]]) -> None:
        self.looks = list(looks)
        self.slept: list[float] = []

    def look(self):
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_a_cluster_that_has_everything(capsys):
    cluster = FakeCluster(([NODE], [NODE]))
    require_resources(a_run(), cluster.look, cluster.sleep)
    assert (cluster.slept, capsys.readouterr().out) == ([], "")


TOO_SMALL = (
    "The run takes 1 x (1 GPU and 1 CPU on one node), and a free CPU on each of these nodes. The cluster has "
    "1 x (0 GPUs, 2 CPUs)."
)


@pytest.mark.parametrize(
    ("nodes", "free", "address", "said"),
    [
        ([SMALL], [SMALL], "auto", [TOO_SMALL, "ray start --num-cpus --num-gpus"]),
        ([FULL], [FULL], "local", ["machine has 1 x (1 GPU, 1 CPU)"]),
        ([NODE], [SMALL], "auto", ["others use it"]),
    ],
    ids=["a small cluster", "a machine of one's own", "a busy cluster"],
)
def test_a_cluster_that_lacks_something_is_refused_at_once(monkeypatch, nodes, free, address, said):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = FakeCluster((nodes, free))
    with pytest.raises(ConfigError) as refused:
        require_resources(a_run(address=address), cluster.look, cluster.sleep)
    text = " ".join(str(refused.value).split())
    assert all(one in text for one in said)
    assert cluster.slept == []


def test_nodes_that_join_are_waited_for(capsys):
    cluster = FakeCluster(([SMALL], [SMALL]), ([SMALL], [SMALL]), ([SMALL, NODE], [SMALL, NODE]))
    require_resources(a_run(wait=60), cluster.look, cluster.sleep)
    assert cluster.slept == [5.0, 5.0]
    assert "waiting up to 60 s for 1 x (1 GPU and 1 CPU on one node)" in capsys.readouterr().out


def test_the_wait_ends():
    cluster = FakeCluster(([SMALL], [SMALL]))
    with pytest.raises(ConfigError):
        require_resources(a_run(wait=12), cluster.look, cluster.sleep)
    assert cluster.slept == [5.0, 5.0, 2.0]


# --- the terminal ---------------------------------------------------------------------------------

PROGRAM = """
import os, sys
from pathlib import Path
from marsrl_verl.verl_adapter.terminal import library_output_to, terminal

print("before")
with library_output_to(Path(sys.argv[1])):
    print("a library prints")
    print("a library warns", file=sys.stderr)
    os.write(1, b"a native library prints\\n")
    print("progress", file=terminal())
print("after", file=terminal())
with library_output_to(Path(sys.argv[1])):
    raise RuntimeError("the reason")
"""


def test_only_the_runs_own_output_and_an_error_reach_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(log)], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["before", "progress", "after"]
    assert "a library" not in result.stderr
    assert set(log.read_text().splitlines()) == {
        "a library prints", "a library warns", "a native library prints"
    }  # fmt: skip
    assert result.returncode == 1
    assert "RuntimeError: the reason" in result.stderr
