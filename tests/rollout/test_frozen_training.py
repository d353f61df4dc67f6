"""Verifier and Corrector trained and evaluated behind a Solver that is not: method, scheduler, sources."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from marsrl_script import ScriptedEngine, SkillModel
from scheduler_tools import build

from marsrl_verl.algos.marsrl.config import Config
from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.loop_rules import LoopRules
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import SOLVER, MathPrompts
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import trained_rows
from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.scheduler import Mode, Scheduler, StepResult
from marsrl_verl.evaluation.runs import run_evaluation
from marsrl_verl.rollout.frozen.answer_file import AnswerFile, FileSource, LineKey

SAMPLING = {role: Sampling(10_000, 10_000) for role in ("solver", "verifier", "corrector")}
PROBLEMS = [Problem(f"p{i}", f"{i} + 1 = ?", str(i + 1)) for i in range(12)]


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
    source = FileSource(AnswerFile.scan(path, LineKey.QUESTION), seed=1)
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


def method(*, roles: tuple[str, ...] = ("verifier", "corrector"), **settings) -> MarsRL:
    config = Config(group_size=4, train_roles=list(roles), **settings)
    limits = {"solver": None, "verifier": 10_000, "corrector": 10_000}
    return build(MarsRL, MathPrompts(), config, limits=limits, tokens=count_tokens)


def count_tokens(messages) -> int:
    return sum(len(message["content"]) for message in messages)


def train(path: Path, mode: str, *, segment: int | None = None, reload: bool = False) -> list[StepResult]:
    return train_with(engine_with_answers(path), mode, segment=segment, reload=reload)


def train_with(
    engine, mode: str, *, segment: int | None = None, reload: bool = False, **settings
) -> list[StepResult]:
    scheduler = Scheduler(method(**settings), mode)
    sampling = {role: replace(one, segment_tokens=segment) for role, one in SAMPLING.items()}
    results = []
    for step in range(100):
        scheduler.start_step(step, PROBLEMS[4 * step : 4 * step + 4])
        while requests := scheduler.next_round():
            scheduler.absorb(engine.generate(requests, sampling))
            if reload:
                saved = pickle.loads(pickle.dumps(scheduler.state_dict()))
                scheduler = Scheduler(method(**settings), mode)
                scheduler.load_state_dict(saved)
        last = step >= 2 and scheduler.idle()
        results.append(scheduler.finish_step(last=last))
        if last:
            return results
    raise AssertionError("the pools never became empty")


def trained(results: list[StepResult]) -> dict[str, list[tuple]]:
    return {
        group.group_id: [(one.text, one.value, group.request.messages) for one in group.trajectories]
        for result in results
        for group in result.trained
    }


@pytest.fixture
def answers(tmp_path) -> Path:
    return write_answers(tmp_path / "solutions.jsonl")


@pytest.mark.parametrize("mode", [mode.value for mode in Mode])
def test_verifier_and_corrector_are_trained_and_the_solver_is_not(answers, mode):
    results = train(answers, mode)
    groups = [group for result in results for group in result.trained]
    assert {group.request.role for group in groups} == {"verifier", "corrector"}
    assert not any(one.external for group in groups for one in group.trajectories)
    assert trained_rows(method(), groups, 0)
    solved = [group for result in results for group in result.completed if group.request.role == SOLVER]
    assert len(solved) == len(PROBLEMS)
    assert all(one.external and one.new_tokens == 0 for group in solved for one in group.trajectories)
    assert not trained_rows(method(), solved, 0), "another model's answers never enter a loss"


@pytest.mark.parametrize("mode", [mode.value for mode in Mode])
def test_a_verifier_may_be_frozen_too(mode):
    roles = ("solver", "corrector")
    results = train_with(FrozenVerifier(), mode, roles=roles)
    groups = [group for result in results for group in result.trained]
    assert {group.request.role for group in groups} == set(roles), "its verdicts lead to corrections"
    judged = [group for result in results for group in result.completed if group.request.role == "verifier"]
    assert judged and all(one.external for group in judged for one in group.trajectories)
    assert not trained_rows(method(roles=roles), judged, 0)


def test_what_the_verifier_judges_is_the_file_s_answer_without_its_thinking_part(answers):
    results = train(answers, "sequential")
    groups = [group for result in results for group in result.completed]
    by_id = {one.trajectory_id: one for group in groups for one in group.trajectories}
    judged = [group.request for group in groups if group.request.stage == "verifier_1"]
    assert len(judged) == 2 * len(PROBLEMS)
    for item in judged:
        parent = by_id[item.parent_id]
        solution = item.inputs["solution"]
        assert (solution, item.inputs["solution_reward"]) == (parent.final_text, parent.value)
        assert solution in item.messages[1]["content"]
        assert "<think>" not in solution


def test_pipelined_and_sequential_train_the_same_groups(answers):
    assert trained(train(answers, "pipelined")) == trained(train(answers, "sequential"))


def test_a_restored_run_goes_on_with_the_same_solutions(answers):
    assert trained(train(answers, "pipelined", reload=True)) == trained(train(answers, "pipelined"))


def test_segments_cut_only_what_the_engine_decodes(answers):
    cut = train(answers, "pipelined", segment=40)
    found = [one for result in cut for group in result.completed for one in group.trajectories]
    assert any(one.external for one in found)
    assert max(len(one.sequence.versions) for one in found if not one.external) > 1


def test_one_answer_makes_one_verifier_input(tmp_path):
    path = write_answers(tmp_path / "one.jsonl", wrong=1, right=0)
    results = train(path, "sequential")
    stages = [group.request.stage for result in results for group in result.completed]
    assert stages.count("verifier_1") == len(PROBLEMS), "the same text twice would be one group twice"


def test_the_models_own_repetitions_stay_inputs():
    marsrl = method()
    [item] = marsrl.first_requests(PROBLEMS[0], 0)
    engine = ScriptedEngine(SkillModel(solver=1.0, truncated=0.0), seed=None)
    [output] = engine.generate([item], SAMPLING)
    members = [replace(one, text="same", final_text="same") for one in output.trajectories]
    assert len(marsrl.next_requests(PROBLEMS[0], SOLVER, [Group(item, members)], 0)) == 2


def test_the_solvers_prompt_is_not_measured(answers):
    measured: list[tuple] = []
    limits = {"solver": None, "verifier": 10_000, "corrector": 10_000}

    def tokens(messages) -> int:
        measured.append(messages)
        return count_tokens(messages)

    marsrl = build(MarsRL, MathPrompts(), limits=limits, tokens=tokens)
    assert len(marsrl.first_requests(Problem("p", "x" * 99_999, "2"), 0)) == 1
    assert measured == []


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
