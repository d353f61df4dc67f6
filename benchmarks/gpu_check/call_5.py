"""Call 5: three steps of each option that has processes, weights or rows of its own."""

from __future__ import annotations

import functools

from benchmarks.gpu_check.checks import Bench, Call, Check, expect
from benchmarks.gpu_check.training import FUSED, overrides, plan, train
from benchmarks.training_runs import Step, steps

STEPS = 3
SHORT = (
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=-1",
    "data.train_batch_size=8",
    "marsrl.evaluation.before=false",
    "marsrl.evaluation.after=false",
    # Compilation and CUDA graphs take longer than three steps; call 4 has them.
    "actor_rollout_ref.rollout.enforce_eager=true",
)
RUNS: dict[str, tuple[str, ...]] = {
    "overlap": ("model=tiny", "pipeline=overlapped"),
    "adapter per role": (
        "model=tiny", "policies=lora_per_role", "actor_rollout_ref.model.lora_rank=8",
    ),
    "two models": (
        "model=tiny_rema", "data=rema_task", "algo=rema_single_turn", "policies=model_per_role",
        "pipeline=sequential",
        # A pass is one step, and none is spent on counting: one agent's, then the other's.
        "data.train_max_samples=8", "marsrl.algo.iterations=1", "marsrl.algo.filter.enabled=false",
    ),
    # Pipelined, a first step seldom has a tree that is whole, nor solutions of plans.
    "attnrl": (
        "model=tiny", "algo=attnrl", "pipeline=sequential", "training=shared_prefixes", f"{FUSED}=false",
    ),
    "arpo with tools": (
        "model=tiny_tools", "data=tool_task", "algo=arpo", "marsrl.tools.python.target=python",
    ),
}  # fmt: skip
_GAP = "rollout/log_probs_diff_mean"
LARGEST_GAP = 0.1
"""Mean difference of engine's and trainer's log-probabilities, nats."""


def settings(name: str) -> list[str]:
    return overrides(*RUNS[name], *SHORT)


def option(bench: Bench, name: str) -> None:
    """Plan it, train three steps, look at what was recorded."""
    own = settings(name)
    plan(bench, "plan", *own)
    bench.trainer()
    done = steps(train(bench, "run", *own))
    last = done[-1]
    bench.figures |= {
        "steps": len(done),
        "last_step_s": last.timings["step"],
        "trained_tokens": sum(one.metrics.get("batch/tokens") or 0.0 for one in done),
        "gap_mean": max((one.metrics[_GAP] or 0.0 for one in done if _GAP in one.metrics), default=None),
    }
    expect(
        [one.number for one in done] == list(range(1, STEPS + 1)), f"recorded {len(done)} steps of {STEPS}"
    )
    judge(done, gaps=name != "overlap")


def judge(done: list[Step], *, gaps: bool) -> None:
    """Whether each step trained, with finite numbers, and engine and trainer agree.

    Args:
        gaps: whether the newest weights sampled some tokens of each step; with overlap they need not.

    Raises:
        CheckError: they do not.
    """
    # Numbers that are not finite are written as null.
    wrong = sorted({key for one in done for key, value in one.metrics.items() if value is None})
    expect(not wrong, f"not finite: {wrong}")
    idle = [one.number for one in done if not one.metrics.get("batch/tokens")]
    expect(not idle, f"steps {idle} trained no token")
    found = [one.metrics[_GAP] for one in done if _GAP in one.metrics]
    expect(bool(found) or not gaps, "no step compared engine and trainer")
    gap = max(found, default=0.0)
    expect(
        gap < LARGEST_GAP, f"engine and trainer differ by {gap:.3f} nats, expected less than {LARGEST_GAP}"
    )


CALL = Call(
    5,
    "the options, each alone",
    16,
    "the option that the check is named after",
    tuple(
        Check(name, 240 if name == "two models" else 180, functools.partial(option, name=name))
        for name in RUNS
    ),
)
