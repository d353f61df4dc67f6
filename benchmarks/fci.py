"""Time and memory of Forward Context Influence for one layer, beside the layer's own attention.

    python -m benchmarks.fci                       # on the GPU, or on the processor up to 4k tokens
    python -m benchmarks.fci --json rows.json --lengths 1024 2048 --shapes 1.5B

Variants: `definition` (the whole matrix, a pair of steps at a time), `materialised` (the whole matrix of the
layer, then its column sums), `chunked` (plain torch), `triton` (the kernel, given the log-sum-exp of the
attention), `triton + lse` (with the kernel that computes it) and, beside them, `attention` (the forward pass
of torch's scaled-dot-product attention) and, where flash-attn is installed, `flash attention` (its own).
Needs torch, on a GPU also Triton; nothing else of the project's dependencies. The kernels take bf16 on a GPU;
the processor computes in float32. `benchmarks.fci_forward` measures whole forward passes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from benchmarks.fci_definition import attention_matrix, influence_by_definition
from benchmarks.record import options, write_json
from benchmarks.timing import measured, tensor_machine
from marsrl_verl.attention.blocks import plan_visits
from marsrl_verl.attention.chunked import chunked_column_sums
from marsrl_verl.attention.column_sums import step_influence
from marsrl_verl.attention.layout import StepLayout, build_layout

SHAPES = {"1.5B": (12, 2, 128), "7B": (28, 4, 128)}
"""Query heads, key heads and head size of Qwen2.5's and DeepSeek-R1-Distill-Qwen's models."""
PROMPT, STEP = 128, 64
"""Tokens of the prompt and of a step: a reasoning step of a few sentences."""
DELTA = 4
GPU_LENGTHS, CPU_LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768], [1024, 2048, 4096]
MAX_BY_DEFINITION = 2048
MAX_MATERIALISED_BYTES = 40 * 2**30


@dataclass
class Row:
    """One measured variant."""

    variant: str
    shape: str
    tokens: int
    milliseconds: float
    """Median."""
    peak_mib: float | None
    """Memory beyond the inputs; None where the system does not tell."""
    of_attention: float | None = None
    """Time over that of the attention's forward pass."""


def layout_of(tokens: int, device: str, sequences: int = 1) -> StepLayout:
    """A packed row of equally long sequences: a prompt, then steps of even length; all but the first step are
    measured."""
    steps = torch.zeros(sequences, tokens, dtype=torch.int64)
    steps[:, PROMPT:] = torch.arange(tokens - PROMPT) // STEP + 1
    return build_layout(steps, steps > 1, delta=DELTA).to(device)


def materialised(query: torch.Tensor, key: torch.Tensor, layout: StepLayout, scale: float) -> torch.Tensor:
    """Column sums of the whole matrix."""
    matrix = attention_matrix(query.float(), key.float(), scale)
    counted = layout.query_steps[:, None] - layout.key_steps[None, :] >= layout.delta
    return torch.einsum("hqk,qk->hk", matrix, counted * layout.weights[:, None])


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """torch's own attention on (1, H, T, D)."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )


def variants(shape: str, tokens: int, device: str) -> dict[str, Callable[[], object]]:
    """What is measured at one size."""
    heads, kv_heads, size = SHAPES[shape]
    kind = torch.float32 if device == "cpu" else torch.bfloat16
    generator = torch.Generator(device=device).manual_seed(tokens)
    query = torch.randn(tokens, heads, size, generator=generator, device=device).to(kind)
    key, value = (
        torch.randn(tokens, kv_heads, size, generator=generator, device=device).to(kind) for _ in range(2)
    )
    layout, scale = layout_of(tokens, device), size**-0.5
    batched = [tensor.transpose(0, 1)[None] for tensor in (query, key, value)]
    work: dict[str, Callable[[], object]] = {"attention": lambda: attention(*batched)}
    if device != "cpu" and importlib.util.find_spec("flash_attn") is not None:
        from flash_attn import flash_attn_func

        work["flash attention"] = lambda: flash_attn_func(query[None], key[None], value[None], causal=True)
    if tokens <= MAX_BY_DEFINITION:
        work["definition"] = lambda: influence_by_definition(query.float(), key.float(), layout, scale)
    if 12 * heads * tokens * tokens <= MAX_MATERIALISED_BYTES:
        work["materialised"] = lambda: step_influence(materialised(query, key, layout, scale), layout)
    work["chunked"] = lambda: step_influence(chunked_column_sums(query, key, layout, scale), layout)
    if device != "cpu":
        from marsrl_verl.attention.kernel import KEY_BLOCK, triton_column_sums
        from marsrl_verl.attention.lse_kernel import LSE_QUERY_BLOCK, triton_lse

        plan = plan_visits(layout, key_block=KEY_BLOCK, query_block=LSE_QUERY_BLOCK)
        lse = triton_lse(query, key, plan.queries, scale)

        def kernel(log_sum_exp: torch.Tensor | None) -> torch.Tensor:
            known = triton_lse(query, key, plan.queries, scale) if log_sum_exp is None else log_sum_exp
            sums = triton_column_sums(query, key, known, layout, plan.keys, scale)
            return step_influence(sums, layout)

        work["triton"] = lambda: kernel(lse)
        work["triton + lse"] = lambda: kernel(None)
    return work


def measure(shapes: list[str], lengths: list[int], device: str, repeats: int) -> list[Row]:
    """All rows; what does not fit into memory is left out and said so."""
    rows: list[Row] = []
    for shape in shapes:
        for tokens in lengths:
            own = None
            for name, work in variants(shape, tokens, device).items():
                try:
                    milliseconds, peak = measured(work, device, 3 if name == "definition" else repeats)
                except torch.OutOfMemoryError:
                    print(f"{shape} {tokens} {name}: out of memory", file=sys.stderr)
                    continue
                own = milliseconds if name == "attention" else own
                share = None if own is None else milliseconds / own
                rows.append(Row(name, shape, tokens, milliseconds, peak, share))
                print(line(rows[-1]), flush=True)
    return rows


def line(row: Row) -> str:
    """A row as text."""
    peak = "" if row.peak_mib is None else f"{row.peak_mib:10,.1f} MiB"
    share = "" if row.of_attention is None else f"{row.of_attention:8.2f} x attention"
    return f"{row.shape:5s} {row.tokens:7,d} {row.variant:15s} {row.milliseconds:11,.3f} ms {share} {peak}"


def main() -> None:
    parser = options(__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=CPU_LENGTHS if device == "cpu" else GPU_LENGTHS
    )
    parser.add_argument("--repeats", type=int, default=5 if device == "cpu" else 20)
    arguments = parser.parse_args()
    head = tensor_machine(device)
    print(f"{head}\nprompt {PROMPT}, steps of {STEP} tokens, delta {DELTA}", flush=True)
    rows = measure(arguments.shapes, arguments.lengths, device, arguments.repeats)
    write_json(arguments.json, {"machine": head, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
