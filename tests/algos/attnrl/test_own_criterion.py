"""Branch points by a function of the user's, named by the setting alone."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from attnrl_tools import always, method, run
from scripted_engine import Reply

from marsrl_verl.algos.attnrl.adaptive_sampling import FilterRule
from marsrl_verl.algos.attnrl.method import CONTINUATION, INITIAL
from marsrl_verl.settings.rules import RuleError

DOCS = Path(__file__).parents[3] / "docs" / "new_method.md"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Makes a module of functions, and names one of them."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, code: str) -> str:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        return name

    return write


def begins(results) -> set[str]:
    """What continuations begin with."""
    groups = [group for step in results for group in step.trained if group.request.stage == CONTINUATION]
    return {bytes(group.request.prefix.response_ids.tolist()).decode() for group in groups}


def test_the_rule_of_the_documentation(own):
    text = DOCS.read_text().partition("## Rules of your own")[2]
    code = textwrap.dedent(re.search(r"\n\n(    from .*?)\n\n    python", text, re.DOTALL)[1])
    assert len(code.splitlines()) <= 15
    attnrl = method(criterion=own("my_rules", code) + ":doubts", num_branch_points=1, record_log_probs=False)
    [probe] = attnrl.probes(INITIAL)
    assert probe.entropies and probe.measure is None, "what the rule needs, and no influence"

    def doubting(item, k):
        answer = item.problem.ground_truth if k % 2 else "no"
        return Reply(f"first\nBut wait\nthird\nfourth\n\\boxed{{{answer}}}")

    results, _ = run(attnrl, answers=doubting)
    assert begins(results) == {"first\n"}


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("[-abs(step - 2) for step in range(len(response.steps))]", {"first line\nsecond line\n"}),
        ("[step if step != 3 else -np.inf for step in range(4)] + [-np.inf]", {"first line\nsecond line\n"}),
        ("[float(at == 5) for at in range(len(response.token_ids))]", {"first"}),
        ("[-float(text != 'h') for text in response.texts]", {"first line\nsecond line\nt"}),
        ("response.influence", {"first line\nsecond line\n"}),
        ("response.log_probs * 0 + (np.arange(len(response.texts)) == 3)", {"fir"}),
    ],
)
def test_scores_of_steps_and_of_tokens(own, score, expected, request):
    name = f"scores_{request.node.callspec.indices['score']}"
    code = f"""
        import numpy as np
        from marsrl_verl.settings.rules import needs

        @needs("influence")
        def rule(response):
            return {score}
    """
    attnrl = method(criterion=own(name, code) + ":rule", num_branch_points=1)
    assert begins(run(attnrl)[0]) == expected
    assert attnrl.probes(INITIAL)[0].outputs == ("influence",)


def test_draws_are_those_of_the_seed(own):
    name = own("draws", "def rule(response):\n    return response.rng.random(len(response.steps))\n")
    found = [begins(run(method(criterion=f"{name}:rule", num_branch_points=1))[0]) for _ in range(2)]
    assert found[0] == found[1] and len(found[0]) > 1


def test_the_filter_measures_influence_for_itself(own):
    name = own("first", "def rule(response):\n    return np.zeros(len(response.steps))\nimport numpy as np\n")
    attnrl = method(criterion=f"{name}:rule", filter=FilterRule.PAPER)
    assert attnrl.probes(INITIAL)[0].measure is not None
    assert not method(criterion=f"{name}:rule", record_log_probs=False).probes(INITIAL)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return response.entropies", "LookupError: a function that reads entropies has to say so"),
        ("return [1.0]", r"returned an array of shape \(1,\); expected a number for each of the 5 steps"),
        ("return [float('nan')] * len(response.steps)", "returned NaN among its scores"),
        ("return 'high'", "returned str 'high'; expected a number for each"),
    ],
)
def test_what_a_rule_does_wrong_is_said_with_setting_file_and_line(own, body, said, request):
    name = own(f"wrong_{request.node.callspec.indices['body']}", f"def rule(response):\n    {body}\n")
    with pytest.raises(RuleError, match=said) as raised:
        run(method(criterion=f"{name}:rule"), answers=always(right=True))
    text = str(raised.value)
    assert text.startswith(f"marsrl.algo.criterion = {name}:rule ")
    assert f"{name}.py, line 2" in text or f"{name}.py:1" in text
