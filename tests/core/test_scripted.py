import pytest
from scheduler_tools import SAMPLING, marsrl, problems

from marsrl_verl.core.scripted import Reply, ScriptedEngine, SkillModel
from marsrl_verl.core.types import FinishReason, Group, SamplingSettings, Verdict

SOLVER = marsrl(group_size=200).first_inputs(problems(1)[0], 0)


def generate(script, inputs=SOLVER, sampling=SAMPLING, **options):
    return ScriptedEngine(script, **options).generate(inputs, sampling)


def test_the_same_seed_gives_the_same_samples_in_the_same_order():
    assert generate(SkillModel(3)) == generate(SkillModel(3))


def test_the_engine_seed_changes_the_order_only():
    first, second = generate(SkillModel(), seed=1), generate(SkillModel(), seed=2)
    assert first != second
    assert sorted(first, key=lambda s: s.sample_id) == sorted(second, key=lambda s: s.sample_id)


def test_skills_show_in_the_rewards():
    def mean(**skill) -> float:
        samples = generate(SkillModel(truncated=0.0, **skill))
        return sum(sample.reward for sample in samples) / len(samples)

    assert mean(solver=1.0) == 1.0
    assert mean(solver=0.0) == 0.0
    assert mean(solver=0.5) == pytest.approx(0.5, abs=0.12)


def test_a_verifier_is_scored_against_the_solution_it_judges():
    algorithm = marsrl(group_size=200)
    script = SkillModel(solver=0.0, verifier=0.7, invalid=0.1, truncated=0.0)
    engine = ScriptedEngine(script)
    solutions = sorted(engine.generate(SOLVER, SAMPLING), key=lambda sample: sample.sample_id)
    inputs = algorithm.next_inputs(problems(1)[0], 0, [Group(SOLVER[0], solutions)], 0)
    verdicts = [sample.outcome.verdict for sample in engine.generate(inputs, SAMPLING)]
    share = {verdict: verdicts.count(verdict) / len(verdicts) for verdict in Verdict}
    assert share[Verdict.INVALID] == pytest.approx(0.1, abs=0.06)
    assert share[Verdict.WRONG] == pytest.approx(0.63, abs=0.1)


def test_limits_are_kept():
    short = {"solver": SamplingSettings(max_new_tokens=10, max_prompt_tokens=1000)}
    samples = generate(lambda item, k: Reply("\\boxed{1} and much more"), sampling=short)
    assert {len(sample.response_ids) for sample in samples} == {10}
    assert {sample.finish_reason for sample in samples} == {FinishReason.LENGTH}
    assert {sample.reward for sample in samples} == {0.0}

    tight = {"solver": SamplingSettings(max_new_tokens=10, max_prompt_tokens=3)}
    samples = generate(SkillModel(), sampling=tight)
    assert {sample.finish_reason for sample in samples} == {FinishReason.PROMPT_TOO_LONG}
    assert {len(sample.response_ids) for sample in samples} == {0}


def test_missing_sampling_settings_are_named():
    with pytest.raises(ValueError, match=r"\['solver'\]"):
        generate(SkillModel(), sampling={"verifier": SAMPLING["verifier"]})
