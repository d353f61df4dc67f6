"""Throughput of the graders, and what answers that never end cost the others.

    python -m benchmarks.grading
    python -m benchmarks.grading --rewards math_verify --workers 2 --repeat 5 --json rows.json

Answers go the way of training: groups of eight at a time through the reward manager that verl loads in its
reward workers, with the settings of `cluster=cpu` and the named reward. The delay is that of whole runs,
start of the graders included: the seconds until everything is graded, bombs too, with and without them.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from verl import DataProto

from benchmarks.record import PACKAGES, machine, options, write_json
from benchmarks.tables import table
from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.verl_adapter.rollout_server.reward_manager import MarsRLRewardManager

GROUP = 8
BOMBS = (r"9^{9^{9^9}}", "100000!!", r"\binom{10^9}{5\cdot 10^8}", r"(x+y+z)^{5000}")
"""None of them is graded within minutes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A boxed answer, its reference, and whether it is right."""

    text: str
    reference: str
    right: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run."""

    reward: str
    what: str
    answers: int
    bombs: int
    seconds: float
    """Until the last answer was graded."""
    rest_seconds: float
    """Until the last answer that is no bomb was graded."""
    processor_seconds: float
    """Of this process and the graders: does not depend on what else the machine does."""


def numbers(count: int) -> list[Answer]:
    """Boxed numbers, half of them right."""
    return [Answer(str(k), str(k + k % 2), k % 2 == 0) for k in range(1000, 1000 + count)]


def symbolic(count: int) -> list[Answer]:
    """Answers that need computer algebra, half of them right."""
    return [
        Answer(rf"\frac{{{k}+\sqrt{{{k * k + k % 2}}}}}{{2}}", str(k), k % 2 == 0)
        for k in range(1000, 1000 + count)
    ]


def ordinary(count: int) -> list[Answer]:
    """Half numbers, half computer algebra, in turns."""
    pairs = zip(numbers(count), symbolic(count), strict=True)
    return [pair[k % 2] for k, pair in enumerate(pairs)]


def with_bombs(answers: Sequence[Answer], count: int) -> list[Answer]:
    """Bombs spread evenly among answers."""
    mixed = list(answers)
    for k in range(count):
        mixed.insert(round(k * len(mixed) / count), Answer(BOMBS[k % len(BOMBS)], "5", False))
    return mixed


def batch(answers: Sequence[Answer], first: int) -> DataProto:
    column = np.empty(len(answers), dtype=object)
    for k, answer in enumerate(answers):
        text = rf"So we get $\boxed{{{answer.text}}}$."
        problem = Problem(f"p{first}", "?", answer.reference)
        column[k] = ScoreRequest(f"p{first}#{k}", SOLVER, SOLVER, problem, text, text, FinishReason.STOP)
    return DataProto(non_tensor_batch={"score_request": column})


def processor_seconds() -> float:
    """User and system time of this process and all that descend from it, those that ended included."""
    parents, used = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
        parents[int(name)] = int(fields[1])
        used[int(name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used.get(process, 0.0) for process in family)


async def graded(managers: Sequence[MarsRLRewardManager], answers: Sequence[Answer]) -> tuple[float, float]:
    """Seconds until all answers are graded, and until those are that no time limit ended.

    Raises:
        RuntimeError: an answer was not graded as it should be.
    """
    started = time.perf_counter()

    async def one(index: int, answer: Answer) -> tuple[float, RewardResult]:
        # A response at a time, so that its own time is seen; the manager takes any number of rows.
        result = await managers[index // GROUP % len(managers)].run_single(batch([answer], index))
        (reward,) = result["reward_extra_info"]["outcomes"]
        return time.perf_counter() - started, reward

    results = await asyncio.gather(*(one(k, answer) for k, answer in enumerate(answers)))
    for answer, (_, found) in zip(answers, results, strict=True):
        if not found.graded or (found.value == 1.0) is not answer.right:
            raise RuntimeError(f"{answer} was graded {found}")
    rest = [after for answer, (after, _) in zip(answers, results, strict=True) if answer.text not in BOMBS]
    return max(after for after, _ in results), max(rest)


def measure(reward: str, what: str, answers: Sequence[Answer], workers: int, warm: Sequence[Answer]) -> Row:
    """Grades answers once, with new graders. Those of `warm` are graded before, unmeasured."""
    config = compose_config(parse_arguments(["cluster=cpu", f"reward={reward}"])).config

    async def run() -> tuple[float, float, float]:
        managers = [MarsRLRewardManager(config, tokenizer=None) for _ in range(workers)]
        try:
            if warm:
                await graded(managers, warm)
            before = processor_seconds()
            seconds, rest = await graded(managers, answers)
            return seconds, rest, processor_seconds() - before
        finally:
            for manager in managers:
                for role_reward in manager.role_rewards.values():
                    role_reward.close()

    measured = asyncio.run(run())
    bombs = sum(answer.text in BOMBS for answer in answers)
    return Row(reward, what, len(answers) - bombs, bombs, *measured)


def summary(rows: Sequence[Row]) -> str:
    """Medians over repetitions; answers per second, and seconds more than without bombs."""
    lines = []
    for reward, what, bombs in dict.fromkeys((row.reward, row.what, row.bombs) for row in rows):

        def median(name: str, bombs: int, key: tuple[str, str] = (reward, what)) -> float:
            same = [row for row in rows if (row.reward, row.what, row.bombs) == (*key, bombs)]
            return statistics.median(getattr(row, name) for row in same)

        count = next(row.answers for row in rows if (row.reward, row.what) == (reward, what))
        cells = [reward, f"{count} {what}", str(bombs)]
        for name in ("seconds", "rest_seconds", "processor_seconds"):
            more = f" ({median(name, bombs) - median(name, 0):+.1f})" if bombs else ""
            cells.append(f"{median(name, bombs):.1f}{more}")
        for name in ("seconds", "processor_seconds"):
            spent = median(name, 0)
            # The kernel counts processor time in ticks of 10 ms: a few answers may take none.
            cells.append("" if bombs else f"{count / spent:,.0f}" if spent else "not measurable")
        lines.append(cells)
    head = ["reward", "answers", "bombs", "all graded, s", "others graded, s", "processor, s"]
    return table([*head, "answers/s", "per processor s"], lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints a table, and writes the rows."""
    parser = options(__doc__)
    parser.add_argument("--rewards", nargs="+", default=["math_verify", "hybrid"], help="names of reward=…")
    parser.add_argument("--workers", type=int, default=1, help="reward workers (cluster=cpu has 1)")
    parser.add_argument(
        "--answers", type=int, default=2000, help="boxed numbers; a tenth as many symbolic ones"
    )
    parser.add_argument("--ordinary", type=int, default=40, help="answers beside the bombs")
    parser.add_argument("--bombs", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parsed = parser.parse_args(arguments)
    print(machine((*PACKAGES, "math-verify")) + "\n", flush=True)
    beside = ordinary(parsed.ordinary)
    rows = []
    for reward in parsed.rewards:
        for _ in range(parsed.repeat):
            for what, answers, warm in (
                ("numbers", numbers(parsed.answers), numbers(1)),
                ("symbolic", symbolic(parsed.answers // 10), symbolic(8)),
                ("ordinary", beside, []),
                ("ordinary", with_bombs(beside, parsed.bombs), []),
            ):
                rows.append(measure(reward, what, answers, parsed.workers, warm))
    print(summary(rows))
    write_json(parsed.json, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
