import pytest
from reward_tools import request

from marsrl_verl.algos.marsrl.verdict import Verdict, VerdictReward
from marsrl_verl.core.trajectory import FinishReason

WRONG = "A gap.\n**Correctness**: Wrong"
CORRECT = "Fine.\n**Correctness**: Correct"


def judge(text: str, solution_reward: float | None, parser: str = "strict", **options):
    inputs = {} if solution_reward is None else {"solution_reward": solution_reward}
    return VerdictReward(parser).score(request(text, role="verifier", **inputs, **options))


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
    result = judge(text, solution_reward)
    assert (result.value, result.info["verdict"]) == (reward, verdict.value)
    assert result.info["report"] == text.split("\n")[0]


def test_a_truncated_verifier_has_no_verdict():
    result = judge(WRONG, 0.0, reason=FinishReason.LENGTH)
    assert (result.value, result.info["verdict"]) == (0.0, "invalid")


def test_the_released_rule_reads_even_reasoning_that_never_ended():
    options = {"reason": FinishReason.LENGTH, "final_text": ""}
    result = judge("<think>maybe correct", 1.0, parser="released", **options)
    assert (result.value, result.info["verdict"]) == (1.0, "correct")
    assert judge("<think>maybe correct", 1.0, **options).value == 0.0


def test_a_solution_without_a_reward_and_an_unknown_parser_are_refused():
    with pytest.raises(ValueError, match=r"p/solver/0#0: .*solution_reward is missing"):
        judge(WRONG, None)
    with pytest.raises(ValueError, match="parser is 'loose', expected one of: strict, released"):
        VerdictReward("loose")
