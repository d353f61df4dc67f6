"""The page of a response, from the command line with the tiny model."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marsrl_verl.algos.attnrl import DELTA
from marsrl_verl.algos.branch_points import BranchRule, Shortfall
from marsrl_verl.attention import show as show_module
from marsrl_verl.attention.show import main
from marsrl_verl.config.schema import AttnRLConfig
from marsrl_verl.core.steps import Steps
from marsrl_verl.demo.assets import model_path

RESPONSE = "7+5=12\n12-3=9\n9+8=17\n17-2=15\n\\boxed{15}"


def show(tmp_path, *more: str) -> tuple[int, str]:
    page = tmp_path / "page.html"
    status = main(
        ["--model", str(model_path()), "--question", "Compute 7+5-3+8-2", "--output", str(page), *more]
    )
    return status, page.read_text() if page.exists() else ""


def marked(page: str) -> list[int]:
    """The steps with a branch point."""
    names = re.findall(r'<div class="(step[^"]*)"', page)
    return [step for step, name in enumerate(names) if "branch" in name]


def test_steps_are_coloured_and_branch_points_marked(tmp_path, capsys):
    status, page = show(tmp_path, "--text", RESPONSE, "--delta", "1", "--shortfall", "fewer")
    assert status == 0
    assert len(re.findall(r'<div class="step', page)) == 5
    values = [float(value) for value in re.findall(r"influence ([\d.]+),", page)]
    assert values[0] == values[4] == 0.0 and all(value > 0 for value in values[1:4])
    assert marked(page) == [values.index(max(values))], "the top fifth of five steps is one"
    assert "branch points after tokens:" in capsys.readouterr().out


def test_points_are_chosen_as_in_training(tmp_path):
    """Where too few steps qualify, the earliest other ones join."""
    rule, run = BranchRule(), AttnRLConfig()
    assert (rule.criterion.value, rule.count, rule.top_share) == (
        run.criterion, run.num_branch_points, run.top_share,
    )  # fmt: skip
    assert (rule.min_token_distance, rule.shortfall.value) == (run.min_token_distance, run.shortfall)
    assert (DELTA, rule.shortfall, rule.count) == (run.delta, Shortfall.FILL, 2)
    one = marked(show(tmp_path, "--text", RESPONSE, "--delta", "1", "--shortfall", "fewer")[1])
    filled = marked(show(tmp_path, "--text", RESPONSE, "--delta", "1")[1])
    assert filled == sorted({*one, next(step for step in (1, 2) if step not in one)})
    # Four steps later there is one for the first step alone, which is not measured.
    assert marked(show(tmp_path, "--text", RESPONSE)[1]) == [1, 2]
    assert marked(show(tmp_path, "--text", RESPONSE, "--branch-points", "3")[1]) == [1, 2, 3]


def test_a_token_that_names_the_answer_ends_the_choice_by_entropy(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("marsrl_verl.algos.step_cutter.FINAL_WORDS", ("ok",))  # a token of the tiny world
    more = ("--criterion", "entropy", "--branch-points", "50")

    def points(text: str) -> str:
        assert show(tmp_path, "--text", text, *more)[0] == 0
        return capsys.readouterr().out.splitlines()[0].partition("after tokens: ")[2]

    assert points("7+5=12\n12") == "1, 2, 3, 4, 5"
    assert points("7+5 ok\n12") == "1"


def test_a_rule_out_of_range_is_refused(tmp_path, capsys):
    assert show(tmp_path, "--text", RESPONSE, "--top-share", "0")[0] == 2
    assert "top_share is 0.0" in capsys.readouterr().err


def test_a_file_and_markup_in_it(tmp_path):
    path = tmp_path / "response.txt"
    path.write_text("1<2\n2+2=4\n")
    status, page = show(tmp_path, "--text", str(path), "--delta", "1", "--criterion", "earliest")
    assert status == 0 and "1&lt;2" in page and "1<2" not in page


def test_log_probabilities_are_taken_in_pieces(monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(model_path(), attn_implementation="sdpa")
    response = AutoTokenizer.from_pretrained(model_path()).encode(RESPONSE, add_special_tokens=False)
    steps = Steps((len(response),), 1)
    monkeypatch.setattr(show_module, "_LOGITS_AT_ONCE", 4)
    _, log_probs = show_module.measure_response(model, [5, 6], response, steps, 1, "chunked")
    ids = torch.tensor([[5, 6, *response]])
    with torch.no_grad():
        expected = model(ids).logits[0].log_softmax(-1)[range(1, ids.shape[1] - 1), response]
    torch.testing.assert_close(torch.tensor(log_probs), expected)


def test_an_empty_response_is_refused(tmp_path, capsys):
    assert show(tmp_path, "--text", "")[0] == 2
    assert "at least one token" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["--model", "--text"])
def test_help_names_what_is_needed(missing):
    done = subprocess.run(
        [sys.executable, "-m", "marsrl_verl.attention.show"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and missing in done.stderr
