"""Call 2: attention at length, and the memory plan."""

from __future__ import annotations

import importlib.util
import sys

from benchmarks.gpu_check.checks import Bench, Call, Check, NotInstalledError, expect
from benchmarks.gpu_check.models import PLANNED, random_model

HEADS, KV_HEADS, SIZE = 12, 2, 128
"""Of DeepSeek-R1-Distill-Qwen-1.5B."""
LENGTHS = tuple(range(200, 1400, 100))
"""Twelve: flex attention is compiled for shapes, and every micro-batch has one of its own."""
LSE_TOLERANCE = 2e-3
FLASH_TOLERANCE = 1e-2
FLEX_TOLERANCE = 2e-2
"""Of a gradient in bfloat16, as a share of its norm."""


def log_sum_exp(bench: Bench, tokens: int = 8192) -> None:
    """flash-attention's log-sum-exp, or that of vLLM's own, against the Triton kernel's."""
    device = bench.cuda()
    import torch

    from benchmarks.fci import layout_of
    from marsrl_verl.attention.blocks import plan_visits
    from marsrl_verl.attention.kernel import KEY_BLOCK
    from marsrl_verl.attention.lse_kernel import LSE_QUERY_BLOCK, triton_lse

    generator = torch.Generator(device=device).manual_seed(1)
    query, key, value = (
        torch.randn(tokens, heads, SIZE, generator=generator, device=device).bfloat16()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    blocks = plan_visits(layout_of(tokens, "cuda"), key_block=KEY_BLOCK, query_block=LSE_QUERY_BLOCK).queries
    ours = triton_lse(query, key, blocks, SIZE**-0.5)
    ends = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    if importlib.util.find_spec("flash_attn") is not None:
        from flash_attn import flash_attn_varlen_func

        bench.figures["of"] = "flash-attn"
        _, theirs, _ = flash_attn_varlen_func(
            query, key, value, ends, ends, tokens, tokens, causal=True, return_attn_probs=True
        )
    else:
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        bench.figures["of"] = "vLLM's flash-attention 3"
        _, theirs = flash_attn_varlen_func(
            query, key, value, tokens, ends, tokens, ends, causal=True, return_softmax_lse=True, fa_version=3
        )
    planned = ours != 0
    difference = float((ours - theirs.view_as(ours)).abs()[planned].max())
    bench.figures |= {"queries": int(planned.sum()), "largest_difference": difference}
    expect(difference < LSE_TOLERANCE, f"they differ by {difference}, expected less than {LSE_TOLERANCE}")


def packed_rows(bench: Bench, lengths: tuple[int, ...] = (37, 300, 1000)) -> None:
    """flash-attn on packed rows, forward and backward, against sdpa on each row in float32."""
    device = bench.cuda()
    import torch

    if importlib.util.find_spec("flash_attn") is None:
        raise NotInstalledError("flash-attn")
    from flash_attn import flash_attn_varlen_func

    generator = torch.Generator(device=device).manual_seed(1)
    ends = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    for size in (32, 64, 128):
        drawn = [
            torch.randn(sum(lengths), heads, size, generator=generator, device=device).bfloat16()
            for heads in (4, 2, 2, 4)
        ]
        states, upstream = [one.requires_grad_() for one in drawn[:3]], drawn[3]
        found = flash_attn_varlen_func(*states, ends, ends, max(lengths), max(lengths), causal=True)
        exact = [one.detach().float().requires_grad_() for one in states]
        rows = []
        for row in zip(*(one.split(list(lengths)) for one in exact), strict=True):
            query, key, value = (one.transpose(0, 1)[None] for one in row)
            attended = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )
            rows.append(attended[0].transpose(0, 1))
        expected = torch.cat(rows)
        pairs = [(found, expected)]
        pairs += zip(
            torch.autograd.grad(found, states, upstream),
            torch.autograd.grad(expected, exact, upstream.float()),
            strict=True,
        )
        errors = [float(((one - other).norm() / other.norm()).detach()) for one, other in pairs]
        bench.figures |= {f"{size}_output": errors[0], f"{size}_gradients": max(errors[1:])}
        expect(max(errors) < FLASH_TOLERANCE, f"head size {size}: {errors} of the norms")


def influence(bench: Bench) -> None:
    """FCI beside the forward pass of a 1.5B network, and its values against the chunked ones."""
    from benchmarks.fci_forward import SHAPES, ForwardPass, Setting, measure

    attention = "flash_attention_2" if importlib.util.find_spec("flash_attn") is not None else "sdpa"

    def setting(shape: str, tokens: int, kind: str, layers: int | None = None) -> Setting:
        own = int(SHAPES[shape]["num_hidden_layers"])
        how = "sdpa" if kind == "float32" else attention
        return Setting(shape, layers or own, own, how, kind, "auto", 1, tokens)

    measure(setting("small", 256, "float32"), "cpu", 1)
    bench.cuda()
    import dataclasses

    import torch

    small = setting("1.5B", 2048, "bfloat16", layers=2)
    work, other = (
        ForwardPass(dataclasses.replace(small, backend=kind), "cuda") for kind in ("triton", "chunked")
    )
    found, expected = (one.hidden_and_influence()[1] for one in (work, other))
    difference = float((found - expected).abs().max() / expected.abs().max())
    bench.figures["against_chunked"] = difference
    expect(difference < 1e-3, f"Triton's influence differs from the chunked one by {difference}")
    for tokens in (8192, 32768):
        torch.cuda.empty_cache()
        row = measure(setting("1.5B", tokens, "bfloat16"), "cuda", 3)
        bench.figures |= {
            f"{tokens // 1024}k_plain_ms": row.plain_ms,
            f"{tokens // 1024}k_fci_ms": row.influence_ms,
            f"{tokens // 1024}k_peak_MiB": row.influence_peak_mib,
        }


def flex(bench: Bench, width: int = 256) -> None:
    """Prefix trees with flex attention: gradients over twelve lengths are those of a dense mask."""
    import time

    import numpy as np
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from marsrl_verl.attention.shared_prefix import block_mask, dense_mask, node_values, packed_layout
    from marsrl_verl.core.prefix_tree import build_prefix_tree

    def tree_of(length: int):
        draw = np.random.default_rng(length)
        prompt = draw.integers(0, 500, length // 4)
        rows = [np.concatenate([prompt, draw.integers(0, 500, length)]) for _ in range(3)]
        rows.append(np.concatenate([rows[0][: length // 2], draw.integers(0, 500, length // 2)]))
        return build_prefix_tree(rows)

    trees = [tree_of(length) for length in LENGTHS]
    layouts = [packed_layout(tree) for tree in trees]
    bench.figures["nodes"] = f"{len(trees[0].tokens)} to {len(trees[-1].tokens)}"
    device = bench.cuda()
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=512, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=8192,
    )  # fmt: skip
    net = Qwen2ForCausalLM(config).to(device, torch.bfloat16)

    def gradient(kind: str, place: int) -> torch.Tensor:
        net.set_attn_implementation(kind)
        net.zero_grad()
        layout = layouts[place].to(device)
        mask = block_mask(layout) if kind == "flex_attention" else dense_mask(layout)
        logits = net(input_ids=layout.input_ids, position_ids=layout.position_ids, attention_mask=mask).logits
        values, _ = node_values(logits.float(), layout, trees[place], entropy=False)
        values.sum().backward()
        return torch.cat([one.grad.float().flatten() for one in net.parameters()])

    seconds, differences = [], []
    for place in range(len(LENGTHS)):
        start = time.perf_counter()
        found = gradient("flex_attention", place)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        expected = gradient("sdpa", place)
        differences.append(float((found - expected).norm() / expected.norm()))
    bench.figures |= {
        "first_s": seconds[0],
        "others_s": sum(seconds[1:]),
        "largest_difference": max(differences),
    }
    expect(max(differences) < FLEX_TOLERANCE, f"gradients differ by {max(differences):.1e} of their norm")


def long_update(bench: Bench) -> None:
    """An update of 36k tokens in one micro-batch: the memory it takes beside the plan's."""
    program = [sys.executable, "-m", "benchmarks.gpu_check.long_update"]
    planned = random_model(bench.folder / "planned", PLANNED)
    bench.run([*program, str(planned), str(bench.folder / "plan.json"), "--plan"])
    bench.cuda()
    import json

    for name, tied in (("tied", True), ("untied", False)):
        result = bench.folder / f"{name}.json"
        bench.run([*program, str(random_model(bench.folder / name, tied=tied)), str(result)])
        found = json.loads(result.read_text())
        bench.figures |= {f"{name}_{key}": value for key, value in found.items()}
        ratio = found["peak_GiB"] / found["planned_GiB"]
        expect(0.5 < ratio < 1.25, f"{name}: {ratio:.2f} of the planned memory; expected 0.5 to 1.25")


CALL = Call(
    2,
    "attention at length, the memory plan",
    4,
    "the attention kernels at real lengths, flex attention's compilation, or config/memory.py",
    (
        Check("packed rows", 20, packed_rows),
        Check("log-sum-exp", 30, log_sum_exp),
        Check("influence", 80, influence),
        Check("flex", 60, flex),
        Check("long update", 70, long_update),
    ),
)
