"""Tokens per second of the plugin's rollout path beside those of vLLM's offline `LLM.generate`.

    python -m benchmarks.rollout_throughput                          # three repeats, the tiny model on CPU
    python -m benchmarks.rollout_throughput --repeat 5 --json rows.json -- reward=math_verify
    python -m benchmarks.rollout_throughput --agent-loop --repeat 4  # verl's own agent loop beside the plugin
    python -m benchmarks.rollout_throughput --evaluation             # an evaluation's call beside the plugin
    python -m benchmarks.rollout_throughput --compare OLD NEW        # two checkouts in turn, with ratios
    python -m benchmarks.rollout_throughput --group-size 1 --problems 0 --fixed-problems 2000 \
        --fixed-tokens 4 --ask-again --dialogues 200                 # many short requests, and dialogues

Arguments after `--` are overrides of the training configuration. Both sides have its engine settings
(data type, max_num_seqs, block size, prefix caching, threads), its sampling settings, the same prompts and
the same number of samples per prompt. The processes run one after the other, in turn.

Two workloads. `natural`: responses end where the model ends them, as in training; both sides draw from the
same distribution, so mean lengths agree up to sampling, and each side is counted with the tokens it made.
`fixed`: every response has the same length, so that no side has a longer tail; nothing is graded there,
since a response that does not end has reward 0. `dialogues`: conversations of several short turns, all at
once, for the cost of a turn beside the engine; `LLM.generate` has none.

With `--compare` every repeat has the plugin of both checkouts and `LLM.generate` of this one between them,
every other time in reverse. `--append` goes on with the repeats that `--json` holds; with `--repeat 0` it
shows their tables.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.checkouts import AFTER, BEFORE, environment, in_turn, require_package
from benchmarks.record import commit, machine
from benchmarks.throughput import compare
from benchmarks.throughput.plan import PLAIN, PLAN_VARIABLE, Piece, Plan, Row, Workload, read_results
from benchmarks.throughput.processes import TAG
from benchmarks.throughput.tables import piece_table, processor_table, progress, result_table, verdict
from marsrl_verl.data.columns import Columns
from marsrl_verl.data.files import as_list
from marsrl_verl.data.problems import collect
from marsrl_verl.data.rows import read_rows

ROOT = Path(__file__).resolve().parents[1]
CPU = ("cluster=cpu", "model=tiny", "reward=exact")
ASKED = ("problem_id", "question", "ground_truth", "data_source", "messages", "extra_info")
"""Of a problem, what prompts and rewards need."""
DIALOGUE_TURNS, DIALOGUE_TOKENS = 3, 64
"""Turns of a dialogue, and the limit of all of it, questions included."""


def make_plan(arguments: argparse.Namespace, folder: Path) -> Plan:
    """The plan of all processes, with problems from the configuration's training files."""
    natural = Workload("natural", arguments.natural_tokens, False, arguments.problems)
    fixed = Workload("fixed", arguments.fixed_tokens, True, arguments.fixed_problems)
    dialogues = Workload("dialogues", DIALOGUE_TOKENS, True, arguments.dialogues, DIALOGUE_TURNS)
    longest = max(natural.max_tokens, fixed.max_tokens, DIALOGUE_TOKENS if arguments.dialogues else 0)
    overrides = (
        *CPU,
        *arguments.overrides,
        "name=throughput",
        f"marsrl.run.output_root={folder}",
        "marsrl.run.if_exists=replace",
        f"marsrl.roles.solver.max_new_tokens={longest}",
        f"marsrl.run.seed={arguments.seed}",
    )
    workloads = tuple(one for one in (natural, fixed, dialogues) if one.problems > 0)
    plan = Plan(
        overrides,
        workloads,
        (),
        arguments.group_size,
        arguments.rounds,
        "",
        agent_loop=arguments.agent_loop,
        evaluation=arguments.evaluation,
    )
    config = plan.config()
    paths = [Path(one) for one in as_list(config.data.train_files)]
    found = collect(read_rows(paths, Columns().names), Columns(), None)
    needed = sum(plan.needed(one) for one in workloads)
    problems = [{name: getattr(one.problem, name) for name in ASKED} for one in found.problems.values()]
    if len(problems) < needed and not arguments.ask_again:
        raise SystemExit(
            f"the training files hold {len(problems)} problems, {needed} are needed: lower --problems, "
            "--fixed-problems or --rounds, or let the same be asked in several rounds (--ask-again)"
        )
    return replace(plan, problems=tuple(itertools.islice(itertools.cycle(problems), needed)))


def run(
    module: str, plan: Plan, folder: Path, repeat: int, variables: dict[str, str], tree: Path = ROOT
) -> tuple[list[Row], list[Piece], dict[str, Any]]:
    """One measuring process of a checkout; its rows, pieces and facts.

    Raises:
        SystemExit: it failed; its output is shown.
    """
    results = folder / "results.json"
    results.unlink(missing_ok=True)
    path = replace(plan, results=str(results)).write(folder / "plan.json")
    env = {**environment(tree), PLAN_VARIABLE: str(path), TAG: uuid.uuid4().hex, **variables}
    log = folder / "output.txt"
    with log.open("w") as stream:
        done = subprocess.run(
            [sys.executable, "-m", module], cwd=tree, env=env, stdout=stream, stderr=stream, check=False
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
            if all(one.turns > 1 for one in plan.workloads):
                continue
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


def measure_pairs(arguments: argparse.Namespace, trees: dict[str, Path], first: int) -> list[Row]:
    """The repeats from number `first` on: the plugin of both checkouts, and `LLM.generate` of this one with
    the plugin's number of threads."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="marsrl-throughput-") as name:
        folder = Path(name)
        plan = make_plan(arguments, folder)
        variables: dict[str, str] = {}
        for repeat in range(first, first + arguments.repeat):
            for part in in_turn(trees, repeat, compare.REFERENCE):
                if part == compare.REFERENCE:
                    found, _, _ = run("benchmarks.throughput.offline", plan, folder, repeat, variables)
                else:
                    tree = trees[part]
                    found, _, started = run(
                        "benchmarks.throughput.start_plugin", plan, folder, repeat, {}, tree
                    )
                    variables = {"OMP_NUM_THREADS": str(started["threads"])}
                print(f"{part}; load average {os.getloadavg()[0]:.1f}\n{progress(found)}", flush=True)
                rows += [replace(row, checkout=part) for row in found]
    return rows


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
    add("--dialogues", type=int, default=0, help="per round; 0: leave the workload out")
    add(
        "--ask-again", action="store_true", help="ask the same problems in several rounds where there are few"
    )
    add("--group-size", type=int, default=8)
    add("--agent-loop", action="store_true", help="measure verl's own agent loop on the same engine, too")
    add("--evaluation", action="store_true", help="measure an evaluation's call on the same engine, too")
    add("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="two checkouts")
    add("--seed", type=int, default=1)
    add(
        "--threads",
        type=int,
        nargs="*",
        default=[os.cpu_count() or 1],
        help="threads of LLM.generate, beside the number that the plugin's engine has (default: all cores)",
    )
    add("--json", type=Path, help="write all rows here")
    add("--append", action="store_true", help="go on with the repeats that --json holds")
    arguments, overrides = parser.parse_known_args()
    arguments.overrides = [one for one in overrides if one != "--"]
    wrong = [one for one in arguments.overrides if not re.match(r"[+~]*[\w.]+=", one)]
    if wrong:
        parser.error(f"{' '.join(wrong)}: expected options, or overrides key=value after --")
    head = f"{machine()}\nseed {arguments.seed}, groups of {arguments.group_size}, {arguments.repeat} repeats"
    if arguments.append and (arguments.compare is None or arguments.json is None):
        parser.error("--append needs --compare and --json")
    if arguments.compare is not None:
        if arguments.dialogues:
            parser.error("--dialogues has no --compare: checkouts without workflows have no dialogues")
        show_pairs(arguments, head)
        return
    print(head, flush=True)
    rows, pieces, engine = measure(arguments)
    if engine:
        settings_text = ", ".join(f"{key}={value}" for key, value in engine.items())
        print(f"\nEngine settings of `LLM.generate`: {settings_text}")
    for workload in dict.fromkeys(row.workload for row in rows):
        print(f"\n## {workload}\n\n{result_table(rows, workload)}\n\n{processor_table(rows, workload)}")
        if any(row.variant == PLAIN and row.workload == workload for row in rows):
            print(f"\n{piece_table(pieces, workload)}\n\n{verdict(rows, workload)}")
    if arguments.json is not None:
        content = {
            "machine": head,
            "engine": engine,
            "rows": [asdict(row) for row in rows],
            "pieces": [asdict(piece) for piece in pieces],
        }
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


def show_pairs(arguments: argparse.Namespace, head: str) -> None:
    """Measures two checkouts in turn, and shows what was found of this and earlier sessions."""
    trees = {name: tree.resolve() for name, tree in zip((BEFORE, AFTER), arguments.compare, strict=True)}
    for tree in trees.values():
        require_package(tree)
    head += "".join(f"\n{name}: {commit(tree)}" for name, tree in trees.items())
    print(head, flush=True)
    heads, rows = [head], []
    if arguments.append and arguments.json.exists():
        earlier = json.loads(arguments.json.read_text())
        heads, rows = [*earlier["sessions"], head], [Row(**one) for one in earlier["rows"]]
    first = max((row.repeat for row in rows), default=-1) + 1
    rows += measure_pairs(arguments, trees, first) if arguments.repeat else []
    for workload in dict.fromkeys(row.workload for row in rows):
        print(f"\n## {workload}\n\n{compare.throughput_table(rows, workload)}")
        print(f"\n{compare.processor_table(rows, workload)}")
    if arguments.json is not None and arguments.repeat:
        content = {"sessions": heads, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
