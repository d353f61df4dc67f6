"""What shared-prefix training saves on AttnRL's trees: tokens, time, and how well the gradients agree.

    python -m benchmarks.shared_prefix                  # both parts, about five minutes on 2 cores
    python -m benchmarks.shared_prefix --steps 0        # trees of given lengths only
    python -m benchmarks.shared_prefix --json rows.json

Trees: forward and backward pass of a small Qwen2 network over whole problems: a prompt, G responses of one
length, each continued from N branch points by T continuations that end at the same length. Branch points are
drawn uniformly from a response's first half (AttnRL takes the earliest steps of high influence). `rows`
computes every row from its first token, in micro-batches of rows of one length, without padding; `shared` the
prefix trees with a dense mask, in micro-batches of at most as many tokens. Both follow each other for every
problem; times are the processor's, so that other work on the machine counts little.

Training: two real AttnRL runs of the tiny model that differ in `training=` only, one after the other.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from benchmarks.record import machine, options, with_overrides, write_json
from benchmarks.training_runs import steps, train
from marsrl_verl.attention.shared_prefix import dense_mask, node_values, padded_layout
from marsrl_verl.core.prefix_tree import (
    build_prefix_tree,
    distinct_tokens,
    joins_where_cheaper,
    padded_cost,
    split_rows,
)

VOCABULARY = 2048
PROMPT, RESPONSES, POINTS, CONTINUATIONS = 160, 6, 2, 2
LENGTHS = (128, 256, 512)
MICRO_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A problem's rows, once."""

    length: int
    rows: int
    tokens: int
    """Of all rows."""
    distinct: int
    """Nodes of their prefix tree."""
    computed: int
    """With micro-batches cut at their limit."""
    rows_seconds: float
    """Of processor time, all threads together; so is the next one."""
    shared_seconds: float
    gradient_difference: float
    """Largest difference of an entry, as a share of the largest entry."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A training run."""

    training: str
    tokens: int
    computed: int
    old_log_prob_seconds: float
    update_seconds: float


def problem(length: int, seed: int) -> list[np.ndarray]:
    """The rows of one problem's trees."""
    draw = np.random.default_rng(seed)

    def text(count: int) -> np.ndarray:
        return draw.integers(0, VOCABULARY, count)

    prompt, rows = text(PROMPT), []
    for _ in range(RESPONSES):
        response = text(length)
        rows.append(np.concatenate([prompt, response]))
        for point in draw.integers(1, length // 2, POINTS):
            rows += [
                np.concatenate([prompt, response[:point], text(length - point)]) for _ in range(CONTINUATIONS)
            ]
    return rows


def network(seed: int) -> PreTrainedModel:
    """A Qwen2 network of 5 million parameters."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
        attn_implementation="sdpa",
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


def weights(row: np.ndarray) -> torch.Tensor:
    """A weight for every predicted token, as advantages would give one."""
    return torch.linspace(-1.0, 1.0, len(row) - 1) / len(row)


def by_rows(net: PreTrainedModel, rows: list[np.ndarray]) -> None:
    """Adds the gradients of all rows, each computed from its first token on."""
    size = max(1, MICRO_BATCH_TOKENS // len(rows[0]))
    for start in range(0, len(rows), size):
        ids = torch.from_numpy(np.stack(rows[start : start + size]))
        logits = net(input_ids=ids).logits
        log_probs = torch.log_softmax(logits[:, :-1].float(), -1).gather(2, ids[:, 1:, None])[..., 0]
        (log_probs * weights(rows[0])).sum().backward()


def shared(net: PreTrainedModel, rows: list[np.ndarray]) -> int:
    """The same over prefix trees; returns the tokens that were computed."""
    computed, joins = 0, joins_where_cheaper(net.config.hidden_size)
    for part in split_rows(rows, MICRO_BATCH_TOKENS, cost=padded_cost, joins=joins):
        chosen = [rows[index] for index in part]
        tree = build_prefix_tree(chosen, joins)
        layout = padded_layout(tree)
        logits = net(
            input_ids=layout.input_ids, position_ids=layout.position_ids, attention_mask=dense_mask(layout)
        ).logits
        log_probs, _ = node_values(logits, layout, tree, entropy=False)
        pairs = zip(chosen, tree.rows, strict=True)
        torch.stack(
            [(log_probs[torch.from_numpy(n[1:])] * weights(r)).sum() for r, n in pairs]
        ).sum().backward()
        computed += len(tree.tokens)
    return computed


def gradients(net: PreTrainedModel) -> torch.Tensor:
    """All gradients in one vector."""
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


def measure_tree(length: int, seed: int) -> TreeRow:
    """Both ways over one problem."""
    net, rows = network(seed), problem(length, seed)
    net.zero_grad()
    begun = time.process_time()
    by_rows(net, rows)
    rows_seconds, expected = time.process_time() - begun, gradients(net)
    net.zero_grad()
    begun = time.process_time()
    computed = shared(net, rows)
    shared_seconds = time.process_time() - begun
    difference = float((gradients(net) - expected).abs().max() / expected.abs().max())
    return TreeRow(
        length=length,
        rows=len(rows),
        tokens=sum(map(len, rows)),
        distinct=distinct_tokens(rows),
        computed=computed,
        rows_seconds=rows_seconds,
        shared_seconds=shared_seconds,
        gradient_difference=difference,
    )


def measure_training(training: str, count: int, root: Path, overrides: list[str]) -> TrainingRow:
    """A real run; its steps together."""
    folder = train(
        root, training, "algo=attnrl", "marsrl.algo.group_size=6",
        "data.train_batch_size=8", "marsrl.algo.adaptive_batch.enabled=false", f"training={training}",
        f"trainer.total_training_steps={count}", "trainer.save_freq=-1", "marsrl.run.log_rollouts=false",
        *overrides,
    )  # fmt: skip
    done = steps(folder)

    def total(name: str) -> int:
        return int(sum(step.metrics.get(name, 0.0) for step in done))

    tokens = total("batch/tokens")
    return TrainingRow(
        training=training,
        tokens=tokens,
        computed=total("batch/computed_tokens") or tokens,
        old_log_prob_seconds=sum(step.timings.get("old_log_prob", 0.0) for step in done),
        update_seconds=sum(step.timings.get("update_actor", 0.0) for step in done),
    )


def tree_table(rows: list[TreeRow]) -> str:
    """One line per length."""
    lines = [
        f"{'length':>6s} {'rows':>5s} {'tokens':>8s} {'distinct':>8s} {'computed':>8s} {'saved':>6s}  "
        f"{'x less work':18s} gradient difference"
    ]
    for length in sorted({row.length for row in rows}):
        some = [row for row in rows if row.length == length]
        tokens, distinct, computed = (
            statistics.mean(getattr(row, name) for row in some) for name in ("tokens", "distinct", "computed")
        )
        ratios = ", ".join(f"{row.rows_seconds / row.shared_seconds:.2f}" for row in some)
        worst = max(row.gradient_difference for row in some)
        lines.append(
            f"{length:6d} {some[0].rows:5d} {tokens:8.0f} {distinct:8.0f} {computed:8.0f} "
            f"{1 - computed / tokens:6.1%}  {ratios:18s} {worst:.1e}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS), help="tokens per response")
    parser.add_argument(
        "--repeat", type=int, default=3, help="problems per length, each with a seed of its own"
    )
    parser.add_argument("--steps", type=int, default=6, help="steps of the training runs; 0: none")
    arguments, overrides = with_overrides(parser)
    place = machine()
    print(place, flush=True)
    measure_tree(64, seed=0)  # the first pass of a process is slower
    trees = [measure_tree(length, seed) for length in arguments.lengths for seed in range(arguments.repeat)]
    print(tree_table(trees), flush=True)
    runs: list[TrainingRow] = []
    if arguments.steps:
        root = Path(tempfile.mkdtemp(prefix="marsrl-shared-"))
        try:
            for training in ("separate_rows", "shared_prefixes"):
                one = measure_training(training, arguments.steps, root, overrides)
                runs.append(one)
                print(
                    f"training={training}: {one.tokens} tokens, {one.computed} computed "
                    f"({1 - one.computed / one.tokens:.1%} saved), old log-probs "
                    f"{one.old_log_prob_seconds:.2f} s, update {one.update_seconds:.2f} s",
                    flush=True,
                )
        finally:
            shutil.rmtree(root)
    rows = {"trees": [asdict(row) for row in trees], "training": [asdict(row) for row in runs]}
    write_json(arguments.json, {"machine": place, **rows})


if __name__ == "__main__":
    main()
