"""Without a GPU the Triton kernels run in Triton's interpreter.

The variable counts when Triton's own library and a kernel are imported, which is done here, before any test
can import Triton (transformers does), and when a kernel runs. Other tests' processes do not inherit it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

import torch

VARIABLE = "TRITON_INTERPRET"
INTERPRETED = importlib.util.find_spec("triton") is not None and not torch.cuda.is_available()

if INTERPRETED:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    for name in ("kernel", "lse_kernel"):
        importlib.import_module(f"marsrl_verl.attention.{name}")
    if before is None:
        del os.environ[VARIABLE]
