"""Verifier and Corrector trained and evaluated behind a Solver that is not: method, scheduler, sources."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_tokenizers import AddedTokens

from marsrl_verl.algos.marsrl.config import Config
from marsrl_verl.algos.marsrl.method import MarsRL, PromptLimits
from marsrl_verl.algos.prompts import MathPrompts
from marsrl_verl.core.advantages import sample_advantages
from marsrl_verl.core.scheduler import Mode, Scheduler
from marsrl_verl.core.scripted import ScriptedEngine, SkillModel, score_by_box
from marsrl_verl.core.step_result import StepResult
from marsrl_verl.core.types import SOLVER, Group, Problem, Sample, SamplingSettings, StageInput
from marsrl_verl.evaluation.system import evaluate_system
from marsrl_verl.rollout.external.answer_file import AnswerFile, FileSource, LineKey
from marsrl_verl.rollout.external.solver import ExternalSolver
from marsrl_verl.rollout.single_call import ChatTokenizer

SAMPLING = {role: SamplingSettings(10_000, 10_000) for role in ("solver", "verifier", "corrector")}
PROBLEMS = [Problem(f"p{i}", f"{i} + 1 = ?", str(i + 1)) for i in range(12)]


def write_answers(path: Path, wrong: int = 5, right: int = 5) -> Path:
    """A file with so many wrong and right answers to each problem."""
    with path.open("w") as file:
        for problem in PROBLEMS:
            answers = [f"<think>{k}</think>Way {k}: \\boxed{{{problem.ground_truth}}}" for k in range(right)]
            answers += [f"Guess {k}: \\boxed{{-{k}}}" for k in range(wrong)]
            file.write(json.dumps({"question": problem.question, "answers": answers}) + "\n")
    return path


class ExternalEngine:
    """A file for the Solver, a script for Verifier and Corrector; scores both as usual."""

    def __init__(self, path: Path) -> None:
        source = FileSource(AnswerFile.scan(path, LineKey.QUESTION), seed=1)
        self.solver = ExternalSolver(source, ChatTokenizer(AddedTokens()))
        self.scripted = ScriptedEngine(SkillModel())

    def generate(self, inputs: list[StageInput], sampling) -> list[Sample]:
        samples = []
        for item in inputs:
            if item.role == SOLVER:
                for sample in asyncio.run(self.solver.answer(item)):
                    sample.outcome = score_by_box(item, sample)
                    samples.append(sample)
        return samples + self.scripted.generate([i for i in inputs if i.role != SOLVER], sampling)


def method(**settings) -> MarsRL:
    config = Config(group_size=4, train_roles=["verifier", "corrector"], **settings)
    limits = {"solver": None, "verifier": 10_000, "corrector": 10_000}
    return MarsRL(MathPrompts(), config, seed=1, limits=PromptLimits(count_tokens, limits))


def count_tokens(messages) -> int:
    return sum(len(message["content"]) for message in messages)


def train(path: Path, mode: str, *, segment: int | None = None, reload: bool = False) -> list[StepResult]:
    algorithm, engine = method(), ExternalEngine(path)
    scheduler = Scheduler(algorithm, mode)
    sampling = {role: replace(one, segment_tokens=segment) for role, one in SAMPLING.items()}
    results = []
    for step in range(100):
        scheduler.start_step(step, PROBLEMS[4 * step : 4 * step + 4])
        while inputs := scheduler.next_round():
            scheduler.absorb(engine.generate(inputs, sampling))
            if reload:
                saved = json.loads(json.dumps(scheduler.state_dict()))
                scheduler = Scheduler(algorithm, mode)
                scheduler.load_state_dict(saved)
        last = step >= 2 and scheduler.idle()
        results.append(scheduler.finish_step(last=last))
        if last:
            return results
    raise AssertionError("the pools never became empty")


def trained(results: list[StepResult]) -> dict[str, list[tuple]]:
    return {
        group.input.group_id: [(sample.text, sample.reward, group.input.messages) for sample in group.samples]
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
    assert {group.input.role for group in groups} == {"verifier", "corrector"}
    assert not any(sample.external for group in groups for sample in group.samples)
    assert any(advantage != 0.0 for advantage in sample_advantages(groups).values())
    solved = [group for result in results for group in result.completed if group.input.role == SOLVER]
    assert len(solved) == len(PROBLEMS)
    assert all(sample.external and sample.new_tokens == 0 for group in solved for sample in group.samples)


def test_what_the_verifier_judges_is_the_file_s_answer_without_its_thinking_part(answers):
    results = train(answers, "sequential")
    groups = [group for result in results for group in result.completed]
    by_id = {sample.sample_id: sample for group in groups for sample in group.samples}
    judged = [group.input for group in groups if group.input.stage == "verifier_1"]
    assert len(judged) == 2 * len(PROBLEMS)
    for item in judged:
        parent = by_id[item.parent_id]
        assert (item.solution, item.solution_reward) == (parent.final_text, parent.reward)
        assert item.solution in item.messages[1]["content"]
        assert "<think>" not in item.solution


def test_pipelined_and_sequential_train_the_same_groups(answers):
    assert trained(train(answers, "pipelined")) == trained(train(answers, "sequential"))


def test_a_restored_run_goes_on_with_the_same_solutions(answers):
    assert trained(train(answers, "pipelined", reload=True)) == trained(train(answers, "pipelined"))


def test_segments_cut_only_what_the_engine_decodes(answers):
    cut = train(answers, "pipelined", segment=40)
    samples = [sample for result in cut for group in result.completed for sample in group.samples]
    assert {len(sample.segments) for sample in samples if sample.external} == {1}
    assert max(len(sample.segments) for sample in samples if not sample.external) > 1


def test_one_answer_makes_one_verifier_input(tmp_path):
    path = write_answers(tmp_path / "one.jsonl", wrong=1, right=0)
    results = train(path, "sequential")
    stages = [group.input.stage for result in results for group in result.completed]
    assert stages.count("verifier_1") == len(PROBLEMS), "the same text twice would be one group twice"


def test_the_models_own_repetitions_stay_inputs():
    algorithm = method()
    [item] = algorithm.first_inputs(PROBLEMS[0], 0)
    engine = ScriptedEngine(SkillModel(solver=1.0, truncated=0.0), seed=None)
    samples = [
        replace(sample, text="same", final_text="same") for sample in engine.generate([item], SAMPLING)
    ]
    assert len(algorithm.next_inputs(PROBLEMS[0], 0, [Group(item, samples)], 0)) == 2


def test_the_solvers_prompt_is_not_measured(answers):
    measured: list[tuple] = []
    limits = {"solver": None, "verifier": 10_000, "corrector": 10_000}

    def tokens(messages) -> int:
        measured.append(messages)
        return count_tokens(messages)

    algorithm = MarsRL(MathPrompts(), seed=1, limits=PromptLimits(tokens, limits))
    assert len(algorithm.first_inputs(Problem("p", "x" * 99_999, "2"), 0)) == 1
    assert measured == []


def test_the_system_is_evaluated_behind_it(answers):
    def run(tag: str):
        return evaluate_system(
            ExternalEngine(answers),
            PROBLEMS,
            MathPrompts(),
            SAMPLING,
            correction_rounds=2,
            samples_per_problem=2,
            tag=tag,
        )

    before, after = run("before"), run("after")
    first = [one.calls[0].sample for one in before.runs]
    assert all(sample.external for sample in first)
    assert [one.calls[0].sample.text for one in after.runs] == [sample.text for sample in first]
    assert 0 < sum(one.solver_reward for one in before.runs) < len(before.runs)
    others = [call.sample for call in before.calls if call.input.role != SOLVER]
    assert before.generated_tokens == sum(len(sample.response_ids) for sample in others) > 0


def test_an_external_sample_can_not_have_tokens(answers):
    item = method().first_inputs(PROBLEMS[0], 0)[0]
    sample = ExternalEngine(answers).generate([item], SAMPLING)[0]
    with pytest.raises(ValueError, match="no token ids of ours"):
        replace(sample, response_ids=[1], rollout_log_probs=[0.0], response_mask=[1], segments=[(1, 0)])


def test_the_sources_import_neither_verl_nor_ray_nor_vllm():
    code = (
        "import sys\n"
        "import marsrl_verl.rollout.external.answer_file, marsrl_verl.rollout.external.endpoint\n"
        "heavy = {'verl', 'ray', 'vllm', 'torch', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
