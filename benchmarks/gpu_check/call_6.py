"""Call 6: the first figures, of Qwen3-0.6B's shape with random weights."""

from __future__ import annotations

import functools
import json
import sys
from unittest import mock

from benchmarks.gpu_check.call_5 import judge
from benchmarks.gpu_check.checks import Bench, Call, Check, expect
from benchmarks.gpu_check.models import PLANNED, random_model
from benchmarks.gpu_check.training import overrides, plan, train
from benchmarks.training_runs import steps

STEPS, PROBLEMS, GROUP, TOKENS = 2, 16, 8, 4096


def settings(model: str) -> list[str]:
    """GRPO with responses of 4k tokens, which a random model never ends."""
    return overrides(
        "model=custom",
        "algo=grpo",
        f"actor_rollout_ref.model.path={model}",
        "marsrl.roles.solver.max_prompt_tokens=512",
        f"marsrl.roles.solver.max_new_tokens={TOKENS}",
        f"marsrl.algo.group_size={GROUP}",
        "marsrl.reward.solver.target=benchmarks.gpu_check.rewards:Parity",
        f"data.train_batch_size={PROBLEMS}",
        f"trainer.total_training_steps={STEPS}",
        "trainer.save_freq=-1",
        "marsrl.evaluation.before=false",
        "marsrl.evaluation.after=false",
        tokens=16384,
        share=0.5,
    )


def model_06b(bench: Bench, tied: bool) -> None:
    """Two steps; tokens per second, seconds of a sync and of an update, the gap of log-probabilities."""
    plan(bench, "plan", *settings(str(random_model(bench.folder / "small", PLANNED, tied=tied))))
    bench.cuda()
    folder = random_model(bench.folder / "model", tied=tied)
    done = steps(train(bench, "run", *settings(str(folder))))
    last = done[-1]
    bench.figures |= {
        "tokens_s": last.metrics["perf/generated_tokens_per_second"],
        "sync_s": last.timings["update_weights"],
        "log_prob_s": last.timings["old_log_prob"],
        "update_s": last.timings["update_actor"],
        "step_s": last.timings["step"],
        "trained_tokens": last.metrics["batch/tokens"],
        "gap_mean": last.metrics["rollout/log_probs_diff_mean"],
        "gap_max": last.metrics["rollout/log_probs_diff_max"],
    }
    expect(last.number == STEPS, f"{last.number} steps of {STEPS}")
    judge(done, gaps=True)


def generate(bench: Bench) -> None:
    """What `LLM.generate` does with the same model and numbers."""
    small = random_model(bench.folder / "small", PLANNED)
    bench.run([sys.executable, "-m", "benchmarks.gpu_check.generate", str(small), "--plan"])
    bench.cuda()
    folder = random_model(bench.folder / "model")
    result = bench.folder / "rate.json"
    bench.run([sys.executable, "-m", "benchmarks.gpu_check.generate", str(folder), "--result", str(result)])
    bench.figures |= json.loads(result.read_text())


def kernel_blocks(bench: Bench, tokens: int = 32768) -> None:
    """The kernel of FCI's column sums with larger blocks."""
    bench.cuda()
    import torch

    from benchmarks.fci import layout_of
    from benchmarks.timing import measured
    from marsrl_verl.attention import kernel
    from marsrl_verl.attention.blocks import plan_visits
    from marsrl_verl.attention.lse_kernel import LSE_QUERY_BLOCK, triton_lse

    generator = torch.Generator(device="cuda").manual_seed(1)
    query, key = (
        torch.randn(tokens, heads, 128, generator=generator, device="cuda").bfloat16() for heads in (12, 2)
    )
    layout = layout_of(tokens, "cuda")
    blocks = plan_visits(layout, key_block=kernel.KEY_BLOCK, query_block=LSE_QUERY_BLOCK).queries
    lse = triton_lse(query, key, blocks, 128**-0.5)
    expected = None
    for keys, queries in ((128, 64), (128, 128), (256, 64), (256, 128)):
        plan = plan_visits(layout, key_block=keys, query_block=LSE_QUERY_BLOCK).keys
        work = functools.partial(kernel.triton_column_sums, query, key, lse, layout, plan, 128**-0.5)
        name = f"{keys}x{queries}_ms"
        with (
            mock.patch.object(kernel, "KEY_BLOCK", keys),
            mock.patch.object(kernel, "walked_block", lambda kind, size=queries: size),
        ):
            try:
                found = work()
            except Exception as error:  # larger blocks need not fit into shared memory
                bench.figures[name] = type(error).__name__
                continue
            expected = found if expected is None else expected
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
            bench.figures[name] = measured(work, "cuda", 10)[0]
    expect(expected is not None, "no blocks fit")


CALL = Call(
    6,
    "first figures of a 0.6B network",
    14,
    "long responses, real vocabularies, or the untied head",
    (
        Check("0.6B tied", 300, functools.partial(model_06b, tied=True)),
        Check("0.6B untied", 300, functools.partial(model_06b, tied=False)),
        Check("generate", 200, generate),
        Check("kernel blocks", 40, kernel_blocks),
    ),
)
