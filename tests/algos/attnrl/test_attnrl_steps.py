"""What a step of AttnRL tells: figures of its trees, the adaptive batch, probes, its state."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from attnrl_tools import LINES, always, method, run, step_metrics
from scripted_engine import Reply

from marsrl_verl.algos.attnrl.adaptive_sampling import BatchController, ExpansionRounding, FilterRule
from marsrl_verl.algos.attnrl.branch_points import BranchCriterion, FciAggregation
from marsrl_verl.algos.attnrl.method import CONTINUATION, INITIAL
from marsrl_verl.core.stage import EndReason
from marsrl_verl.settings.rules import RuleError


def batch_controller() -> BatchController:
    return BatchController(40, problems=2.0, least=1, most=8, smoothing=0.9)


def test_figures_of_whole_trees():
    """First responses 0 and 1 are right; problem 0's continuations are all right, problem 1's none."""

    def answers(item, k):
        right = k < 2 if item.stage == INITIAL else item.problem.problem_id == "p10"
        return Reply(f"{LINES}\\boxed{{{item.problem.ground_truth if right else 'wrong'}}}")

    attnrl = method()
    run(attnrl, steps=2, answers=answers)
    found = step_metrics(attnrl)
    assert found["attnrl/ended_problems"] == 2 and found["attnrl/discarded_problems"] == 0
    assert found["attnrl/leaves_all_correct_frac"] == found["attnrl/leaves_none_correct_frac"] == 0.0
    assert found["attnrl/continued_problems"] == 2
    assert found["attnrl/continuations_all_correct_frac"] == 0.5
    assert found["attnrl/continuations_none_correct_frac"] == 0.5
    assert "attnrl/stays_all_correct_frac" not in found, "no problem was solved by all first responses"
    assert found["attnrl/trees/4"] == 4, "of two steps' two problems all four responses"
    assert "attnrl/ended_problems" not in step_metrics(attnrl), "told once"


@pytest.mark.parametrize(("right", "name", "other"), [(True, "all", "none"), (False, "none", "all")])
def test_trees_without_a_difference_are_discarded_and_counted(right, name, other):
    attnrl = method()
    results, _ = run(attnrl, steps=2, answers=always(right))
    assert not any(step.trained for step in results)
    assert {end.reason for step in results for end in step.ended} == {EndReason.FINISHED}
    found = step_metrics(attnrl)
    assert found["attnrl/ended_problems"] == found["attnrl/discarded_problems"] == 2
    assert found[f"attnrl/leaves_{name}_correct_frac"] == found[f"attnrl/stays_{name}_correct_frac"] == 1.0
    assert found[f"attnrl/leaves_{other}_correct_frac"] == 0.0
    assert f"attnrl/stays_{other}_correct_frac" not in found


def test_the_mean_influence_is_told_without_a_filter_too():
    attnrl = method()
    run(attnrl, steps=1, influence=[0.0, 0.1, 0.9, 0.2, 0.3])
    assert step_metrics(attnrl)["attnrl/influence_mean"] == pytest.approx(0.3)


@pytest.mark.parametrize(("influence", "share"), [([0.0] * 5, 1.0), ([0.0, 0.1, 0.0, 0.0, 0.0], 0.0)])
def test_responses_without_any_influence_are_counted(influence, share):
    attnrl = method()
    run(attnrl, steps=1, influence=influence)
    assert step_metrics(attnrl)["attnrl/without_influence_frac"] == share


@pytest.mark.parametrize(
    ("criterion", "filter_rule", "recorded", "probed"),
    [
        (BranchCriterion.EARLIEST, FilterRule.NONE, False, False),
        (BranchCriterion.SURPRISAL, FilterRule.NONE, False, False),
        (BranchCriterion.ENTROPY, FilterRule.NONE, False, True),
        (BranchCriterion.EARLIEST, FilterRule.NONE, True, True),
        (BranchCriterion.EARLIEST, FilterRule.PAPER, False, True),
        (BranchCriterion.FCI, FilterRule.NONE, False, True),
    ],
)
def test_the_trainer_looks_only_where_something_needs_it(criterion, filter_rule, recorded, probed):
    rules = {"filter": filter_rule, "expansion": ExpansionRounding.ROUND}
    attnrl = method(criterion=criterion, stores_trainer_log_probs=recorded, **rules)
    assert bool(attnrl.probes(INITIAL)) == probed and not attnrl.probes(CONTINUATION)
    if not probed:
        results, _ = run(attnrl)
        assert results[1].trained, "branch points come from the engine's log-probabilities"


@pytest.mark.parametrize(
    ("influence", "share"),
    # The lines end at 11, 23, 34 and 46 of 56 tokens. Without a step that stands out the earliest are taken.
    [([0.0, 0.9, 0.0, 0.0, 0.0], 1.0), ([0.0, 0.0, 0.0, 0.9, 0.0], 0.0)],
)
def test_how_often_the_points_are_the_earliest_steps(influence, share):
    attnrl = method(num_branch_points=1)
    run(attnrl, steps=1, influence=influence)
    found = step_metrics(attnrl)
    assert found["attnrl/earliest_points_frac"] == share
    assert found["attnrl/branch_token_mean"] == (11 if share else 34)
    kept = found["attnrl/branch_token_mean"]
    assert kept / 60 < found["attnrl/branch_position_mean"] < kept / 55, "answers differ in length"


def test_criteria_that_choose_tokens_are_not_compared_with_steps():
    attnrl = method(criterion=BranchCriterion.ENTROPY, num_branch_points=1)
    run(attnrl, steps=1)
    found = step_metrics(attnrl)
    assert "attnrl/earliest_points_frac" not in found
    assert found["attnrl/branch_position_mean"] > 0.9, "the last token but one"


def test_influence_per_later_step_is_what_branching_and_filter_see():
    """Sums of 0.4, 0.3, 0.2 and 0.1 over four to one later steps are means of 0.1."""
    attnrl = method(fci_aggregation=FciAggregation.MEAN, delta=1, num_branch_points=1, top_frac=0.1)
    run(attnrl, steps=1, influence=[0.0, 0.3, 0.2, 0.11, 0.0])
    found = step_metrics(attnrl)
    assert found["attnrl/influence_mean"] == pytest.approx((0.1 + 0.1 + 0.11) / 5)
    assert found["attnrl/branch_token_mean"] == 34, "the fourth step, the third by its sum"


def test_the_batch_controller_waits_for_the_pipeline_to_fill():
    controller = batch_controller()
    attnrl = method(controller=controller)
    assert attnrl.schedule.problems_per_step(2) == 2
    run(attnrl, steps=1)
    # Six responses of problems that cannot be branched are trained at once.
    assert "attnrl/next_problems" in step_metrics(attnrl, trained=6) and controller.problems == 2.0
    step_metrics(attnrl, trained=10, finished=2)
    assert controller.problems == pytest.approx(0.9 * 2 + 0.1 * (40 / 16) * 2), "6 and 10 samples"
    assert method().schedule.problems_per_step(7) == 7


def test_deferred_trees_are_told_to_the_batch_controller_when_they_train():
    """With `min_groups` a step may train nothing although trees were completed."""
    controller = batch_controller()
    attnrl = method(controller=controller)
    step_metrics(attnrl, finished=2, deferred=5)
    assert controller.problems == 2.0, "nothing is known yet"
    saved = attnrl.schedule.state_dict()
    attnrl = method(controller=controller)
    attnrl.schedule.load_state_dict(saved)
    step_metrics(attnrl, trained=80, finished=2)
    assert controller.problems == pytest.approx(2.0), "80 samples of two steps are 40 a step, the target"
    step_metrics(attnrl, trained=20, finished=2)
    assert controller.problems == pytest.approx(0.9 * 2 + 0.1 * (40 / 20) * 2)


def test_the_batch_controller_hears_of_steps_in_which_no_problem_reaches_the_last_stage():
    """Responses of one step cannot be branched: their problems are trained and end at the first stage."""
    controller = batch_controller()
    attnrl = method(controller=controller)
    step_metrics(attnrl, trained=10, unfinished=2)
    assert controller.problems == 2.0, "the pipeline may be filling"
    step_metrics(attnrl, trained=10, unfinished=2)
    assert controller.problems == pytest.approx(0.9 * 2 + 0.1 * (40 / 10) * 2), "ten samples a step"
    before = controller.problems
    step_metrics(attnrl)
    step_metrics(attnrl)
    assert controller.problems == before, "no problem ended"
    for _ in range(2):
        step_metrics(attnrl, trained=0, unfinished=2)
    assert controller.problems == pytest.approx(0.9 * before + 0.1 * 8), (
        "all are rejected: the most there may be"
    )


def test_the_state_is_restored():
    rules = {"filter": FilterRule.PAPER, "expansion": ExpansionRounding.ROUND}
    attnrl = method(controller=batch_controller(), **rules)
    run(attnrl)
    step_metrics(attnrl, trained=10, finished=2)
    again = method(controller=batch_controller(), **rules)
    again.load_state_dict(attnrl.state_dict())
    assert again.state_dict() == attnrl.state_dict()
    assert again.mean.count == 6


# --- branch points by a function of the user's, named by the setting alone -------------------------

DOCS = Path(__file__).parents[3] / "docs" / "guides" / "new_method.md"


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
    code = re.search(r"```python\n(from .*?)```", text, re.DOTALL)[1].rstrip()
    assert len(code.splitlines()) <= 15
    attnrl = method(
        criterion=own("my_rules", code) + ":doubts", num_branch_points=1, stores_trainer_log_probs=False
    )
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
    assert not method(criterion=f"{name}:rule", stores_trainer_log_probs=False).probes(INITIAL)


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
