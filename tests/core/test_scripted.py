import pytest
from marsrl_script import ScriptedEngine, SkillModel
from scheduler_tools import SAMPLING, frozen, marsrl, problems
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.trajectory import FinishReason

SOLVER = marsrl(group_size=200).first_requests(problems(1)[0], 0)


SIX = [item for problem in problems(6) for item in marsrl().first_requests(problem, 0)]


def outputs(script, requests=SIX, sampling=SAMPLING, **options):
    return ScriptedEngine(script, **options).generate(requests, sampling)


def generate(script, **options):
    (output,) = outputs(script, requests=SOLVER, **options)
    return output.trajectories


def test_the_same_seed_gives_the_same_trajectories_in_the_same_order():
    assert frozen(outputs(SkillModel(3))) == frozen(outputs(SkillModel(3)))


def test_the_engine_seed_changes_the_order_only():
    first, second, unseeded = (outputs(SkillModel(), seed=seed) for seed in (1, 2, None))
    assert [one.group_id for one in first] != [one.group_id for one in second]
    assert [one.group_id for one in unseeded] == [item.group_id for item in SIX]
    for found in (first, second):
        assert frozen(sorted(found, key=lambda one: one.group_id)) == frozen(unseeded)


def test_skills_show_in_the_rewards():
    def mean(**skill) -> float:
        found = generate(SkillModel(truncated=0.0, **skill))
        return sum(one.value for one in found) / len(found)

    assert mean(solver=1.0) == 1.0
    assert mean(solver=0.0) == 0.0
    assert mean(solver=0.5) == pytest.approx(0.5, abs=0.12)


def test_a_verifier_is_scored_against_the_solution_it_judges():
    method = marsrl(group_size=200)
    script = SkillModel(solver=0.0, verifier=0.7, invalid=0.1, truncated=0.0)
    engine = ScriptedEngine(script)
    (solutions,) = engine.generate(SOLVER, SAMPLING)
    requests = method.next_requests(problems(1)[0], "solver", [Group(SOLVER[0], solutions.trajectories)], 0)
    verdicts = [
        one.scored.info["verdict"]
        for output in engine.generate(requests, SAMPLING)
        for one in output.trajectories
    ]
    share = {verdict: verdicts.count(verdict.value) / len(verdicts) for verdict in Verdict}
    assert share[Verdict.INVALID] == pytest.approx(0.1, abs=0.06)
    assert share[Verdict.WRONG] == pytest.approx(0.63, abs=0.1)


def test_limits_are_kept():
    short = {"solver": Sampling(max_new_tokens=10, max_prompt_tokens=1000)}
    found = generate(lambda item, k: Reply("\\boxed{1} and much more"), sampling=short)
    assert {one.tokens for one in found} == {10}
    assert {one.finish for one in found} == {FinishReason.LENGTH}
    assert {one.value for one in found} == {0.0}

    tight = {"solver": Sampling(max_new_tokens=10, max_prompt_tokens=3)}
    found = generate(SkillModel(), sampling=tight)
    assert {one.finish for one in found} == {FinishReason.PROMPT_TOO_LONG}
    assert {one.tokens for one in found} == {0}
