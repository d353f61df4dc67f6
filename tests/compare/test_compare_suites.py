"""The shipped suites, and what is said of a wrong one."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from launching import launched, settings
from omegaconf import OmegaConf

from marsrl_verl.compare.plan import quoted
from marsrl_verl.compare.suite import SuiteError, load_suite, suite_names

GOOD = "title: A\ncurve: val/a\ngenerated_tokens: 100\nmax_steps: 5\nmethods:\n  one: [algo=grpo]\n"


@pytest.mark.parametrize("name", suite_names())
@pytest.mark.with_presets("grpo")
def test_every_method_of_a_shipped_suite_passes_the_checks_with_its_budget(name):
    suite = load_suite(name)
    for run, config in launched(name).values():
        assert OmegaConf.select(config, suite.budget.quantity.setting) == suite.budget.amount
        assert config.trainer.total_training_steps == suite.max_steps
        assert config.marsrl.run.output_dir == str(run.folder)


def settings_of(name):
    """By method: the method's settings, and those of pipeline and loss that suites differ in."""
    found = {}
    for method, config in settings(name).items():
        flat = {f"algo.{key}": value for key, value in config.marsrl.algo.items()}
        flat |= {f"pipeline.{key}": value for key, value in config.marsrl.pipeline.items()}
        found[method] = {**flat, "off_policy": config.marsrl.off_policy.mode}
    return found


@pytest.mark.parametrize(
    ("name", "differ"),
    [
        ("selection", [{"algo.selection"}] * 2),
        (
            "pipeline",
            [
                {"pipeline.mode"},
                {"off_policy"},
                {"pipeline.overlap"},
                {"pipeline.max_segments"},
                {"off_policy"},
                {"pipeline.min_group"},
                {"algo.mastered_tokens"},
            ],
        ),
    ],
)
def test_two_methods_that_are_judged_differ_in_one_setting(name, differ):
    found, suite = settings_of(name), load_suite(name)
    for (method, reference), keys in zip(suite.pairs, differ, strict=True):
        one, other = found[method], found[reference]
        assert {key for key in one if one[key] != other[key]} == keys, (method, reference)


def test_methods_differ_in_what_is_trained():
    algos = {method: config.marsrl.algo for method, config in settings("marsrl").items()}
    trained = {method: (one.name, list(one.get("train_roles", ["solver"]))) for method, one in algos.items()}
    assert trained == {
        "marsrl_s": ("marsrl", ["solver"]),
        "marsrl_vc": ("marsrl", ["verifier", "corrector"]),
        "marsrl": ("marsrl", ["solver", "verifier", "corrector"]),
    }


def test_methods_are_judged_against_those_that_the_suite_names(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + "  two: []\n  three: []\nprimary: [area]\n")
    suite = load_suite(str(path))
    assert (suite.name, suite.methods["one"]) == ("mine", ("algo=grpo",))
    assert suite.pairs == (("two", "one"), ("three", "one"))
    path.write_text(GOOD + "  two: []\n  three: []\nprimary: [area, x]\npairs: [[three, two]]\n")
    suite = load_suite(str(path))
    assert suite.pairs == (("three", "two"),) and suite.questions == 2
    path.write_text(GOOD + "  two: []\npairs: [[two, one], [two, one]]\n")
    with pytest.raises(SuiteError, match="one of them twice"):
        load_suite(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "tokens: 3\n", "unknown keys tokens"),
        ("title: A\n", "missing keys max_steps, curve, methods, generated_tokens or executed_tool_calls"),
        (GOOD + "executed_tool_calls: 5\n", "are two budgets"),
        (GOOD.replace("100", "0"), "generated_tokens = 0, expected a whole number of at least 1"),
        (GOOD.replace("[algo=grpo]", "algo=grpo"), "methods.one = 'algo=grpo', expected a list"),
        (GOOD.replace("one", "a/b"), "a method is named 'a/b'"),
        (GOOD.replace("\n  one: [algo=grpo]", " {}"), "expected names with a list of overrides"),
        (GOOD + "level_of: two\n", "level_of = 'two', expected one of: one"),
        (GOOD + "pairs: [one]\n", "pairs = ['one'], expected lists of two of: one"),
        (GOOD + "pairs: [[one, one]]\n", "expected lists of two of: one"),
        (GOOD + "figures: a\n", "figures = 'a', expected a list"),
        ("- 1\n", "holds a list"),
        ("a: [\n", "is not YAML"),
    ],
)
def test_a_wrong_suite_is_refused_by_key(tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SuiteError, match=r"mine\.yaml") as refusal:
        load_suite(str(path))
    assert said in str(refusal.value)


def test_metrics_under_their_former_names_are_those_of_now(tmp_path):
    path = tmp_path / "own.yaml"
    figures = "[rollout/log_prob_gap_mean, action_share/empty, a/repetition_share_right, stage/a/my_share]"
    path.write_text(f"{GOOD}figures: {figures}\nheadline: [role/a/equal_reward_groups]\n")
    suite = load_suite(str(path))
    assert suite.headline == ("role/a/zero_std_groups",)
    assert suite.figures == (
        "rollout/log_probs_diff_mean", "action_frac/empty", "a/repetition_frac_right", "stage/a/my_share"
    )  # fmt: skip


def test_an_unknown_suite_names_the_known_ones():
    with pytest.raises(SuiteError, match=r"marsrl, .*selection"):
        load_suite("marrsl")


@pytest.mark.parametrize(
    "text", ["plain/x-1.y", "with space", "it's", "a=b,c", "back\\slash\\", "a\\'b", "[x]"]
)
def test_values_survive_hydras_grammar(text):
    override = OverridesParser.create().parse_override(f"name={quoted(text)}")
    assert str(override.value()) == text


def test_a_suite_may_be_like_another_one(tmp_path):
    (tmp_path / "mine.yaml").write_text("like: marsrl\nmax_steps: 7\n")
    (tmp_path / "tokens.yaml").write_text("like: mine.yaml\ngenerated_tokens: 50\ntitle: Mine\n")
    base, mine = load_suite("marsrl"), load_suite(str(tmp_path / "mine.yaml"))
    assert (mine.name, mine.max_steps) == ("mine", 7)
    assert (mine.methods, mine.budget, mine.title) == (base.methods, base.budget, base.title)
    other = load_suite(str(tmp_path / "tokens.yaml"))
    assert (str(other.budget), other.max_steps, other.title) == ("50 generated tokens", 7, "Mine")


@pytest.mark.parametrize(
    ("like", "said"),
    [
        ("mine.yaml", "is like itself"),
        ("[arpo]", "expected a suite's name"),
        ("nowhere", "there is no suite 'nowhere'"),
        ("nowhere.yaml", r"there is no suite '.*nowhere\.yaml'"),
    ],
)
def test_what_it_is_like_is_there(tmp_path, like, said):
    (tmp_path / "mine.yaml").write_text(f"like: {like}\n")
    with pytest.raises(SuiteError, match=said):
        load_suite(str(tmp_path / "mine.yaml"))


def test_without_studies_a_suite_says_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr("marsrl_verl.compare.suite.FOLDER", tmp_path / "studies" / "suites")
    assert suite_names() == []
    with pytest.raises(SuiteError, match=r"no suite 'marsrl'; .* come with a clone of the repository"):
        load_suite("marsrl")
