import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_tools import request

from marsrl_verl.algos.marsrl.verdict import ParsedVerdict, Verdict, VerdictReward, parse_verdict
from marsrl_verl.core.trajectory import FinishReason

STOP = FinishReason.STOP
FINDINGS = "**Final Verdict**: It divides by zero.\n\n**List of Findings**:\n- **Location**: “x/0”"


@pytest.mark.parametrize(
    "line",
    [
        "**Correctness**: Wrong",
        "**Correctness:** Wrong",
        "**Correctness** : **Wrong**",
        "Correctness: wrong",
        "  CORRECTNESS :  WRONG  ",
        "- **Correctness**: Incorrect",
        "### Correctness: Wrong",
        "3. **Correctness**: Wrong",
        "**Correctness** Wrong",
        "**Correctness**\n\nWrong",
        "### Correctness\n**Wrong**",
        "Correctness：Wrong",
        "Correctness: Wrong.",
        "**Correctness**: `Wrong`",
        "`Correctness`: Wrong",
        "**Correctness: Wrong.**",
        "**Correctness**: **Wrong**.",
        "**Correctness**: *Wrong*!",
        r"Correctness: \boxed{Wrong}",
        r"**Correctness**: $\boxed{\text{Wrong}}$.",
        r"**Correctness**: \textbf{Incorrect}",
        "Correctness: “Wrong”",
        "Correctness: [Wrong]",
        "**Correctness**:\n```\nWrong\n```",
    ],
)
def test_the_field_is_read_in_every_layout_and_the_report_is_what_precedes_it(line):
    assert parse_verdict(f"{FINDINGS}\n\n{line}\n", STOP) == ParsedVerdict(Verdict.WRONG, FINDINGS)


def test_correct_is_read_too():
    assert parse_verdict("All good.\n**Correctness**: Correct", STOP) == ParsedVerdict(
        Verdict.CORRECT, "All good."
    )


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Mostly correct",
        "Correct or Wrong",
        "Correct/Wrong",
        r"\boxed{Correct} \boxed{Wrong}",
        "`Wrong`, `Correct`",
        "Correct | Wrong",
        "not wrong",
        "not `Correct`",
        "Correct?",
        "yes",
        "Right",
        "Wrong (or so I think)",
        "`",
        r"\boxed{}",
    ],
)
def test_any_other_value_is_invalid_and_the_report_survives(value):
    assert parse_verdict(f"{FINDINGS}\n**Correctness**: {value}", STOP) == ParsedVerdict(
        Verdict.INVALID, FINDINGS
    )


def test_the_last_field_decides():
    text = "**Correctness**: Wrong\nOn second thought\n**Correctness**: Correct"
    parsed = parse_verdict(text, STOP)
    assert parsed.verdict is Verdict.CORRECT
    assert parsed.report == "**Correctness**: Wrong\nOn second thought"
    assert parse_verdict("Correctness: Wrong\nCorrectness: unsure", STOP).verdict is Verdict.INVALID


def test_prose_about_correctness_is_no_field():
    text = "**Correctness**: Wrong\nCorrectness of step 2 is not affected."
    assert parse_verdict(text, STOP).verdict is Verdict.WRONG
    assert parse_verdict("The correctness: Correct", STOP).verdict is Verdict.INVALID


def test_without_a_field_the_whole_text_is_the_report():
    assert parse_verdict(" The solution is correct. \n", STOP) == ParsedVerdict(
        Verdict.INVALID, "The solution is correct."
    )
    assert parse_verdict("", STOP) == ParsedVerdict(Verdict.INVALID, "")


@pytest.mark.parametrize("reason", [reason for reason in FinishReason if reason is not STOP])
def test_an_answer_that_was_cut_off_is_invalid(reason):
    assert parse_verdict(f"{FINDINGS}\nCorrectness: Wrong", reason) == ParsedVerdict(
        Verdict.INVALID, FINDINGS
    )


def test_endless_repetition_is_read_in_linear_time():
    start = time.perf_counter()
    for filler in (
        "*",
        " ",
        "#",
        "1.",
        "correctness",
        "correctness:\n",
        "correctness\n",
        "`",
        "1",
        "(",
        r"\boxed{",
        "\n",
    ):
        for start_of_text in ("correctness", "correctness: ", ""):
            parse_verdict(start_of_text + filler * 100_000, STOP)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("text", "verdict", "report"),
    [
        ("Found nothing.\n**Correctness**: Correct", Verdict.CORRECT, "Found nothing."),
        ("A gap.\n**Correctness**: Wrong", Verdict.WRONG, "A gap."),
        # What the strict rule mends:
        ("A gap.\n**Correctness**: Incorrect", Verdict.CORRECT, "A gap."),
        ("The answer is not correct.", Verdict.CORRECT, ""),
        ("A gap.\n**Correctness:** Wrong", Verdict.WRONG, ""),
    ],
)
def test_the_released_rule_with_its_defects(text, verdict, report):
    assert parse_verdict(text, STOP, "released") == ParsedVerdict(verdict, report)


@given(st.text(), st.sampled_from(list(FinishReason)), st.sampled_from(["strict", "released"]))
def test_any_text_is_parsed_and_no_report_is_invented(text, reason, parser):
    parsed = parse_verdict(text, reason, parser)
    assert set("".join(parsed.report.split())) <= set("".join(text.split()))


# --- its reward ------------------------------------------------------------------------------------

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
