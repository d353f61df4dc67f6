"""What a run takes of a Ray cluster, and whether the cluster has it."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from marsrl_verl.config.cluster_resources import (
    NodeDemand,
    cpus_on_one_node,
    demands,
    describe_demands,
    describe_nodes,
    fits,
)


def a_run(device="cuda", nodes=1, gpus=8, engine_nodes=0, engine_gpus=8, tensor=1):
    rollout = {
        "nnodes": engine_nodes,
        "n_gpus_per_node": engine_gpus,
        "tensor_model_parallel_size": tensor,
        "data_parallel_size": 1,
    }
    return OmegaConf.create(
        {
            "trainer": {"device": device, "nnodes": nodes, "n_gpus_per_node": gpus},
            "actor_rollout_ref": {"rollout": rollout},
        }
    )


def test_trainer_takes_its_gpus_node_by_node():
    assert demands(a_run(nodes=4)) == [NodeDemand(8, 24)] * 4
    assert demands(a_run("cpu", gpus=2)) == [NodeDemand(2, 2)]
    assert cpus_on_one_node(a_run("cpu", gpus=1)) == 2


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [(4, [NodeDemand(4, 8)] * 4), (8, [NodeDemand(8, 16)] * 2), (16, [NodeDemand(8, 16)] * 2)],
)
def test_engines_with_gpus_of_their_own_take_them_engine_by_engine(tensor, expected):
    assert demands(a_run(engine_nodes=2, tensor=tensor))[1:] == expected


NODE = {"GPU": 8.0, "CPU": 64.0}


@pytest.mark.parametrize(
    ("wanted", "nodes", "enough"),
    [
        ([NodeDemand(8, 24)] * 2, [NODE, NODE], True),
        ([NodeDemand(8, 24)] * 2, [NODE, {"CPU": 64.0}], False),
        ([NodeDemand(8, 24)] * 2, [{"GPU": 16.0, "CPU": 49.0}], True),
        ([NodeDemand(8, 24)], [{"GPU": 4.0, "CPU": 64.0}, {"GPU": 4.0, "CPU": 64.0}], False),
        ([NodeDemand(8, 24)], [{"GPU": 8.0, "CPU": 24.0}], False),  # no CPU is left free
        ([NodeDemand(4, 8), NodeDemand(8, 24), NodeDemand(4, 8)], [NODE, NODE], True),
        ([NodeDemand(1, 1)], [], False),
    ],
)
def test_whether_nodes_can_hold_it(wanted, nodes, enough):
    assert fits(wanted, nodes) is enough


def test_words():
    assert describe_demands([NodeDemand(8, 24)] * 4) == (
        "4 x (8 GPUs and 24 CPUs on one node), and a free CPU on each of these nodes"
    )
    assert describe_nodes([NODE, NODE, {"CPU": 1.0}]) == "2 x (8 GPUs, 64 CPUs), 1 x (0 GPUs, 1 CPU)"
    assert describe_nodes([]) == "no node"
