"""How much of what AttnRL's continuations share vLLM's prefix cache holds, by vLLM's own counters.

    python -m benchmarks.prefix_cache                       # the tiny model on CPU
    python -m benchmarks.prefix_cache --blocks 16 32 128 --lengths 256 768 1536 --json rows.json
    python -m benchmarks.prefix_cache --steps 0 -- trainer.n_gpus_per_node=2    # rounds alone, two engines

Two parts. Training: runs of AttnRL in both modes, with the metrics that any run logs; the tiny task's
prompts are shorter than a block. Rounds (`benchmarks.prefix_rounds`): the same rollout path at realistic
lengths, without training. In `pipelined` rounds continuations come after a weight sync, beside first
responses to new problems, so they share with each other alone. In `sequential` rounds no sync lies between
responses and their continuations. Arguments after `--` are overrides of the training configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.prefix_rounds import PIPELINED, PLAN_VARIABLE, SEQUENTIAL, Plan, Row, read_rows
from benchmarks.record import machine, options, write_json
from benchmarks.tables import table
from benchmarks.training_runs import steps, train
from marsrl_verl.demo.files import tiny_model

ROOT = Path(__file__).resolve().parents[1]
GOAL = 0.95
STATISTICS = "actor_rollout_ref.rollout.disable_log_stats=false"
METHOD = ("algo=attnrl", "marsrl.algo.group_size=6")


@dataclass(frozen=True, slots=True)
class Trained:
    """The steps of one training run, added up."""

    mode: str
    steps: int
    continued: int
    """Tokens of prompts and responses so far that were continued."""
    prompt_tokens: int
    shared: int
    shared_hits: int
    hits: int
    prefill_seconds: float
    """Summed over requests."""


def block_size(tokens: int) -> str:
    return f"+actor_rollout_ref.rollout.engine_kwargs.vllm.block_size={tokens}"


def training(mode: str, count: int, block: int, root: Path, overrides: Sequence[str]) -> Trained:
    """One run of AttnRL on the tiny task."""
    folder = train(
        root,
        f"{mode}-{block}",
        *METHOD,
        f"pipeline={mode}",
        STATISTICS,
        block_size(block),
        "data.train_batch_size=8",
        f"trainer.total_training_steps={count}",
        "trainer.save_freq=-1",
        "marsrl.run.log_rollouts=false",
        *overrides,
    )
    recorded = steps(folder)

    def total(name: str, share_of: str | None = None) -> float:
        metrics = [one.metrics for one in recorded]
        return sum(one.get(name, 0.0) * (one.get(share_of, 0.0) if share_of else 1) for one in metrics)

    return Trained(
        mode=mode,
        steps=len(recorded),
        continued=int(total("rollout/continued_tokens")),
        prompt_tokens=int(total("rollout/prompt_tokens")),
        shared=int(total("rollout/shared_prompt_tokens")),
        shared_hits=round(total("rollout/shared_prefix_hit_frac", "rollout/shared_prompt_tokens")),
        hits=round(total("rollout/prefix_cache_hit_frac", "rollout/prompt_tokens")),
        prefill_seconds=total("rollout/prefill_seconds"),
    )


def long_model(folder: Path, positions: int) -> Path:
    """The tiny model with more positions than it was trained for: what it says does not matter here."""
    shutil.copytree(tiny_model(), folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": positions}))
    return folder


def rounds(arguments: argparse.Namespace, block: int, root: Path) -> list[Row]:
    """All rounds with blocks of one size, in one process.

    Raises:
        SystemExit: it failed; its output is shown.
    """
    prompt, response = arguments.question_terms + 16, max(arguments.lengths) + arguments.continuation_tokens
    folder = root / f"rounds-{block}"
    folder.mkdir()
    plan = Plan(
        overrides=(
            "cluster=cpu",
            *METHOD,
            "marsrl.algo.criterion=surprisal",
            "marsrl.algo.filter=none",
            "marsrl.algo.adaptive_batch.enabled=false",
            STATISTICS,
            block_size(block),
            f"actor_rollout_ref.model.path={long_model(folder / 'model', prompt + response)}",
            f"marsrl.roles.solver.max_prompt_tokens={prompt}",
            f"marsrl.roles.solver.max_new_tokens={response}",
            "name=rounds",
            f"marsrl.run.output_root={folder}",
            f"marsrl.run.seed={arguments.seed}",
            *arguments.overrides,
        ),
        lengths=tuple(arguments.lengths),
        problems=arguments.problems,
        rounds=arguments.rounds,
        question_terms=arguments.question_terms,
        continuation_tokens=arguments.continuation_tokens,
        block_size=block,
        seed=arguments.seed,
        results=str(folder / "rows.json"),
    )
    path = folder / "plan.json"
    path.write_text(json.dumps(asdict(plan)))
    env = {**os.environ, PLAN_VARIABLE: str(path)}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")]).rstrip(":")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.prefix_rounds"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not Path(plan.results).exists():
        raise SystemExit(
            f"rounds failed with status {done.returncode}:\n{(done.stdout + done.stderr)[-8000:]}"
        )
    return read_rows(Path(plan.results))


def training_table(rows: list[Trained]) -> str:
    head = [
        "mode",
        "steps",
        "continued",
        "prompt tokens",
        "distinct",
        "shared",
        "hits",
        "of shared",
        "prefill s, all requests",
    ]
    lines = [
        [
            row.mode,
            f"{row.steps}",
            f"{row.continued:,}",
            f"{row.prompt_tokens:,}",
            f"{row.prompt_tokens - row.shared:,}",
            f"{row.shared:,}",
            f"{row.hits:,}",
            f"{row.shared_hits / row.shared:.1%}" if row.shared else "–",
            f"{row.prefill_seconds:.1f}",
        ]
        for row in rows
    ]
    return table(head, lines)


def rounds_table(rows: list[Row]) -> str:
    """A line for each mode, block and length: its rounds added up. `shared` is `Row.seen`."""
    head = ["mode", "block", "response", "continuations", "prompt tokens", "counted by vLLM", "distinct",
            "shared", "hits", "hit rate", "lost to blocks", "lost else", "goal"]  # fmt: skip
    lines = []
    for mode, block, length in dict.fromkeys((row.mode, row.block_size, row.length) for row in rows):
        chosen = [row for row in rows if (row.mode, row.block_size, row.length) == (mode, block, length)]
        sent, counted, seen, held, hits = (
            sum(getattr(row, name) for row in chosen)
            for name in ("sent", "prompt_tokens", "seen", "in_blocks", "hits")
        )
        lines.append(
            [
                mode,
                f"{block}",
                f"{length}",
                f"{sum(row.continuations for row in chosen):,}",
                f"{sent:,}",
                f"{counted:,}",
                f"{sent - seen:,}",
                f"{seen:,}",
                f"{hits:,}",
                f"{hits / seen:.1%}",
                f"{(seen - held) / seen:.1%}",
                f"{(held - hits) / seen:.1%}",
                "reached" if hits / seen >= GOAL else "missed",
            ]
        )
    return table(head, lines)


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add(
        "--blocks",
        type=int,
        nargs="+",
        default=[16, 128],
        help="tokens of a cache block (CPU: multiples of 16)",
    )
    add("--lengths", type=int, nargs="+", default=[256, 768, 1536], help="tokens of the continued responses")
    add("--problems", type=int, default=4, help="per round")
    add("--rounds", type=int, default=2, help="of continuations, per length, mode and block size")
    add("--question-terms", type=int, default=150, help="tokens of a question")
    add("--continuation-tokens", type=int, default=32, help="tokens that a continuation adds at most")
    add("--steps", type=int, default=6, help="of the training runs; 0: leave them out")
    add("--seed", type=int, default=1)
    arguments, overrides = parser.parse_known_args()
    arguments.overrides = [one for one in overrides if one != "--"]
    wrong = [one for one in arguments.overrides if not re.match(r"[+~]*[\w.]+=", one)]
    if wrong:
        parser.error(f"{' '.join(wrong)}: expected options, or overrides key=value after --")
    place = machine()
    print(place, flush=True)
    trained: list[Trained] = []
    rows: list[Row] = []
    root = Path(tempfile.mkdtemp(prefix="marsrl-prefix-"))
    try:
        if arguments.steps:
            block = min(arguments.blocks)
            for mode in (PIPELINED, SEQUENTIAL):
                trained.append(training(mode, arguments.steps, block, root, arguments.overrides))
            print(f"\nTraining on the tiny task, blocks of {block}\n\n{training_table(trained)}", flush=True)
        for block in arguments.blocks:
            rows += rounds(arguments, block, root)
    finally:
        shutil.rmtree(root)
    print(f"\nRounds at realistic lengths\n\n{rounds_table(rows)}")
    content = {
        "machine": place,
        "training": [asdict(one) for one in trained],
        "rounds": [asdict(one) for one in rows],
    }
    write_json(arguments.json, content)


if __name__ == "__main__":
    main()
