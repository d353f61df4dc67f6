"""One update over long rows on verl's FSDP2 worker: its peak of memory beside the plan's.

    python -m benchmarks.gpu_check.long_update MODEL RESULT.json [--plan] [--tokens 36864]

The trainer's hooks run from the trained groups on, as in `tests/verl_adapter/rank_updates.py`, which this
borrows the ranks from. With `--plan` the result has the plan's figures alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.gpu_check.checks import HERE
from benchmarks.gpu_check.training import overrides
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.config.memory import GIB, estimate_memory
from marsrl_verl.config.model_shapes import shape_from_config

ROWS = 2


def composed(model: Path, tokens: int) -> Any:
    """The configuration of a run whose micro-batches have so many tokens."""
    arguments = overrides(
        "model=tiny",
        f"actor_rollout_ref.model.path={model}",
        "data.train_batch_size=4",
        "data.train_max_samples=4",
        "data.val_max_samples=4",
        tokens=tokens,
    )
    return compose_config(parse_arguments(arguments)).config


def group(tokens: int) -> Any:
    """Rows that together have so many tokens, with unequal rewards."""
    import numpy as np

    from marsrl_verl.core.group import Group
    from marsrl_verl.core.request import Problem, RolloutRequest
    from marsrl_verl.core.sequence import Sequence
    from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory

    draw, prompt = np.random.default_rng(1), np.arange(7, 39, dtype=np.int32)
    length = tokens // ROWS - len(prompt)
    members = []
    for k in range(ROWS):
        response = draw.integers(7, 200, length, dtype=np.int32)
        log_probs = np.full(length, -5.0, dtype=np.float32)
        row = Sequence("solver", prompt, response, log_probs, versions=((length, 2),))
        reward = RewardResult(float(k))
        members.append(Trajectory(f"g#{k}", [row], FinishReason.STOP, reward=reward))
    request = RolloutRequest("g", Problem("g", "?", "1"), "solver", "solver", (), n=ROWS)
    return Group(request, members)


def main(arguments: argparse.Namespace) -> None:
    config = composed(arguments.model, arguments.tokens)
    shape = shape_from_config(json.loads((arguments.model / "config.json").read_text()))
    assert shape is not None, f"{arguments.model} has no shape that the plan knows"
    found: dict[str, float] = {"planned_GiB": estimate_memory(config, shape).training / GIB}
    if not arguments.plan:
        found |= measured(config, arguments)
    arguments.result.write_text(json.dumps(found))


def measured(config: Any, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds and peak memory of a log-probability pass and an update."""
    sys.path.insert(0, str(HERE / "tests" / "verl_adapter"))
    from rank_updates import Ranks, free_port, join_ranks

    from marsrl_verl.verl_adapter.environment import prepare_environment

    prepare_environment(config)
    join_ranks(0, 1, free_port())
    config.marsrl.run.output_dir = str(arguments.result.parent / "run")
    import torch

    from marsrl_verl.verl_adapter.engine.workers import MarsRLActorRolloutRefWorker
    from marsrl_verl.verl_adapter.run.task_runner import MarsRLTaskRunner

    trainer: Any = MarsRLTaskRunner().build_trainer(config)
    worker = MarsRLActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    trainer.actor_rollout_wg = Ranks(worker)
    trainer.policies.updated(trainer.policies.trained, 2)
    seconds = {}
    for turn in (2, 3):  # the first one makes the optimizer's state
        torch.cuda.reset_peak_memory_stats()
        trainer.metrics, trainer.timing, trainer.global_steps = {}, {}, turn
        result = SimpleNamespace(trained=[group(arguments.tokens)], ended=[], deferred=0)
        batch = trainer._fit_build_batch(result)
        start = time.perf_counter()
        trainer._fit_compute_log_prob(batch)
        middle = time.perf_counter()
        trainer._fit_compute_advantages(batch)
        trainer._fit_update_actor(batch)
        torch.cuda.synchronize()
        seconds = {"log_prob_s": middle - start, "update_s": time.perf_counter() - middle}
    peak = torch.cuda.max_memory_allocated() / GIB
    torch.distributed.destroy_process_group()
    return {**seconds, "peak_GiB": peak}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--tokens", type=int, default=36864)
    main(parser.parse_args())
