"""A run says what its cluster lacks before anything waits for it."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.verl_adapter.run.cluster import require_resources

SMALL, NODE, FULL = {"CPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}


def a_run(wait: int = 0, address: str | None = "auto"):
    rollout = {"nnodes": 0, "n_gpus_per_node": 8, "tensor_model_parallel_size": 1, "data_parallel_size": 1}
    trainer = {"device": "cpu", "nnodes": 1, "n_gpus_per_node": 1}
    ours, ray = {"run": {"cluster_wait": wait}}, {"ray_init": {"address": address}}
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
