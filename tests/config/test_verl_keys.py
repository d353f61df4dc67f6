"""verl's keys that have a clear meaning here."""

from __future__ import annotations

from pathlib import Path

import pytest
from messages import accepted, assert_refused

from marsrl_verl.config.reference import find_unknown
from marsrl_verl.config.verl_keys import EACH, ESTIMATOR, FIRST, FIXED_KEYS, INERT_KEYS, VERL_KEYS, with_roles
from marsrl_verl.config.verl_keys import translate as translate_for
from marsrl_verl.settings.issues import ConfigError

ROLES = ("solver", "verifier", "corrector")
DOCS = Path(__file__).parents[2] / "docs" / "guides" / "from_verl.md"


def translate(overrides: tuple[str, ...]):
    return translate_for(overrides, lambda: ROLES, lambda: ROLES[0])


def test_the_group_size_is_verls_n():
    found = translate(("actor_rollout_ref.rollout.n=16",))
    assert found.overrides == ("marsrl.algo.group_size=16",)
    assert found.notes == ("actor_rollout_ref.rollout.n=16 is taken as marsrl.algo.group_size=16",)


def test_one_temperature_for_all_roles():
    found = translate(("+actor_rollout_ref.rollout.temperature=0.7", "name=x"))
    assert found.overrides == (*(f"marsrl.roles.{role}.temperature=0.7" for role in ROLES), "name=x")


def test_what_is_said_of_one_role_counts_more_than_what_is_said_of_all():
    found = translate(("data.max_response_length=8", "marsrl.roles.verifier.max_new_tokens=2"))
    lengths = ("solver.max_new_tokens=8", "corrector.max_new_tokens=8", "verifier.max_new_tokens=2")
    assert found.overrides == tuple(f"marsrl.roles.{one}" for one in lengths)
    assert found.notes[0].endswith("is taken as marsrl.roles.{solver,corrector}.max_new_tokens=8")
    own = tuple(f"marsrl.roles.{role}.max_new_tokens=2" for role in ROLES)
    with pytest.raises(ConfigError, match="Leave one of them out"):
        translate(("data.max_response_length=8", *own))


def test_of_one_role_there_is_one_temperature():
    found = translate_for(("actor_rollout_ref.rollout.temperature=0.7",), lambda: ("agent",), lambda: "agent")
    assert found.overrides == ("marsrl.roles.agent.temperature=0.7",)
    assert found.notes[0].endswith("is taken as marsrl.roles.agent.temperature=0.7")
    longest = translate_for(("data.max_prompt_length=9",), lambda: ("other", "agent"), lambda: "agent")
    assert longest.overrides == ("marsrl.roles.agent.max_prompt_tokens=9",)


@pytest.mark.parametrize(("written", "every"), [("-1", "0"), ("0", "0"), ("5", "5")])
def test_a_test_frequency_below_zero_is_never(written, every):
    assert translate((f"trainer.test_freq={written}",)).overrides == (f"marsrl.evaluation.every={every}",)


def test_the_same_value_twice_is_no_contradiction():
    both = ("actor_rollout_ref.rollout.n=4", "marsrl.algo.group_size=4")
    assert set(translate(both).overrides) == {"marsrl.algo.group_size=4"}


def test_two_values_for_one_setting_are_refused():
    with pytest.raises(ConfigError) as caught:
        translate(("actor_rollout_ref.rollout.n=4", "marsrl.algo.group_size=8"))
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == ("actor_rollout_ref.rollout.n", "4")
    assert "marsrl.algo.group_size" in problem.what and "8" in problem.what


def test_verls_estimators_that_are_here_are_taken():
    found = translate((f"{ESTIMATOR}=grpo",))
    assert found.overrides == () and found.estimator_named
    found = translate((f"{ESTIMATOR}=reinforce_plus_plus", "algorithm.gamma=0.9"))
    assert found.overrides == ("marsrl.algo.estimator=reinforce_pp", "marsrl.algo.gamma=0.9")
    assert len(found.notes) == 2 and not found.estimator_named
    with pytest.raises(ConfigError, match=r"sets marsrl.algo.estimator to reinforce_pp"):
        translate((f"{ESTIMATOR}=grpo", "marsrl.algo.estimator=reinforce_pp"))
    assert not translate(()).estimator_named
    with pytest.raises(ConfigError, match="gae"):
        translate((f"{ESTIMATOR}=gae",))


def test_every_key_exists():
    for key, taken in VERL_KEYS.items():
        assert find_unknown(key) is None, key
        for ours in with_roles(taken, lambda: ROLES, lambda: ROLES[0]):
            assert find_unknown(ours) is None, ours


def test_a_verl_command_line_composes(run):
    done = accepted(
        run,
        "algo=grpo cluster=cpu dry_run=true algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=16",
        "data.max_prompt_length=30 data.max_response_length=40 trainer.test_freq=-1",
        "trainer.val_before_train=False",
    )
    assert "(16 per group)" in done.text
    assert "actor_rollout_ref.rollout.n=16 is taken as marsrl.algo.group_size=16" in done.text


def test_group_relative_advantages_contradict_another_estimator_wherever_it_is_set(run, tmp_path):
    """On the command line, in a preset."""
    (tmp_path / "conf" / "algo").mkdir(parents=True)
    text = "# @package _global_\ndefaults: [grpo, _self_]\nmarsrl: {algo: {estimator: reinforce_pp}}\n"
    (tmp_path / "conf" / "algo" / "mine.yaml").write_text(text)
    words = ("--config-dir", str(tmp_path / "conf"), "algo=mine", "cluster=cpu", "dry_run=true")
    assert run(*words).status == 0
    done = run(*words, f"{ESTIMATOR}=grpo")
    assert_refused(
        done, f"{ESTIMATOR} = grpo", "The configuration sets marsrl.algo.estimator to reinforce_pp."
    )
    assert run(*words, f"{ESTIMATOR}=reinforce_plus_plus").status == 0


def test_what_was_taken_is_said_at_start(run):
    done = accepted(
        run, "algo=grpo", "cluster=cpu", "data.max_response_length=40", "trainer.val_before_train=False"
    )
    assert "trainer.val_before_train=False is taken as marsrl.evaluation.before=False" in done.text
    assert done.launched.marsrl.evaluation.before is False
    assert done.launched.data.max_response_length == 40
    assert done.launched.marsrl.roles.solver.max_new_tokens == 40


@pytest.mark.with_presets("grpo")
def test_the_documentation_has_every_key_in_one_of_its_tables():
    text = DOCS.read_text(encoding="utf-8")
    for key, ours in VERL_KEYS.items():
        assert f"`{key}`" in text, key
        assert f"`{ours.replace(FIRST, EACH)}`" in text, ours


def test_no_key_is_both_taken_and_refused_as_useless():
    """A node may be rejected as a whole while a key in it is taken: the command line's is replaced before."""
    exactly = {one.key for one in (*INERT_KEYS, *FIXED_KEYS)}
    only_in_files = {"actor_rollout_ref.rollout.n", "trainer.test_freq", "trainer.val_before_train"}
    assert VERL_KEYS.keys() & exactly == only_in_files
