"""Rollouts in the formats of others."""

from __future__ import annotations

import json

import pytest
from atif_schema import check_atif
from recorded_runs import recorded

from marsrl_verl.replay.export import main
from marsrl_verl.reporting.rollout_files import read_lines, rollout_files


def atif(run, folder, *words):
    """The documents by trajectory and role."""
    assert main([str(run), "--format", "atif", "--output", str(folder), *words]) == 0
    found = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    for one in found:
        check_atif(one)
    return {(one["session_id"], one["agent"]["name"]): one for one in found}


def sampled(line):
    masked = {at for begin, end in line["masked"] for at in range(begin, end)}
    return [one for at, one in enumerate(line["token_ids"]) if at not in masked]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("marsrl", marks=pytest.mark.with_presets("marsrl")),
        pytest.param("arpo", marks=pytest.mark.with_presets("arpo_random")),
        pytest.param("rema", marks=pytest.mark.with_presets("rema")),
    ],
)
def test_every_sequence_is_a_document_with_its_sampled_tokens(tmp_path, name):
    run = recorded(tmp_path, name)
    found = atif(run, tmp_path / "out")
    lines = [line for path in rollout_files(run / "rollouts") for line in read_lines(path)]
    assert len(found) == len(lines)
    for line in lines:
        one = found[line["trajectory"], line["role"]]
        metrics = [step["metrics"] for step in one["steps"] if "metrics" in step]
        assert [token for each in metrics for token in each["completion_token_ids"]] == sampled(line)
        assert one["extra"]["reward"] == line["reward"] and one["extra"]["parent"] == line["parent"]
        assert one["steps"][0]["message"] == line["prompt"]


@pytest.mark.with_presets("arpo_random")
def test_a_call_has_its_result(tmp_path):
    found = atif(recorded(tmp_path, "arpo"), tmp_path / "out", "--step", "1", "--problem", "p11")
    assert {one["extra"]["problem"]["id"] for one in found.values()} == {"p11"} and len(found) == 6
    for one in found.values():
        _, asks, answers = one["steps"]
        (call,) = asks["tool_calls"]
        (result,) = asks["observation"]["results"]
        total = sum(map(int, call["arguments"]["sum"].split("+")))
        assert result == {
            "source_call_id": call["tool_call_id"],
            "content": f" <result>\n{total}\n</result>",
        }
        assert call["function_name"] == "calc" and call["extra"]["outcome"] == "ok"
        assert "<calc>" in asks["message"] and "boxed" in answers["message"]


@pytest.mark.with_presets("rema")
def test_a_dialogue_is_a_document_of_each_agent(tmp_path):
    found = atif(recorded(tmp_path, "rema"), tmp_path / "out")
    one = found["p10/dialogue/0#1", "meta_thinking"]
    assert one["trajectory_id"] == "p10/dialogue/0#1/meta_thinking"
    assert [step["source"] for step in one["steps"]] == ["user", "agent", "user", "agent"]
    assert one["steps"][1]["reasoning_content"] == "hm"
    assert one["steps"][1]["message"] == "Add them. It is 1."


@pytest.mark.with_presets("arpo_random")
def test_a_log_of_inspect_has_the_events(tmp_path):
    log = pytest.importorskip("inspect_ai.log")
    run = recorded(tmp_path, "arpo")
    assert main([str(run), "--format", "inspect", "--output", str(tmp_path / "out"), "--step", "2"]) == 0
    (path,) = (tmp_path / "out").iterdir()
    found = log.read_eval_log(str(path))
    lines = {
        (line["group"], int(line["trajectory"].rpartition("#")[2]) + 1): line
        for line in read_lines(run / "rollouts" / "step_2.jsonl")
    }
    assert found.eval.task == "default/step_2" and len(found.samples) == len(lines)
    for sample in found.samples:
        line = lines[sample.id, sample.epoch]
        assert sample.scores["reward"].value == line["reward"]
        kinds = [event.event for event in sample.events]
        assert kinds == ["info", "model", "tool", "model", "score"]
        models = [event for event in sample.events if event.event == "model"]
        tokens = [token for event in models for token in event.output.metadata["token_ids"]]
        assert tokens == sampled(line)
        (tool,) = (event for event in sample.events if event.event == "tool")
        assert tool.function == "calc" and "<result>" in tool.result
    mean = sum(line["reward"] for line in lines.values()) / len(lines)
    assert found.results.scores[0].metrics["mean"].value == pytest.approx(mean)


@pytest.mark.with_presets("rema")
def test_agents_of_a_dialogue_have_spans(tmp_path):
    log = pytest.importorskip("inspect_ai.log")
    run = recorded(tmp_path, "rema")
    assert main([str(run), "--format", "inspect", "--output", str(tmp_path / "out")]) == 0
    sample = log.read_eval_log_sample(str(tmp_path / "out" / "step_1.eval"), "p10/dialogue/0", 2)
    spans = [event.name for event in sample.events if event.event == "span_begin"]
    assert spans == ["meta_thinking", "reasoning"]
    assert [event.role for event in sample.events if event.event == "model"] == [
        *spans[:1] * 2,
        *spans[1:] * 2,
    ]


@pytest.mark.with_presets("marsrl")
def test_refused(tmp_path, capsys):
    run = recorded(tmp_path, "marsrl")
    words = [str(run), "--format", "atif", "--output"]
    assert main([*words, str(run)]) == 2 and "nothing is overwritten" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "out"), "--step", "9"]) == 2
    assert "has no such rollouts" in capsys.readouterr().err and not (tmp_path / "out").exists()
