import json
from dataclasses import replace

import pytest
from evaluation_tools import system
from marsrl_script import ScriptedEngine, SkillModel
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.evaluation.loop_rules import RunEnd
from marsrl_verl.algos.marsrl.evaluation.role_metrics import EFFORT_METRICS, EVALUATION_METRICS
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER, MathPrompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.evaluation.estimators import metric_label
from marsrl_verl.evaluation.suite import EvaluationRecord, evaluate
from marsrl_verl.reporting.curve import draw_learning_curve
from marsrl_verl.reporting.example import pick_example
from marsrl_verl.reporting.summary import changes
from marsrl_verl.reporting.tables import evaluation_markdown, source_markdown

SAMPLING = {role: Sampling(500, 9000, temperature=0.6, top_p=0.9) for role in (SOLVER, VERIFIER, CORRECTOR)}
PROBLEMS = [Problem(f"p{i}", f"question {i}", str(i)) for i in range(30)]


class NotingEngine(ScriptedEngine):
    """Notes the sampling settings of every round."""

    def __init__(self, script):
        super().__init__(script)
        self.settings = []

    def generate(self, requests, sampling):
        self.settings.append((requests[0].group_id.split("/")[0], sampling[SOLVER]))
        return super().generate(requests, sampling)


RULES = ("correction_rounds", "accept_passes", "reject_fails", "fallback")


def run(engine, **kwargs):
    ticks = iter((100.0, 112.5))
    evaluation = system(MathPrompts(), **{name: kwargs.pop(name) for name in RULES if name in kwargs})
    return evaluate(
        engine, PROBLEMS, evaluation, SAMPLING, tag="before", step=0, clock=lambda: next(ticks), **kwargs
    )


def test_problems_with_a_prompt_over_the_limit_are_counted_and_in_no_figure():
    long = [Problem(f"long{i}", "x" * 9000, "1") for i in range(10)]
    engine = ScriptedEngine(lambda item, k: Reply(f"\\boxed{{{item.problem.ground_truth}}}"))
    alone = system(MathPrompts(), correction_rounds=0)
    result = evaluate(engine, [*long, *PROBLEMS], alone, SAMPLING, tag="before", step=0)
    assert (result.record.problems, result.record.skipped) == (40, 10)
    found = result.record.estimates["solver_accuracy"]
    assert (found.mean, found.n) == (1.0, 30)
    assert result.record.effort["calls"].n == 30
    assert len(result.sampled.skipped) == 10
    assert EvaluationRecord.from_json(result.record.to_json()) == result.record
    none = evaluate(engine, long, alone, SAMPLING, tag="x", step=0).record
    assert none.estimates["solver_accuracy"].mean is None, "no accuracy of 0"


def test_headline_metrics_of_each_data_source():
    problems = [replace(one, data_source="sums" if n < 10 else "aime/24") for n, one in enumerate(PROBLEMS)]
    right = {one.problem_id for one in problems[:5]}

    def script(item, k):
        return Reply(f"\\boxed{{{item.problem.ground_truth if item.problem.problem_id in right else 'no'}}}")

    alone = system(MathPrompts(), correction_rounds=0)
    record = evaluate(ScriptedEngine(script), problems, alone, SAMPLING, tag="before", step=0).record
    found = {name: (one.mean, one.n) for name, one in record.estimates.items() if "/" in name}
    assert found["solver_accuracy/sums"] == found["solver_accuracy_greedy/sums"] == (0.5, 10)
    assert found["solver_accuracy/aime_24"] == (0.0, 20)
    assert {name.partition("/")[0].removesuffix("_greedy") for name in found} <= set(record.headline)
    assert EvaluationRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    table = source_markdown(record).splitlines()
    assert table[0].startswith("| data source | problems | Solver accuracy |")
    assert table[2].startswith("| aime/24 | 20 | 0.0 % [") and table[3].startswith("| sums | 10 | 50.0 % [")
    same = evaluate(ScriptedEngine(script), PROBLEMS, alone, SAMPLING, tag="before", step=0).record
    assert source_markdown(same) == "" and not [name for name in same.estimates if "/" in name]


def test_sampled_and_greedy_metrics_with_their_settings():
    engine = NotingEngine(SkillModel(seed=1))
    result = run(engine, temperature=1.0, samples_per_problem=2)
    record = result.record
    names = {f"{m}{s}" for m in EVALUATION_METRICS for s in ("", "_greedy")}
    assert set(record.observations) == {*names, "solver_majority_at_k", "verifier_best_of_2"}
    assert set(record.estimates) - names == {
        "verifier_f1",
        "verifier_f1_greedy",
        "solver_majority_at_k",
        "solver_pass_at_2",
        "verifier_best_of_2",
    }
    assert record.estimates["solver_pass_at_2"].n == record.estimates["solver_majority_at_k"].n == 30
    assert record.estimates["solver_accuracy"].mean < record.estimates["solver_pass_at_2"].mean
    assert set(record.effort) == {f"{m}{s}" for m in EFFORT_METRICS for s in ("", "_greedy")}
    assert (record.effort["calls"].n, record.effort["calls_greedy"].n) == (60, 30)
    assert record.effort["calls"].mean == len(result.sampled.calls) / 60
    assert record.estimates["solver_accuracy"].n == 60
    assert record.estimates["solver_accuracy_greedy"].n == 30
    assert (record.seconds, record.problems, record.step) == (12.5, 30, 0)
    assert record.generated_tokens == result.sampled.generated_tokens + result.greedy.generated_tokens
    assert {(tag, s.temperature, s.top_p, s.max_new_tokens) for tag, s in engine.settings} == {
        ("eval-before", 1.0, 0.9, 500),
        ("eval-before_greedy", 0.0, 1.0, 500),
    }


def test_of_the_solver_alone_there_is_no_system():
    record = run(NotingEngine(SkillModel(seed=1)), correction_rounds=0).record
    assert record.estimates["solver_accuracy"].n == record.estimates["solver_accuracy_greedy"].n == 30
    assert set(record.observations) == {"solver_accuracy", "solver_accuracy_greedy"}
    assert record.system == {} and "Solver alone" in record.description
    assert set(record.effort) == {"calls", "tokens", "calls_greedy", "tokens_greedy"}


def test_an_evaluation_with_a_mass_of_its_own():
    engine = NotingEngine(SkillModel(seed=1))
    record = run(engine, top_p=0.5).record
    assert record.top_p == 0.5
    assert {(tag, s.top_p) for tag, s in engine.settings} == {
        ("eval-before", 0.5),
        ("eval-before_greedy", 1.0),
    }


def test_both_passes_have_the_evaluations_penalty():
    engine = NotingEngine(SkillModel(seed=1))
    record = run(engine, repetition_penalty=1.1).record
    assert record.repetition_penalty == EvaluationRecord.from_json(record.to_json()).repetition_penalty == 1.1
    assert {(tag, s.repetition_penalty) for tag, s in engine.settings} == {
        ("eval-before", 1.1),
        ("eval-before_greedy", 1.1),
    }


@pytest.mark.parametrize("seed", [None, 5])
def test_the_sampled_tokens_have_the_evaluations_seed(seed):
    engine = NotingEngine(SkillModel(seed=1))
    run(engine, seed=seed)
    assert {s.seed for tag, s in engine.settings if tag == "eval-before"} == {seed}


def test_without_greedy():
    result = run(ScriptedEngine(SkillModel(seed=1)), greedy=False)
    assert result.greedy is None
    assert set(result.record.observations) == set(EVALUATION_METRICS)


def test_greedy_alone(tmp_path):
    """Every problem is asked once, and what is shown of an evaluation is what was measured."""
    engine = NotingEngine(SkillModel(seed=1))
    result = run(engine, samples_per_problem=0)
    both = run(ScriptedEngine(SkillModel(seed=1)))
    record = result.record
    assert {(tag, s.temperature) for tag, s in engine.settings} == {("eval-before_greedy", 0.0)}
    assert result.sampled is None and result.passes == [result.greedy]
    assert record.generated_tokens == result.greedy.generated_tokens > 0
    assert set(record.observations) == {f"{name}_greedy" for name in EVALUATION_METRICS}
    assert set(record.estimates) - set(record.observations) == {"verifier_f1_greedy"}
    assert set(record.metrics) == set(both.record.metrics)
    assert record.headline == ("solver_accuracy_greedy", "system_accuracy_greedy", "verifier_recall_greedy")
    assert set(record.headline) < {*record.curves, "verifier_recall_greedy"} <= set(record.estimates)
    assert EvaluationRecord.from_json(record.to_json()) == record
    rows = changes(record, record)
    assert {row.greedy for row in rows} == {True} and len(rows) == len(record.metrics)
    assert metric_label(record.metrics, record.headline[0]) == "Solver accuracy, greedy"
    assert pick_example(result.evaluation, result.passes[0]) is not None
    text = evaluation_markdown(record)
    assert "**greedy**" in text and "temperature" not in text
    many = [replace(record, step=step) for step in (0, 9)]
    drawn = draw_learning_curve(tmp_path / "greedy.png", [], many).read_bytes()
    none = draw_learning_curve(
        tmp_path / "none.png", [], [replace(one, curves=()) for one in many]
    ).read_bytes()
    assert drawn != none, "the greedy metrics are drawn"


def test_greedy_alone_by_data_source():
    problems = [replace(one, data_source="a" if n < 10 else "b") for n, one in enumerate(PROBLEMS)]
    alone = system(MathPrompts(), correction_rounds=0)
    engine = ScriptedEngine(SkillModel(seed=1))
    record = evaluate(engine, problems, alone, SAMPLING, tag="x", step=0, samples_per_problem=0).record
    assert {source: set(found) for source, found in record.by_source().items()} == {
        "a": {"solver_accuracy_greedy"}, "b": {"solver_accuracy_greedy"},
    }  # fmt: skip
    assert "Solver accuracy, greedy" in source_markdown(record)


def test_no_pass_at_all():
    with pytest.raises(ValueError, match="samples_per_problem is 0 and greedy is false"):
        run(ScriptedEngine(SkillModel(seed=1)), samples_per_problem=0, greedy=False)


def test_a_known_engine_gives_known_accuracies():
    """Solver right on the even problems, Verifier always right, Corrector repairs multiples of 3."""

    def script(item, k):
        number = int(item.problem.problem_id[1:])
        if item.role == VERIFIER:
            return Reply(f"**Correctness**: {'Correct' if item.inputs['solution_reward'] else 'Wrong'}")
        able = number % 2 == 0 if item.role == SOLVER else number % 3 == 0
        return Reply(f"\\boxed{{{number if able else -1}}}")

    found = run(ScriptedEngine(script)).record.estimates
    assert {name: item.mean for name, item in found.items() if not name.endswith("_greedy")} == {
        "solver_accuracy": 15 / 30,
        "verifier_accuracy": 1.0,
        "verifier_recall": 1.0,
        "verifier_precision": 1.0,
        "verifier_f1": 1.0,
        "verifier_false_alarm_rate": 0.0,
        "corrector_fix_rate": pytest.approx(5 / 25),  # 5 of 15 at once, 10 tried again in vain
        "corrector_break_rate": None,
        "system_accuracy": 20 / 30,
    }


def test_record_round_trip():
    record = run(ScriptedEngine(SkillModel(seed=2))).record
    again = EvaluationRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert again == record
    assert again.estimates == record.estimates
    assert set(again.estimates) == {
        f"{m}{s}" for m in (*EVALUATION_METRICS, "verifier_f1") for s in ("", "_greedy")
    }
    assert again.estimates["verifier_f1"].low < again.estimates["verifier_f1"].mean < 1
    assert again.effort["tokens"].high > again.effort["tokens"].mean > 0


def test_a_record_without_effort_is_still_read():
    plain = run(ScriptedEngine(SkillModel(seed=2))).record.to_json()
    del plain["effort"]
    assert EvaluationRecord.from_json(plain).effort == {}


def test_a_record_without_its_confidence_is_refused():
    plain = run(ScriptedEngine(SkillModel(seed=2))).record.to_json()
    del plain["confidence"]
    with pytest.raises(TypeError, match="confidence"):
        EvaluationRecord.from_json(plain)


def test_the_loops_settings_are_used_and_recorded():
    """Solver always wrong, Verifier satisfied in even rounds, Corrector right from round 2 on."""

    def script(item, k):
        number = int(item.stage.split("_")[1]) if "_" in item.stage else 0
        if item.role == VERIFIER:
            return Reply(f"**Correctness**: {'Wrong' if number % 2 else 'Correct'}")
        right = item.role == CORRECTOR and number > 1
        return Reply(f"\\boxed{{{item.problem.ground_truth if right else 'no'}}}")

    settings = {"correction_rounds": 6, "accept_passes": 2, "reject_fails": 2, "fallback": "passes"}
    result = run(ScriptedEngine(script), **settings)
    record = EvaluationRecord.from_json(json.loads(json.dumps(result.record.to_json())))
    assert record.system == settings
    assert "2 Correct verdicts in a row" in record.description
    # In six rounds never two in a row: three solutions have one Correct verdict each, the latest wins.
    assert {len(one.calls) for one in result.sampled.runs} == {1 + 6 + 3}
    assert (record.effort["accepted_frac"].mean, record.estimates["system_accuracy"].mean) == (0.0, 1.0)
    # Greedily the first Correct verdict accepts.
    assert {len(one.calls) for one in result.greedy.runs} == {1 + 2 + 1}
    assert record.effort["accepted_frac_greedy"].mean == 1.0


def test_greedy_runs_are_rejected_and_answered_by_the_same_rules():
    def script(item, k):
        if item.role == VERIFIER:
            return Reply("**Correctness**: Wrong")
        return Reply(f"\\boxed{{{item.problem.ground_truth if item.role == SOLVER else 'no'}}}")

    result = run(
        ScriptedEngine(script), correction_rounds=5, accept_passes=3, reject_fails=2, fallback="passes"
    )
    for evaluation in (result.sampled, result.greedy):
        assert {(len(one.calls), one.end, one.final_reward) for one in evaluation.runs} == {
            (4, RunEnd.REJECTED, 1.0)
        }
    assert result.record.effort["rejected_frac_greedy"].mean == 1.0
