"""A run that continues: the checkpoint must be its own, and made with the settings it is bound to."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys

import pytest
from messages import accepted, assert_checks_refuse, assert_refused
from omegaconf import OmegaConf
from small_files import make_data, sums, write_answers, write_problems

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.config.checks.resume import record_files
from marsrl_verl.config.command_line import EVALUATE
from marsrl_verl.config.node import leaves
from marsrl_verl.config.reference import find_unknown, reference_tree
from marsrl_verl.config.resume_rules import TABLE, Rule, changed_settings, rule_of
from marsrl_verl.reporting.manifest import MANIFEST_NAME, describe
from marsrl_verl.settings.issues import ConfigError

pytestmark = pytest.mark.slow

MODE, PATH, LOCAL = "trainer.resume_mode", "trainer.resume_from_path", "trainer.default_local_dir"
ROLES = (SOLVER, VERIFIER, CORRECTOR)
JSONL = "marsrl.policies.solver.jsonl"
RESUME = {"name": "old", "marsrl.run.if_exists": "resume"}


def left_run(checked, tmp_path, settings):
    """The folder of a run with these settings."""
    context = checked(settings)
    folder = tmp_path / "outputs" / "old"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"format_version": 1}')
    record_files(context)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(context.config))
    (folder / "metrics.jsonl").write_text("{}\n")
    return folder


@pytest.fixture
def old_run(checked, tmp_path):
    """The folder of a run with the default settings."""
    return left_run(checked, tmp_path, {"name": "old"})


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("marsrl.algo.group_size", 16, "Set marsrl.algo.group_size=8"),
        ("marsrl.algo.requests_per_stage", 3, "has 2"),
        ("marsrl.algo.correction_rounds", 1, "has 2"),
        ("marsrl.algo.select_scope", "group", "has problem"),
        ("marsrl.algo.train_roles", ["solver"], "has ['solver', 'verifier', 'corrector']"),
        ("marsrl.pipeline.mode", "sequential", "has pipelined"),
        ("marsrl.run.seed", 2, "has 1"),
        ("data.train_batch_size", 16, "has 32"),
        ("data.train_max_samples", 100, "has -1"),
        ("data.shuffle", False, "has True"),
        ("data.dataloader_num_workers", 2, "torchdata's loader refuses"),
        ("trainer.n_gpus_per_node", 2, "1 ranks in all"),
        ("data.apply_chat_template_kwargs.enable_thinking", False, "has null"),
        ("marsrl.pipeline.max_segments", 2, "has 1"),
        ("actor_rollout_ref.actor.optim.optimizer", "SGD", "has AdamW"),
        ("actor_rollout_ref.actor.fsdp_config.model_dtype", "bf16", "has fp32"),
    ],
)
def test_what_a_checkpoint_is_bound_to(checked, old_run, key, value, hint):
    assert_checks_refuse(checked, {**RESUME, key: value}, key, hint)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trainer.total_training_steps": 99, "trainer.save_freq": 1, "trainer.logger": ["console"]},
        {"marsrl.evaluation.every": 3, "marsrl.evaluation.greedy": False, "marsrl.run.progress": False},
        {"actor_rollout_ref.actor.optim.lr": 1e-5, "marsrl.algo.selection": "random"},
        {"actor_rollout_ref.actor.ppo_epochs": 2, "marsrl.pipeline.overlap": "one_step"},
        {"ray_kwargs.ray_init.runtime_env.env_vars.NEW": "1", "reward.num_workers": 2},
        {"marsrl.reward.solver.timeout_s": 900.0, "marsrl.reward.corrector.timeout_s": 900.0},
    ],
)
def test_what_may_change(checked, old_run, changes):
    checked({**RESUME, **changes})


@pytest.mark.parametrize(
    ("key", "value"),
    [("marsrl.evaluation.samples_per_problem", 4), ("marsrl.roles.solver.max_new_tokens", 40)],
)
def test_what_may_change_in_another_folder(checked, old_run, key, value):
    assert_checks_refuse(checked, {**RESUME, key: value}, key, "trainer.resume_mode=resume_path")
    step = old_run / "checkpoints" / "global_step_4"
    complete(step)
    checked({"name": "fork", MODE: "resume_path", PATH: str(step), key: value})


def test_where_nothing_was_trained_anything_may_change(checked, old_run):
    (old_run / "metrics.jsonl").unlink()
    checked({**RESUME, "marsrl.algo.group_size": 16, "marsrl.roles.solver.max_new_tokens": 40})


LIMIT = re.compile(r"(\w+_)?(timeout_s|processes)|api_key_\w+")
"""Names of settings that decide when a call is given up, how many there are at once, and who may ask."""


def test_every_setting_is_in_a_class(composed):
    trees = (OmegaConf.to_container(composed.config), reference_tree())
    keys = sorted({key for tree in trees for key, _ in leaves(tree)})
    assert len(keys) > 700
    assert [key for key in keys if rule_of(key) is None] == []
    limits = [key for key in keys if LIMIT.fullmatch(key.rpartition(".")[2])]
    assert "marsrl.reward.solver.timeout_s" in limits
    named = [key for keys in TABLE.values() for key in keys]  # "*" is any role
    assert [key for key in limits if rule_of(key) is not Rule.ACTS and key not in named] == []
    assert {rule for key in keys if (rule := rule_of(key))} == set(Rule)
    for item in named:
        assert find_unknown(item.replace("*", "solver")) is None, "a rule for a key that is there"


@pytest.mark.parametrize(
    "key",
    [
        *(f"marsrl.reward.{role}.{name}" for role in ROLES for name in ("timeout_s", "kwargs.processes")),
        "marsrl.policies.solver.endpoint.api_key_file",
        # One kernel or many: the moments are the same.
        "actor_rollout_ref.actor.optim.override_optimizer_config.fused",
    ],
)
def test_limits_and_keys_may_change(key):
    assert rule_of(key) is Rule.ACTS


def test_the_rules_can_be_imported_alone():
    subprocess.run([sys.executable, "-c", "import marsrl_verl.config.resume_rules"], check=True)


def test_a_setting_without_a_rule_is_bound_and_one_that_follows_is_left_out(composed):
    new = {"a": {"own": 1, "length": 2, "same": 3}, "stranger": {"key": 1}}
    raw = {"a": {"own": 1, "length": "${marsrl.max:8,${a.own}}", "same": 3}, "stranger": {"key": 1}}
    old = {"a": {"own": 5, "length": 6, "same": 3}, "stranger": {"key": 2}}
    found = list(changed_settings(new, raw, old))
    assert found == [("a.own", 1, 5, Rule.BOUND), ("stranger.key", 1, 2, Rule.BOUND)]
    # A key that verl's or our tree has came with a version; an entry of a free dictionary was set.
    old = {"data": {"apply_chat_template_kwargs": {"enable_thinking": True}}}
    new = {"data": {"apply_chat_template_kwargs": {}, "shuffle": True}}
    assert [item[0] for item in changed_settings(new, new, old)] == [
        "data.apply_chat_template_kwargs.enable_thinking"
    ]


def complete(step):
    """A complete checkpoint, and its weights."""
    (step / "actor").mkdir(parents=True)
    weights = step / "actor" / "model_world_size_1_rank_0.pt"
    for path in (step / "marsrl.pt", step / "data.pt", weights):
        path.write_bytes(b"content")
    files = {str(path.relative_to(step)): describe(path) for path in step.rglob("*.pt")}
    (step / MANIFEST_NAME).write_text(json.dumps({"files": files}))
    return weights


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "unlisted"])
def test_a_damaged_checkpoint_is_refused_before_the_start(checked, old_run, damage):
    step = old_run / "checkpoints" / "global_step_4"
    weights = complete(step)
    checked(RESUME)
    if damage == "missing":
        weights.unlink()
    elif damage == "unlisted":
        (step / MANIFEST_NAME).write_text('{"files": {}}')
    else:
        weights.write_bytes(b"conten" if damage == "truncated" else b"Content")
    hint = "lists 0 files and lacks" if damage == "unlisted" else f"{weights.name} is damaged"
    assert_checks_refuse(checked, RESUME, "global_step_4", hint)
    with pytest.raises(ConfigError) as caught:
        checked(RESUME)
    assert str(caught.value).count("Restore it, or remove") == 1
    caught = assert_checks_refuse(
        checked, {"name": "fork", MODE: "resume_path", PATH: str(step)}, "global_step_4", hint
    )
    assert f"Restore it, or name another checkpoint, {PATH}=" in caught
    assert "emove" not in caught
    checked({**RESUME, MODE: "disable", "marsrl.run.if_exists": "replace"})
    (step / MANIFEST_NAME).unlink()
    checked(RESUME)  # interrupted, and passed over
    assert_checks_refuse(
        checked, {"name": "fork", MODE: "resume_path", PATH: str(step)}, "global_step_4", MANIFEST_NAME
    )


@pytest.fixture
def old_frozen_run(checked, tmp_path):
    """The folder of a run behind a file of answers, and the settings that continue it."""
    path = write_answers(tmp_path / "a.jsonl", {"question": "1 + 1", "answers": ["2"]})
    settings = {
        "name": "old",
        "marsrl.algo.train_roles": ["verifier", "corrector"],
        "marsrl.policies.solver.kind": "jsonl",
        "marsrl.roles.solver.policy": "solver",
        f"{JSONL}.path": path,
    }
    left_run(checked, tmp_path, settings)
    return {**settings, **RESUME}


def test_a_frozen_policy_stays_the_same(checked, old_frozen_run, tmp_path):
    checked(old_frozen_run)
    other = write_answers(tmp_path / "b.jsonl", {"question": "1 + 1", "answers": ["2"]})
    assert_checks_refuse(checked, {**old_frozen_run, f"{JSONL}.path": other}, f"{JSONL}.path", "a.jsonl")
    own = {name: value for name, value in old_frozen_run.items() if "policies" not in name}
    own["marsrl.roles.solver.policy"] = None
    assert_checks_refuse(checked, own, "marsrl.roles.solver.policy", "has solver")
    write_answers(tmp_path / "a.jsonl", {"question": "1 + 1", "answers": ["2", "3"]})
    assert_checks_refuse(checked, old_frozen_run, f"{JSONL}.path", "when the run began")


def test_other_data_and_model(checked, old_run, tmp_path):
    other = make_data(tmp_path / "other.jsonl", ["1"] * 64)
    assert_checks_refuse(
        checked, {**RESUME, "data.train_files": str(other)}, "data.train_files", "problems.jsonl"
    )
    assert_checks_refuse(
        checked, {**RESUME, "data.val_files": str(other)}, "data.val_files", "held_out.jsonl"
    )


def test_same_file_written_otherwise(checked, old_run, data):
    checked({**RESUME, "data.train_files": [str(data)]})


def test_file_with_other_rows(checked, old_run, tmp_path):
    path = make_data(tmp_path / "rows.jsonl", ["1"] * 64)
    record = OmegaConf.load(old_run / "config.yaml")
    record.data.train_files = str(path)
    record.marsrl.run.data_bytes = {str(path): path.stat().st_size}
    (old_run / "config.yaml").write_text(OmegaConf.to_yaml(record))
    changes = {**RESUME, "data.train_files": str(path)}
    checked(changes)
    make_data(path, ["1"] * 65)
    assert_checks_refuse(checked, changes, "data.train_files", "when the run began")


def test_file_of_the_same_size_with_other_rows(checked, old_run, tmp_path):
    path = make_data(tmp_path / "rows.jsonl", ["1"] * 64)
    record = OmegaConf.load(old_run / "config.yaml")
    record.data.train_files = str(path)
    record.marsrl.run.data_sha256 = {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    (old_run / "config.yaml").write_text(OmegaConf.to_yaml(record))
    changes = {**RESUME, "data.train_files": str(path)}
    checked(changes)
    make_data(path, ["2"] * 64)
    assert_checks_refuse(checked, changes, "data.train_files", "The file's SHA-256 is")


def test_broken_record(checked, old_run):
    (old_run / "config.yaml").write_text("a: [b\n")
    assert_checks_refuse(checked, RESUME, "config.yaml", "can't be read")


def test_run_that_ended_before_its_record(checked, old_run):
    (old_run / "config.yaml").unlink()
    checked({**RESUME, "data.train_batch_size": 16})


def test_checkpoints_without_a_record(checked, old_run, tmp_path):
    (old_run / "config.yaml").rename(old_run / "config.1.yaml")
    step = old_run / "checkpoints" / "global_step_4"
    complete(step)
    assert_checks_refuse(checked, RESUME, "outputs/old/config.yaml", "config.N.yaml")
    assert_checks_refuse(
        checked, {"name": "fork", MODE: "resume_path", PATH: str(step)}, "config.yaml", "missing"
    )
    elsewhere = tmp_path / "place"
    step.parent.rename(elsewhere)
    assert_checks_refuse(
        checked, {**RESUME, LOCAL: str(elsewhere)}, "outputs/old/config.yaml", "config.N.yaml"
    )
    checked({"name": "fork", MODE: "resume_path", PATH: str(elsewhere / step.name)})
    (old_run / "config.1.yaml").rename(old_run / "config.yaml")
    checked(RESUME)


def test_record_has_sizes_and_checksums_of_data(run, data, held_out):
    recorded = run("cluster=cpu").launched.marsrl.run
    assert dict(recorded.data_bytes) == {str(path): path.stat().st_size for path in (data, held_out)}
    assert dict(recorded.data_sha256) == {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in (data, held_out)
    }


@pytest.mark.parametrize(
    ("changes", "key", "hint"),
    [
        ({MODE: "latest"}, f"{MODE} = latest", "resume_path"),
        ({**RESUME, MODE: "disable"}, f"{MODE} = disable", "if_exists=replace"),
        ({MODE: "resume_path"}, f"{PATH} = null", "needs a checkpoint's folder"),
        ({MODE: "resume_path", PATH: "runs/last"}, f"{PATH} = runs/last", "named global_step_N"),
    ],
)
def test_ways_to_resume(checked, changes, key, hint):
    assert_checks_refuse(checked, changes, key, hint)


def test_a_run_that_continues_nothing_says_so(checked, old_run):
    assert not any("begins anew" in one for one in checked(RESUME).warnings)
    (told,) = [one for one in checked({**RESUME, "name": "new"}).warnings if "begins anew" in one]
    assert "outputs/new" in told


def test_checkpoint_of_another_run(checked, old_run):
    step = old_run / "checkpoints" / "global_step_4"
    complete(step)
    fork = {"name": "fork", MODE: "resume_path", PATH: str(step)}
    checked(fork)
    assert_checks_refuse(
        checked, {**fork, "marsrl.algo.group_size": 4}, "marsrl.algo.group_size", "outputs/old"
    )
    replace = {**fork, "name": "old", "marsrl.run.if_exists": "replace"}
    assert_checks_refuse(checked, replace, PATH, "deletes outputs/old")


def test_folder_with_checkpoints_of_another_run(checked, old_run, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    checked({LOCAL: str(place)})
    (place / "latest_checkpointed_iteration.txt").write_text("4")
    assert_checks_refuse(checked, {LOCAL: str(place)}, LOCAL, "another run")
    assert_checks_refuse(
        checked, {"name": "old", "marsrl.run.if_exists": "replace", LOCAL: str(place)}, LOCAL, "another run"
    )
    assert_checks_refuse(checked, {**RESUME, LOCAL: str(place)}, LOCAL, "outputs/old")
    assert_checks_refuse(checked, {LOCAL: str(place), MODE: "disable"}, LOCAL, "name an empty folder")
    (place / "latest_checkpointed_iteration.txt").unlink()
    checked({LOCAL: str(place), MODE: "disable"})
    (place / "global_step_4").mkdir()
    assert_checks_refuse(checked, {LOCAL: str(place), MODE: "disable"}, LOCAL, "another run")


def test_folder_outside_that_is_the_runs_own(checked, old_run, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    (place / "latest_checkpointed_iteration.txt").write_text("4")
    record = OmegaConf.load(old_run / "config.yaml")
    record.trainer.default_local_dir = str(place)
    (old_run / "config.yaml").write_text(OmegaConf.to_yaml(record))
    checked({**RESUME, LOCAL: str(place)})


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of a run of another method and data."""
    folder = tmp_path / "outputs" / "trained"
    step = folder / "checkpoints" / "global_step_3"
    complete(step)
    (folder / "run.json").write_text("{}")
    record = {"marsrl": {"algo": {"correction_rounds": 0}}, "data": {"train_batch_size": 7}}
    (folder / "config.yaml").write_text(json.dumps(record))
    return step


def test_an_evaluation_needs_nothing_of_a_run_but_its_weights(run, checkpoint):
    where = ("cluster=cpu", "trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}")
    done = run(*where)
    assert done.status == 2 and "marsrl.algo.correction_rounds" in done.err
    accepted(run, *where, "trainer.val_only=true")


def test_an_evaluation_goes_on_in_a_folder_of_its_own(run, checkpoint):
    words = ("cluster=cpu", "trainer.val_only=true", "marsrl.run.if_exists=resume")
    name = f"name={checkpoint.parents[1].name}"
    assert_refused(run(*words, name), "marsrl.run.if_exists = resume", "folder of its own")
    accepted(run, *words)


def test_an_evaluation_is_warned_of_questions_that_its_checkpoint_was_trained_on(checked, tmp_path):
    train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
    write_problems(train, sums(0, 40))
    write_problems(held_out, [*sums(38, 2), *sums(900, 2)])
    run = left_run(checked, tmp_path, {"data.train_files": str(train), "data.train_batch_size": 4})
    step = run / "checkpoints" / "global_step_4"
    complete(step)
    alone = {"name": "alone", "trainer.val_only": True, MODE: "resume_path", PATH: str(step)}
    found = checked({**alone, "data.val_files": str(held_out)}).warnings
    (warning,) = [text for text in found if "measure memory" in text]
    assert warning.startswith(f"2 of 4 questions of {held_out} were trained by the checkpoint's run")
    write_problems(train, sums(0, 41))  # another file by now: nothing is known of what was trained
    again = checked({**alone, "data.val_files": str(held_out)}).warnings
    assert not any("measure memory" in text for text in again)


def test_an_evaluation_takes_the_adapters_that_its_checkpoint_has(run, tmp_path):
    complete(tmp_path / "outputs/old/checkpoints/global_step_4")
    step = tmp_path / "outputs/old/checkpoints/global_step_4"
    (tmp_path / "outputs/old/run.json").write_text('{"format_version": 1}')
    trained = run("cluster=cpu", "policies=lora_per_role", "name=other").launched
    (tmp_path / "outputs/old/config.yaml").write_text(OmegaConf.to_yaml(trained))
    alone = ("cluster=cpu", "dry_run=true", f"checkpoint={step}")
    assert run(*alone, "policies=lora_per_role", program=EVALUATE).status == 0
    refused = run(*alone, program=EVALUATE)
    said = " ".join(refused.err.split())
    assert refused.status == 2 and "has adapters of corrector, solver, verifier" in said
    assert "Choose algo=… and policies=… as in that run." in said
