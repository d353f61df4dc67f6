"""Rounds of AttnRL's continuations at realistic lengths, on the plugin's rollout path without training.

    MARSRL_PREFIX_PLAN=plan.json python -m benchmarks.prefix_rounds       # `benchmarks.prefix_cache` does

The tiny model decodes responses of a fixed length, past their end and far beyond what it was trained for. The
method itself makes continuations of them (`AttnRL.next_requests`, with branch points at the least probable
tokens, since such text has no steps), and the rollout manager answers these as it does in training.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.core.group import Group
from marsrl_verl.core.prefix_tree import distinct_tokens
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.core.shared_prompts import engine_prompts
from marsrl_verl.core.trajectory import Trajectory

if TYPE_CHECKING:
    from omegaconf import DictConfig

PLAN_VARIABLE = "MARSRL_PREFIX_PLAN"
"""Environment variable with the path of the plan."""
PIPELINED, SEQUENTIAL = "pipelined", "sequential"
Tokens = Sequence[int] | TokenIds


@dataclass(frozen=True, slots=True)
class Plan:
    """One measuring process."""

    overrides: tuple[str, ...]
    lengths: tuple[int, ...]
    """Tokens of the responses that are continued."""
    problems: int
    """Per round."""
    rounds: int
    """Measured rounds of continuations, per length and mode."""
    question_terms: int
    """Terms of a problem's question, about a token each."""
    continuation_tokens: int
    block_size: int
    seed: int
    results: str


@dataclass(frozen=True, slots=True)
class Row:
    """One round with continuations in it."""

    mode: str
    length: int
    block_size: int
    servers: int
    continuations: int
    """Requests that continue a response."""
    requests: int
    sent: int
    """Prompt tokens that the requests had."""
    prompt_tokens: int
    """Those that vLLM counted."""
    shared: int
    """Of those sent, the ones after a beginning that an earlier prompt of the round had."""
    seen: int
    """The same, where the prompts and responses of earlier rounds under the same weights count too: what a
    cache without limits would hold."""
    in_blocks: int
    """Of these, the ones in blocks that are full and whose prompt has a token after them: vLLM's cache holds
    whole blocks, and it reads at least the last token of a prompt."""
    hits: int
    prefill_seconds: float
    seconds: float


def held_in_blocks(earlier: Iterable[Tokens], prompts: Iterable[Tokens], size: int) -> int:
    """Prompt tokens that a cache of whole blocks holds, when prompts are read one after another.

    Args:
        earlier: sequences whose keys and values were computed before.
        prompts: in their order.
        size: tokens of a block.
    """
    names: dict[tuple[int, tuple[int, ...]], int] = {}

    def blocks(tokens: Tokens, count: int) -> Iterator[tuple[bool, int]]:
        name = 0
        for at in range(count):
            key = (name, tuple(tokens[at * size : (at + 1) * size]))
            known = key in names
            name = names.setdefault(key, len(names) + 1)
            yield known, at

    held = 0
    for tokens in earlier:
        list(blocks(tokens, len(tokens) // size))
    for tokens in prompts:
        readable = (len(tokens) - 1) // size
        held += size * sum(known and at < readable for known, at in blocks(tokens, len(tokens) // size))
    return held


def measure(config: DictConfig, session: Path | None) -> None:
    """Starts what training starts, measures, writes the rows. Called once Ray is there."""
    from contextlib import nullcontext

    from marsrl_verl.verl_adapter.terminal import library_output_to

    with library_output_to(session / "logs" / f"prefix-{os.getpid()}.log") if session else nullcontext():
        _measure(config, read_plan())


def _measure(config: DictConfig, plan: Plan) -> None:
    import ray
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from benchmarks.throughput.plugin import FixedLengthReplica
    from marsrl_verl.verl_adapter.run.task_runner import MarsRLTaskRunner

    trainer = MarsRLTaskRunner().build_trainer(config)
    RolloutReplicaRegistry.register("vllm", lambda: FixedLengthReplica)
    try:
        trainer.init_workers()
        servers = [replica.server_handle for replica in trainer.llm_server_manager.get_replicas()]
        bench = Bench(trainer, plan, len(servers))
        bench.new_weights()
        ray.get([server.set_ignore_end.remote(True) for server in servers])
        rows = [row for length in plan.lengths for row in bench.rows(length)]
        Path(plan.results).write_text(json.dumps([asdict(row) for row in rows]))
    finally:
        trainer.close()


class Bench:
    """Measures rounds on a started trainer."""

    def __init__(self, trainer: Any, plan: Plan, servers: int) -> None:
        self.trainer, self.plan, self.servers = trainer, plan, servers
        self.random = random.Random(plan.seed)
        self.version = 0
        self.asked = 0

    def rows(self, length: int) -> Iterator[Row]:
        """As many rounds of both modes as planned."""
        for _ in range(self.plan.rounds):
            first = self.decode(self.first_requests(), length)[0]
            self.new_weights()
            continued = self.continuations(first)
            # Both kinds of requests have one limit on a response here: the new problems' are as long as what
            # continuations add at most.
            yield self.row(PIPELINED, length, continued, [*continued, *self.first_requests()], [])
            first = self.decode(self.first_requests(), length)[0]
            earlier = [one.sequence.input_ids() for _, members in first for one in members]
            continued = self.continuations(first)
            yield self.row(SEQUENTIAL, length, continued, continued, earlier)
            self.new_weights()

    def row(
        self,
        mode: str,
        length: int,
        continued: list[RolloutRequest],
        requests: list[RolloutRequest],
        earlier: list[TokenIds],
    ) -> Row:
        answered, done = self.decode(requests, self.plan.continuation_tokens, beyond_prefix=True)
        prompts = engine_prompts([one for _, members in answered for one in members])
        sent = sum(map(len, prompts))
        # The last token that was sampled is never read.
        seen = sent - (distinct_tokens([*earlier, *prompts]) - distinct_tokens(earlier))
        held = held_in_blocks([one[:-1] for one in earlier], prompts, self.plan.block_size)
        counted = done.prefill
        return Row(
            mode=mode,
            length=length,
            block_size=self.plan.block_size,
            servers=self.servers,
            continuations=sum(one.n for one in continued),
            requests=len(prompts),
            sent=sent,
            prompt_tokens=counted.prompt_tokens,
            shared=done.shared_prompt_tokens,
            seen=seen,
            in_blocks=held,
            hits=counted.cached_tokens,
            prefill_seconds=counted.seconds,
            seconds=done.seconds,
        )

    def decode(
        self, requests: list[RolloutRequest], tokens: int, beyond_prefix: bool = False
    ) -> tuple[list[tuple[RolloutRequest, list[Trajectory]]], Any]:
        """Trajectories by request, and the round that they came from; responses are cut
        after `tokens` tokens.

        A response's limit holds for the whole of it, so a round with continuations gets room for the longest
        beginning and is cut by segments instead.
        """
        settings = self.trainer.sampling[SOLVER]
        longest = settings.max_new_tokens if beyond_prefix else tokens
        sampling = {SOLVER: replace(settings, max_new_tokens=longest, segment_tokens=tokens)}
        done = self.trainer.async_rollout_manager.start(requests, sampling).wait()
        found = {one.group_id: one.trajectories for one in done.outputs}
        return [(one, found[one.group_id]) for one in requests], done

    def first_requests(self) -> list[RolloutRequest]:
        return [
            one
            for _ in range(self.plan.problems)
            for one in self.trainer.method.first_requests(self.problem(), 1)
        ]

    def problem(self) -> Problem:
        self.asked += 1
        terms = [
            f"{self.random.choice('+-')}{self.random.randint(1, 9)}" for _ in range(self.plan.question_terms)
        ]
        return Problem(f"p{self.asked}", "Compute 7" + "".join(terms), "0")

    def continuations(self, first: list[tuple[RolloutRequest, list[Trajectory]]]) -> list[RolloutRequest]:
        requests: list[RolloutRequest] = []
        for request, members in first:
            group = Group(request, members)
            requests += self.trainer.method.next_requests(request.problem, request.stage, [group], 1) or []
        if not requests:
            raise RuntimeError("the method found no branch point in any of the responses")
        return requests

    def new_weights(self) -> None:
        """A weight sync, after which the engine holds nothing of earlier rounds."""
        self.trainer.checkpoint_manager.update_weights(self.version)
        self.version += 1


def read_plan() -> Plan:
    """The plan of this process."""
    data = json.loads(Path(os.environ[PLAN_VARIABLE]).read_text())
    return Plan(**{**data, "overrides": tuple(data["overrides"]), "lengths": tuple(data["lengths"])})


def read_rows(path: Path) -> list[Row]:
    """What a measuring process wrote."""
    return [Row(**one) for one in json.loads(path.read_text())]


if __name__ == "__main__":
    from marsrl_verl.config.command_line import parse_arguments
    from marsrl_verl.config.compose import compose_config
    from marsrl_verl.verl_adapter.run.launch import run

    composed = compose_config(parse_arguments(list(read_plan().overrides))).config
    sys.exit(run(composed, work="benchmarks.prefix_rounds:measure"))
