"""The task of careless errors: problems, transcripts and the shipped model."""

from __future__ import annotations

import json
import random
from collections import Counter

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.marsrl.evaluation.frozen import frozen_solutions
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.request import Problem
from marsrl_verl.demo.files import write_rows
from marsrl_verl.demo.problems import LARGEST_TOTAL, Split, draw_chain, parse_question
from marsrl_verl.rewards.extraction import boxed_answer
from studies.assets import model_path
from studies.tiny.tokenizer import build_tokenizer
from studies.toy_tasks.careless_errors.problems import DIFFICULTY, rows
from studies.toy_tasks.careless_errors.sanity_check import measure, show
from studies.toy_tasks.careless_errors.transcripts import (
    BAD,
    Slips,
    draw_solution,
    draw_transcript,
    verification,
)

ROLES = (SOLVER, VERIFIER, CORRECTOR)
NEVER, ALWAYS = Slips(per_step=0.0, repeats=0.0), Slips(per_step=1.0)


def chain_of(seed: int):
    return draw_chain(random.Random(seed), DIFFICULTY)


def test_problems_have_four_to_seven_terms():
    found = rows(Split.TRAIN, 60, 0)
    chains = [parse_question(row["prompt"][0]["content"]) for row in found]
    assert {len(chain.terms) for chain in chains} == {4, 5, 6, 7}
    assert [row["reward_model"]["ground_truth"] for row in found] == [str(chain.answer) for chain in chains]


def test_held_out_problems_bring_a_right_and_a_wrong_solution_along(tmp_path):
    path = tmp_path / "x.parquet"
    write_rows(path, rows(Split.HELD_OUT, 40, 0))
    for row in pd.read_parquet(path).to_dict("records"):
        extra = json.loads(json.dumps(row["extra_info"], default=lambda value: value.tolist()))
        pair = frozen_solutions(Problem("p", "", "", extra_info=extra))
        truth = row["reward_model"]["ground_truth"]
        assert [boxed_answer(one.solution).text == truth for one in pair] == [True, False]
        assert [one.correct for one in pair] == [True, False]
        assert all(one.report.endswith(BAD) for one in pair)
    assert rows(Split.HELD_OUT, 40, 0) == rows(Split.HELD_OUT, 40, 0)
    (row,) = rows(Split.TRAIN, 1, 0)
    assert "frozen_solutions" not in row["extra_info"]


@given(st.integers(0, 10_000))
def test_a_slip_is_carried_on(seed):
    rng, chain = random.Random(seed), chain_of(seed)
    solution = draw_solution(chain, rng, Slips(per_step=0.3))
    totals = [solution.steps[0].left, *(step.result for step in solution.steps)]
    assert totals[0] == chain.terms[0] and totals[-1] == solution.answer
    assert [step.left for step in solution.steps] == totals[:-1], "each step goes on from the one before"
    signed = [step.right if step.sign == "+" else -step.right for step in solution.steps]
    assert signed == list(chain.terms[1:]), "no term is misread"
    assert all(0 <= total <= LARGEST_TOTAL for total in totals)


@given(st.integers(0, 10_000))
def test_a_verifier_ends_at_the_first_step_that_it_sees_otherwise(seed):
    rng, chain = random.Random(seed), chain_of(seed)
    solution = draw_solution(chain, rng, Slips(per_step=0.3))
    wrong = [
        step.left + (step.right if step.sign == "+" else -step.right) != step.result
        for step in solution.steps
    ]
    lines = verification(solution, rng, NEVER)
    assert [line.endswith(BAD) for line in lines] == wrong[: len(lines)]
    assert len(lines) == (wrong.index(True) + 1 if any(wrong) else len(wrong))
    if not wrong[0]:  # that slips itself: it calls right what is wrong and wrong what is right
        assert verification(solution, rng, ALWAYS)[0].endswith(BAD)


def test_every_transcript_fits_the_presets_limits():
    config = compose_config(
        parse_arguments(["cluster=cpu", "model=tiny_careless_errors", "data=careless_errors"])
    ).config
    tokenizer, rng = build_tokenizer(), random.Random(0)
    longest: Counter[tuple[str, str]] = Counter()
    for seed in range(150):
        for role in ROLES:
            one = draw_transcript(role, chain_of(seed), rng)
            prompt = tokenizer.apply_chat_template(
                list(one.messages), add_generation_prompt=True, tokenize=False
            )
            for kind, text in (("prompt", prompt), ("response", one.response)):
                ids = tokenizer.encode(text, add_special_tokens=False)
                assert tokenizer.decode(ids) == text
                longest[role, kind] = max(longest[role, kind], len(ids))
    for role in ROLES:
        limits = config.marsrl.roles[role]
        assert longest[role, "prompt"] <= limits.max_prompt_tokens, longest
        assert longest[role, "response"] + 1 <= limits.max_new_tokens, longest


def test_the_shipped_model_slips_and_can_be_checked():
    from transformers import AutoModelForCausalLM

    found = {
        one.label: one
        for one in measure(AutoModelForCausalLM.from_pretrained(model_path("careless_errors")), 60)
    }
    assert 0.4 < found["Solver is right"].share < 0.7 and found["Solver is right"].tries == 240
    assert found["another try makes the same mistake"].share < 0.2
    assert found["Verifier calls a wrong solution wrong"].share > 0.9
    assert 0.25 < found["Verifier calls a right solution wrong"].share < 0.65
    mended = found["Corrector mends a wrong one, the true finding"]
    assert 0.2 < mended.share < 0.7
    assert f"{mended.share:7.3f}  of 60" in show(list(found.values()))
