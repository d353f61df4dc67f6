"""verl and vLLM on a machine without a GPU: what they do alone, and what the plugin makes of it.

Two fresh interpreters tell: one with the CPU platform asked for but the plugin kept out, and one with
nothing but the variables that the launcher hands to the processes of a run.
"""

from __future__ import annotations

from typing import Any

import pytest
from fresh_python import report_of, start_fresh

from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.machine.packages import stand_in_version
from marsrl_verl.verl_adapter import environment

pytest.importorskip("verl", reason="the CPU platform is verl's")
pytest.importorskip("vllm", reason="the CPU platform serves vLLM's CPU build")

pytestmark = pytest.mark.slow

TOOLS = """
import json, os, tempfile
facts = {}
def note(name, question):
    try:
        facts[name] = question()
    except BaseException as error:
        facts[name] = f"{type(error).__name__}: {error}"
def single_rank():
    os.environ.update(RANK="0", WORLD_SIZE="1", DIST_INIT_METHOD=f"file://{tempfile.mkdtemp()}/store")
"""

WITHOUT_PLUGIN = (
    TOOLS
    + """
import torch, verl
note("missing in torch.cpu", lambda: not hasattr(torch.cpu, "memory_allocated"))
from verl.plugin.platform import get_platform
note("platform", lambda: get_platform().device_name)
single_rank()
note("group", lambda: torch.distributed.init_process_group("cpu:gloo,cpu:gloo", rank=0, world_size=1))
def rollout():
    import verl.workers.rollout.vllm_rollout
    return "imported"
note("rollout", rollout)
print(json.dumps(facts))
"""
)

IN_A_RUN = (
    TOOLS
    + """
from importlib.metadata import version
note("distribution", lambda: version("vllm"))
import torch, verl
from verl.plugin.platform import get_platform
from verl.utils import device, distributed
note("platform", lambda: type(get_platform()).__name__)
note("device", lambda: [device.get_device_name(), str(torch.zeros(1).to(device.get_device_id()).device)])
note("is torch.cpu", lambda: device.get_torch_device() is torch.cpu)
note("memory", lambda: device.get_torch_device().mem_get_info()[1] > 0)

single_rank()
def verls_group():
    distributed.initialize_global_process_group_ray()
    return "made"
note("verl's group", verls_group)
from marsrl_verl.verl_adapter.cpu.ranks import initialize_gloo
del os.environ["RANK"], os.environ["WORLD_SIZE"]  # outside of Ray: rank 0 of 1
initialize_gloo()
ours = torch.distributed.group.WORLD
note("backend", torch.distributed.get_backend)
note("verl beside our group", verls_group)
initialize_gloo()
note("same group", lambda: torch.distributed.group.WORLD is ours)

import verl.workers.engine.fsdp.transformer_impl
from verl.workers.engine.base import EngineRegistry
def engine():
    return EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__
note("engine before", engine)
from marsrl_verl.verl_adapter.engine.probe_engine import register_engine
register_engine()
note("engine after", engine)

def rollout():
    import verl.workers.rollout.vllm_rollout
    return "imported"
note("rollout", rollout)
from vllm.platforms import current_platform
note("vllm platform", lambda: current_platform.device_type)
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.model_executor.layers import utils
note("gemm", lambda: utils.dispatch_cpu_unquantized_gemm.__module__)
print(json.dumps(facts))
"""
)


@pytest.fixture(scope="module")
def facts() -> dict[str, dict[str, Any]]:
    """What the two interpreters found, by `alone` and `run`."""
    config = compose_config(parse_arguments(["cluster=cpu"])).config
    with pytest.MonkeyPatch.context() as patch:
        # prepare_environment changes this process too; the fresh ones get only what it returns.
        patch.setattr(environment.os, "environ", {})
        patch.setattr(environment.sys, "path", list(environment.sys.path))
        variables = environment.prepare_environment(config)
    alone = start_fresh(WITHOUT_PLUGIN, {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_PLUGINS": "none"})
    try:
        run = report_of(start_fresh(IN_A_RUN, variables))
    finally:
        result = report_of(alone)
    return {"alone": result, "run": run}


def test_platform_cpu_is_unknown_to_verl_and_answered_by_ours(facts):
    """Upstream: platforms for NVIDIA, ROCm and Ascend only; any other name raises."""
    assert "Unknown platform 'cpu'" in facts["alone"]["platform"]
    assert facts["run"]["platform"] == "PlatformCPU"
    assert facts["run"]["device"] == ["cpu", "cpu"]


def test_torch_cpu_itself_gains_the_functions_that_verl_calls(facts):
    """Upstream: verl calls a device module's memory functions, and compares the module with torch.cpu."""
    assert facts["alone"]["missing in torch.cpu"] is True
    assert facts["run"]["is torch.cpu"] is True
    assert facts["run"]["memory"] is True


def test_process_group_that_verl_asks_for_is_refused_and_ours_is_left_alone(facts):
    """Upstream: "cpu:gloo,<device>:<backend>" names the CPU twice here, and torch refuses that."""
    assert "Error" in facts["alone"]["group"]
    assert "Error" in facts["run"]["verl's group"]
    assert facts["run"]["backend"] == "gloo"
    assert facts["run"]["verl beside our group"] == "made"
    assert facts["run"]["same group"] is True


def test_fsdp_engine_exists_for_the_device_cpu(facts):
    """Upstream: the FSDP engine is registered for cuda and npu."""
    assert "Error" in facts["run"]["engine before"]
    assert facts["run"]["engine after"] == "ProbeFSDPEngine"


def test_version_of_vllm_is_found_without_a_pythonpath_of_the_user(facts):
    """Upstream: verl imports its vLLM rollout only where a distribution named `vllm` is installed.

    vLLM itself looks for "cpu" in that distribution's version before it knows its platform.
    """
    assert "vllm version None not supported" in facts["alone"]["rollout"]
    assert facts["run"]["rollout"] == "imported"
    assert facts["run"]["distribution"] == stand_in_version()
    assert facts["run"]["vllm platform"] == "cpu"


def test_vllm_loads_our_linear_layers_by_its_own_plugin_group(facts):
    """Upstream: every vLLM process loads the entry points of `vllm.general_plugins` before a model."""
    assert facts["run"]["gemm"] == "marsrl_verl.verl_adapter.cpu.vllm_linear"
