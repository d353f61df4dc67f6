"""What the probe of a Verifier counts."""

from __future__ import annotations

from benchmarks.smollm2_verdicts import cases, row


def test_each_problem_has_a_right_and_a_wrong_solution():
    found = cases(12, 1)
    assert [one.right for one in found] == [True, False] * 12
    for right, wrong in zip(found[::2], found[1::2], strict=True):
        assert rf"\boxed{{{right.answer}}}" in right.chat[-1]["content"]
        assert rf"\boxed{{{right.answer}}}" not in wrong.chat[-1]["content"]


def test_shares_of_judgements():
    judged = cases(2, 1)
    (right, _, other, _) = (str(one.answer) for one in judged)
    responses = [
        f"1 + 1 = {right}\nThe solution says {right}.\nCorrectness: Correct",
        f"1 + 1 = {right}\nThe solution says 0.\nCorrectness: Wrong",
        f"1 + 1 = {other}\nThe solution says {other}.\nCorrectness: Wrong",  # does not follow its report
        "Correctness: Correct",  # no report
    ]
    found = row("m", 1.0, judged, responses)
    assert (found.errors_found, found.false_alarms) == (0.5, 0.5)
    assert (found.follows_report, found.calculated_right) == (2 / 3, 1.0)
