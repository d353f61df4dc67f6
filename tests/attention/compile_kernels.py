"""Build the Triton kernels for a GPU that need not be there, and print what came out as JSON.

Run in a process of its own: the tests of the kernels' results take Triton's interpreter for its compiler.

    python compile_kernels.py '[{"dtype": "bfloat16", "size": 128, "windowed": false, "capability": 90}]'
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from marsrl_verl.attention import kernel, lse_kernel

POINTERS = {
    "query_ptr": None,
    "key_ptr": None,
    "offset_ptr": "*fp32",
    "lse_ptr": "*fp32",
    "sums_ptr": "*fp32",
}
ALIGNED = ("_ptr", "_qn", "_qh", "_kn", "_kh")
"""Arguments that are multiples of 16 in any real model, which Triton is told at a launch."""


def built(function: Any, constants: dict[str, Any], element: str, options: dict[str, int], arch: int) -> Any:
    """One kernel, compiled down to machine code."""
    signature, attributes = {}, {}
    for place, name in enumerate(function.arg_names):
        kind = "fp32" if name == "scale_log2" else "i32"
        if name.endswith("_ptr"):
            kind = POINTERS.get(name, "*i32") or f"*{element}"
        signature[name] = "constexpr" if name in constants else kind
        if name.endswith(ALIGNED):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def report(dtype: str, size: int, windowed: bool, capability: int) -> dict[str, dict[str, Any]]:
    """What the two kernels are made of for one type and head size."""
    kind = getattr(torch, dtype)
    element = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[kind]
    options = kernel.launch_options(kind, size, interpreted=False)
    launch = {name: options.pop(name) for name in ("num_warps", "num_stages", "enable_fp_fusion")}
    walked = kernel.walked_block(kind)
    # A value of 1 is built into the code.
    shared = {
        "GROUP": 6,
        "HEAD": size,
        "WINDOWED": windowed,
        **options,
        **({"window": 1} if windowed else {}),
    }
    kernels = {
        "column sums": (kernel._column_sum_kernel, {"KEYS": kernel.KEY_BLOCK, "QUERIES": walked, "delta": 1}),
        "log-sum-exp": (lse_kernel._lse_kernel, {"KEYS": walked, "QUERIES": lse_kernel.LSE_QUERY_BLOCK}),
    }
    found = {}
    for name, (function, own) in kernels.items():
        made = built(function, {**shared, **own}, element, launch, capability)
        code = made.asm["ptx"]
        found[name] = {
            "shared_bytes": made.metadata.shared,
            "machine_code_bytes": len(made.asm["cubin"]),
            "warp_group_products": code.count("wgmma.mma_async"),
            "of": [kind for kind in ("bf16", "f16", "tf32") if f".f32.{kind}.{kind}" in code],
            "asynchronous_copies": code.count("cp.async.cg"),
        }
    return found


if __name__ == "__main__":
    print(json.dumps([report(**case) for case in json.loads(sys.argv[1])]))
