"""The test-time loop beyond its defaults: golden runs by hand, and what holds for every run."""

from __future__ import annotations

import itertools

import pytest
from evaluation_tools import evaluate_system
from hypothesis import given, settings
from hypothesis import strategies as st
from marsrl_script import ScriptedEngine
from scheduler_tools import ShortPrompts
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.loop_rules import Fallback, LoopRules, RunEnd, SystemRun, candidates
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.evaluation.runs import Run, final_answer

PASS = Reply("Fine.\n\n**Correctness**: Correct")
FAIL = Reply("The sum is off.\n\n**Correctness**: Wrong")
MUMBLE = Reply("Who knows.")
EMPTY = Reply("<think>hm</think>")
CUT = Reply("It goes on", FinishReason.LENGTH)
CUT_PASS = Reply(PASS.text, FinishReason.LENGTH)
VERDICTS = {"+": PASS, "-": FAIL, "?": MUMBLE, "0": EMPTY, "/": CUT, "|": CUT_PASS}

SAMPLING = {role: Sampling(500, 5000) for role in (SOLVER, VERIFIER, CORRECTOR)}
LETTERS = "ABCDEFGHIJ"


def boxed(answer: str | None) -> Reply:
    return Reply("No idea." if answer is None else f"\\boxed{{{answer}}}")


def play(verdicts: str, answers=LETTERS, **rules) -> SystemRun:
    """One run in which the Verifier's calls get these verdicts in turn, and solutions these answers; the
    reference answer is B. A call that nothing is left for fails, and so does a verdict nobody asked for."""
    judgements, solutions = iter(verdicts), iter(answers)

    def script(item, k):
        if item.role == VERIFIER:
            return VERDICTS[next(judgements)]
        answer = next(solutions)
        return answer if isinstance(answer, Reply) else boxed(answer)

    (run,) = evaluate_system(
        ScriptedEngine(script),
        [Problem("p", "question", "B")],
        ShortPrompts(),
        SAMPLING,
        **{"correction_rounds": len(verdicts), **rules},
    ).runs
    assert next(judgements, None) is None, "verdicts were left over"
    return run


def stages(run: SystemRun) -> str:
    """S, V, C by role."""
    return "".join(call.request.role[0].upper() for call in run.calls)


def answer(run: Run) -> str | None:
    return None if run.answer is None else final_answer(run.answer)


# --- one pass, the default ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "answers", "end", "made", "rewards"),
    [
        pytest.param("+", "B", RunEnd.ACCEPTED, "SV", (1, 1), id="accepted"),
        pytest.param("-+", "AB", RunEnd.ACCEPTED, "SVCV", (0, 1), id="repaired"),
        pytest.param("-+", "BA", RunEnd.ACCEPTED, "SVCV", (1, 0), id="broken"),
        pytest.param("--", "AAB", RunEnd.ROUNDS_USED, "SVCVC", (0, 1), id="repaired at the end"),
        pytest.param("?+", "B", RunEnd.ACCEPTED, "SVV", (1, 1), id="asked again"),
        pytest.param("??+", "AB", RunEnd.ACCEPTED, "SVVCV", (0, 1), id="unreadable twice is wrong"),
        pytest.param("00", "B", RunEnd.NO_VERDICT, "SVV", (1, 1), id="no word keeps the solution"),
        pytest.param("--", ["A", CUT, "B"], RunEnd.ROUNDS_USED, "SVCVC", (0, 1), id="correction cut off"),
        pytest.param("--", ["A", EMPTY, "B"], RunEnd.ROUNDS_USED, "SVCVC", (0, 1), id="no correction"),
    ],
)
def test_what_becomes_of_a_solution(verdicts, answers, end, made, rewards):
    run = play(verdicts, answers, correction_rounds=2)
    assert (run.end, stages(run)) == (end, made)
    assert (run.solver_reward, run.final_reward, run.solved) == (*rewards, rewards[1] == 1)


def test_each_call_names_its_parent_its_group_and_what_it_judges():
    run = play("--", "AAB")
    samples = [call.trajectory.trajectory_id for call in run.calls]
    assert [call.request.parent_id for call in run.calls] == [None, *samples[:-1]]
    names = ["solver", "verifier_1", "corrector_1", "verifier_2", "corrector_2"]
    assert [call.request.stage for call in run.calls] == names
    assert [call.request.group_id for call in run.calls] == [f"eval-t/p/0/{stage}" for stage in names]
    repaired = play("-+", "AB").calls
    assert [call.request.inputs.get("solution_reward") for call in repaired] == [None, 0.0, 0.0, 1.0]
    assert repaired[3].request.inputs["solution"] == "\\boxed{B}"


@pytest.mark.parametrize("text", [CUT, EMPTY])
def test_an_unusable_correction_does_not_replace_the_solution(text):
    judged = play("--", ["A", text, "B"]).calls
    assert judged[3].request.inputs["solution"] == "\\boxed{A}"
    assert judged[3].request.parent_id == judged[0].trajectory.trajectory_id


@pytest.mark.parametrize(
    ("verdicts", "report"), [("-+", "The sum is off."), ("??+", "Who knows."), ("||+", "Fine.")]
)
def test_what_a_verifier_wrote_reaches_the_corrector(verdicts, report):
    (repair,) = [call for call in play(verdicts).calls if call.request.role == CORRECTOR]
    assert f"Report: {report}" in repair.request.messages[0]["content"]


# --- acceptance and rejection ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "answers", "rules", "end", "made", "answered"),
    [
        ("+++", "A", {"accept_passes": 3, "correction_rounds": 5}, RunEnd.ACCEPTED, "SVVV", "A"),
        ("++-++", "AB", {"accept_passes": 3}, RunEnd.ROUNDS_USED, "SVVVCVV", "B"),
        ("+-+", ["A", CUT], {"accept_passes": 2}, RunEnd.ROUNDS_USED, "SVVCV", "A"),
        ("+?+", "A", {"accept_passes": 2}, RunEnd.ACCEPTED, "SVVV", "A"),
        ("+??+", "AB", {"accept_passes": 2, "correction_rounds": 3}, RunEnd.ROUNDS_USED, "SVVVCV", "B"),
        ("??", "A", {"reject_fails": 1, "correction_rounds": 1}, RunEnd.REJECTED, "SVV", "A"),
        ("---", "ABC", {"reject_fails": 3, "correction_rounds": 9}, RunEnd.REJECTED, "SVCVCV", "C"),
        ("-+--", "ABC", {"accept_passes": 2, "reject_fails": 2}, RunEnd.REJECTED, "SVCVVCV", "C"),
        ("--", "AB", {"reject_fails": 2}, RunEnd.REJECTED, "SVCV", "B"),
    ],
    ids=[
        "passes in a row accept",
        "Wrong ends the row",
        "the row of a kept solution begins anew",
        "unreadable is asked again",
        "unreadable twice is no pass",
        "unreadable twice is a fail",
        "fails in a row reject",
        "a pass ends the row of fails",
        "the last round can reject",
    ],
)
def test_rows_of_verdicts(verdicts, answers, rules, end, made, answered):
    run = play(verdicts, answers, **rules)
    assert (run.end, stages(run), answer(run)) == (end, made, answered)


def test_a_solution_is_judged_in_several_rounds_by_calls_of_their_own():
    run = play("++?+", accept_passes=3)
    names = ["verifier_1", "verifier_2", "verifier_3", "verifier_3_again"]
    assert [call.request.stage for call in run.calls[1:]] == names
    assert {call.request.parent_id for call in run.calls[1:]} == {run.calls[0].trajectory.trajectory_id}
    assert len({call.request.group_id for call in run.calls}) == 5
    assert candidates(play("+-+", [*"A", CUT], accept_passes=2).calls)[0].passes == 2, "in all, not in a row"


def test_no_word_of_a_verifier_leaves_the_choice_to_the_fallback():
    for fallback, expected in (("last", "B"), ("passes", "A"), ("majority", "A"), ("released", "A")):
        run = play("+-00", accept_passes=2, correction_rounds=3, fallback=fallback)
        assert (run.end, stages(run), answer(run)) == (RunEnd.NO_VERDICT, "SVVCVV", expected)


@pytest.mark.parametrize("fallback", list(Fallback))
@pytest.mark.parametrize("text", [CUT, EMPTY])
def test_an_unusable_solver_text_has_no_answer(fallback, text):
    run = play("", [text], correction_rounds=3, accept_passes=2, fallback=fallback)
    assert (run.end, run.answer, run.final_reward, stages(run)) == (RunEnd.NO_SOLUTION, None, 0.0, "S")


# --- the last correction --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fallback", "verdicts", "made"),
    [
        ("last", "--", "SVCVC"),
        ("last", "+-", "SVVC"),
        ("passes", "--", "SVCV"),  # without a Correct verdict it could not be chosen
        ("released", "--", "SVCV"),
        ("majority", "--", "SVCVC"),  # it has a vote
        ("majority", "+-", "SVV"),  # it has not, since somebody has a Correct verdict
    ],
)
def test_the_last_correction_is_made_where_it_could_be_the_answer(fallback, verdicts, made):
    run = play(verdicts, accept_passes=2, fallback=fallback)
    assert (run.end, stages(run)) == (RunEnd.ROUNDS_USED, made)


# --- the answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "answers", "expected"),
    [
        ("+-+-", "ABC", {"last": "C", "passes": "B", "majority": "B", "released": "A"}),
        ("++-+-", "ABC", {"last": "C", "passes": "A", "majority": "A", "released": "A"}),
        ("-++--", "ABCD", {"last": "D", "passes": "B", "majority": "B", "released": "B"}),
        # Nobody passes: the Solver's, or the most frequent answer; of equals the earliest.
        ("---", "ABBC", {"last": "C", "passes": "A", "majority": "B", "released": "A"}),
        ("---", "ABBA", {"last": "A", "passes": "A", "majority": "A", "released": "A"}),
        ("---", "CABD", {"last": "D", "passes": "C", "majority": "C", "released": "C"}),
        ("---", [None, "A", None, "B"], {"last": "B", "passes": None, "majority": "A", "released": None}),
        ("---", [None, None, None, None], {"last": None, "passes": None, "majority": None, "released": None}),
    ],
)
@pytest.mark.parametrize("fallback", [one.value for one in Fallback])
def test_the_answer_where_nothing_is_accepted(verdicts, answers, expected, fallback):
    run = play(verdicts, answers, accept_passes=3, fallback=fallback)
    assert (run.end, answer(run)) == (RunEnd.ROUNDS_USED, expected[fallback])
    assert run.final_reward == float(answer(run) == "B")


def test_of_equally_frequent_answers_the_first_solution_wins():
    run = play("---", "CABA", fallback="majority")
    assert run.answer is run.calls[2].trajectory  # the first A


def test_an_accepted_solution_is_the_answer_whatever_others_have():
    # A has two Correct verdicts in all and four Verifier calls, B is accepted with two in a row.
    for fallback in ("last", "passes", "majority"):
        run = play("+-+-++", [*"A", CUT, *"BX"], accept_passes=2, fallback=fallback)
        assert (run.end, answer(run), run.solved) == (RunEnd.ACCEPTED, "B", True)


def test_released_counts_finished_calls_only_readable_or_not():
    # A: one unreadable and one Wrong; B: a pass, one cut off and one Wrong.
    run = play("?-+/-", "AB", accept_passes=2, correction_rounds=3, fallback="released")
    assert [(one.passes, one.judgements) for one in candidates(run.calls)] == [(0, 2), (1, 2)]
    assert answer(run) == "A"


# --- every run ------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(
    verdicts=st.lists(st.sampled_from("+++--?0/"), min_size=12, max_size=12),
    answers=st.lists(
        st.one_of(st.sampled_from("ABC"), st.none(), st.just(CUT), st.just(EMPTY)), min_size=8, max_size=8
    ),
    rounds=st.integers(1, 6),
    data=st.data(),
)
def test_what_holds_for_every_run(verdicts, answers, rounds, data):
    accept = data.draw(st.integers(1, rounds))
    reject = data.draw(st.none() | st.integers(1, 4))
    fallback = data.draw(st.sampled_from(list(Fallback)))
    judgements, solutions = itertools.cycle(verdicts), itertools.cycle(answers)

    def script(item, k):
        if item.role == VERIFIER:
            return VERDICTS[next(judgements)]
        found = next(solutions)
        return found if isinstance(found, Reply) else boxed(found)

    (run,) = evaluate_system(
        ScriptedEngine(script),
        [Problem("p", "question", "B")],
        ShortPrompts(),
        SAMPLING,
        correction_rounds=rounds,
        accept_passes=accept,
        reject_fails=reject,
        fallback=fallback,
    ).runs
    assert len(run.calls) <= 1 + 3 * rounds
    assert len({call.request.group_id for call in run.calls}) == len(run.calls)
    pool = [one.solution for one in candidates(run.calls)]
    assert (run.answer is None) == (not pool) == (run.end is RunEnd.NO_SOLUTION)
    assert run.final_reward == (run.answer.value if run.answer else 0.0)
    assert run.answer is None or any(run.answer is one for one in pool)

    by_round = {}  # the last verdict of each round, and what it judged
    for call, verdict in zip([c for c in run.calls if c.request.role == VERIFIER], run.verdicts, strict=True):
        by_round[call.request.stage.removesuffix("_again")] = (
            verdict is Verdict.CORRECT,
            call.request.parent_id,
        )
    final = list(by_round.values())
    rows = [list(group) for _, group in itertools.groupby(final, key=lambda one: one)]
    longest = max((len(row) for row in rows if row[0][0]), default=0)
    assert (longest >= accept) == (run.end is RunEnd.ACCEPTED)
    if run.end is RunEnd.ACCEPTED:
        assert final[-accept:] == [(True, pool[-1].trajectory_id)] * accept
        assert fallback is Fallback.RELEASED or run.answer is pool[-1]
    if run.end is RunEnd.REJECTED:
        assert not any(right for right, _ in final[-reject:]) and len(final) >= reject
        assert run.calls[-1].request.role == VERIFIER
    if fallback is Fallback.LAST and pool:
        assert run.answer is run.solution


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"correction_rounds": -1}, "correction_rounds must be 0 or more, found -1"),
        ({"accept_passes": 0}, "accept_passes must be 1 or more, found 0"),
        ({"accept_passes": 4}, "accept_passes must be at most 3 with correction_rounds = 3, found 4"),
        (
            {"correction_rounds": 0, "accept_passes": 2},
            "accept_passes must be at most 1 with correction_rounds = 0",
        ),
        ({"reject_fails": 0}, "reject_fails must be 1 or more, or None for no limit, found 0"),
        ({"fallback": "best"}, "fallback must be one of last, passes, majority, released, found 'best'"),
    ],
)
def test_wrong_settings_are_named(rules, message):
    with pytest.raises(ValueError, match=message):
        LoopRules(**{"correction_rounds": 3, **rules})


def test_the_solver_alone_has_no_rounds():
    run = play("", correction_rounds=0)
    assert (stages(run), answer(run), run.final_reward) == ("S", "A", 0.0)
    with pytest.raises(ValueError, match="evaluate the Solver alone"):
        VerifyCorrect(ShortPrompts(), LoopRules(0))
