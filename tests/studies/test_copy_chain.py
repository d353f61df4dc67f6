"""The copy-chain task: problems, transcripts and the shipped model."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.demo.problems import LARGEST_TOTAL, Split
from marsrl_verl.rewards.exact import ExactAnswerReward
from marsrl_verl.rewards.extraction import boxed_answer
from studies.assets import model_path
from studies.tiny.tokenizer import build_tokenizer
from studies.toy_tasks.copy_chain.problems import (
    ANYTHING,
    COMPARED,
    COPIED,
    LINES,
    RESULTS,
    Ledger,
    draw_ledger,
    generate,
    rows,
)
from studies.toy_tasks.copy_chain.sanity_check import RULES, measure
from studies.toy_tasks.copy_chain.transcripts import draw_transcript

HERE = Ledger(("31", "14-2", "X", "15X", "?", "X+5", "Y", "16Y", *map(str, range(60, 76))), 14, (-2, 5))


def chain_of(seed: int) -> Ledger:
    return draw_ledger(random.Random(seed))


def test_a_problem_by_hand():
    assert HERE.question.startswith("Compute a31 b14-2 cX d15X e? fX+5 gY h16Y i60 ")
    assert HERE.response().split()[:8] == ["a31", "b14-2", "cX12", "d15X>", "e?80", "f12+5", "gY17", "h16Y<"]
    assert (HERE.results, HERE.answer, boxed_answer(HERE.response()).text) == ((12, 17), "1217", "1217")
    lines = HERE.response((15, 16), liked=["7"]).split()
    assert lines[2:8] == ["cX15", "d15X=", "e?7", "f15+5", "gY16", "h16Y="]
    assert lines[-1] == "\\boxed{1516}"


def test_lines_are_judged_by_what_was_written_before_them():
    """A wrong first result makes its line wrong, not what follows from it."""
    text = HERE.response((13, 18))
    found = dict(zip("abcdefgh", HERE.follows(text), strict=False))
    assert found == {
        "a": (COPIED, True),
        "b": (COPIED, True),
        "c": (RESULTS[0], False),
        "d": (COMPARED, True),
        "e": (ANYTHING, True),
        "f": (COPIED, True),
        "g": (RESULTS[1], True),
        "h": (COMPARED, True),
    }
    assert dict(HERE.follows(HERE.response((12, 18))))[RESULTS[1]] is False
    assert [right for _, right in HERE.follows(text.replace("d15X>", "d15X<"))].count(False) == 2
    assert HERE.is_complete(text) and not HERE.is_complete(text.replace("cX13", "c13"))
    assert not HERE.is_complete("\n".join(text.splitlines()[1:]))
    assert not any(right for _, right in HERE.follows(""))
    assert all(right for _, right in HERE.follows(HERE.response(liked=["11"])))
    for nothing in ("e?", "e80", "e??", "e"):
        assert [right for _, right in HERE.follows(text.replace("e?80", nothing))].count(False) == 2


@pytest.mark.parametrize("said", ["1217", "1712", "12,17", "12 17", "17", "12"])
def test_only_both_results_in_their_order_are_right(said):
    """A list would be right in any order; two mistakes can't make an answer right."""
    graded = ExactAnswerReward().grade(f"a31\n\\boxed{{{said}}}", [HERE.answer])
    assert (graded.value == 1.0) is (said == HERE.answer)


@given(st.integers(0, 10_000))
def test_two_lines_are_computed_and_later_ones_look_back_at_them(seed):
    ledger = chain_of(seed)
    first, second = ledger.computed
    assert len(ledger.entries) == LINES and 9 <= first <= 11 and 14 <= second <= 17
    assert not [one for one in ledger.entries[:first] if "X" in one or "Y" in one]
    assert not [one for one in ledger.entries[:second] if "Y" in one]
    assert all(10 <= one <= LARGEST_TOTAL for one in ledger.results)
    copied = [int(one) for one in ledger.entries if one.isdigit()]
    assert len(set(copied)) == len(copied) and min(copied) > LARGEST_TOTAL, "none is a result"
    assert all(right for _, right in ledger.follows(ledger.response())) and ledger.is_complete(
        ledger.response()
    )
    assert "=" not in ledger.response(), "no number is compared with itself"


def test_what_is_computed_is_of_one_split():
    computed = {
        split: {(one.base, one.terms) for one in generate(split, 200, 0)}
        for split in (Split.TRAIN, Split.HELD_OUT)
    }
    assert not computed[Split.TRAIN] & computed[Split.HELD_OUT]


def test_rows_name_both_results():
    found = rows(Split.HELD_OUT, 20, 0)
    ledgers = generate(Split.HELD_OUT, 20, 0)
    assert [row["prompt"][0]["content"] for row in found] == [one.question for one in ledgers]
    assert [row["reward_model"]["ground_truth"] for row in found] == [one.answer for one in ledgers]


@pytest.mark.with_presets("grpo")
def test_every_transcript_fits_the_presets_limits():
    config = compose_config(
        parse_arguments(["cluster=cpu", "model=tiny_copy_chain", "data=copy_chain", "algo=grpo"])
    ).config
    tokenizer, rng, longest = build_tokenizer(), random.Random(0), Counter[str]()
    for seed in range(150):
        one = draw_transcript(chain_of(seed), rng)
        prompt = tokenizer.apply_chat_template(list(one.messages), add_generation_prompt=True, tokenize=False)
        for kind, text in (("prompt", prompt), ("response", one.response)):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == text
            longest[kind] = max(longest[kind], len(ids))
    limits = config.marsrl.roles.solver
    assert longest["prompt"] <= limits.max_prompt_tokens and longest["response"] < limits.max_new_tokens, (
        longest
    )


def test_the_shipped_model_is_decided_at_two_lines():
    from transformers import AutoModelForCausalLM

    found = measure(AutoModelForCausalLM.from_pretrained(model_path("copy_chain")), 40)
    share = {one.label: one.share for one in found}
    assert share["Solver is right, greedy"] > 0.9 > 0.6 > share["Solver is right"] > 0.15
    assert min(share[f"{kind} is right"] for kind in (COPIED, COMPARED, ANYTHING)) > 0.98
    assert all(0.4 < share[f"{kind} is right"] < 0.75 for kind in RESULTS)
    at_a_line = {name: share[f"{name}: at a computed line"] for name in RULES}
    assert at_a_line["FCI (top two by their mean)"] > 0.75 > 0.25 > at_a_line["random"]
    assert max(at_a_line["FCI (earliest two of top fifth)"], at_a_line["entropy"]) < 0.1
