"""Runs the real scheduler against the simulated engine and adds the time of training."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.simulation.engine_time import EngineModel, Round
from benchmarks.simulation.workload import TOKENS_PER_UNIT, NoWords, Responses, SimulatedEngine, sampling_of
from marsrl_verl.algos.marsrl.config import Config
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.request import Problem
from marsrl_verl.core.scheduler import Mode, Scheduler


@dataclass(frozen=True)
class TrainingModel:
    """Seconds of everything that is not generation."""

    tokens_per_second: float = 200_000.0
    """Assumed: response and prompt tokens per second of old log-probs, forward and backward together, on
    all GPUs of the run (64 with the default replicas; about 3,100 per GPU)."""
    constant_s: float = 20.0
    """Assumed: optimizer step, data movement, checks; per step."""
    sync_s: float = 20.0
    """Assumed: weights from the trainer to the engine, per step. No generation runs meanwhile, in no
    variant."""


@dataclass(frozen=True)
class Variant:
    """One way of scheduling."""

    name: str
    mode: Mode
    segments: int = 1
    min_group: int | None = None
    overlap: bool = False
    """Generation of step k + 1, with the weights from before step k's update, runs while step k trains.
    The scheduler is given step k + 1 after step k, as always; the period of both is the longer of the
    two, and the engine's weights are one version older."""
    extra_trainer: bool = False
    """With overlap: generation keeps all its GPUs, and a trainer pool as large is added. Else the GPUs are
    split between the two."""

    @property
    def warm_up(self) -> int:
        """Steps after which all pools are full: a problem needs no more of them."""
        return 0 if self.mode is Mode.SEQUENTIAL else STAGES * self.segments


STAGES = 5

VARIANTS = (
    Variant("sequential agents", Mode.SEQUENTIAL),
    Variant("agent pipeline", Mode.PIPELINED),
    Variant("+ 4 segments, complete groups", Mode.PIPELINED, segments=4),
    Variant("+ 4 segments, partial groups", Mode.PIPELINED, segments=4, min_group=4),
    Variant("+ overlap, same GPUs split", Mode.PIPELINED, segments=4, overlap=True),
    Variant("+ overlap, trainer GPUs added", Mode.PIPELINED, segments=4, overlap=True, extra_trainer=True),
)


@dataclass(slots=True)
class Step:
    """One training step; seconds, and counts of real tokens."""

    generation_s: float
    training_s: float
    """Without the weight sync."""
    period_s: float = 0.0
    """Seconds until the next step begins to generate."""
    trained_at_s: float = 0.0
    """Seconds since the beginning of the run when its update was done."""
    decoded: int = 0
    prefilled: int = 0
    preempted: int = 0
    rounds: int = 0
    idle_s: float = 0.0
    """Replica seconds, as are the next two."""
    draining_s: float = 0.0
    sequence_s: float = 0.0
    samples: int = 0
    """Samples that entered the loss."""
    tokens: int = 0
    """Their response tokens."""
    stale: tuple[int, ...] = (0, 0, 0, 0)
    """Of these: sampled by the newest weights, one version older, two, three and more."""
    stale_sum: int = 0
    """Sum of the tokens' ages in versions."""
    finished: int = 0
    """Samples of all groups that completed, trained or not."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a variant runs on."""

    engine: EngineModel
    training: TrainingModel
    trainer_replicas: float = 0.0
    """Size of a pool of GPUs that only train, in GPUs of a replica; 0: all GPUs take turns."""


def split(engine: EngineModel, training: TrainingModel, share: float) -> Cluster:
    """Lets `share` of the GPUs only train, and the others only generate."""
    trainers = min(max(1, round(engine.replicas * share)), engine.replicas - 1)
    return Cluster(
        replace(engine, replicas=engine.replicas - trainers),
        replace(training, tokens_per_second=training.tokens_per_second * trainers / engine.replicas),
        trainers,
    )


Stop = Callable[[list[Step]], bool]


def marsrl(seed: int) -> Method:
    """The method with the published settings: groups of 8, 2 inputs per stage, 5 stages, adaptive."""
    return MarsRL(Config(), MethodTools(NoWords(), seed=seed))


def solver_only(seed: int) -> Method:
    """Groups of 8 and one stage, as UloRL."""
    return MarsRL(Config(correction_rounds=0, train_roles=[SOLVER]), MethodTools(NoWords(), seed=seed))


def simulate(
    variant: Variant,
    responses: Responses,
    method: Method,
    cluster: Cluster,
    *,
    problems: int,
    stop: Stop,
    engine: SimulatedEngine | None = None,
) -> list[Step]:
    """Trains from empty pools, with `problems` new problems in every step, until `stop` says so.

    Args:
        engine: the engine to use; left out: a new one on the cluster's model.
    """
    engine = engine or SimulatedEngine(responses, cluster.engine)
    scheduler = Scheduler(method, variant.mode, min_group=variant.min_group)
    sampling = sampling_of(responses.workload, variant.segments)
    steps: list[Step] = []
    for number in itertools.count():
        engine.policy_version = max(0, number - variant.overlap)
        first_round = len(engine.rounds)
        names = (f"p{problems * number + i:07d}" for i in range(problems))
        scheduler.start_step(number, [Problem(name, "", "") for name in names])
        while requests := scheduler.next_round():
            scheduler.absorb(engine.generate(requests, sampling))
        result = scheduler.finish_step()
        step = _step(engine.rounds[first_round:], result.trained, number, responses, cluster.training)
        step.finished = sum(len(group.trajectories) for group in result.completed)
        steps.append(step)
        _add_clock(steps, variant, cluster.training)
        if stop(steps):
            return steps
    raise AssertionError("not reached: the count has no end")


def _step(
    rounds: list[Round], trained: list[Group], number: int, responses: Responses, training: TrainingModel
) -> Step:
    stale, stale_sum, samples, tokens, prompts = [0, 0, 0, 0], 0, 0, 0, 0
    for group in trained:
        for one in group.trajectories:
            if one.trajectory_id in group.trained_before:
                continue
            samples += 1
            prompts += responses.workload.prompts[group.request.role]
            begin = 0
            for end, version in one.sequence.versions:
                part, age = (end - begin) * TOKENS_PER_UNIT, number - version
                stale[min(age, 3)] += part
                stale_sum += part * age
                tokens += part
                begin = end
    return Step(
        generation_s=sum(one.makespan for one in rounds),
        training_s=training.constant_s + (tokens + prompts) / training.tokens_per_second,
        decoded=sum(one.decoded for one in rounds),
        prefilled=sum(one.prefilled for one in rounds),
        preempted=sum(one.preempted for one in rounds),
        rounds=len(rounds),
        idle_s=sum(one.idle_s for one in rounds),
        draining_s=sum(one.draining_s for one in rounds),
        sequence_s=sum(one.sequence_s for one in rounds),
        samples=samples,
        tokens=tokens,
        stale=(stale[0], stale[1], stale[2], stale[3]),
        stale_sum=stale_sum,
    )


def _add_clock(steps: list[Step], variant: Variant, training: TrainingModel) -> None:
    """Sets period and end of the newest step."""
    step = steps[-1]
    begin = sum(one.period_s for one in steps[:-1])
    if variant.overlap:
        before = steps[-2].training_s if len(steps) > 1 else 0.0
        step.period_s = max(step.generation_s, before) + training.sync_s
        step.trained_at_s = begin + step.period_s + step.training_s
    else:
        step.period_s = step.generation_s + step.training_s + training.sync_s
        step.trained_at_s = begin + step.period_s


def seconds_to(steps: list[Step], samples: int) -> float:
    """Seconds from empty pools until so many samples were trained; inside a step in proportion.

    Raises:
        ValueError: the run trained fewer.
    """
    done, at = 0, 0.0
    for step in steps:
        if done + step.samples >= samples:
            return at + (step.trained_at_s - at) * (samples - done) / max(1, step.samples)
        done, at = done + step.samples, step.trained_at_s
    raise ValueError(f"the run trained {done} samples, fewer than {samples}")


def figures(steps: list[Step], cluster: Cluster) -> dict[str, float]:
    """Means over the given steps (those after the pools have filled)."""
    engine = cluster.engine
    count = len(steps)
    seconds = sum(step.period_s for step in steps)
    generation = sum(step.generation_s for step in steps)
    tokens = max(1, sum(step.tokens for step in steps))
    return {
        "step_s": seconds / count,
        "generation_s": generation / count,
        "training_s": sum(step.training_s for step in steps) / count,
        "decoded_tokens_per_s": sum(step.decoded for step in steps) / seconds,
        "prefilled_per_decoded": sum(s.prefilled for s in steps) / sum(s.decoded for s in steps),
        "idle_share": sum(step.idle_s for step in steps) / (engine.replicas * generation),
        "draining_share": sum(step.draining_s for step in steps) / (engine.replicas * generation),
        "sequences_per_replica": sum(step.sequence_s for step in steps) / (engine.replicas * generation),
        "gpu_idle_share": _idle_gpus(steps, cluster),
        "preempted_per_step": sum(step.preempted for step in steps) / count,
        "rounds_per_step": sum(step.rounds for step in steps) / count,
        "samples_per_step": sum(step.samples for step in steps) / count,
        "samples_per_hour": sum(step.samples for step in steps) / seconds * 3600,
        "token_age": sum(step.stale_sum for step in steps) / tokens,
        "stale_share_1": sum(step.stale[1] for step in steps) / tokens,
        "stale_share_2": sum(step.stale[2] for step in steps) / tokens,
        "stale_share_3_or_more": sum(step.stale[3] for step in steps) / tokens,
    }


def _idle_gpus(steps: list[Step], cluster: Cluster) -> float:
    """Share of all GPU time in which a GPU waits for other GPUs. The weight sync counts as work."""
    replicas, trainers = cluster.engine.replicas, cluster.trainer_replicas
    seconds = sum(step.period_s for step in steps)
    idle = sum(step.idle_s for step in steps)
    if trainers:
        worked = seconds - len(steps) * cluster.training.sync_s
        idle += replicas * (worked - sum(step.generation_s for step in steps))
        # An update may end in the next period; over several steps this evens out, but not to the second.
        idle += trainers * max(0.0, worked - sum(step.training_s for step in steps))
    return idle / ((replicas + trainers) * seconds)
