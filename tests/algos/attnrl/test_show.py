"""The page of a response, from the command line with the tiny model."""

from __future__ import annotations

import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marsrl_verl.algos.attnrl import show as show_module
from marsrl_verl.algos.attnrl.branch_points import Shortfall
from marsrl_verl.algos.attnrl.config import Config
from marsrl_verl.algos.attnrl.method import DELTA
from marsrl_verl.algos.attnrl.page import ShownResponse, page
from marsrl_verl.algos.attnrl.show import main
from marsrl_verl.algos.attnrl.step_cutter import step_cutter
from marsrl_verl.algos.marsrl.prompts import MathPrompts
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
    defaults = Config()
    assert defaults.delta is None and DELTA == MathPrompts.step_distance == 4
    assert (defaults.shortfall, defaults.num_branch_points) == (Shortfall.FILL, 2)
    one = marked(show(tmp_path, "--text", RESPONSE, "--delta", "1", "--shortfall", "fewer")[1])
    filled = marked(show(tmp_path, "--text", RESPONSE, "--delta", "1")[1])
    assert filled == sorted({*one, next(step for step in (1, 2) if step not in one)})
    # Four steps later there is one for the first step alone, which is not measured.
    assert marked(show(tmp_path, "--text", RESPONSE)[1]) == [1, 2]
    assert marked(show(tmp_path, "--text", RESPONSE, "--branch-points", "3")[1]) == [1, 2, 3]


def test_a_token_that_names_the_answer_ends_the_choice_by_entropy(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "marsrl_verl.algos.attnrl.step_cutter.FINAL_WORDS", ("ok",)
    )  # a token of the tiny world
    more = ("--criterion", "surprisal", "--branch-points", "50")

    def points(text: str) -> str:
        assert show(tmp_path, "--text", text, *more)[0] == 0
        return capsys.readouterr().out.splitlines()[0].partition("after tokens: ")[2]

    assert points("7+5=12\n12") == "1, 2, 3, 4, 5"
    assert points("7+5 ok\n12") == "1"


def test_a_file_and_markup_in_it(tmp_path):
    path = tmp_path / "response.txt"
    path.write_text("1<2\n2+2=4\n")
    status, page = show(tmp_path, "--text", str(path), "--delta", "1", "--criterion", "earliest")
    assert status == 0 and "1&lt;2" in page and "1<2" not in page


def test_a_response_can_not_turn_the_direction_of_the_page():
    shown = ShownResponse(("a\u202e</div>\x1b\ud800",), Steps((3,), 1), (), {}, 2, note="<b>")
    found = page(shown, "<script>")
    assert "a\\u202e&lt;/div&gt;\\x1b\\ud800" in found
    assert "<b>" not in found and "<script>" not in found
    found.encode()


def test_log_probabilities_are_taken_in_pieces(monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(model_path(), attn_implementation="sdpa")
    response = AutoTokenizer.from_pretrained(model_path()).encode(RESPONSE, add_special_tokens=False)
    steps = Steps((len(response),), 1)
    monkeypatch.setattr(show_module, "_LOGITS_AT_ONCE", 4)
    _, log_probs, _ = show_module.measure_response(model, [5, 6], response, steps, 1, "chunked")
    ids = torch.tensor([[5, 6, *response]])
    with torch.no_grad():
        expected = model(ids).logits[0].log_softmax(-1)[range(1, ids.shape[1] - 1), response]
    torch.testing.assert_close(torch.tensor(log_probs), expected)


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [(RESPONSE, ("--top-share", "0"), "rule.top_share = 0.0"), ("", (), "at least one token")],
    ids=["a rule out of range", "an empty response"],
)
def test_what_can_not_be_shown_is_refused(tmp_path, capsys, text, more, said):
    assert show(tmp_path, "--text", text, *more)[0] == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def run_folder(tmp_path):
    """A run with a first response, two continuations of it in the next step, and their tree's advantages."""
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    ids = tokenizer.encode(RESPONSE, add_special_tokens=False)
    ends = list(step_cutter(tokenizer).cut(ids).ends)
    first = {
        "trajectory": "p/initial/0#1", "sequence": 0, "parent": None, "step": 3, "reward": 0.0,
        "token_ids": ids, "steps": ends,
        "influence": [0.0, 0.25, 0.5, 0.125, 0.0], "prefix_tokens": 0, "prompt_tokens": 9,
        "error": None, "finish_reason": "stop",
    }  # fmt: skip
    others = [
        {**first, "trajectory": f"p/continuation/001#{k}", "parent": "p/initial/0#1", "step": 4,
         "reward": reward, "prefix_tokens": ends[1], "steps": None, "influence": None,
         "error": "no grade" if k == 2 else None}
        for k, reward in enumerate((1.0, 0.0, 0.0))
    ]  # fmt: skip
    run = tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    (run / "trained").mkdir()
    for step, lines in ((3, [first]), (4, others)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (run / "rollouts" / f"step_{step}.jsonl").write_text(text)
    (run / "trained/step_3.json").write_text("{}")
    (run / "trained/step_4.json").write_text(
        json.dumps({"p/initial/0#1": [[[ends[1], 0.25], [ends[-1], -0.75]]]})
    )
    (run / "config.yaml").write_text(f"actor_rollout_ref:\n  model:\n    path: {model_path()}\n")
    return run


def test_a_response_of_a_run_is_shown_as_its_trainer_saw_it(run_folder, tmp_path, capsys):
    output = tmp_path / "page.html"
    assert main(["--run", str(run_folder), "--sample", "p/initial/0#1", "--output", str(output)]) == 0
    page = output.read_text()
    assert [float(value) for value in re.findall(r"influence ([\d.]+),", page)] == [0, 0.25, 0.5, 0.125, 0]
    assert re.findall(r"advantage ([+-][\d.]+)", page) == ["+0.250", "+0.250", "-0.750", "-0.750", "-0.750"]
    assert marked(page) == [2] and "3 continuations, 1 right, 1 wrong, 1 failed" in page
    assert "Reward 0, sampled in step 3, trained in step 4" in page and "-log p" not in page
    assert "branch points after tokens: 10" in capsys.readouterr().out


def test_a_response_without_influence_is_shown_too(run_folder, tmp_path):
    """A continuation, or a response of a method that does not measure any."""
    output = tmp_path / "page.html"
    assert main(["--run", str(run_folder), "--sample", "p/continuation/001#2", "--output", str(output)]) == 0
    page = output.read_text()
    assert "Failed (no grade), sampled in step 4, the first 10 tokens are those of p/initial/0#1" in page
    assert "not trained" in page and not re.search(r"influence \d", page) and marked(page) == []


def test_unknown_responses_empty_ones_and_older_runs_are_refused(run_folder, capsys):
    assert main(["--run", str(run_folder), "--sample", "q"]) == 2
    assert "has no trajectory 'q'" in capsys.readouterr().err
    path = run_folder / "rollouts/step_3.jsonl"
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "token_ids": [], "error": "refused"}))
    assert main(["--run", str(run_folder), "--sample", "p/initial/0#1"]) == 2
    assert "has no tokens: refused" in capsys.readouterr().err
    path.write_text(json.dumps({"sample": line.pop("trajectory"), **line}))
    assert main(["--run", str(run_folder), "--sample", "p/initial/0#1"]) == 2
    assert "an earlier version" in capsys.readouterr().err


def test_a_tokenizer_that_cuts_other_steps_is_refused(run_folder, capsys):
    path = run_folder / "rollouts/step_3.jsonl"
    path.write_text(path.read_text().replace('"steps": [', '"steps": [1, '))
    assert main(["--run", str(run_folder), "--sample", "p/initial/0#1"]) == 2
    assert "name the run's model with --model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["--run", "x"], ["--run", "x", "--sample", "y", "--text", "z"], ["--model", "x"]]
)
def test_arguments_that_do_not_go_together(arguments, capsys):
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    printed = capsys.readouterr().err
    assert raised.value.code == 2 and "--model" in printed and "--text" in printed
