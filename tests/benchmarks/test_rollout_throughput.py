"""What the throughput benchmark says about rounds that were measured, and which prompts it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import replace

import pytest

from benchmarks.processes import kind_of
from benchmarks.throughput.plan import PARTS, PLAIN, PLUGIN, WITH_LOG_PROBS, Plan, Row, Workload
from benchmarks.throughput.processes import KINDS, TAG, processor_seconds, spent
from benchmarks.throughput.tables import processor_table, progress, rate, result_table, verdict

NATURAL = Workload("natural", 48, False, 3)


def row(variant: str, seconds: float, repeat: int = 0, *, round: int = 1, threads: int = 1, **more) -> Row:
    return Row(variant, "natural", round, seconds, 10, 1000, 9, threads=threads, repeat=repeat, **more)


ROWS = [
    row(PLUGIN, 100.0, round=0),
    row(PLUGIN, 2.0),
    row(PLUGIN, 2.0, 1),
    row(PLAIN, 1.0),
    row(PLAIN, 1.0, 1),
    row(PLAIN, 1.6, threads=2),
    row(PLAIN, 1.6, 1, threads=2),
    row(WITH_LOG_PROBS, 0.1),
    row(WITH_LOG_PROBS, 0.1, 1),
]


def test_rounds_count_by_their_time_and_not_by_their_number():
    assert rate([row(PLUGIN, 1.0), row(PLUGIN, 3.0)]) == 500


def test_warm_ups_do_not_count():
    (line,) = progress(ROWS[:2]).splitlines()
    assert "500 tokens/s (500)" in line


def test_the_verdict_is_against_the_fastest_plain_generate():
    said = verdict(ROWS, "natural")
    assert "50 ± 0 %" in said and "LLM.generate, 1 thread;" in said and said.endswith("missed")
    better = [row(PLUGIN, 1.4), row(PLAIN, 1.0)]
    assert verdict(better, "natural").endswith("reached")
    assert "71 %" in verdict(better, "natural")


def test_the_table_pairs_the_processes_of_one_repeat():
    lines = result_table(
        [row(PLUGIN, 1.0), row(PLUGIN, 4.0, 1), row(PLAIN, 0.5), row(PLAIN, 2.0, 1)], "natural"
    )
    plain = next(line for line in lines.splitlines() if line.startswith("| LLM.generate"))
    assert "50 ± 0" in plain
    assert "| 100.0 " in plain and "| 90 " in plain


def test_processor_time_is_told_per_sample():
    one = row(PLUGIN, 2.0, processor_seconds={"engine core": 1.5, "driver": 0.5})
    lines = processor_table([one], "natural").splitlines()
    assert any("engine core" in line and "150.000" in line for line in lines)
    assert any("cores busy" in line and "1.00" in line for line in lines)


def test_no_round_repeats_the_prompts_of_another():
    problems = tuple(
        {"problem_id": str(i), "question": str(i), "ground_truth": "1", "messages": []} for i in range(100)
    )
    fixed = replace(NATURAL, name="fixed", ignore_end=True, problems=2)
    plan = Plan((), (NATURAL, fixed), problems, 8, 3, "")
    rounds = [
        plan.round_problems(workload, number, part)
        for workload in plan.workloads
        for number in range(4)
        for part in range(PARTS)
    ]
    asked = [one.question for part in rounds for one in part]
    assert len(asked) == len(set(asked)) == plan.needed(NATURAL) + plan.needed(fixed)
    with pytest.raises(ValueError, match="too few"):
        replace(plan, problems=problems[:49]).round_problems(fixed, 0)


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("VLLM::EngineCore", "engine core"),
        ("python -c from marsrl_verl.verl_adapter.cpu.template.preload import serve; serve()", "engine core"),
        ("ray::MarsRLvLLMServer.generate_group", "engine's front end"),
        ("ray::FixedLengthServer", "engine's front end"),
        ("ray::RolloutWorker.run_request", "rollout worker"),
        ("ray::RewardLoopWorker", "reward worker"),
        ("ray::AgentLoopWorker.generate_sequences", "verl's agent loops"),
        ("ray::WorkerDict", "trainer's ranks"),
        ("ray::GlobalRequestLoadBalancer", "load balancer"),
        ("/x/gcs_server --y", "Ray's own processes"),
        ("python -m marsrl_verl.rewards.grade_worker m:f 10 4096", "grader"),
    ],
)
def test_processes_are_known_by_their_titles(title, kind):
    assert kind_of(title, KINDS) == kind


def test_processor_time_of_a_tagged_process_is_found():
    tag = uuid.uuid4().hex
    code = "import sys; [i * i for i in range(10**6)]; print('ready', flush=True); sys.stdin.read()"
    before = processor_seconds(tag)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, TAG: tag},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        found = spent(before, processor_seconds(tag))
        assert child.stdin is not None
        child.stdin.close()
    assert found["other"] > 0
