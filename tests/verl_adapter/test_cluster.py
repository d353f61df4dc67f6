"""A run says what its cluster lacks before anything waits for it."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.verl_adapter.run.cluster import require_resources

SMALL, NODE = {"CPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}


def a_run(wait: int = 0, address: str | None = "auto"):
    rollout = {"nnodes": 0, "n_gpus_per_node": 8, "tensor_model_parallel_size": 1, "data_parallel_size": 1}
    return OmegaConf.create(
        {
            "trainer": {"device": "cpu", "nnodes": 1, "n_gpus_per_node": 1},
            "actor_rollout_ref": {"rollout": rollout},
            "marsrl": {"run": {"cluster_wait": wait}},
            "ray_kwargs": {"ray_init": {"address": address}},
        }
    )


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


def test_a_cluster_that_lacks_a_gpu_is_refused_at_once(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = FakeCluster(([SMALL], [SMALL]))
    with pytest.raises(ConfigError) as refused:
        require_resources(a_run(), cluster.look, cluster.sleep)
    text = " ".join(str(refused.value).split())
    assert "The run takes 1 x (1 GPU and 1 CPU on one node), and a free CPU on each of these nodes." in text
    assert "The cluster has 1 x (0 GPUs, 2 CPUs)." in text
    assert "ray start --num-cpus --num-gpus" in text
    assert cluster.slept == []


def test_a_machine_of_ones_own(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = FakeCluster(([{"GPU": 1.0, "CPU": 1.0}],) * 2)
    with pytest.raises(ConfigError, match=r"machine\s+has 1 x \(1 GPU, 1 CPU\)"):
        require_resources(a_run(address="local"), cluster.look, cluster.sleep)


def test_a_busy_cluster_is_told_from_a_small_one():
    cluster = FakeCluster(([NODE], [SMALL]))
    with pytest.raises(ConfigError, match="others use it"):
        require_resources(a_run(), cluster.look, cluster.sleep)


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
