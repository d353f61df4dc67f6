"""The models behind the scheduler simulation: time by hand, every token once, same seed same result."""

import itertools
import json
import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import scheduler_simulation
from benchmarks.simulation import driver
from benchmarks.simulation.driver import (
    VARIANTS,
    Cluster,
    TrainingModel,
    Variant,
    marsrl,
    seconds_to,
    simulate,
    split,
)
from benchmarks.simulation.engine_time import EngineModel, Request, run_replica, run_round
from benchmarks.simulation.workload import EARLY, TOKENS_PER_UNIT, Responses, SimulatedEngine, log_median
from benchmarks.tables import interval
from marsrl_verl.core.scheduler import Mode

# A second per decode step, and 10 prompt tokens per second.
TOY = EngineModel(
    replicas=1,
    slots=2,
    kv_tokens=1000,
    overhead_s=1.0,
    dense_bytes=0.0,
    expert_bytes=0.0,
    kv_bytes=0.0,
    bandwidth=1.0,
    prefill_rate=10.0,
)
SMALL = EngineModel(replicas=2)


def three_steps(steps):
    return len(steps) >= 3


def test_makespan_by_hand():
    # Two slots: 1 s of prompt, 3 steps until the first ends; 2 s of prompt, 2 steps until both others end.
    run = run_replica([Request(10, 3), Request(0, 5), Request(20, 2)], TOY)
    assert run.makespan == pytest.approx(8.0)
    assert (run.decoded, run.prefilled, run.preempted) == (10, 30, 0)
    assert run.sequence_s == pytest.approx(2 * 4 + 2 * 4)
    assert run.draining_s == pytest.approx(2.0)


def test_keys_and_values_are_read_in_every_step():
    model = replace(TOY, overhead_s=0.0, kv_bytes=1.0)
    assert model.decode_seconds(batch=2, held=10, steps=3) == 10 + 12 + 14
    assert run_replica([Request(0, 3)], model).makespan == 0 + 1 + 2


def test_weights_of_experts_are_read_when_they_are_touched():
    model = replace(TOY, overhead_s=0.0, dense_bytes=1.0, expert_bytes=100.0, expert_share=0.5)
    assert model.step_seconds == [1.0, 51.0, 76.0]


def test_a_full_memory_puts_out_the_youngest():
    # 2 + 2 tokens, 3 steps to 10; the second waits with 5 tokens until the first has ended 2 steps later.
    for watermark in (0.0, 0.1):
        model = replace(TOY, kv_tokens=10, watermark=watermark)
        run = run_replica([Request(2, 5), Request(2, 5)], model)
        assert run.preempted == 1
        assert run.prefilled == 2 + 2 + 5
        assert run.decoded == 10
        assert run.makespan == pytest.approx(0.4 + 3 + 2 + 0.5 + 2)


def test_replicas_wait_for_the_longest():
    total = run_round([Request(0, 9), Request(0, 4)], replace(TOY, replicas=2))
    assert total.makespan == 9.0
    assert total.idle_s == 5.0
    assert total.draining_s == 9.0 + 4.0 + 5.0


@pytest.mark.parametrize("seed", range(4))
def test_a_round_decodes_every_token_once(seed):
    rng = random.Random(seed)
    requests = [Request(rng.randrange(50), rng.randrange(1, 80)) for _ in range(60)]
    total = run_round(requests, replace(TOY, replicas=3, slots=8, kv_tokens=rng.choice([150, 300, 2000])))
    assert total.decoded == sum(request.new for request in requests)
    assert total.prefilled >= sum(request.prefix for request in requests)
    assert total.sequence_s <= 3 * 8 * total.makespan


class RecordingEngine(SimulatedEngine):
    """Keeps the newest length of every trajectory, in units."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.lengths = {}

    def generate(self, requests, sampling):
        outputs = super().generate(requests, sampling)
        for one in (one for output in outputs for one in output.trajectories):
            assert one.tokens > self.lengths.get(one.trajectory_id, 0)
            self.lengths[one.trajectory_id] = one.tokens
        return outputs


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_run_decodes_every_token_once(variant):
    responses = Responses(EARLY, 0)
    engine = RecordingEngine(responses, SMALL)
    cluster = Cluster(SMALL, TrainingModel())
    steps = simulate(
        variant, responses, marsrl(0), cluster, problems=2, stop=lambda done: len(done) >= 8, engine=engine
    )
    assert sum(step.decoded for step in steps) == sum(engine.lengths.values()) * TOKENS_PER_UNIT
    assert sum(step.samples for step in steps) <= len(engine.lengths)
    assert all(sum(step.stale) == step.tokens for step in steps)


@pytest.mark.parametrize("variant", [VARIANTS[0], VARIANTS[-1]], ids=lambda variant: variant.name)
def test_same_seed_same_run(variant):
    def run(seed):
        cluster = Cluster(SMALL, TrainingModel())
        return simulate(variant, Responses(EARLY, seed), marsrl(seed), cluster, problems=2, stop=three_steps)

    assert run(0) == run(0)
    assert run(0) != run(1)


def test_segments_bound_a_step_and_make_tokens_older():
    responses = Responses(EARLY, 0)
    cluster = Cluster(EngineModel(replicas=1), TrainingModel())
    whole, parts = (
        simulate(
            Variant("", Mode.PIPELINED, segments=segments),
            responses,
            marsrl(0),
            cluster,
            problems=4,
            stop=lambda done: len(done) >= 6,
        )
        for segments in (1, 4)
    )
    assert max(step.generation_s for step in parts) < max(step.generation_s for step in whole)
    assert sum(step.stale_sum for step in whole) == 0
    assert sum(step.stale_sum for step in parts) > 0


def test_overlap_takes_the_longer_of_both_and_makes_tokens_one_version_older():
    responses = Responses(EARLY, 0)
    training = TrainingModel(tokens_per_second=5000.0)
    plain = Variant("", Mode.PIPELINED)
    alone, both = (
        simulate(variant, responses, marsrl(0), Cluster(SMALL, training), problems=2, stop=three_steps)
        for variant in (plain, replace(plain, overlap=True))
    )
    assert [step.generation_s for step in alone] == [step.generation_s for step in both]
    for step in alone:
        assert step.period_s == step.generation_s + step.training_s + training.sync_s
    for before, step in itertools.pairwise(both):
        assert step.period_s == max(step.generation_s, before.training_s) + training.sync_s
    assert [step.stale_sum for step in both] == [0, both[1].tokens, both[2].tokens]


def test_a_split_keeps_the_number_of_gpus():
    cluster = split(EngineModel(replicas=32), TrainingModel(tokens_per_second=320.0), 0.25)
    assert (cluster.engine.replicas, cluster.trainer_replicas) == (24, 8)
    assert cluster.training.tokens_per_second == 80.0


def test_seconds_to_counts_inside_a_step_in_proportion():
    steps = [
        driver.Step(0, 0, trained_at_s=10.0, samples=4),
        driver.Step(0, 0, trained_at_s=30.0, samples=10),
    ]
    assert seconds_to(steps, 4) == 10.0
    assert seconds_to(steps, 9) == 20.0
    with pytest.raises(ValueError, match="trained 14 samples, fewer than 15"):
        seconds_to(steps, 15)


@pytest.mark.parametrize("mean", [5_000, 19_000, 30_000])
def test_lengths_have_the_published_mean(mean):
    mu = log_median(mean, 0.7, 65_536)
    drawn = np.minimum(np.exp(mu + 0.7 * np.random.default_rng(0).standard_normal(200_000)), 65_536)
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    with pytest.raises(ValueError, match="cannot be reached"):
        log_median(70_000, 0.7, 65_536)


def test_intervals_use_students_t():
    mean, half = interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.303 / 3**0.5, rel=1e-4))


def test_command(tmp_path, capsys):
    path = tmp_path / "rows.json"
    scheduler_simulation.main(["--seeds", "1", "--steps", "1", "--problems", "2", "--json", str(path)])
    output = capsys.readouterr().out
    assert output.startswith("SIMULATION")
    assert all(variant.name in output for variant in VARIANTS)
    content = json.loads(path.read_text())
    assert content["simulation"] is True
    speedups = [row["value"] for row in content["rows"] if row["metric"] == "speedup"]
    assert speedups[0] == 1.0
    assert len(speedups) == len(VARIANTS)


def test_one_queue_is_no_slower_than_rounds():
    found = scheduler_simulation.without_barriers(0, EARLY, SMALL, TrainingModel(), problems=2, steps=2)
    assert found["tokens_per_s"] > found["sequential_tokens_per_s"]
    assert found["speedup"] > 1
    assert found["step_s"] > found["generation_s"] + TrainingModel().sync_s
