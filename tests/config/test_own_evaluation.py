"""A method from outside the package with roles, prompts and an evaluation of its own: checks, plan, metrics,
tables, picture and example take all of it from the method."""

from __future__ import annotations

import json
import sys

import pytest
from messages import accepted, assert_refused
from scripted_engine import Reply, ScriptedEngine

from marsrl_verl.algos import registry
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.reporting.example import example_text
from marsrl_verl.verl_adapter.trainer.observer import TrainingObserver

CODE = '''
from abc import abstractmethod
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.prompts import NO_PROBLEM, Prompts, PromptShape, no_text
from marsrl_verl.evaluation.estimators import MetricInfo, Observations, mean_estimate
from marsrl_verl.evaluation.runs import Evaluation, ExampleSummary, answer_reward, calls_of, is_usable
from marsrl_verl.settings.declaration import limits
from marsrl_verl.settings.evaluation import EvaluationConfig

class PlanPrompts(Prompts):
    @abstractmethod
    def work(self, problem, plan): ...

class OwnPrompts(PlanPrompts):
    def problem(self, problem):
        return ({"role": "user", "content": f"Plan: {problem.question}"},)

    def work(self, problem, plan):
        return ({"role": "user", "content": f"Do: {problem.question} by {plan}"},)

class Settings(EvaluationConfig):
    """With attempts."""

    attempts: int = limits(2, ge=1, why="somebody has to do it")
    """Answers to one plan; the last one counts."""

class PlanThenWork(Evaluation):
    roles = ("planner", "worker")
    metrics = {"plan_success": MetricInfo("Plans that work", "share of plans that lead to a right answer")}

    def __init__(self, prompts, attempts):
        self.prompts, self.attempts = prompts, attempts

    @property
    def max_calls(self):
        return {"planner": 1, "worker": self.attempts}

    def program(self, run):
        plan = yield run.request("plan", "planner", self.prompts.problem(run.problem))
        for k in range(self.attempts):
            messages = self.prompts.work(run.problem, plan.final_text)
            one = yield run.request(f"work_{k}", "worker", messages, parent_id=plan.trajectory_id)
        run.final_reward, run.answer = answer_reward(one), one if is_usable(one) else None
        run.end = "done"

    def observations(self, runs):
        return {"plan_success": Observations.of((run.solved, run.problem.problem_id) for run in runs.runs)}

    def effort(self, runs, confidence):
        pairs = [(float(calls_of(run)), run.problem.problem_id) for run in runs.runs]
        return {"turns": mean_estimate(pairs, confidence)}

    def description(self):
        return "A plan, then work."

    def example_summary(self, run):
        return ExampleSummary(int(run.solved), "The plan works" if run.solved else "The plan fails")

    def example_call(self, call):
        return "Planning" if call.request.role == "planner" else "Working"

    def outcome(self, call, quote):
        return "a plan" if call.request.role == "planner" else super().outcome(call, quote)

class Dialogue(Method):
    Evaluation = Settings
    Prompts = OwnPrompts
    roles = {"planner": Role(), "worker": Role()}
    stages = classmethod(lambda cls, config: (Stage("plan", "planner", config.group_size),))

    @classmethod
    def prompt_shapes(cls, config, prompts, problem=NO_PROBLEM, shown=no_text):
        work = PromptShape("worker", prompts.work(problem, shown("plan")), {"plan": ("planner",)})
        return (PromptShape("planner", prompts.problem(problem)), work)

    @classmethod
    def evaluation(cls, config, evaluation, prompts):
        return PlanThenWork(prompts, evaluation.attempts)

    @classmethod
    def group_metrics(cls, groups):
        return {"steps_of_plan": 3.0}
'''
PRESET = """# @package _global_
marsrl:
  algo:
    name: strange_dialogue:Dialogue
  reward:
    planner: &exact
      target: marsrl_verl.rewards.exact:ExactAnswerReward
    worker: *exact
  roles:
    planner: &role
      max_prompt_tokens: 200
      max_new_tokens: 48
    worker: *role
"""


@pytest.fixture(autouse=True)
def words(quiet_machine, tmp_path, monkeypatch) -> tuple[str, ...]:
    """The package with its preset; the words that choose it."""
    (tmp_path / "strange_dialogue.py").write_text(CODE)
    (tmp_path / "configs" / "algo").mkdir(parents=True)
    (tmp_path / "configs" / "algo" / "dialogue.yaml").write_text(PRESET)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    registry._load.cache_clear()
    # The tiny model's preset names prompts of its own.
    prompts = "marsrl.prompts.target=strange_dialogue:OwnPrompts"
    yield f"hydra.searchpath=[file://{tmp_path}/configs]", "algo=dialogue", prompts, "cluster=cpu"
    sys.modules.pop("strange_dialogue", None)


def test_plan_prompt_budget_and_evaluation_plan(run, words):
    done = accepted(run, *words, "marsrl.evaluation.attempts=3", "dry_run=true")
    text = " ".join(done.out.split())
    # 32 problems, sampled and greedily: a plan and three answers of up to 48 tokens each.
    assert "after the last step 32 64 256 12,288" in text
    assert "plan 48" in text and "planner" in text and "worker" in text
    assert "verifier" not in done.out.lower()


def test_its_settings_are_refused_like_ours(run, words):
    assert_refused(
        run(*words, "marsrl.evaluation.attempts=0"), "marsrl.evaluation.attempts = 0", "at least 1"
    )
    refused = run(*words, "marsrl.evaluation.correction_rounds=2")
    assert_refused(refused, "marsrl.evaluation.correction_rounds = 2", "It is a setting of marsrl")
    other = "marsrl.prompts.target=marsrl_verl.core.prompts:ProblemPrompts"
    assert_refused(run(*words, other), "marsrl.prompts.target", "PlanPrompts")


def test_metrics_tables_picture_and_example(tmp_path, capsys, words):
    config = compose_config(
        parse_arguments([*words, f"marsrl.run.output_dir={tmp_path / 'run'}", "marsrl.run.progress=false"])
    ).config
    settings = typed_settings(config)
    observer = TrainingObserver(config, settings, total_steps=1)
    problems = [Problem(f"p{i}", f"1+{i}", str(1 + i)) for i in range(4)]
    prompts = sys.modules["strange_dialogue"].OwnPrompts()
    sampling = {role: Sampling(60, 200) for role in ("planner", "worker")}

    def script(item, k):
        right = item.problem.problem_id != "p3" and item.role == "worker"
        return Reply(f"\\boxed{{{item.problem.ground_truth if right else 'think'}}}")

    engine = ScriptedEngine(script)
    for tag in ("before", "after"):
        found = observer.evaluate(engine, problems, prompts, sampling, tag, 0 if tag == "before" else 1)
    estimates = found.record.estimates | found.record.effort
    means = {name: one.mean for name, one in estimates.items()}
    assert means == {"plan_success": 0.75, "plan_success_greedy": 0.75, "turns": 3.0, "turns_greedy": 3.0}

    request = RolloutRequest("p0/plan/0", problems[0], "plan", "planner", (), n=1)
    [one] = engine.generate([request], sampling)
    metrics = observer.describe(_step(Group(request, one.trajectories)))
    assert metrics["role/planner/steps_of_plan"] == metrics["stage/plan/steps_of_plan"] == 3.0
    assert not [name for name in metrics if "solver" in name]
    timings = {"rollout": 1.0, "step": 1.0}
    observer.record(1, {"rollout/generated_tokens": 9, **metrics}, timings)

    result = observer.finish(1, {})
    assert [row.name for row in result.changes] == ["plan_success", "plan_success_greedy"]
    text = example_text(result.example)
    assert text.startswith("The plan works.") and "1. Planning: a plan" in text
    assert "3. Working: answer `1`, correct" in text and "Result: correct (done)" in text
    report = observer.folder.report_path.read_text()
    assert "| Plans that work | 75.0 %" in report and "A plan, then work." in report
    summary = json.loads(observer.folder.summary_path.read_text())
    assert summary["headline"] == ["plan_success"] == list(summary["metrics"])
    assert observer.folder.curve_path.read_bytes().startswith(b"\x89PNG")
    assert "Plans that work" in capsys.readouterr().out
    observer.close()


def _step(group):
    from marsrl_verl.core.scheduler import StepResult

    return StepResult(1, [], [group], [], {}, 0, 0, 0, 0, {}, {})
