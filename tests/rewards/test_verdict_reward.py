import pytest
from reward_tools import request

from marsrl_verl.core.types import FinishReason, Verdict
from marsrl_verl.rewards.verdict import VerdictReward

WRONG = "A gap.\n**Correctness**: Wrong"
CORRECT = "Fine.\n**Correctness**: Correct"


def judge(text: str, solution_reward: float | None, parser: str = "strict", **options):
    return VerdictReward(parser).score(
        request(text, role="verifier", solution_reward=solution_reward, **options)
    )


@pytest.mark.parametrize(
    ("text", "solution_reward", "reward", "verdict"),
    [
        (WRONG, 0.0, 1.0, Verdict.WRONG),
        (WRONG, 1.0, 0.0, Verdict.WRONG),
        (CORRECT, 1.0, 1.0, Verdict.CORRECT),
        (CORRECT, 0.0, 0.0, Verdict.CORRECT),
        ("Hm.", 1.0, 0.0, Verdict.INVALID),
        ("Hm.", 0.0, 0.0, Verdict.INVALID),
    ],
)
def test_a_verdict_is_rewarded_for_the_truth(text, solution_reward, reward, verdict):
    outcome = judge(text, solution_reward)
    assert (outcome.reward, outcome.verdict) == (reward, verdict)
    assert outcome.report == text.split("\n")[0]


def test_a_truncated_verifier_has_no_verdict():
    outcome = judge(WRONG, 0.0, reason=FinishReason.LENGTH)
    assert (outcome.reward, outcome.verdict) == (0.0, Verdict.INVALID)


def test_the_released_rule_reads_even_reasoning_that_never_ended():
    options = {"reason": FinishReason.LENGTH, "final_text": ""}
    outcome = judge("<think>maybe correct", 1.0, parser="released", **options)
    assert (outcome.reward, outcome.verdict) == (1.0, Verdict.CORRECT)
    assert judge("<think>maybe correct", 1.0, **options).reward == 0.0


def test_a_solution_without_a_reward_and_an_unknown_parser_are_refused():
    with pytest.raises(ValueError, match=r"p/solver/0#0: .*solution_reward is None"):
        judge(WRONG, None)
    with pytest.raises(ValueError, match="parser is 'loose', expected one of: strict, released"):
        VerdictReward("loose")
