"""SIMULATION: what agent pipeline, segments and overlap save at the published lengths. Nothing is measured.

    python -m benchmarks.scheduler_simulation                    # lengths at the start of training
    python -m benchmarks.scheduler_simulation --bound            # rounds without any waiting
    python -m benchmarks.scheduler_simulation --lengths late --seeds 5 --json rows.json

The scheduler and the method are those of the package; engine and trainer are models of their time, responses
are drawn from distributions. All assumptions are printed; `docs/results/performance.md` has the main ones.
"""

from __future__ import annotations

import gc
import time
from dataclasses import asdict, replace
from typing import Any

from benchmarks.record import options, write_json
from benchmarks.simulation.driver import (
    VARIANTS,
    Cluster,
    Step,
    TrainingModel,
    Variant,
    figures,
    marsrl,
    seconds_to,
    simulate,
    solver_only,
    split,
)
from benchmarks.simulation.engine_time import EngineModel, run_round
from benchmarks.simulation.workload import EARLY, LATE, TOKENS_PER_UNIT, Responses, SimulatedEngine, Workload
from benchmarks.tables import table, with_interval
from marsrl_verl.core.scheduler import Mode

LENGTHS = {"early": EARLY, "late": LATE}
PUBLISHED_BATCH = 128
PUBLISHED_SECONDS = {1: 1240, 2: 774, 4: 601}
"""Seconds per step by number of segments (UloRL, arXiv 2507.19766, Table 1): Qwen3-30B-A3B, 64k."""
CALIBRATION_STEPS = 12

COLUMNS = (
    # Figure, heading, digits, factor.
    ("step_s", "s/step", 0, 1),
    ("generation_s", "generate s", 0, 1),
    ("training_s", "train s", 0, 1),
    ("decoded_tokens_per_s", "ktok/s", 1, 1e-3),
    ("idle_share", "idle %", 1, 100),
    ("draining_share", "drain %", 0, 100),
    ("gpu_idle_share", "GPU idle %", 1, 100),
    ("sequences_per_replica", "seqs/replica", 0, 1),
    ("token_age", "token age", 2, 1),
    ("samples_per_hour", "samples/h", 0, 1),
    ("speedup", "speed-up", 2, 1),
    ("same_samples_h", "same work h", 2, 1),
    ("same_samples_speedup", "its speed-up", 2, 1),
)
LEGEND = """\
s/step .. samples/h: means over the steps after the pools have filled. ktok/s: tokens decoded per second of
the whole step. idle: share of replica time in generation with nothing to decode while another replica still
decodes. drain: the same where no request waits any more, so that freed slots stay empty; idle included.
GPU idle: share of all GPU time, training included, in which a GPU waits for others. seqs/replica: mean of
sequences that are decoded at once. token age: weight versions between sampling and training, mean over
trained tokens. speed-up: samples/h against sequential. same work: hours from empty pools to as many trained
samples as the sequential run has; its speed-up: sequential hours by these."""


def simulate_seed(
    seed: int, load: Workload, engine: EngineModel, training: TrainingModel, *, problems: int, steps: int
) -> dict[str, dict[str, float]]:
    """The figures of all variants; all are given the same responses."""
    responses = Responses(load, seed)
    one_pool = Cluster(engine, training)
    rows: dict[str, dict[str, float]] = {}
    target, trainer_share = 0, 0.0
    for variant in VARIANTS:
        cluster = one_pool
        if variant.overlap:
            cluster = replace(one_pool, trainer_replicas=float(engine.replicas))
            if not variant.extra_trainer:
                cluster = split(engine, training, trainer_share)
        least = variant.warm_up + steps

        def enough(done: list[Step], least: int = least, target: int = target) -> bool:
            return len(done) >= least and sum(step.samples for step in done) >= target

        run = simulate(variant, responses, marsrl(seed), cluster, problems=problems, stop=enough)
        target = target or sum(step.samples for step in run)
        row = rows[variant.name] = figures(run[variant.warm_up :], cluster)
        row["same_samples_h"] = seconds_to(run, target) / 3600
        row["target_samples"] = target
        row["engine_replicas"] = cluster.engine.replicas
        if variant.segments > 1 and not variant.overlap:
            # Split such that both pools take equally long.
            trainer_share = row["training_s"] / (row["training_s"] + row["generation_s"])
    base = rows[VARIANTS[0].name]
    for row in rows.values():
        row["speedup"] = row["samples_per_hour"] / base["samples_per_hour"]
        row["same_samples_speedup"] = base["same_samples_h"] / row["same_samples_h"]
    return rows


def without_barriers(
    seed: int, load: Workload, engine: EngineModel, training: TrainingModel, *, problems: int, steps: int
) -> dict[str, float]:
    """The sequential run's requests decoded as one queue, as if no round had to wait for another one: what
    keeping the replicas full would give. Training and sync take as long as before."""
    responses = Responses(load, seed)
    simulated = SimulatedEngine(responses, engine)
    cluster = Cluster(engine, training)
    run = simulate(
        VARIANTS[0],
        responses,
        marsrl(seed),
        cluster,
        problems=problems,
        stop=lambda done: len(done) >= steps,
        engine=simulated,
    )
    sequential = figures(run, cluster)
    queue = run_round(simulated.requests, engine)
    step_s = queue.makespan / steps + sequential["training_s"] + training.sync_s
    return {
        "sequential_tokens_per_s": sum(one.decoded for one in run) / sum(one.generation_s for one in run),
        "tokens_per_s": queue.decoded / queue.makespan,
        "generation_s": queue.makespan / steps,
        "step_s": step_s,
        "speedup": sequential["step_s"] / step_s,
    }


def calibrate(
    seed: int, engine: EngineModel, training: TrainingModel, problems: int
) -> dict[int, dict[str, float]]:
    """Solver-only training with 1, 2 and 4 segments, as UloRL measured it."""
    found = {}
    responses = Responses(EARLY, seed)
    for segments in PUBLISHED_SECONDS:
        variant = Variant("solver only", Mode.PIPELINED, segments=segments)
        run = simulate(
            variant,
            responses,
            solver_only(seed),
            Cluster(engine, training),
            problems=problems,
            stop=lambda done: len(done) >= CALIBRATION_STEPS,
        )
        found[segments] = figures(run[segments:], Cluster(engine, training))
    return found


def result_table(by_seed: dict[int, dict[str, dict[str, float]]]) -> str:
    """Variants in rows, figures with intervals in columns."""
    rows = []
    for variant in VARIANTS:
        values = [rows_of_seed[variant.name] for rows_of_seed in by_seed.values()]
        cells = [
            with_interval([one[key] for one in values], digits, factor) for key, _, digits, factor in COLUMNS
        ]
        rows.append([variant.name, *cells])
    return table(["variant", *[heading for _, heading, _, _ in COLUMNS]], rows)


def calibration_table(by_seed: dict[int, dict[int, dict[str, float]]]) -> str:
    """Seconds per step by number of segments, published and simulated."""
    rows = []
    for segments, published in PUBLISHED_SECONDS.items():
        seconds = [found[segments]["step_s"] for found in by_seed.values()]
        factors = [found[1]["step_s"] / found[segments]["step_s"] for found in by_seed.values()]
        rows.append(
            [
                str(segments),
                str(published),
                with_interval(seconds, 0, 1),
                f"{PUBLISHED_SECONDS[1] / published:.2f}",
                with_interval(factors, 2, 1),
            ]
        )
    return table(["segments", "published s", "simulated s", "published factor", "simulated factor"], rows)


def assumptions(
    load: Workload, engine: EngineModel, training: TrainingModel, problems: int
) -> dict[str, Any]:
    """Every number that the result depends on."""
    return {
        "lengths": asdict(load),
        "engine": asdict(engine),
        "training": asdict(training),
        "problems_per_step": problems,
        "tokens_per_simulated_token": TOKENS_PER_UNIT,
    }


def main(argv: list[str] | None = None) -> None:
    parser = options(__doc__, "rows: lengths, seed, variant, metric, value")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--steps", type=int, default=6, help="steps that count, after the pools are full")
    parser.add_argument(
        "--problems",
        type=int,
        default=64,
        help="new problems per step; replicas and training speed are scaled with it (published: 128)",
    )
    parser.add_argument("--lengths", choices=sorted(LENGTHS), default="early")
    parser.add_argument(
        "--replicas", type=int, default=EngineModel.replicas, help="replicas for 128 problems per step"
    )
    parser.add_argument(
        "--bound", action="store_true", help="only what rounds without any waiting would reach"
    )
    arguments = parser.parse_args(argv)
    if min(arguments.seeds, arguments.steps, arguments.problems, arguments.replicas) < 1:
        parser.error("--seeds, --steps, --problems and --replicas must be at least 1")
    began = time.monotonic()
    load, problems = LENGTHS[arguments.lengths], arguments.problems
    scale = problems / PUBLISHED_BATCH
    replicas = max(2, round(arguments.replicas * scale))
    engine = EngineModel(replicas=replicas)
    speed = TrainingModel.tokens_per_second * replicas / EngineModel.replicas
    training = TrainingModel(tokens_per_second=speed)
    stated = assumptions(load, engine, training, problems)
    print("SIMULATION: the scheduler is real; engine, trainer and responses are models. Assumptions:")
    print("\n".join(f"  {key}: {value}" for key, value in stated.items()), flush=True)

    seeds = range(arguments.seeds)
    if arguments.bound:
        found = [
            without_barriers(seed, load, engine, training, problems=problems, steps=arguments.steps)
            for seed in seeds
        ]
        print("\nSIMULATION: the sequential requests as one queue; tokens per second and replica")
        for name in found[0]:
            factor = 1 / replicas if name.endswith("tokens_per_s") else 1.0
            print(f"  {name}: {with_interval([one[name] for one in found], 2, factor)}")
        return
    calibration = {seed: calibrate(seed, engine, training, problems) for seed in seeds}
    print("\nSIMULATION, check: Solver only, seconds per step against UloRL's Table 1")
    print(calibration_table(calibration), flush=True)
    by_seed = {
        seed: simulate_seed(seed, load, engine, training, problems=problems, steps=arguments.steps)
        for seed in seeds
    }
    print(f"\nSIMULATION: {load.name}, {arguments.seeds} seeds, mean ± half of the 95 % interval")
    print(result_table(by_seed))
    print(LEGEND)
    print(f"simulated in {time.monotonic() - began:.0f} s")
    rows = [
        {"lengths": arguments.lengths, "seed": seed, "variant": name, "metric": key, "value": value}
        for seed, found in by_seed.items()
        for name, row in found.items()
        for key, value in row.items()
    ]
    content = {"simulation": True, "assumptions": stated, "rows": rows}
    write_json(arguments.json, content)


if __name__ == "__main__":
    # Samples hold no reference cycles, and looking for such takes a good part of the time.
    gc.disable()
    main()
