"""Verifier and Corrector trained and evaluated behind a Solver that is not: method, scheduler, sources."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from marsrl_script import ScriptedEngine, SkillModel
from scheduler_tools import SAMPLING, Run, build, drive, problems

from marsrl_verl.algos.marsrl.config import Config
from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.loop_rules import LoopRules
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import SOLVER, MathPrompts
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import trained_rows
from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.evaluation.runs import run_evaluation
from marsrl_verl.rollout.external.recorded_answers import FileSource, LineKey, RecordedAnswers

PROBLEMS = problems(12)
BEHIND_IT = ("verifier", "corrector")


def write_answers(path: Path, wrong: int = 5, right: int = 5) -> Path:
    """A file with so many wrong and right answers to each problem."""
    with path.open("w") as file:
        for problem in PROBLEMS:
            answers = [f"<think>{k}</think>Way {k}: \\boxed{{{problem.ground_truth}}}" for k in range(right)]
            answers += [f"Guess {k}: \\boxed{{-{k}}}" for k in range(wrong)]
            file.write(json.dumps({"question": problem.question, "answers": answers}) + "\n")
    return path


def engine_with_answers(path: Path) -> ScriptedEngine:
    """A file for the Solver, a script for Verifier and Corrector."""
    source = FileSource(RecordedAnswers.scan(path, LineKey.QUESTION), seed=1)
    policies = PolicySet((Policy(), Policy("big", PolicyKind.JSONL)), {SOLVER: "big"})
    return ScriptedEngine(SkillModel(), policies=policies, sources={"big": source})


class FrozenVerifier:
    """A script for all roles; of the Verifier's answers only text is known."""

    def __init__(self) -> None:
        self.scripted = ScriptedEngine(SkillModel())

    def generate(self, requests, sampling):
        frozen = {one.group_id for one in requests if one.role == "verifier"}
        outputs = self.scripted.generate(requests, sampling)
        for output in outputs:
            if output.group_id in frozen:
                output.trajectories = [replace(one, sequences=[]) for one in output.trajectories]
        return outputs


def method(roles: Iterable[str] = BEHIND_IT) -> MarsRL:
    return build(MarsRL, MathPrompts(), Config(group_size=4, train_roles=sorted(roles)))


def train(engine, mode: str = "sequential", roles: Iterable[str] = BEHIND_IT, **options) -> Run:
    batches = [PROBLEMS[:4], PROBLEMS[4:8], PROBLEMS[8:]]
    return drive(method(roles), mode, batches, engine=engine, **options)


def completed(found: Run, *stages: str) -> list[Group]:
    return [group for step in found.results for group in step.completed if group.request.stage in stages]


@pytest.fixture
def answers(tmp_path) -> Path:
    return write_answers(tmp_path / "solutions.jsonl")


@pytest.mark.parametrize("mode", [mode.value for mode in Mode])
@pytest.mark.parametrize(
    ("frozen", "roles"), [("solver", {"verifier", "corrector"}), ("verifier", {"solver", "corrector"})]
)
def test_the_others_are_trained(answers, frozen, roles, mode):
    engine = engine_with_answers(answers) if frozen == SOLVER else FrozenVerifier()
    results = train(engine, mode, roles)
    groups = [group for step in results.results for group in step.trained]
    assert {group.request.role for group in groups} == roles, "its answers lead to theirs"
    assert not any(one.external for group in groups for one in group.trajectories)
    assert trained_rows(method(roles), groups, 0)
    its = completed(results, SOLVER) if frozen == SOLVER else completed(results, "verifier_1", "verifier_2")
    assert len(its) >= len(PROBLEMS)
    assert all(one.external and one.new_tokens == 0 for group in its for one in group.trajectories)
    assert not trained_rows(method(roles), its, 0), "another model's answers never enter a loss"


def test_what_the_verifier_judges_is_the_file_s_answer_without_its_thinking_part(answers):
    results = train(engine_with_answers(answers))
    by_id = {one.trajectory_id: one for group in completed(results, SOLVER) for one in group.trajectories}
    judged = [group.request for group in completed(results, "verifier_1")]
    assert len(judged) == 2 * len(PROBLEMS)
    for item in judged:
        parent, solution = by_id[item.parent_id], item.inputs["solution"]
        assert (solution, item.inputs["solution_reward"]) == (parent.final_text, parent.value)
        assert solution in item.messages[1]["content"]
        assert "<think>" not in solution


def test_segments_and_restarts_train_the_same_groups(answers):
    cut = train(engine_with_answers(answers), "pipelined", segment=40, checkpoint=True)
    assert all(one.external for group in completed(cut, SOLVER) for one in group.trajectories)
    verdicts = [one.sequence for group in completed(cut, "verifier_1") for one in group.trajectories]
    assert max(len(one.versions) for one in verdicts) > 1, "what the engine decodes is cut"
    assert cut.trained == train(engine_with_answers(answers)).trained


def test_one_answer_makes_one_verifier_input(tmp_path):
    path = write_answers(tmp_path / "one.jsonl", wrong=1, right=0)
    judged = completed(train(engine_with_answers(path)), "verifier_1")
    assert len(judged) == len(PROBLEMS), "the same text twice would be one group twice"


def test_the_models_own_repetitions_stay_inputs():
    marsrl = method()
    [item] = marsrl.first_requests(PROBLEMS[0], 0)
    engine = ScriptedEngine(SkillModel(solver=1.0, truncated=0.0), seed=None)
    [output] = engine.generate([item], SAMPLING)
    members = [replace(one, text="same", final_text="same") for one in output.trajectories]
    assert len(marsrl.next_requests(PROBLEMS[0], SOLVER, [Group(item, members)], 0)) == 2


def test_the_system_is_evaluated_behind_it(answers):
    def run(tag: str):
        system = VerifyCorrect(MathPrompts(), LoopRules(correction_rounds=2))
        return run_evaluation(engine_with_answers(answers), system, PROBLEMS, SAMPLING, repeats=2, tag=tag)

    before, after = run("before"), run("after")
    first = [one.calls[0].trajectory for one in before.runs]
    assert all(one.external for one in first)
    assert [one.calls[0].trajectory.text for one in after.runs] == [one.text for one in first]
    assert 0 < sum(one.solver_reward for one in before.runs) < len(before.runs)
    others = [call.trajectory for call in before.calls if call.request.role != SOLVER]
    assert before.generated_tokens == sum(one.tokens for one in others) > 0
