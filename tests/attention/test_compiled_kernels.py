"""The Triton kernels as Triton's compiler builds them for NVIDIA GPUs; no GPU is needed for that.

The interpreter takes code that the compiler refuses, and does not know what fits on a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("compile_kernels.py")
HOPPER, AMPERE = 90, 80
KIB = 1024
CASES = {
    "bf16 128": {"dtype": "bfloat16", "size": 128, "windowed": False, "capability": HOPPER},
    "fp16 64 windowed": {"dtype": "float16", "size": 64, "windowed": True, "capability": HOPPER},
    "fp32 64": {"dtype": "float32", "size": 64, "windowed": False, "capability": HOPPER},
    "fp32 128": {"dtype": "float32", "size": 128, "windowed": False, "capability": HOPPER},
    "fp32 64 Ampere": {"dtype": "float32", "size": 64, "windowed": False, "capability": AMPERE},
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict[str, dict[str, dict]]:
    """By case and kernel, what `compile_kernels.py` tells."""
    cache = tmp_path_factory.mktemp("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(list(CASES.values()))],
        env={**environment, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_kernels_fit(compiled, case):
    """Into the shared memory of Hopper; what `auto` chooses Triton for into that of smaller GPUs too."""
    most = 227 * KIB if case == "fp32 128" else 99 * KIB
    for name, kernel in compiled[case].items():
        assert kernel["machine_code_bytes"] > 0
        assert kernel["shared_bytes"] <= most, name


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case["capability"] == HOPPER])
def test_on_hopper_products_are_those_of_warp_groups_and_reads_do_not_wait(compiled, case):
    kind = {"bfloat16": "bf16", "float16": "f16", "float32": "tf32"}[CASES[case]["dtype"]]
    for kernel in compiled[case].values():
        assert kernel["warp_group_products"] > 0
        assert kernel["of"] == [kind]
        assert kernel["asynchronous_copies"] > 0


def test_float32_is_multiplied_in_three_parts(compiled):
    """In each of two loops: two halves of 128 rows, and 64 columns of the head by eight."""
    for name, kernel in compiled["fp32 64"].items():
        assert kernel["warp_group_products"] == 3 * 2 * 2 * 64 // 8, name
