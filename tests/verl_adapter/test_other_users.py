"""What the package's two entry points do to processes of verl and vLLM that are none of ours."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest
from fresh_python import report_of, start_fresh

pytest.importorskip("verl", reason="the entry points belong to verl and vLLM")

pytestmark = pytest.mark.slow

CPU_MODULES = """
import json, multiprocessing.spawn, os, sys
def cpu_modules():
    return sorted(name for name in sys.modules if name.startswith("marsrl_verl.verl_adapter.cpu"))
"""

ANOTHER_USER = (
    CPU_MODULES
    + """
import torch
from torch.distributed.rendezvous import _create_c10d_store as store
before = set(vars(torch.cpu))
import verl
plugin = "marsrl_verl.verl_adapter.register" in sys.modules
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.rollout.replica import RolloutReplicaRegistry
replicas = dict(RolloutReplicaRegistry._registry)
from importlib.metadata import entry_points
loaded = {}
for group in ("verl.plugins", "vllm.general_plugins"):
    (entry,) = [one for one in entry_points(group=group) if one.name == "marsrl_verl"]
    loaded[group] = entry.load()
loaded["vllm.general_plugins"]()
print(json.dumps({
    "loaded by verl": plugin,
    "cpu modules": cpu_modules(),
    "our modules": sorted(name for name in sys.modules if name.startswith("marsrl_verl.verl_adapter.")),
    "platforms": sorted(PlatformRegistry.registered_names()),
    "torch.cpu": sorted(set(vars(torch.cpu)) - before),
    "replicas": replicas == dict(RolloutReplicaRegistry._registry),
    "store": sys.modules["torch.distributed.rendezvous"]._create_c10d_store is store,
    "spawns": os.fsdecode(multiprocessing.spawn.get_executable()) == sys.executable,
}))
"""
)

OUR_RUN_ON_A_GPU = (
    CPU_MODULES
    + """
from marsrl_verl.verl_adapter import register, vllm_plugin
from marsrl_verl.verl_adapter.run import launch
from omegaconf import OmegaConf
vllm_plugin.load()
launch.wants_template(OmegaConf.create({"marsrl": {"run": {"fork_server": True}}}))
from marsrl_verl.verl_adapter.run import task_runner
print(json.dumps({"cpu modules": cpu_modules()}))
"""
)


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    from marsrl_verl.machine.packages import DISTRIBUTION_FOLDER

    # verl's task runner imports vLLM's rollout, which wants a version of vLLM.
    processes = {
        "another user": start_fresh(ANOTHER_USER),
        "ours on a GPU": start_fresh(OUR_RUN_ON_A_GPU, {"PYTHONPATH": str(DISTRIBUTION_FOLDER)}),
    }
    return {name: report_of(process) for name, process in processes.items()}


def test_nothing_of_the_cpu_platform_is_imported_without_it(reports):
    assert reports["ours on a GPU"]["cpu modules"] == []


def test_another_users_verl_and_vllm_stay_as_they_are(reports):
    found = reports["another user"]
    assert found["loaded by verl"] is True, "otherwise this test says nothing"
    assert found["cpu modules"] == []
    assert found["our modules"] == [
        "marsrl_verl.verl_adapter.loopback",
        "marsrl_verl.verl_adapter.platform_choice",
        "marsrl_verl.verl_adapter.register",
        "marsrl_verl.verl_adapter.vllm_plugin",
    ]
    assert "cpu" not in found["platforms"]
    assert found["torch.cpu"] == []
    assert found["replicas"] is True
    assert found["store"] is True
    assert found["spawns"] is True


def test_entry_points_are_installed_under_one_name():
    names = {
        group: [one.value for one in entry_points(group=group) if one.name == "marsrl_verl"]
        for group in ("verl.plugins", "vllm.general_plugins")
    }
    assert names == {
        "verl.plugins": ["marsrl_verl.verl_adapter.register"],
        "vllm.general_plugins": ["marsrl_verl.verl_adapter.vllm_plugin:load"],
    }
