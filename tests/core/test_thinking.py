import pytest

from marsrl_verl.core.thinking import final_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think>\nb\n", "b"),
        ("a</think>b", "b"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("no thinking at all ", "no thinking at all"),
        ("<think>never closed, \\boxed{3}", ""),
        ("<think>a</think>b<think>again", ""),
        ("<think>a</think>", ""),
        ("", ""),
    ],
)
def test_only_what_follows_the_last_thinking_part_is_final(text, expected):
    assert final_text(text) == expected


def test_a_block_that_the_prompt_opened_must_be_closed():
    assert final_text("reasoning </think> answer", thinking_opened=True) == "answer"
    assert final_text("reasoning without end, \\boxed{3}", thinking_opened=True) == ""
