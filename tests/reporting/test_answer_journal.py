"""An evaluation that is interrupted goes on from its answers, and comes to the same result."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evaluation_tools import system
from marsrl_script import ScriptedEngine, SkillModel

from marsrl_verl.algos.marsrl.prompts import MathPrompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.evaluation.suite import evaluate
from marsrl_verl.reporting.answer_journal import AnswerJournal, JournaledEngine
from marsrl_verl.reporting.files import to_json
from marsrl_verl.reporting.rollout_log import evaluation_lines
from marsrl_verl.rollout.generation import EngineUnavailableError

PROBLEMS = [Problem(f"v{k}", f"{k}+1=?", str(k + 1), row=f"r{k}") for k in range(6)]
SAMPLING = {role: Sampling(200, 10_000, seed=1) for role in ("solver", "verifier", "corrector")}


class Dying:
    """Ends after so many answers."""

    def __init__(self, engine, answers: int) -> None:
        self.engine, self.left, self.asked = engine, answers, 0

    def submit(self, requests, sampling):
        self.asked += len(requests)
        self.engine.submit(requests, sampling)

    def outputs(self):
        if self.left <= 0:
            raise EngineUnavailableError("gone")
        found = self.engine.outputs()
        self.left -= len(found)
        return found


def result_of(engine, sampling=SAMPLING):
    evaluation = system(MathPrompts(), correction_rounds=2)
    return evaluate(
        engine, PROBLEMS, evaluation, sampling, tag="alone", step=3, samples_per_problem=2, clock=lambda: 0.0
    )


def lines_of(result):
    return [
        to_json(line)
        for runs in result.passes
        for line in evaluation_lines(3, runs, result.evaluation.record)
    ]


def scripted():
    return ScriptedEngine(SkillModel(), seed=0)


@pytest.fixture(scope="module")
def whole():
    return result_of(scripted())


@pytest.mark.parametrize("answers", [1, 15, 40])
@pytest.mark.parametrize("cut", [b"", b'{"key": "abc", "tra'], ids=["whole lines", "half a line"])
def test_it_goes_on_and_asks_nothing_twice(tmp_path, whole, answers, cut):
    path = tmp_path / "evaluations" / "answers.jsonl"
    dying, journal = Dying(scripted(), answers), AnswerJournal(path, "weights")
    with pytest.raises(EngineUnavailableError):
        result_of(JournaledEngine(dying, journal))
    journal.close()
    with path.open("ab") as file:
        file.write(cut)
    again, journal = Dying(scripted(), 10**9), AnswerJournal(path, "weights")
    engine = JournaledEngine(again, journal)
    found = result_of(engine)
    assert found.record == whole.record
    assert lines_of(found) == lines_of(whole)
    calls = sum(len(runs.all_calls) for runs in whole.passes)
    assert engine.taken == len(journal.answers) > 0
    assert again.asked == calls - engine.taken
    journal.remove()
    assert not path.exists()


def test_answers_count_for_the_very_same_requests_alone(tmp_path):
    path = tmp_path / "answers.jsonl"
    journal = AnswerJournal(path, "weights")
    result_of(JournaledEngine(scripted(), journal))
    journal.close()
    longer = {role: replace(one, max_new_tokens=201) for role, one in SAMPLING.items()}
    for sampling, weights in ((SAMPLING, "other weights"), (longer, "weights")):
        engine = JournaledEngine(scripted(), AnswerJournal(path, weights))
        result_of(engine, sampling)
        assert engine.taken == 0


class Failing:
    """Some of the answers did not come, others could not be graded."""

    def __init__(self, engine) -> None:
        self.engine, self.seen = engine, 0

    def submit(self, requests, sampling):
        self.engine.submit(requests, sampling)

    def outputs(self):
        found = self.engine.outputs()
        for output in found:
            self.seen += 1
            for one in output.trajectories:
                if self.seen % 5 == 1:
                    one.finish, one.reward = FinishReason.ERROR, RewardResult(0.0)
                elif self.seen % 5 == 2:
                    one.reward = RewardResult(0.0, graded=False, error="the judge is away")
        return found


def test_what_failed_is_asked_again(tmp_path, whole):
    path = tmp_path / "answers.jsonl"
    journal = AnswerJournal(path, "weights")
    failing = JournaledEngine(Failing(scripted()), journal)
    assert lines_of(result_of(failing)) != lines_of(whole) and failing.failed > 0
    journal.close()
    engine = JournaledEngine(scripted(), AnswerJournal(path, "weights"))
    assert lines_of(result_of(engine)) == lines_of(whole) and engine.failed == 0
    assert 0 < engine.taken < sum(len(runs.all_calls) for runs in whole.passes)
