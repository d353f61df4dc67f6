"""Time that a rank takes to cut its rows into micro-batches before a pass, verl's own functions and ours.

    python -m benchmarks.micro_batches                     # 2,304 rows of a published step on one rank
    python -m benchmarks.micro_batches --rows 576 --repeat 3

No GPU and no model: rows of log-normal response length (mean 12,000 tokens, at most 32,768) after prompts of
500 to 30,000 tokens, with the columns of an update, go through verl's `prepare_micro_batches` in a process
with one thread. `search` is the part of it that looks for the partition.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import seqlen_balancing, tensordict_utils
from verl.workers.engine.utils import prepare_micro_batches

from benchmarks.tables import table
from marsrl_verl.verl_adapter.engine.batch import jagged
from marsrl_verl.verl_adapter.engine.micro_batches import use_fast_micro_batches
from marsrl_verl.verl_adapter.engine.rank_rows import with_token_columns

LIMITS = (196_608, 65_536)
"""Tokens of a micro-batch: 24,576 on each of 8 GPUs, and little more than the longest row."""
GROUP = 12


def rows(count: int, seed: int) -> TensorDict:
    """A rank's rows with the columns of an update."""
    draw = np.random.default_rng(seed)
    responses = np.minimum(draw.lognormal(np.log(10_800), 0.7, count), 32_768).astype(np.int64) + 1
    prompts = np.exp(draw.uniform(np.log(500), np.log(30_000), -(-count // GROUP)))
    prompt_lengths = np.repeat(prompts.astype(np.int64), GROUP)[:count]
    lengths, tokens = prompt_lengths + responses, int(responses.sum())
    data = TensorDict(
        {
            "prompt_len": torch.from_numpy(prompt_lengths),
            "temperature": torch.ones(count),
            "input_ids": jagged(np.zeros(int(lengths.sum()), dtype=np.int32), lengths),
            "response_mask": jagged(np.ones(tokens, dtype=np.uint8), responses),
        },
        batch_size=[count],
    )
    with_token_columns(data)
    for name in ("old_log_probs", "advantages"):
        data[name] = jagged(np.zeros(tokens, dtype=np.float32), responses)
    return data


@contextmanager
def functions(ours: bool):
    """Have verl cut with its own functions or with ours; yields the seconds of the searches."""
    known = seqlen_balancing.karmarkar_karp, tensordict_utils.index_select_tensor_dict
    if ours:
        use_fast_micro_batches()
    spent: list[float] = []
    partition = seqlen_balancing.karmarkar_karp
    seqlen_balancing.karmarkar_karp = lambda *a, **k: timed(lambda: partition(*a, **k), spent)
    try:
        yield spent
    finally:
        seqlen_balancing.karmarkar_karp, tensordict_utils.index_select_tensor_dict = known


def timed(function: Callable, spent: list[float]):
    """Call it and note its seconds of processor time."""
    began = time.process_time()
    found = function()
    spent.append(time.process_time() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_304)
    parser.add_argument("--tokens", type=int, nargs="+", default=LIMITS, help="limits of a micro-batch")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ours", action="store_true", help="leave verl's own functions out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = rows(arguments.rows, arguments.seed)
    lines = []
    for limit in arguments.tokens:
        tensordict_utils.assign_non_tensor(data, use_dynamic_bsz=True, max_token_len_per_gpu=limit)
        for ours in (True,) if arguments.ours else (False, True):
            searches: list[float] = []
            seconds: list[float] = []
            tries = 0
            for _ in range(arguments.repeat):
                with functions(ours) as spent:
                    batches, _ = timed(lambda: prepare_micro_batches(data), seconds)
                searches.append(sum(spent))
                tries = len(spent)
            medians = [f"{statistics.median(some):.2f}" for some in (searches, seconds)]
            whose = "ours" if ours else "verl's"
            lines.append([f"{limit:,}", whose, str(len(batches)), str(tries), *medians])
    head = ["tokens", "functions", "micro-batches", "counts tried", "search: CPU s", "all: CPU s"]
    print(table(head, lines))


if __name__ == "__main__":
    main()
