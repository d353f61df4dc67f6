"""The scripts of `examples/from_cold_start/`: every stage's command, composed and checked."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from example_scripts import EXAMPLES, recorded_calls
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from marsrl_verl.config.application import main
from marsrl_verl.config.command_line import EVALUATE, SERVE, TRAIN
from marsrl_verl.data.benchmarks import BENCHMARKS
from marsrl_verl.data_preparation.application import main as prepare_data

pytestmark = pytest.mark.slow
SCRIPTS = sorted(path.stem for path in (EXAMPLES / "from_cold_start").glob("*.sh") if path.stem != "stages")
PROGRAMS = {
    "recipe.marsrl.main_marsrl": TRAIN,
    "recipe.marsrl.main_eval": EVALUATE,
    "recipe.marsrl.serve": SERVE,
}
SYSTEM = ("algo", "tools", "prompts", "policies", "reward", "default_policy")
"""What training and evaluation have in common, below `marsrl`."""
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
BOX = "{} Let's think step by step and output the final answer within \\boxed{{}}."
WORDING = {"marsrl": DAPO, "attnrl": BOX}


def write_lines(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def environment(tmp_path, monkeypatch, quiet_machine):
    """A script's variables: released files and copies of benchmarks, a few rows each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copies = tmp_path / "copies"
    copies.mkdir()
    for name, known in BENCHMARKS.items():
        kind = "qa" if known.metric == "f1" or name == "webwalker" else "math"
        rows = [verl_row(f"{name} {k}?", str(k), kind) for k in range(2)]
        write_lines(copies / f"{name}.jsonl", rows)

    def make(script: str) -> dict[str, str]:
        wording = WORDING.get(script, "{}")
        problems = [verl_row(wording.format(f"What is {k} + 1?"), str(k + 1), "math") for k in range(140)]
        call = "<think>Look.</think><python>1</python><result>1</result><answer>\\boxed{1}</answer>"
        turns = [{"from": "human", "value": "1?"}, {"from": "gpt", "value": call}]
        marked = "<meta_thinking>Add.</meta_thinking><reasoning>\\boxed{1}</reasoning>"
        return {
            "DRY_RUN": "true", "OUTPUT_ROOT": str(tmp_path / "runs"), "HELD_OUT": "4",
            "BENCHMARK_FILES": str(copies),
            "PROBLEMS": write_lines(tmp_path / "problems.jsonl", problems),
            "TRANSCRIPTS": write_lines(tmp_path / "transcripts.jsonl", [{"conversations": turns}]),
            "SOLUTIONS": write_lines(tmp_path / "marked.jsonl", [{"question": "1?", "solution": marked}]),
        }  # fmt: skip

    return make


def verl_row(question: str, answer: str, ability: str) -> dict:
    """A problem in verl's columns, and in those of ReMA's file."""
    return {
        "data_source": "here", "ability": ability, "question": question, "subset": "MATH", "level": 3,
        "prompt": [{"role": "user", "content": question}], "reward_model": {"ground_truth": answer},
    }  # fmt: skip


def carry_out(call: list[str]) -> int:
    """A recorded command, in this process; of verl's SFT trainer the configuration is composed."""
    words = call[call.index("-m") + 1 :]
    module, *argv = words
    if module in PROGRAMS:
        return main(argv, pytest.fail, PROGRAMS[module])
    if module == "recipe.marsrl.prepare_data":
        return prepare_data(argv)
    if module.startswith("studies."):
        return importlib.import_module(module).main(argv)
    assert module == "verl.trainer.sft_trainer" and argv[:2] == ["--cfg", "job"], words
    named = dict(zip(argv[2:6:2], argv[3:6:2], strict=True))
    with initialize_config_dir(named["--config-dir"], version_base=None):
        composed = compose(
            named["--config-name"], [*argv[6:], "hydra.searchpath=[pkg://verl.trainer.config]"]
        )
    assert Path(composed.data.train_files).is_file() and composed.trainer.n_gpus_per_node == 8
    return 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_all_stages_are_accepted(script, environment, tmp_path):
    variables = environment(script)
    calls = recorded_calls(f"from_cold_start/{script}.sh", tmp_path, variables)
    calls += recorded_calls(f"from_cold_start/{script}.sh", tmp_path, variables, "serve")
    for call in calls:
        assert carry_out(call) == 0, call
    modules = [call[call.index("-m") + 1] for call in calls]
    assert [name for name in modules if name in PROGRAMS] == list(PROGRAMS)
    assert ("verl.trainer.sft_trainer" in modules) == (script in ("arpo", "rema"))
    train, table, served = (
        OmegaConf.load(tmp_path / "runs/dry_run/plans" / f"{name}.yaml").marsrl for name in names_of(calls)
    )
    assert len(table.evaluation.benchmarks) == len(
        [word for call in calls for word in call if word.startswith("marsrl.evaluation.benchmarks.")]
    )
    for key in SYSTEM:
        assert train[key] == served[key], key
        # ARPO's suite has limits of calls and a reading of answers of its own.
        if script != "arpo" or key in ("prompts", "policies"):
            assert train[key] == table[key], key
    assert [one.target for one in table.tools.values()] == [one.target for one in train.tools.values()]


def names_of(calls: list[list[str]]) -> list[str]:
    ours = [call for call in calls if call[call.index("-m") + 1] in PROGRAMS]
    return [word.removeprefix("name=") for call in ours for word in call if word.startswith("name=")]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_stage_runs_alone_with_settings(script, environment, tmp_path):
    variables = environment(script) | {"CLUSTER": "cpu", "DRY_RUN": "false", "BASE_MODEL": "/models/base"}
    newest = tmp_path / "runs" / f"{script}-sft" / "latest_checkpointed_iteration.txt"
    newest.parent.mkdir(parents=True)
    newest.write_text("7")
    (call,) = recorded_calls(
        f"from_cold_start/{script}.sh", tmp_path, variables, "train", "marsrl.run.seed=3"
    )
    assert call[-1] == "marsrl.run.seed=3" and "cluster=cpu" in call and "dry_run=true" not in call
    model = next(word for word in call if word.startswith("actor_rollout_ref.model.path="))
    left = newest.parent / "global_step_7/huggingface"
    assert model.endswith(str(left) if script in ("arpo", "rema") else "/models/base")
    (call,) = recorded_calls(
        f"from_cold_start/{script}.sh", tmp_path, variables, "evaluate", "benchmarks=aime24"
    )
    (name,) = names_of([call])
    assert f"checkpoint={tmp_path / 'runs' / name.removesuffix('-table')}" in call
