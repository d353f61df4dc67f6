"""Trajectories with slow tools: each by itself, against rounds in which all wait for the slowest.

    python -m benchmarks.agent_loop
    python -m benchmarks.agent_loop --problems 16 --repeat 3 --json rows.json

One run measures both, on the same trajectories. First the project's own loop rolls them out. Then a loop in
rounds does what that has recorded, turn by turn: all that are active write up to a call or their end, wait
for each other, make their calls, wait again; forks begin with the next round, and where a problem's
trajectories have all ended, one further root, as in ARPO's released code. Tools take 0.1 to 2 seconds,
uniformly, as many at a time as are called.

There is no model. The engine counts time: a decoding step takes `--step` milliseconds and 0.05 more for each
sequence in it, of which there are `--slots` at most; reading prompts takes none. A turn has 80 tokens in the
mean (lognormal, sigma 0.8), a trajectory up to three calls. Seconds are those of the clock.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.record import machine, options, write_json
from benchmarks.tables import table
from marsrl_verl.algos.arpo.branching import BranchLaw
from marsrl_verl.algos.arpo.config import BranchingConfig, Config
from marsrl_verl.algos.arpo.rollout import PROGRAM
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import TokenIds, token_ids
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.generation import Completion, Decoding, TopLogProbs
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.tools.base import Tool, ToolCall, ToolConfig, ToolResult, function_schema
from marsrl_verl.tools.toolbox import Toolbox

SHORTEST_S, LONGEST_S = 0.1, 2.0
CALLS = (0.3, 0.25, 0.25, 0.2)
"""How often a trajectory has 0, 1, 2 or 3 calls."""
_CALL = "<python>1</python>"
_PER_SEQUENCE_MS = 0.05
_MEAN, _SIGMA = 80.0, 0.8


class Letters:
    """A tokenizer whose tokens are characters."""

    chat_template: str | None = None
    eos_token_id: int | None = None
    all_special_tokens: tuple[str, ...] = ()
    added_tokens_decoder: Mapping[int, Any] = {}
    name_or_path = ""

    def __len__(self) -> int:
        return 128

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **_: Any) -> dict[str, Any]:
        """A line each."""
        return {"input_ids": self.encode("\n".join(one["content"] for one in messages))}

    def encode(self, text: str, **_: Any) -> list[int]:
        """Code points."""
        return [ord(one) for one in text]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """The text."""
        return "".join(map(chr, ids))


@dataclass
class Engine:
    """Continuous batching by the clock: implements `GenerationClient`."""

    step_ms: float
    slots: int
    seed: int
    waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)
    running: list[list[Any]] = field(default_factory=list)
    """[tokens left, who waits]"""
    tokens: int = 0
    _loop: asyncio.Task[None] | None = None

    async def decode(self, count: int) -> None:
        """Waits as long as so many tokens of one sequence take among the others'."""
        done = asyncio.get_running_loop().create_future()
        self.waiting.append((count, done))
        if self._loop is None or self._loop.done():
            self._loop = asyncio.ensure_future(self._steps())
        await done

    async def _steps(self) -> None:
        due = time.perf_counter()
        while self.waiting or self.running:
            while self.waiting and len(self.running) < self.slots:
                self.running.append(list(self.waiting.pop(0)))
            due += (self.step_ms + _PER_SEQUENCE_MS * len(self.running)) / 1000
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self.tokens += len(self.running)
            for one in self.running:
                one[0] -= 1
                if one[0] <= 0:
                    one[1].set_result(None)
            self.running = [one for one in self.running if one[0] > 0]

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        """What a trajectory writes next: a function of its name and turn."""
        text = "".join(map(chr, prompt_ids.tolist()))
        turn, written = text.count("</result>"), len(re.split(r"</result>|\n#\n", text)[-1])
        target = self.turn(name, turn)[written:]
        ids = [ord(one) for one in target[: decoding.max_tokens]]
        await self.decode(max(1, len(ids)))
        complete = len(ids) == len(target)
        called = complete and target.endswith("</python>")
        unsure = derive_generator(self.seed, "entropy", name, turn).random() < 0.5
        return [
            Completion(
                token_ids(ids),
                np.full(len(ids), -1.0, np.float32),
                FinishReason.STOP if complete else FinishReason.LENGTH,
                "</python>" if called else None,
                top=_top(len(ids), 0.5 if unsure else 0.9) if decoding.top_log_probs else None,
            )
        ]

    def turn(self, name: str, turn: int) -> str:
        """A turn's text."""
        rng = derive_generator(self.seed, "turn", name, turn)
        count = max(4, int(rng.lognormal(np.log(_MEAN) - _SIGMA**2 / 2, _SIGMA)))
        calls = int(derive_generator(self.seed, "calls", name).choice(len(CALLS), p=CALLS))
        return "x" * count + (_CALL if turn < calls else "")


def _top(count: int, likeliest: float) -> TopLogProbs:
    known = np.log(np.tile([likeliest, 0.95 - likeliest], (count, 1))).astype(np.float32)
    return TopLogProbs(np.zeros((count, 2), np.int32), known)


class Slow(Tool):
    """A tool that takes its time."""

    def __init__(self, seed: int) -> None:
        self.name, self.seed = "python", seed

    @classmethod
    def from_settings(cls, name: str, settings: Any, *, seed: int, secrets: Mapping[str, str]) -> Slow:
        """Of any entry."""
        return cls(seed)

    async def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Nothing to release."""

    def schema(self) -> Mapping[str, Any]:
        """A text."""
        return function_schema("python", "Takes its time.", {"code": {"type": "string"}}, ("code",))

    async def call(self, call: ToolCall) -> ToolResult:
        """Sleeps."""
        await asyncio.sleep(derive_generator(self.seed, call.call_id).uniform(SHORTEST_S, LONGEST_S))
        return ToolResult("1")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured pair."""

    law: str
    trajectories: int
    calls: int
    tokens: int
    alone_s: float
    """Each trajectory by itself."""
    rounds_s: float
    """In rounds."""
    rounds: int

    @property
    def ratio(self) -> float:
        """How many times the throughput of rounds."""
        return self.rounds_s / self.alone_s


def measure(law: BranchLaw, problems: int, size: int, step_ms: float, slots: int, seed: int) -> Row:
    """Roll trajectories out, then once more in rounds."""
    branching = BranchingConfig(law=law, entropy_tokens=8, top_log_probs=2)
    config = Config(group_size=size, branching=branching)
    engine = Engine(step_ms, slots, seed)
    groups, alone = asyncio.run(_rolled_out(config, engine, problems, seed))
    tokens = engine.tokens
    members = [one for group in groups for one in group]
    calls = sum(event["by"] == one.number for one in members for event in one.events)
    in_rounds = Engine(step_ms, slots, seed)
    rounds_s, rounds = asyncio.run(_in_rounds(groups, in_rounds, config.roots))
    if in_rounds.tokens != tokens:
        raise RuntimeError(
            f"{in_rounds.tokens} tokens in rounds, {tokens} without: not the same trajectories"
        )
    return Row(str(law), len(members), calls, tokens, alone, rounds_s, rounds)


async def _rolled_out(
    config: Config, engine: Engine, problems: int, seed: int
) -> tuple[list[list[Trajectory]], float]:
    async def score(_: RolloutRequest, members: Sequence[Trajectory]) -> list[RewardResult]:
        return [RewardResult(1.0) for _ in members]

    tools = Toolbox([(Slow(seed), ToolConfig(target="python", max_concurrency=100_000))])
    await tools.start()
    runner = RolloutRunner(
        engine,
        ChatTokenizer(Letters()),
        score,
        tools=tools,
        settings=SimpleNamespace(algo=config),
        seed=seed,
    )
    sampling = {"solver": Sampling(max_new_tokens=10**6, max_prompt_tokens=100)}
    requests = [
        RolloutRequest(
            f"p{number}/agent/0",
            Problem(f"p{number}", "?", "1"),
            "agent",
            "solver",
            ({"role": "user", "content": "?\n#\n"},),
            config.group_size,
            PROGRAM,
        )
        for number in range(problems)
    ]
    begin = time.perf_counter()
    outputs = await asyncio.gather(*[runner.run(one, sampling) for one in requests])
    return [one.trajectories for one in outputs], time.perf_counter() - begin


@dataclass(slots=True)
class _Replayed:
    """What a recorded trajectory did itself, turn by turn."""

    number: int
    turns: list[int]
    """Tokens of each turn."""
    waits: list[float]
    """Seconds of each of its calls."""
    parent: int | None
    level: int
    done: int = 0

    @classmethod
    def of(cls, one: Trajectory) -> _Replayed:
        begin = 0 if one.fork is None else one.fork.token
        own = [event for event in one.events if event["by"] == one.number]
        level = len(one.events) - len(own)
        turn, mask = one.sequence.annotations["turn"][begin:], one.sequence.response_mask[begin:] == 1
        turns = [int((mask & (turn == number)).sum()) for number in range(level, len(one.events) + 1)]
        parent = None if one.fork is None else int(one.fork.trajectory_id.rpartition("#")[2])
        return cls(
            one.number, [one for one in turns if one], [event["seconds"] for event in own], parent, level
        )

    @property
    def ended(self) -> bool:
        return self.done >= len(self.turns)

    @property
    def read(self) -> int:
        """Results that it has read."""
        return self.level + min(self.done, len(self.waits))


async def _in_rounds(groups: list[list[Trajectory]], engine: Engine, roots: int) -> tuple[float, int]:
    waiting = [{one.number: _Replayed.of(one) for one in group} for group in groups]
    active: list[dict[int, _Replayed]] = [
        {number: group.pop(number) for number in range(min(roots, len(group)))} for group in waiting
    ]
    begin, rounds = time.perf_counter(), 0
    while any(not one.ended for group in active for one in group.values()):
        rounds += 1
        going = [one for group in active for one in group.values() if not one.ended]
        await asyncio.gather(*[engine.decode(one.turns[one.done]) for one in going])
        called = [one.waits[one.done] for one in going if one.done < len(one.waits)]
        await asyncio.gather(*map(asyncio.sleep, called))
        for one in going:
            one.done += 1
        for group, rest in zip(active, waiting, strict=True):
            _begin_next(group, rest)
    return time.perf_counter() - begin, rounds


def _begin_next(group: dict[int, _Replayed], rest: dict[int, _Replayed]) -> None:
    """Forks of who has read their result; where all have ended, one further root."""
    for number, one in sorted(rest.items()):
        if one.parent is not None and one.parent in group and group[one.parent].read >= one.level:
            group[number] = rest.pop(number)
    if rest and all(one.ended for one in group.values()):
        number = next(number for number, one in sorted(rest.items()) if one.parent is None)
        group[number] = rest.pop(number)


def summary(rows: Sequence[Row]) -> str:
    """Medians over repetitions."""
    lines = []
    for law in dict.fromkeys(row.law for row in rows):
        same = [row for row in rows if row.law == law]
        middle = {
            name: statistics.median(getattr(row, name) for row in same)
            for name in ("trajectories", "calls", "tokens", "alone_s", "rounds_s", "rounds", "ratio")
        }
        cells = [f"{middle[name]:,.0f}" for name in ("trajectories", "calls", "tokens")]
        cells += [f"{middle['alone_s']:.1f}", f"{middle['rounds_s']:.1f}", f"{middle['rounds']:.0f}"]
        lines.append([law, *cells, f"{middle['ratio']:.2f}"])
    head = [
        "forks",
        "trajectories",
        "calls",
        "tokens",
        "each by itself, s",
        "in rounds, s",
        "rounds",
        "ratio",
    ]
    return table(head, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints a table, and writes the rows."""
    parser = options(__doc__)
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--size", type=int, default=16, help="trajectories of a problem")
    parser.add_argument("--step", type=float, default=8.0, help="milliseconds of a decoding step")
    parser.add_argument("--slots", type=int, default=256, help="sequences that are decoded at a time")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument(
        "--laws", nargs="+", default=["threshold", "off"], choices=[str(one) for one in BranchLaw]
    )
    parsed = parser.parse_args(arguments)
    print(machine(("numpy",)) + "\n", flush=True)
    rows = [
        measure(BranchLaw(law), parsed.problems, parsed.size, parsed.step, parsed.slots, seed)
        for law in parsed.laws
        for seed in range(parsed.repeat)
    ]
    print(summary(rows))
    write_json(parsed.json, [{**asdict(row), "ratio": row.ratio} for row in rows])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
