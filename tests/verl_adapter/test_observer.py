"""What a run leaves in its folder as training goes on, stops and goes on again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cached_config import composed
from evaluation_tools import trajectory
from marsrl_script import ScriptedEngine, SkillModel
from scheduler_tools import step_result
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.prompts import ROLES, MathPrompts
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.rows import ADVANTAGES, RowRef, Rows
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.trajectory import Grading, RewardResult
from marsrl_verl.reporting.run_folder import read_evaluations
from marsrl_verl.reporting.token_columns import read_token_columns
from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.verl_adapter.trainer import observer
from marsrl_verl.verl_adapter.trainer.observer import TrainingObserver

SHOWN = "marsrl.run.progress=true"
TIMINGS = {"rollout": 0.5, "step": 100.0}


def start(folder: Path, *words: str) -> TrainingObserver:
    config = copy.deepcopy(composed("marsrl.run.progress=false", *words))
    config.marsrl.run.output_dir = str(folder)
    return TrainingObserver(config, typed_settings(config), total_steps=9)


def result(step: int) -> StepResult:
    """A Solver's group with rewards 1 and 0."""
    name = f"p{step}/solver/0"
    request = RolloutRequest(name, Problem(f"p{step}", "1+1", "2"), "solver", "solver", (), n=2)
    members = [trajectory(f"{name}#{k}", reward=1.0 - k, text="2", ids=[2, 3]) for k in range(2)]
    group = Group(request, members)
    return step_result(step=step, trained=[group], completed=[group], in_flight=3)


def take_step(observer: TrainingObserver, step: int, tokens: int = 10) -> None:
    one = result(step)
    trained = Rows.of(one.completed, [RowRef(0, 1), RowRef(0, 0)])
    trained.columns[ADVANTAGES] = np.float32([-0.5, 0.25, 0.5, 0.5])
    trained.columns["entropies"] = np.float32([0.5, np.nan, 2, 0])
    observer.rollouts(step, one, trained, lambda request, trajectory: {"answer": trajectory.final_text})
    observer.record(step, {"rollout/generated_tokens": tokens, **observer.describe(one)}, TIMINGS)


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_step_is_described_by_role_by_stage_and_by_what_is_on_its_way(tmp_path):
    metrics = start(tmp_path / "run").describe(result(1))
    assert metrics["role/solver/reward_mean"] == 0.5
    assert metrics["stage/solver/samples"] == 2
    assert metrics["pipeline/in_flight"] == 3


def test_rewards_of_a_step_that_counts_are_shown_as_such(tmp_path, capsys):
    observer = start(tmp_path / "run", SHOWN)
    counted = observer.describe(result(1), trains=False)
    assert "role/solver/reward_mean" not in counted
    observer.record(1, {"rollout/generated_tokens": 10, **counted}, TIMINGS)
    observer.close()
    assert "solver.counting 0.50" in capsys.readouterr().out


def test_a_step_with_many_failed_grades_is_warned_of(tmp_path, capsys):
    observer = start(tmp_path / "run", SHOWN)
    one = result(1)
    failed = RewardResult(0.0, error="Mine: ValueError: no number", graded=False)
    ungraded, graded = one.completed[0].trajectories
    ungraded.reward, ungraded.gradings = failed, [Grading.of("solver", failed)]
    graded.gradings = [Grading("solver")]
    metrics = observer.describe(one)
    assert metrics["role/solver/grading_error_frac"] == 0.5
    observer.close()
    assert "1 of 2 grades of the solver failed" in (shown := capsys.readouterr().out)
    assert "Mine: ValueError: no number" in shown


def test_an_evaluation_says_how_many_problems_it_did_not_ask(tmp_path, capsys):
    observer = start(tmp_path / "run", SHOWN, "marsrl.evaluation.correction_rounds=0")
    problems = [Problem(f"v{i}", "x" * 99 if i < 2 else "1+1", "2") for i in range(5)]
    engine = ScriptedEngine(lambda item, k: Reply("\\boxed{2}"))
    sampling = {"solver": Sampling(max_new_tokens=50, max_prompt_tokens=60)}
    result = observer.evaluate(engine, problems, MathPrompts(solver_instruction=""), sampling, "before", 0)
    assert result.record.estimates["solver_accuracy"].mean == 1.0
    assert "2 of 5 held-out problems were not evaluated" in capsys.readouterr().out
    observer.close()


@pytest.mark.with_presets("grpo_tools")
def test_a_run_that_calls_none_of_its_tools_is_warned_of(tmp_path, capsys):
    words = ("algo=grpo_tools", "model=tiny_tools", "data=tool_task", SHOWN)
    observer = start(tmp_path / "run", *words)
    for step in range(1, 13):
        calls = {"rollout/executed_tool_calls": 3} if step == 2 else {}
        observer.record(step, {"rollout/generated_tokens": 10, **calls}, TIMINGS)
    observer.close()
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("no call of a tool ran") == 3
    for place in ("in step 1; marsrl.tools has python, search", "in step 3;", "in steps 3 to 12;"):
        assert place in shown


def test_a_recorded_step_is_in_the_folder_at_once(tmp_path):
    observer = start(tmp_path / "run")
    assert not observer.recorded(1)
    take_step(observer, 1)
    assert observer.recorded(1) and not observer.recorded(2)
    assert steps_in(tmp_path / "run" / "metrics.jsonl") == [1]
    observer.flush()
    first, _ = (tmp_path / "run" / "rollouts" / "step_1.jsonl").read_text().splitlines()
    assert json.loads(first)["answer"] == "2", "what the method adds"
    trained = json.loads((tmp_path / "run" / "trained" / "step_1.json").read_text())
    assert trained == {"p1/solver/0#0": [[[2, 0.5]]], "p1/solver/0#1": [[[1, -0.5], [2, 0.25]]]}
    assert (tmp_path / "run" / "config.yaml").is_file()


def test_rollouts_are_kept_only_where_the_run_wants_them(tmp_path):
    observer = start(tmp_path / "run", "marsrl.run.log_rollouts=false")
    take_step(observer, 1)
    assert observer.recorded(1)
    observer.flush()
    assert not list((tmp_path / "run").glob("rollouts/*"))
    assert not list((tmp_path / "run").glob("trained/*"))


def test_a_resumed_run_takes_later_steps_again_and_counts_its_tokens_once(tmp_path):
    folder = tmp_path / "run"
    first = start(folder)
    for step, tokens in ((1, 100), (2, 77), (3, 50)):
        take_step(first, step, tokens)
    first.close()

    resumed = start(folder, "marsrl.run.if_exists=resume")
    resumed.begin(1)  # the checkpoint is that of step 1
    assert [resumed.recorded(step) for step in (1, 2, 3)] == [True, False, False]
    take_step(resumed, 2, tokens=11)
    assert steps_in(folder / "metrics.jsonl") == [1, 2]
    assert steps_in(folder / "metrics.replaced.jsonl") == [2, 3]
    resumed.finish(2, {})
    assert {path.name for path in (folder / "rollouts").iterdir()} == {"step_1.jsonl", "step_2.jsonl"}
    assert {path.name for path in (folder / "trained").iterdir()} == {"step_1.json", "step_2.json"}
    facts = json.loads((folder / "summary.json").read_text())["run"]
    assert (facts["training_tokens"], facts["steps"]) == (111, 2)
    assert 100 <= facts["seconds"] < 150, "step 1, and what this process really takes"


def test_a_resumed_run_took_what_its_processes_took(tmp_path, monkeypatch):
    first = start(tmp_path / "run")
    take_step(first, 1)
    first.close()

    resumed = start(tmp_path / "run", "marsrl.run.if_exists=resume")
    done = [SimpleNamespace(tag="before", seconds=1000.0), SimpleNamespace(tag="step_1", seconds=7.0)]
    monkeypatch.setattr(observer, "read_evaluations", lambda path: done)
    resumed.begin(2)  # killed between the checkpoint of step 2 and its metrics
    resumed.record(2, {"rollout/generated_tokens": 10}, {"rollout": 0.5, "step": 90.0, "evaluate": 60.0})
    resumed.finish(2, {})
    facts = json.loads((tmp_path / "run" / "summary.json").read_text())["run"]
    assert 1130 <= facts["seconds"] < 1160


def test_evaluations_in_between_are_as_they_are_set(tmp_path):
    own = "marsrl.evaluation.in_between"
    words = (f"{own}.problems=3", f"{own}.samples_per_problem=2", f"{own}.solver_only=true")
    observer = start(tmp_path / "run", "marsrl.evaluation.greedy=false", *words)
    problems = [Problem(f"v{i}", "question", "42") for i in range(5)]
    sampling = {role: Sampling(500, 5000) for role in ROLES}
    engine = ScriptedEngine(SkillModel(seed=1))
    runs = {}
    for tag, step in (("before", 0), ("step_2", 2)):
        result = observer.evaluate(engine, problems, MathPrompts(), sampling, tag, step)
        assert observer.evaluated(tag)
        [record] = [one for one in read_evaluations(observer.folder.path) if one.tag == tag]
        runs[tag] = (record.problems, record.samples_per_problem, record.system.get("correction_rounds", 0))
        assert ("system_accuracy" in result.record.estimates) == (tag == "before")
    assert runs == {"before": (5, 1, 2), "step_2": (3, 2, 0)}


def test_what_could_not_be_written_ends_the_run_at_its_next_step(tmp_path):
    observer = start(tmp_path / "run")
    (tmp_path / "run" / "rollouts").write_text("in the way")
    take_step(observer, 1)
    with pytest.raises(OSError, match="rollouts"):
        observer.flush()  # what precedes the manifest of a checkpoint
    with pytest.raises(OSError, match="rollouts"):
        take_step(observer, 2)
    with pytest.raises(OSError, match="rollouts"):
        observer.close()


def test_what_tools_warn_of_is_printed(tmp_path, capsys):
    observer = start(tmp_path / "run")
    observer.note_tools({"python": {"isolation": "landlock", "warning": "weaker than\nnamespaces"}})
    told = capsys.readouterr().out
    assert "tool python: isolation landlock\nwarning: tool python: weaker than namespaces\n" in told
    assert json.loads((tmp_path / "run" / "tools.json").read_text())["python"]["isolation"] == "landlock"


OWN_METRICS = """
import math

def boxed(groups):
    texts = [one.final_text for group in groups for one in group.trajectories]
    return sum("2" in text for text in texts) / len(texts)

def by_role(groups):
    return {group.request.role: max(group.rewards) for group in groups} | {"nothing": math.nan}

def breaks(groups):
    return 1 / (len(groups) - 1)

def words(groups):
    return "many"

def of_two(groups, step):
    return 0.0
"""


@pytest.fixture
def own_metrics(tmp_path, monkeypatch):
    (tmp_path / "own_metrics.py").write_text(OWN_METRICS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda *names: [f"+marsrl.metrics.{name}=own_metrics:{name}" for name in names]


def test_metrics_of_the_user_s_own_are_recorded(tmp_path, own_metrics):
    observer = start(tmp_path / "run", *own_metrics("boxed", "by_role"))
    take_step(observer, 1)
    observer.close()
    [line] = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    own = {name: one for name, one in json.loads(line)["metrics"].items() if name.startswith("own/")}
    assert own == {"own/boxed": 1.0, "own/by_role/solver": 1.0}
    counting = observer.describe(result(2), trains=False)
    assert counting["own/boxed.counting"] == 1.0 and "own/boxed" not in counting


def test_a_metric_that_fails_is_reported_once_and_missing(tmp_path, own_metrics, monkeypatch):
    observer = start(tmp_path / "run", *own_metrics("breaks", "boxed", "words"))
    said: list[str] = []
    monkeypatch.setattr(observer, "say", said.extend)
    found = [observer.describe(result(step)) for step in (1, 2)]
    assert [{name for name in one if name.startswith("own/")} for one in found] == [{"own/boxed"}] * 2
    assert len(said) == 2
    assert "the metric own/breaks is missing. marsrl.metrics.breaks = own_metrics:breaks raised" in said[0]
    assert f"ZeroDivisionError: division by zero ({tmp_path / 'own_metrics.py'}, line 12)" in said[0]
    assert "returned str 'many'; expected a number, or a mapping of names to numbers" in said[1]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("+marsrl.metrics.x=own_metrics:of_two", r"(groups: Sequence[Group]) -> float | Mapping[str, float]"),
        ("+marsrl.metrics.x=own_metrics:nothing", "has no 'nothing'"),
        ("+marsrl.metrics.x=loss", "Expected package.module:function"),
        ("+marsrl.metrics={a-b: own_metrics:boxed}", "Expected names of letters, digits and underscores"),
    ],
)
def test_a_wrong_metric_is_refused_before_the_start(tmp_path, own_metrics, word, said):
    with pytest.raises(ConfigError) as refused:
        start(tmp_path / "run", word)
    text = " ".join(str(refused.value).split())
    assert "marsrl.metrics" in text and said in text


def test_columns_of_tokens_are_kept_where_asked_for(tmp_path, capsys):
    words = "marsrl.run.rollout_log.token_columns=[entropies, ref_log_probs]"
    observer = start(tmp_path / "run", SHOWN, words)
    take_step(observer, 1)
    take_step(observer, 2)
    observer.close()
    path = tmp_path / "run" / "trained" / "step_2.parquet"
    assert read_token_columns(path, "p2/solver/0#1", 0) == {"entropies": [0.5, None]}
    assert read_token_columns(path, "p2/solver/0#0", 0) == {"entropies": [2.0, 0.0]}
    assert read_token_columns(path, "p9/solver/0#0", 0) == {} == read_token_columns(tmp_path, "a", 0)
    assert capsys.readouterr().out.count("names 'ref_log_probs'") == 1
