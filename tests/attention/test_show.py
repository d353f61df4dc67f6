"""The page of a response, from the command line with the tiny model."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marsrl_verl.attention import show as show_module
from marsrl_verl.attention.show import main
from marsrl_verl.core.steps import Steps
from marsrl_verl.demo.assets import model_path

RESPONSE = "7+5=12\n12-3=9\n9+8=17\n17-2=15\n\\boxed{15}"


def show(tmp_path, *more: str) -> tuple[int, str]:
    page = tmp_path / "page.html"
    status = main(
        ["--model", str(model_path()), "--question", "Compute 7+5-3+8-2", "--output", str(page), *more]
    )
    return status, page.read_text() if page.exists() else ""


def test_steps_are_coloured_and_branch_points_marked(tmp_path, capsys):
    status, page = show(tmp_path, "--text", RESPONSE, "--delta", "1")
    assert status == 0
    assert len(re.findall(r'<div class="step', page)) == 5
    values = [float(value) for value in re.findall(r"influence ([\d.]+),", page)]
    assert values[0] == values[4] == 0.0 and all(value > 0 for value in values[1:4])
    marked = [i for i, name in enumerate(re.findall(r'<div class="(step[^"]*)"', page)) if "branch" in name]
    assert marked == [values.index(max(values))], "the top fifth of five steps is one"
    assert "branch points after tokens:" in capsys.readouterr().out


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
