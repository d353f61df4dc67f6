"""Functions of the user's that settings name: wrong ones are rejected before the start."""

from __future__ import annotations

import textwrap

import pytest
from messages import assert_checks_refuse, refusals

from marsrl_verl.algos.arpo.config import Config as Arpo
from marsrl_verl.algos.attnrl.config import Config as AttnRL
from marsrl_verl.algos.marsrl.config import Config as MarsRL
from marsrl_verl.algos.rema.single_turn.config import Config as SingleTurn
from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.settings.reading import defaults, read
from marsrl_verl.settings.rules import OwnFunction

CODE = """
    from marsrl_verl.settings.rules import needs

    LIMIT = 3

    class Scores:
        def __call__(self, response):
            return []

    made = Scores()

    def scores(response):
        return [0.0] * len(response.steps)

    def raises(response):
        return {}["mine"]

    def of_two(response, steps):
        return []

    async def waits(response):
        return []

    @needs("influence")
    def influential(response):
        return response.influence

    @needs("hidden_states")
    def looks_inside(response):
        return []

    def keeps(successes, samples):
        return successes > 0

    def forks(place):
        return True

    @needs("entropy")
    def doubts(place):
        return True

    def picks(candidates, k, rng):
        return candidates[:k]
"""
ALGO = "marsrl.algo"
TREE = {ALGO: {**defaults(AttnRL), "name": "attnrl"}}


@pytest.fixture(autouse=True)
def functions(tmp_path, monkeypatch):
    (tmp_path / "own_rules.py").write_text(textwrap.dedent(CODE))
    (tmp_path / "broken_rules.py").write_text("limit = 3\nlimits = limit / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("criterion", "what", "fix"),
    [
        ("no_such_rules:scores", "There is no module 'no_such_rules'", "put its folder on PYTHONPATH"),
        ("broken_rules:scores", "broken_rules.py, line 2", "Repair the module"),
        (
            "own_rules:score",
            "has no 'score'",
            "Did you mean own_rules:scores? Functions there: scores, raises, of_two",
        ),
        (
            "own_rules:LIMIT",
            "Expected a function (response: ResponseView) -> Sequence[float], found 3.",
            "Name",
        ),
        ("own_rules:Scores", "found <class 'own_rules.Scores'>", "Name a function"),
        ("own_rules:of_two", "found of_two(response, steps)", "own_rules.py:18 (docs/guides/new_method.md)"),
        ("own_rules:waits", "found a coroutine", "Let it be waits(response: ResponseView)"),
        ("own_rules:looks_inside", "It needs hidden_states", "@needs for entropies, influence"),
        (":scores", "Expected package.module:function.", "(response: ResponseView)"),
        ("fcy", "There is no such choice.", "Did you mean fci? Use one of: fci, surprisal"),
        ("steps", "There is no such choice.", "uniform, package.module:function."),
        (3, "There is no such choice.", "package.module:function"),
    ],
)
def test_a_wrong_function_is_refused(criterion, what, fix):
    with pytest.raises(ConfigError) as refused:
        read(AttnRL, {"criterion": criterion}, ALGO)
    [issue] = refused.value.problems
    assert (issue.key, issue.value) == (f"{ALGO}.criterion", criterion)
    assert what in issue.what and fix in issue.fix


@pytest.mark.parametrize("name", ["scores", "made", "influential"])
def test_a_sound_one_is_kept_as_its_name(name):
    config = read(AttnRL, {"criterion": f"own_rules:{name}"}, ALGO)
    assert isinstance(config.criterion, OwnFunction) and config.criterion == f"own_rules:{name}"
    assert config.model_dump(mode="json")["criterion"] == f"own_rules:{name}"
    assert config.needs == ({"influence"} if name == "influential" else frozenset())


def arpo(law: str, **more: object) -> dict[str, object]:
    return {
        **defaults(Arpo),
        "name": "arpo",
        "branching": {**defaults(Arpo)["branching"], "law": law, **more},
    }


SINGLE_TURN = {ALGO: {**defaults(SingleTurn), "name": "rema_single_turn"}}
REFUSED = refusals(
    f"""
    in a whole run | TREE {ALGO}.criterion=own_rules:nothing | has no 'nothing'
    one that raises | TREE {ALGO}.criterion=own_rules:raises
        | In a trial with scripted answers it raised KeyError: 'mine'. fix: Correct /
    the share of the criterion that it replaces | TREE {ALGO}.criterion=own_rules:scores {ALGO}.top_frac=0.5
        | criterion=fci
    influence that nothing needs | TREE {ALGO}.criterion=own_rules:scores {ALGO}.filter=none {ALGO}.delta=2
        | criterion=fci
    influence of attention that cannot be measured
        | TREE {ALGO}.criterion=own_rules:influential {ALGO}.filter=none
        actor_rollout_ref.model.override_config.attn_implementation=eager | eager is not in it
    Triton on the processor
        | TREE {ALGO}.criterion=own_rules:influential {ALGO}.filter=none {ALGO}.fci_backend=triton
        | need a GPU
    bounds that a function replaces | SINGLE_TURN {ALGO}.filter.rule=own_rules:keeps {ALGO}.filter.lowest=0.1
        | It has no effect with {ALGO}.filter.rule = own_rules:keeps.
    a rule of a filter that is off
        | SINGLE_TURN {ALGO}.filter.enabled=false {ALGO}.filter.rule=own_rules:keeps
        | It has no effect with {ALGO}.filter.enabled = false.
    bounds of a filter that is off | SINGLE_TURN {ALGO}.filter.enabled=false {ALGO}.filter.lowest=0.1
        | It has no effect with {ALGO}.filter.enabled = false.
    """,
    TREE=TREE,
    SINGLE_TURN=SINGLE_TURN,
)


@pytest.mark.parametrize("case", REFUSED)
def test_what_only_the_replaced_rule_reads_is_refused(checked, case):
    assert_checks_refuse(checked, *REFUSED[case])


@pytest.mark.parametrize(
    ("law", "name", "value", "refused"),
    [
        ("forks", "threshold", 0.4, True),
        ("forks", "base_probability", 0.4, True),
        ("forks", "entropy_weight", 0.4, True),
        ("forks", "entropy_tokens", 9, True),
        ("doubts", "entropy_tokens", 9, False),
        ("doubts", "entropy_weight", 0.4, True),
        ("forks", "beam", 3, False),
    ],
)
def test_settings_of_other_laws(law, name, value, refused):
    from marsrl_verl.algos.arpo.config import _inert
    from marsrl_verl.settings.reading import without_effect

    config = read(Arpo, arpo(f"own_rules:{law}", **{name: value}), ALGO)
    keys = [issue.key for issue in (*_inert(config), *without_effect(config, ALGO))]
    assert keys == [f"{ALGO}.branching.{name}"] * refused


def test_selection_has_the_same_form():
    assert read(MarsRL, {"selection": "own_rules:picks"}, ALGO).selection.function.__name__ == "picks"
    with pytest.raises(ConfigError, match="Expected a function"):
        read(MarsRL, {"selection": "own_rules:keeps"}, ALGO)
