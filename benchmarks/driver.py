"""Time and memory of what the driver does in a training step, its ranks and rollout workers apart.

    python -m benchmarks.driver                        # this checkout, 1,152 rows: half of the published size
    python -m benchmarks.driver --scale 1              # 2,304 rows; see below for the memory it takes
    python -m benchmarks.driver --compare OLD NEW      # two checkouts in turn, with ratios
    python -m benchmarks.driver --json rows.json

No GPU, no Ray and no model: from made-up responses of log-normal length (`driver_step.inputs`), the project's
own functions do what the trainer's `fit_step` calls, from a round's requests to the checkpoint. It runs in a
process of its own, so that the peak of its resident memory is its own; another process stands for rollout
workers and ranks. What goes from one to the other is packed as Ray does it (pickle 5, arrays out of band) and
put into shared memory. That memory, which Ray's object store holds on the driver's node, is counted as `sent`
and not as resident until it is mapped. Not measured: tokenizers, grading, the network, the ranks' own work.

Resident memory is above that of the process before the step, with its imports and the waiting requests. All
processes use one thread. Each checkout brings the implementation that fits it (`IMPLEMENTATIONS`).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.driver_step.inputs import Sizes, generate
from benchmarks.driver_step.interface import Cluster
from benchmarks.record import HERE, commit, machine, options, write_json
from benchmarks.tables import table

IMPLEMENTATIONS = ("arrays", "lists")
"""Files of a checkout's `driver_step`, the newest first: `lists` is of checkouts whose samples hold lists."""
DRIVER, BACKGROUND = "driver", "background"
SCALE = 0.5
SIZES, CLUSTER = Sizes(), Cluster()

Result = dict[str, Any]


def implementation_of(tree: Path) -> Path:
    """A checkout's own implementation of the step.

    Raises:
        ValueError: it has none.
    """
    files = [tree / "benchmarks" / "driver_step" / f"{name}.py" for name in IMPLEMENTATIONS]
    found = next((file for file in files if file.exists()), None)
    if found is None:
        raise ValueError(
            f"{tree} is no checkout that this benchmark knows; looked for {', '.join(map(str, files))}"
        )
    return found


def measure(tree: Path, inputs: Path, cluster: Cluster) -> Result:
    """One step of a checkout.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    with (
        tempfile.TemporaryDirectory(prefix="driver-") as folder,
        tempfile.TemporaryDirectory(prefix="driver-", dir="/dev/shm") as store,
    ):
        os.symlink(inputs, Path(folder) / "inputs")
        command = [
            sys.executable, "-m", "benchmarks.driver_step.child", "driver", "--tree", str(tree),
            "--implementation", str(implementation_of(tree)), "--folder", folder, "--store", store,
            "--cluster", json.dumps(asdict(cluster)),
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{tree} ended with status {done.returncode}:\n{done.stderr[-4000:]}")
        return json.loads((Path(folder) / "result.json").read_text())


def total(result: Result, side: str = DRIVER) -> dict[str, float]:
    """Sums over the phases of a side, and the driver's peak above the beginning, MiB; its thread in the
    background takes memory of the same process."""
    phases = [phase for phase in result["phases"] if phase["side"] == side]
    if not phases:
        return {"seconds": 0.0, "cpu_seconds": 0.0, "peak": 0.0, "sent": 0.0}
    peaks = [phase["peak"] for phase in result["phases"] if phase["side"] in (DRIVER, BACKGROUND)]
    return {
        "seconds": sum(phase["seconds"] for phase in phases),
        "cpu_seconds": sum(phase["cpu_seconds"] for phase in phases),
        "peak": max(peaks) - result["resident_at_begin"],
        "sent": sum(phase["sent"] for phase in phases),
    }


def phase_table(results: list[Result]) -> str:
    """Medians of the phases of one checkout's runs; memory of the driver alone, since one process stands for
    all others."""
    head = ["phase", "seconds", "CPU s", "resident after, MiB", "peak, MiB", "sent or written, MiB"]
    lines: list[list[str]] = []
    for side in dict.fromkeys(phase["side"] for phase in results[0]["phases"]):
        names = [phase["name"] for phase in results[0]["phases"] if phase["side"] == side]
        for name in names:
            lines.append(_line(name if side == DRIVER else f"{side}: {name}", name, side, results))
        sums = [total(result, side) for result in results]
        middle = {key: statistics.median(one[key] for one in sums) for key in sums[0]}
        lines.append(
            [
                f"**{side}, all**",
                f"**{middle['seconds']:.1f}**",
                f"{middle['cpu_seconds']:.1f}",
                "",
                f"**{middle['peak']:,.0f}**" if side == DRIVER else "",
                f"{middle['sent']:,.0f}",
            ]
        )
    return table(head, lines)


def _line(label: str, name: str, side: str, results: list[Result]) -> list[str]:
    def median(key: str, above: bool = False) -> float:
        return statistics.median(
            phase[key] - above * result["resident_at_begin"]
            for result in results
            for phase in result["phases"]
            if (phase["name"], phase["side"]) == (name, side)
        )

    own = side in (DRIVER, BACKGROUND)
    return [
        label,
        f"{median('seconds'):.2f}",
        f"{median('cpu_seconds'):.2f}",
        f"{median('resident_after', True):,.0f}" if own else "",
        f"{median('peak', True):,.0f}" if own else "",
        f"{sent:,.0f}" if (sent := median("sent")) else "",
    ]


def comparison_table(before: list[Result], after: list[Result]) -> str:
    """Totals of two checkouts and the ratios of their paired runs."""
    lines = []
    shown = (
        ("driver: seconds", DRIVER, "seconds"),
        ("driver: CPU seconds", DRIVER, "cpu_seconds"),
        ("driver's background: seconds", BACKGROUND, "seconds"),
        ("driver's background: CPU seconds", BACKGROUND, "cpu_seconds"),
        ("driver: peak of resident memory, MiB", DRIVER, "peak"),
        ("driver: sent or written, MiB", DRIVER, "sent"),
        ("other processes: CPU seconds", "other processes", "cpu_seconds"),
    )
    for label, side, key in shown:
        pairs = [
            (total(one, side)[key], total(other, side)[key]) for one, other in zip(before, after, strict=True)
        ]
        lines.append(
            [
                label,
                *(f"{statistics.median(values):,.1f}" for values in zip(*pairs, strict=True)),
                ", ".join(f"{new / old:.3f}" if old else "-" for old, new in pairs),
            ]
        )
    return table(["", "before", "after", "after / before, each pair"], lines)


def differing_metrics(before: Result, after: Result) -> list[str]:
    """Metrics of the step that both report and that are not the same: the work was not, either."""
    both = sorted(before["metrics"].keys() & after["metrics"].keys())
    pairs = ((name, before["metrics"][name], after["metrics"][name]) for name in both)
    return [
        f"{name}: {old:.6g}, {new:.6g}"
        for name, old, new in pairs
        if not math.isclose(old, new, rel_tol=1e-4, abs_tol=1e-6)
    ]


def per_row(results: list[Result], facts: dict[str, float]) -> str:
    """What a row takes, and the published size by it."""
    rows, target_rows = facts["trained_rows"], SIZES.rows
    seconds, peak = (
        statistics.median(total(result)[key] for result in results) for key in ("seconds", "peak")
    )
    line = f"per trained row: {1000 * seconds / rows:.1f} ms, {peak / rows:.2f} MiB"
    if rows < target_rows:
        line += (
            f"; extrapolated, not measured: {target_rows:,} rows take {seconds * target_rows / rows:.0f} s "
            f"and a peak of {peak * target_rows / rows / 1024:.1f} GiB"
        )
    return line


def main() -> None:
    parser = options(__doc__, "all phases")
    parser.add_argument("--tree", type=Path, default=HERE, help="checkout to measure")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="two checkouts")
    parser.add_argument("--scale", type=float, default=SCALE, help="share of the published 2,304 rows")
    parser.add_argument("--tokens", type=int, default=SIZES.tokens, help="mean length of a response")
    parser.add_argument("--longest", type=int, default=SIZES.longest, help="limit of a response")
    parser.add_argument(
        "--longest-prompt", type=int, default=SIZES.longest_prompt, help="of Verifier and Corrector"
    )
    parser.add_argument("--spread", type=float, default=SIZES.spread, help="of the logarithm of the length")
    parser.add_argument("--seed", type=int, default=SIZES.seed)
    parser.add_argument("--ranks", type=int, default=CLUSTER.ranks, help="data-parallel ranks")
    parser.add_argument("--updates", type=int, default=CLUSTER.updates, help="mini-batches")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each checkout, in turn")
    arguments = parser.parse_args()
    sizes = Sizes(
        tokens=arguments.tokens,
        longest=arguments.longest,
        longest_prompt=arguments.longest_prompt,
        spread=arguments.spread,
        seed=arguments.seed,
    )
    sizes = replace(sizes, rows=round(sizes.rows * arguments.scale))
    cluster = replace(CLUSTER, ranks=arguments.ranks, updates=arguments.updates)
    trees = [tree.resolve() for tree in arguments.compare or [arguments.tree]]
    place = machine()
    print(place, flush=True)
    inputs = Path(tempfile.mkdtemp(prefix="driver-inputs-"))
    try:
        facts = generate(inputs, sizes).facts()
        print(", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in facts.items()), flush=True)
        runs: list[list[Result]] = [[] for _ in trees]
        for number in range(arguments.repeat):
            order = list(range(len(trees)))
            for index in order if number % 2 == 0 else reversed(order):
                runs[index].append(measure(trees[index], inputs, cluster))
                one = total(runs[index][-1])
                print(
                    f"run {number + 1}, {commit(trees[index])}: {one['seconds']:.1f} s, peak "
                    f"{one['peak']:,.0f} MiB above {runs[index][-1]['resident_at_begin']:,.0f}",
                    flush=True,
                )
    finally:
        shutil.rmtree(inputs)
    for tree, results in zip(trees, runs, strict=True):
        print(f"\n{commit(tree)}, medians of {len(results)}\n\n{phase_table(results)}\n")
        print(per_row(results, facts))
    if len(runs) == 2:
        print(f"\n{comparison_table(*runs)}\n")
        print("\n".join(["metrics that differ:", *differing_metrics(runs[0][0], runs[1][0])]))
    found = [{"revision": commit(tree), "runs": results} for tree, results in zip(trees, runs, strict=True)]
    record = {
        "machine": place.splitlines(), "sizes": asdict(sizes), "facts": facts,
        "cluster": asdict(cluster), "checkouts": found,
    }  # fmt: skip
    write_json(arguments.json, record)


if __name__ == "__main__":
    main()
