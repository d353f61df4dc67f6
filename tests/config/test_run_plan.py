"""What the plan says of a whole run: steps, tokens, time, checkpoints, trackers."""

from __future__ import annotations

import json

import pytest
from messages import assert_refused
from small_files import make_data

from marsrl_verl.config.batching import plan_batch
from marsrl_verl.config.checks.output import check_disk
from marsrl_verl.config.model_shapes import PUBLISHED, shape_from_config
from marsrl_verl.config.run_cost import checkpoint_cost, evaluation_tokens, step_tokens
from marsrl_verl.evaluation.suite import BEFORE, EvaluationRecord

GIB = 1024**3
QWEN_30B = (
    "model=qwen3_30b_a3b_thinking_2507",
    "actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Thinking-2507",
)


def whole_run(done) -> str:
    """The section of a plan, on one line."""
    assert (done.status, done.err) == (0, "")
    (section,) = [text for text in done.out.split("\n\n") if text.startswith("Whole run")]
    return " ".join(section.split())


def test_steps_and_tokens_of_a_run(run):
    # 256 problems, 32 a step, three epochs. A step: 32 groups of 8 Solver responses of 48 tokens, 64 of each
    # of the other four stages, 64 tokens for a Verifier's.
    text = whole_run(
        run(
            "data.train_batch_size=32 trainer.total_epochs=3 trainer.total_training_steps=null",
            "dry_run=true",
        )
    )
    step = 8 * (32 * 48 + 2 * 64 * (64 + 48))
    assert "steps 24, 3.0 epochs of 8" in text
    assert f"tokens, at most {step:,} in a step, {24 * step:,} in all" in text
    assert "time not known: give marsrl.hardware.tokens_per_second" in text


def test_a_prompt_budget_bounds_the_tokens_of_a_step(checked):
    ctx = checked({"marsrl.pipeline.step_prompt_budget": 100, "data.train_batch_size": 32})
    # The longest first: 100 groups of the Verifier.
    assert step_tokens(plan_batch(ctx.config, ctx.settings), ctx.settings) == 100 * 8 * 64


def test_time_is_a_range_with_the_evaluations_in_it(run, checked, data):
    words = (
        f"data.val_files={data}",
        "data.train_batch_size=32",
        "trainer.total_training_steps=10",
        "marsrl.evaluation.every=5",
    )
    text = whole_run(run(*words, "marsrl.hardware.tokens_per_second=100", "dry_run=true"))
    ctx = checked({"data.train_batch_size": 32, "marsrl.evaluation.every": 5})
    training = 10 * step_tokens(plan_batch(ctx.config, ctx.settings), ctx.settings)
    evaluating = evaluation_tokens(ctx.settings, 256, 10, ctx.prompts())
    hours = (training + evaluating) / 100 / 3600
    assert hours > 4
    assert (
        f"time {hours / 4:,.1f} h to {hours:,.1f} h, {evaluating / (training + evaluating):.0%} of it "
        "evaluations (upper bound: they have no update): 100 tokens/s, as given"
    ) in text


def test_evaluations_before_between_and_after(checked):
    one = {"marsrl.evaluation.before": True, "marsrl.evaluation.after": True, "marsrl.evaluation.every": 5}
    two = {**one, "marsrl.evaluation.every": 0}
    found = [checked(changes) for changes in (one, two)]
    three, without = (evaluation_tokens(ctx.settings, 10, 14, ctx.prompts()) for ctx in found)
    assert three == 2 * without > 0  # two in between, as large as the others


def test_time_as_in_an_earlier_run(run, checked, data, tmp_path):
    folder = tmp_path / "earlier"
    folder.mkdir()
    steps = [
        {"step": n, "metrics": {"rollout/generated_tokens": 500 * n}, "timings": {"step": 10.0}}
        for n in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    key = f"marsrl.hardware.measured_run={folder}"
    assert f"75 tokens/s, as in {folder}" in whole_run(run(key, "dry_run=true"))
    assert_refused(
        run(key, "marsrl.hardware.tokens_per_second=3"), "measured_run", "says how fast the run is"
    )
    # Evaluations had no update.
    record = EvaluationRecord(BEFORE, 0, 0.95, 1.0, 2, 1, 4.0, 1200, {})
    (folder / "evaluations").mkdir()
    (folder / "evaluations" / "before.json").write_text(json.dumps(record.to_json()))
    words = (f"data.val_files={data}", "trainer.total_training_steps=10", "data.train_batch_size=32")
    text = whole_run(run(key, *words, "dry_run=true"))
    assert f"of it evaluations: 75 tokens/s (300 in evaluations), as in {folder}" in text
    ctx = checked({"data.train_batch_size": 32})
    training = 10 * step_tokens(plan_batch(ctx.config, ctx.settings), ctx.settings) / 75
    evaluating = evaluation_tokens(ctx.settings, 256, 10, ctx.prompts()) / 300
    seconds = training + evaluating
    assert f"{seconds / 3600:,.1f} h, {evaluating / seconds:.0%} of it evaluations" in text
    (folder / "metrics.jsonl").unlink()
    assert_refused(run(key), "measured_run", "no metrics.jsonl with a finished step")


def test_checkpoints_of_the_published_setting(run):
    text = whole_run(
        run(*QWEN_30B, "data=parquet", "cluster=4x8xgpu", "trainer.total_training_steps=500", "dry_run=true")
    )
    # Weights and two moments of 30.53 billion parameters in float32; one is kept, a second is written.
    assert "checkpoints 341.2 GiB every 20 steps, 25 in all; the newest is kept" in text
    assert "disk needed: 682.4 GiB" in text


@pytest.mark.parametrize(
    ("changes", "one", "most"),
    [
        ({}, 12, 4),
        ({"trainer.max_actor_ckpt_to_keep": None}, 12, 5),
        ({"trainer.max_actor_ckpt_to_keep": 1}, 12, 2),
        ({"actor_rollout_ref.actor.checkpoint.save_contents": ["model", "extra"]}, 4, 4),
        (
            {"actor_rollout_ref.actor.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"]},
            16,
            4,
        ),
    ],
    ids=["three", "all", "one", "no optimizer", "with a folder"],
)
def test_bytes_of_checkpoints(checked, changes, one, most):
    shape = shape_from_config(PUBLISHED["Qwen/Qwen3-4B-Thinking-2507"])
    found = checkpoint_cost(checked({"trainer.save_freq": 20, **changes}).config, [shape], 99)
    assert (found.one, found.most) == (one * shape.parameters, most * one * shape.parameters)


def test_no_room_for_checkpoints_is_warned_of(checked, monkeypatch):
    monkeypatch.setattr("marsrl_verl.config.checks.output.free_bytes", lambda path: 1)
    (warning,) = [one for one in checked({}).warnings if one.startswith("Checkpoints take up to")]
    assert "a save that finds no room ends the run" in warning
    assert not any(one.startswith("Checkpoints") for one in checked({}, dry_run=True).warnings)


@pytest.mark.parametrize("name", ["global_step_20", "replaced"])
def test_checkpoints_that_are_there_need_no_room(checked, monkeypatch, tmp_path, name):
    ctx = checked({"trainer.default_local_dir": str(tmp_path)})
    monkeypatch.setattr("marsrl_verl.config.checks.output.free_bytes", lambda path: 1)
    (tmp_path / name / "actor").mkdir(parents=True)
    with (tmp_path / name / "actor" / "model.pt").open("wb") as file:
        file.truncate(GIB)  # a sparse file
    assert check_disk(ctx) == []
    assert any(one.startswith("Checkpoints take") for one in ctx.warnings) == (name == "replaced")


def test_the_disk_of_a_cluster_is_not_this_machine_s(checked, monkeypatch):
    monkeypatch.setattr("marsrl_verl.config.checks.output.free_bytes", lambda path: 1)
    monkeypatch.setattr("marsrl_verl.config.checks.output.joins_cluster", lambda config: True)
    assert not any(one.startswith("Checkpoints take") for one in checked({}).warnings)


def test_trackers(run, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert "wandb where the trainer finds it installed and logged in, which it is here" in whole_run(
        run("dry_run=true")
    )
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "which it isn't here" in whole_run(run("dry_run=true"))
    assert "trackers none" in whole_run(run("dry_run=true", "trainer.logger=[]"))
    assert "trackers console, file" in whole_run(run("dry_run=true", "trainer.logger=[console,file]"))


@pytest.mark.parametrize("words", [(), (*QWEN_30B, "data=parquet", "cluster=8xgpu")], ids=["tiny", "30B"])
def test_a_plan_is_read_at_80_columns(run, words):
    done = run(*words, "dry_run=true")
    long = [line for line in done.out.splitlines()[:-1] if len(line) > 80 and len(line.split()) > 1]
    assert (done.status, long) == (0, [])


def test_of_data_that_is_partly_elsewhere_nobody_knows_the_steps(run, tmp_path):
    here = make_data(tmp_path / "here.jsonl", ["2"] * 64)
    words = (f"data.train_files=[{here},s3://bucket/b.parquet]", f"data.val_files={here}")
    text = whole_run(run("data=parquet", *words, "data.train_batch_size=32", "dry_run=true"))
    assert "steps 10 epochs of data that was not read" in text


def test_phases_bound_the_steps(run):
    """Three iterations of two phases: each counts in one epoch, then trains in four. The reasoning agent's
    steps ask a quarter of the problems, which become four prompts each."""
    words = (
        "algo=rema_single_turn", "model=tiny_rema", "data=rema_task", "pipeline=sequential",
        "policies=model_per_role", "data.train_batch_size=16", "trainer.total_training_steps=null",
        "trainer.total_epochs=10000", "marsrl.algo.iterations=3", "marsrl.algo.episodes=4",
        "marsrl.algo.plans_per_problem=4", "data.train_max_samples=200", "dry_run=true",
    )  # fmt: skip
    counting, planning, solving = 13, 13, 50  # of 200 problems, 16 or 4 a step
    steps = 3 * (counting + 4 * planning + counting + 4 * solving)
    text = whole_run(run(*words))
    assert f"steps {steps} at most, if every epoch has all problems; ends earlier" in text
    text = whole_run(run(*words, "marsrl.algo.iterations=null"))
    assert "steps 120,000, 9,600.0 epochs" in text
    text = whole_run(run(*words, "trainer.total_training_steps=5"))
    assert "steps 5, " in text


def test_steps_that_change_nothing(run):
    optim = "actor_rollout_ref.actor.optim"
    done = run(f"{optim}.clip_grad=0", "dry_run=true")
    assert_refused(done, f"{optim}.clip_grad = 0", "1000 clips nothing")
    done = run(f"{optim}.lr=0", "dry_run=true")
    assert done.status == 0 and "the weights stay as they are" in " ".join(done.out.split())
    assert_refused(
        run("marsrl.watch.steps=1000000", "dry_run=true"), "marsrl.watch.steps", "a watch has to end"
    )
