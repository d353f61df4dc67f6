"""How long a generation round takes: a model of continuous batching on several replicas.

Nothing is measured here. The constants of `EngineModel` come from data sheets and from the shape of the
model that is decoded, or are assumptions; each says which.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class EngineModel:
    """Replicas of an inference engine. A decode step of B sequences that hold K tokens takes

        overhead + bytes of the weights that B tokens touch / bandwidth + K * bytes per token / bandwidth.

    Decoding is taken to be bound by memory, not by arithmetic. The defaults are Qwen3-30B-A3B in bfloat16
    on two 80 GB accelerators per replica.
    """

    replicas: int = 32
    """Assumed: the papers do not say how many GPUs they used."""
    slots: int = 256
    """Most sequences that one replica decodes at once (vLLM's `max_num_seqs`; its default on large GPUs
    is higher, memory for keys and values is the tighter limit)."""
    kv_tokens: int = 800_000
    """Tokens that fit into a replica's memory for keys and values: 2 x 80 GB x 0.9 less 61 GB of weights
    and some room for activations, at 96 KiB a token (48 layers, 4 key-value heads of 128, bfloat16)."""
    watermark: float = 0.01
    """Share of that memory that must stay free when a sequence is admitted (as in vLLM)."""
    overhead_s: float = 0.005
    """Assumed: seconds per decode step for launching, sampling, communication."""
    dense_bytes: float = 3.1e9
    """Weights that every token touches (attention, embeddings): 1.5 B parameters."""
    expert_bytes: float = 58e9
    """Weights of the experts: 29 B parameters; 8 of 128 experts are chosen for a token."""
    expert_share: float = 8 / 128
    kv_bytes: float = 98_304.0
    """Bytes of keys and values per token."""
    bandwidth: float = 2 * 3.35e12 * 0.6
    """Bytes per second: data sheet of two H100; 60 % of it is assumed to be reached."""
    prefill_rate: float = 40_000.0
    """Assumed: prompt tokens per second and replica. While a prompt is read, decoding waits; with chunked
    prefill it is slowed down instead, which takes the same time in total."""

    @cached_property
    def step_seconds(self) -> list[float]:
        """Seconds of a decode step without reading keys and values, by number of sequences."""
        seconds = []
        for batch in range(self.slots + 1):
            touched = 1.0 - (1.0 - self.expert_share) ** batch
            seconds.append(
                self.overhead_s + (self.dense_bytes + touched * self.expert_bytes) / self.bandwidth
            )
        return seconds

    def decode_seconds(self, batch: int, held: int, steps: int) -> float:
        """Seconds for `steps` decode steps of `batch` sequences that hold `held` tokens at the beginning."""
        read = steps * held + batch * steps * (steps - 1) // 2  # they grow by a token in every step
        return steps * self.step_seconds[batch] + read * self.kv_bytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class Request:
    """One response, or one segment of it."""

    prefix: int
    """Tokens to be read first: the prompt and earlier segments."""
    new: int
    """Tokens to be decoded, at least 1."""


@dataclass(slots=True)
class Round:
    """What a generation round took; seconds and tokens, summed over the replicas but for the makespan."""

    makespan: float = 0.0
    """Seconds until the last response was complete."""
    decoded: int = 0
    prefilled: int = 0
    """Tokens read: prompts, prefixes of segments, sequences that were put out and read again."""
    preempted: int = 0
    """How often a sequence was put out because memory for keys and values was full."""
    idle_s: float = 0.0
    """Replica seconds with nothing to decode, while another replica was not done."""
    sequence_s: float = 0.0
    """Sum over sequences of the seconds for which they were decoded or held a slot."""
    draining_s: float = 0.0
    """Replica seconds without a waiting request: slots that become free stay empty. Idle ones included."""


def run_round(requests: Sequence[Request], model: EngineModel) -> Round:
    """Deals the requests out to the replicas in turn, as they come, and decodes all of them."""
    runs = [run_replica(requests[first :: model.replicas], model) for first in range(model.replicas)]
    total = Round(makespan=max(run.makespan for run in runs))
    for run in runs:
        waited = total.makespan - run.makespan
        total.decoded += run.decoded
        total.prefilled += run.prefilled
        total.preempted += run.preempted
        total.sequence_s += run.sequence_s
        total.idle_s += waited
        total.draining_s += run.draining_s + waited
    return total


@dataclass(slots=True)
class _Running:
    """A sequence in a slot."""

    end: int
    """Number of the decode step after which it is complete."""
    final: int
    """Tokens that it holds then."""


def run_replica(requests: Sequence[Request], model: EngineModel) -> Round:
    """Decodes all requests on one replica, first come, first served.

    Between two events (a sequence ends, or memory is full) the batch stays the same, so that the time in
    between has a closed form.
    """
    waiting = deque((number, request.prefix, request.new) for number, request in enumerate(requests))
    running: dict[int, _Running] = {}
    ends: list[tuple[int, int]] = []  # heap of (end, number); entries of sequences put out are stale
    result = Round()
    now, drained_at, steps, held = 0.0, 0.0, 0, 0
    limit = model.kv_tokens * (1.0 - model.watermark)
    while waiting or running:
        arrived = now
        while (
            waiting
            and len(running) < model.slots
            # A sequence put out would else be let in again at once, without room for a single step.
            and (not running or held + waiting[0][1] <= min(limit, model.kv_tokens - len(running) - 1))
        ):
            number, prefix, new = waiting.popleft()
            running[number] = _Running(steps + new, prefix + new)
            heapq.heappush(ends, (steps + new, number))
            held += prefix
            result.prefilled += prefix
            now += prefix / model.prefill_rate
            drained_at = now
        batch = len(running)
        while ends[0][1] not in running or running[ends[0][1]].end != ends[0][0]:
            heapq.heappop(ends)
        advance = ends[0][0] - steps
        if batch > 1:  # a sequence alone may always go on
            advance = min(advance, max(0, (model.kv_tokens - held) // batch))
        now += model.decode_seconds(batch, held, advance)
        steps += advance
        held += batch * advance
        result.decoded += batch * advance
        result.sequence_s += batch * (now - arrived)
        ended = False
        while ends and ends[0][0] <= steps:
            _, number = heapq.heappop(ends)
            sequence = running.get(number)
            if sequence is not None and sequence.end == steps:
                held -= running.pop(number).final
                ended = True
        if not ended:  # memory is full: the youngest goes back to the queue and is read again later
            number = max(running)
            sequence = running.pop(number)
            missing = sequence.end - steps
            held -= sequence.final - missing
            waiting.appendleft((number, sequence.final - missing, missing))
            result.preempted += 1
    result.makespan = now
    result.draining_s = now - drained_at
    return result
