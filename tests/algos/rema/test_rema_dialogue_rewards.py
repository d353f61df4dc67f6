"""What a dialogue is worth: answers, answers that are given away, long lists."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rema_dialogue_script import END, ROOM, boxed, endless, hold

from marsrl_verl.algos.rema.dialogue.config import OverlongConfig
from marsrl_verl.algos.rema.dialogue.rewarding import overlong_penalty
from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING
from marsrl_verl.core.trajectory import RewardResult


def test_a_right_answer_is_worth_something_where_the_dialogue_was_finished():
    (done,), (open_,) = hold(), hold(endless, max_turns=2)
    assert (done.value, done.scored.info) == (
        1.0, {"answer": "2", "accuracy": 1.0, "finished": True, "leak": False},
    )  # fmt: skip
    assert (open_.value, open_.scored.info["accuracy"], open_.scored.info["finished"]) == (0.0, 1.0, False)
    (unmasked,) = hold(endless, max_turns=2, mask_unfinished=False)
    assert unmasked.value == 1.0
    for one in (done, open_, unmasked):
        assert [sequence.reward for sequence in one.sequences] == [None, None], "the trajectory's, for both"


def leaking(role: str, k: int, turn: int) -> str:
    if role == META_THINKING:
        return f"It is =2.{END}" if turn == 0 else f"So =2. {FINISH}"
    return f"=2{END}"


def test_an_answer_that_is_given_away_can_cost_something():
    (one,) = hold(leaking, leak_penalty=0.25)
    assert one.scored.info["leak"] is True
    assert (one.value, [sequence.reward for sequence in one.sequences]) == (1.0, [0.75, None])
    (one,) = hold(leaking)
    assert one.scored.info["leak"] is True and one.sequences[0].reward is None


def test_what_is_confirmed_or_known_already_is_not_given_away():
    def confirming(role, k, turn):
        if role == META_THINKING:
            return (f"Do.{END}", f"Check =2.{END}", f"Right, =2. {FINISH}")[turn]
        return f"\\boxed{{=2}}{END}"

    (one,) = hold(confirming)
    assert one.scored.info["leak"] is False and one.events[-1]["turns"] == 3


def leak_of(plans, answers) -> bool:
    """Whether a dialogue in which the agents say these leaks; the last plan has `[FINISH]`."""

    def says(role, k, turn):
        if role == META_THINKING:
            return f"{plans[turn]} {FINISH}" if turn + 1 == len(plans) else f"{plans[turn]}{END}"
        return f"{answers[turn]}{END}"

    (one,) = hold(says)
    return one.scored.info["leak"]


@pytest.mark.parametrize(
    ("plans", "answers", "leak"),
    [
        pytest.param(["The answer is =2."], ["=2"], True, id="in the message that ends it"),
        pytest.param(["Do.", "It is =2."], ["I am lost", "=2"], True, id="confirmed before it was said"),
        pytest.param(
            ["Do.", "=2 looks right, check it", "Fine."], ["so =2", "yes", "=2"], False, id="no box"
        ),
        pytest.param(["Do.", "=2, I say", "Fine."], ["\\boxed{} it is", "ok", "=2"], True, id="empty box"),
        pytest.param(["Do.", "=2, I say", "Fine."], ["\\boxed{3}", "ok", "=2"], True, id="another answer"),
        pytest.param(["Try =2.", "=2 it is."], ["=2", "=2"], True, id="given away first"),
    ],
)
def test_an_answer_is_given_away_where_the_other_agent_has_not_said_it(plans, answers, leak):
    assert leak_of(plans, answers) is leak


def test_what_the_other_agent_said_has_to_be_read():
    def score(request, one):
        if request.role == META_THINKING and one.final_text == "so =2":
            return RewardResult(0.0, error="dead", graded=False)
        return boxed(request, one)

    def says(role, k, turn):
        if role == META_THINKING:
            return f"Go.{END}" if turn == 0 else f"Yes, =2. {FINISH}"
        return f"so =2{END}"

    (one,) = hold(says, score=score)
    assert not one.comparable and one.scored.error == "dead"


def test_a_meta_thinking_reward_of_ones_own_is_added_to_the_dialogues():
    def score(request, one):
        found = boxed(request, one)
        return replace(found, value=-0.5) if request.role == META_THINKING else found

    (one,) = hold(score=score)
    assert (one.value, [sequence.reward for sequence in one.sequences]) == (1.0, [0.5, None])


def test_a_grade_that_failed_compares_nothing():
    def score(request, one):
        return RewardResult(0.0, error="dead", graded=request.role != REASONING)

    (one,) = hold(score=score)
    assert not one.comparable and one.scored.error == "dead"


def test_a_long_list_loses_more_the_nearer_it_is_to_its_limit():
    """Of 20 tokens before the limit one list uses half, the other all; and one comes not so near."""
    (plain,) = hold()
    lengths = [len(sequence) for sequence in plain.sequences]
    rules = {"enabled": True, "tokens": 20, "penalty": 0.5}
    for rooms, rewards in (((10, 0), [0.75, 0.5]), ((20, 15), [None, 0.875]), ((40, 30), [None, None])):
        both = zip((META_THINKING, REASONING), lengths, rooms, strict=True)
        limits = {role: replace(ROOM, max_new_tokens=length + room) for role, length, room in both}
        made = [overlong_penalty(one, limits[one.role], OverlongConfig(**rules)) for one in plain.sequences]
        assert [1.0 - cost for cost in made] == [1.0 if one is None else one for one in rewards]
        ends = {
            one.role: len(one.input_ids()) + room for one, room in zip(plain.sequences, rooms, strict=True)
        }
        whole = {role: replace(ROOM, max_sequence_tokens=end) for role, end in ends.items()}
        again = [overlong_penalty(one, whole[one.role], OverlongConfig(**rules)) for one in plain.sequences]
        assert again == made, "the same where the first prompt counts too"
    limits = {role: replace(ROOM, max_new_tokens=72) for role in limits}
    (one,) = hold(limits=limits, overlong={**rules, "tokens": 32}, message_tokens=18)
    assert one.value == 1.0 and lengths == [44, 52]
    assert [each.reward for each in one.sequences] == [1.0 - 0.5 * 4 / 32, 1.0 - 0.5 * 12 / 32]
