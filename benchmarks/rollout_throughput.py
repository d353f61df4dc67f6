"""Tokens per second of the plugin's rollout path beside those of vLLM's offline `LLM.generate`.

    python -m benchmarks.rollout_throughput                          # three repeats, the tiny model on CPU
    python -m benchmarks.rollout_throughput --repeat 5 --json rows.json -- reward=math_verify

Arguments after `--` are overrides of the training configuration. Both sides have its engine settings
(data type, max_num_seqs, block size, prefix caching, threads), its sampling settings, the same prompts and
the same number of samples per prompt. The processes run one after the other, in turn.

Two workloads. `natural`: responses end where the model ends them, as in training; both sides draw from the
same distribution, so mean lengths agree up to sampling, and each side is counted with the tokens it made.
`fixed`: every response has the same length, so that no side has a longer tail; nothing is graded there,
since a response that does not end has reward 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.throughput.plan import PLAN_VARIABLE, Piece, Plan, Row, Workload, read_results
from benchmarks.throughput.processes import TAG
from benchmarks.throughput.tables import piece_table, processor_table, progress, result_table, verdict
from benchmarks.training_runs import machine
from marsrl_verl.data.files import as_list
from marsrl_verl.data.problems import Columns, collect
from marsrl_verl.data.rows import read_rows

ROOT = Path(__file__).resolve().parents[1]
CPU = ("cluster=cpu", "model=tiny", "reward=exact")


def make_plan(arguments: argparse.Namespace, folder: Path) -> Plan:
    """The plan of all processes, with problems from the configuration's training files."""
    natural = Workload("natural", arguments.natural_tokens, False, arguments.problems)
    fixed = Workload("fixed", arguments.fixed_tokens, True, arguments.fixed_problems)
    longest = max(natural.max_tokens, fixed.max_tokens)
    overrides = (
        *CPU,
        *arguments.overrides,
        "name=throughput",
        f"marsrl.run.output_root={folder}",
        "marsrl.run.existing=replace",
        f"marsrl.roles.solver.max_new_tokens={longest}",
        f"marsrl.run.seed={arguments.seed}",
    )
    workloads = tuple(one for one in (natural, fixed) if one.problems > 0)
    plan = Plan(overrides, workloads, (), arguments.group_size, arguments.rounds, "")
    config = plan.config()
    paths = [Path(one) for one in as_list(config.data.train_files)]
    found = collect(read_rows(paths, Columns().names), Columns(), None)
    needed = sum(plan.needed(one) for one in workloads)
    problems = tuple(asdict(one.problem) for one in list(found.problems.values())[:needed])
    if len(problems) < needed:
        raise SystemExit(
            f"the training files hold {len(problems)} problems, {needed} are needed: lower --problems, "
            "--fixed-problems or --rounds"
        )
    return replace(plan, problems=problems)


def run(module: str, plan: Plan, folder: Path, repeat: int, variables: dict[str, str]) -> tuple:
    """One measuring process; its rows, pieces and facts.

    Raises:
        SystemExit: it failed; its output is shown.
    """
    results = folder / "results.json"
    results.unlink(missing_ok=True)
    path = replace(plan, results=str(results)).write(folder / "plan.json")
    env = {**os.environ, PLAN_VARIABLE: str(path), TAG: uuid.uuid4().hex, **variables}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")]).rstrip(":")
    log = folder / "output.txt"
    with log.open("w") as stream:
        done = subprocess.run(
            [sys.executable, "-m", module], env=env, stdout=stream, stderr=stream, check=False
        )
    if done.returncode or not results.exists():
        raise SystemExit(f"{module} failed with status {done.returncode}:\n{log.read_text()[-8000:]}")
    return read_results(results, repeat)


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[Piece], dict[str, str]]:
    """All repeats: the plugin, `LLM.generate` with each number of threads, and once with vLLM's own
    processes."""
    rows: list[Row] = []
    pieces: list[Piece] = []
    facts: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="marsrl-throughput-") as name:
        folder = Path(name)
        plan = make_plan(arguments, folder)
        for repeat in range(arguments.repeat):
            found, timed, started = run("benchmarks.throughput.start_plugin", plan, folder, repeat, {})
            rows, pieces = rows + found, pieces + timed
            print(progress(found), flush=True)
            for threads in sorted({started["threads"], *arguments.threads}):
                variables = {"OMP_NUM_THREADS": str(threads)}
                found, _, engine = run("benchmarks.throughput.offline", plan, folder, repeat, variables)
                rows += found
                facts = engine["engine"]
                print(progress(found), flush=True)
            variables = {"OMP_NUM_THREADS": str(started["threads"])}
            separate = replace(plan, own_processes=True)
            found, _, _ = run("benchmarks.throughput.offline", separate, folder, repeat, variables)
            rows += found
            print(progress(found), flush=True)
    return rows, pieces, facts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--repeat", type=int, default=3, help="processes of each kind, in turn")
    add("--rounds", type=int, default=3, help="measured rounds per process and workload")
    add("--problems", type=int, default=128, help="per round, natural lengths; 0: leave the workload out")
    add("--natural-tokens", type=int, default=48, help="longest response, natural lengths")
    add("--fixed-problems", type=int, default=32, help="per round, fixed lengths; 0: leave the workload out")
    add("--fixed-tokens", type=int, default=256, help="length of every response, fixed lengths")
    add("--group-size", type=int, default=8)
    add("--seed", type=int, default=1)
    add(
        "--threads",
        type=int,
        nargs="*",
        default=[os.cpu_count() or 1],
        help="threads of LLM.generate, beside the number that the plugin's engine has (default: all cores)",
    )
    add("--json", type=Path, help="write all rows here")
    arguments, overrides = parser.parse_known_args()
    arguments.overrides = [one for one in overrides if one != "--"]
    wrong = [one for one in arguments.overrides if not re.match(r"[+~]*[\w.]+=", one)]
    if wrong:
        parser.error(f"{' '.join(wrong)}: expected options, or overrides key=value after --")
    head = f"{machine()}\nseed {arguments.seed}, groups of {arguments.group_size}, {arguments.repeat} repeats"
    print(head, flush=True)
    rows, pieces, engine = measure(arguments)
    print("\nEngine settings of both sides: " + ", ".join(f"{key}={value}" for key, value in engine.items()))
    for workload in dict.fromkeys(row.workload for row in rows):
        print(f"\n## {workload}\n\n{result_table(rows, workload)}\n\n{processor_table(rows, workload)}")
        print(f"\n{piece_table(pieces, workload)}\n\n{verdict(rows, workload)}")
    if arguments.json is not None:
        content = {
            "machine": head,
            "engine": engine,
            "rows": [asdict(row) for row in rows],
            "pieces": [asdict(piece) for piece in pieces],
        }
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
