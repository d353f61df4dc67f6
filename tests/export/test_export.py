"""Exported folders: the checkpoint's weights, whole or not at all, and what is rejected."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from exporting import make_run, write_evaluation
from huggingface_hub import ModelCard
from omegaconf import OmegaConf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from marsrl_verl.export.application import main
from marsrl_verl.reporting.manifest import MANIFEST_NAME

pytestmark = pytest.mark.slow


def checkpoint_weights(run, step):
    return torch.load(run / f"checkpoints/global_step_{step}/actor/model_world_size_1_rank_0.pt")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """With two checkpoints, evaluated before and after the second."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "kept", steps=(1, 2))
    write_evaluation(folder, "before", 0, 10)
    write_evaluation(folder, "after", 2, 30)
    return folder


@pytest.fixture(scope="module")
def exported(run):
    target = run.parent / "exported"
    assert main([f"checkpoint={run}", f"target={target}"]) == 0
    return target


def test_the_weights_are_those_of_the_newest_checkpoint_bit_for_bit(run, exported):
    expected, found = checkpoint_weights(run, 2), load_file(exported / "model.safetensors")
    assert found.keys() == expected.keys() - {"lm_head.weight"}  # tied to the embeddings
    assert all(torch.equal(found[name], expected[name]) for name in found)
    model = AutoModelForCausalLM.from_pretrained(exported, dtype="auto")
    assert model.dtype is torch.float32
    assert all(torch.equal(one, expected[name]) for name, one in model.state_dict().items())


def test_in_bfloat16_they_are_rounded_once(run, tmp_path):
    other = make_run(tmp_path / "rounded", "actor_rollout_ref.rollout.dtype=bfloat16")
    step = other / "checkpoints/global_step_2"
    assert main([f"checkpoint={step}", f"target={tmp_path / 'out'}"]) == 0
    expected, found = checkpoint_weights(other, 2), load_file(tmp_path / "out/model.safetensors")
    assert all(torch.equal(one, expected[name].bfloat16()) for name, one in found.items())
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
    assert (
        "| weights | bfloat16, as the run's engines decoded; the trainer's are fp32 |"
        in (tmp_path / "out/README.md").read_text()
    )


def test_nothing_else_is_there(exported):
    assert sorted(path.name for path in exported.iterdir()) == [
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    modes = {path.stat().st_mode for path in exported.iterdir()}
    assert modes == {(exported / "config.json").stat().st_mode}, "whoever may read one may read all"
    assert AutoTokenizer.from_pretrained(exported).apply_chat_template(
        [{"role": "user", "content": "Compute 1+1"}], add_generation_prompt=True, tokenize=False
    )
    assert {path.name for path in exported.parent.iterdir()} == {"kept", "kept_data.jsonl", "exported"}


# --- the card ---------------------------------------------------------------------------------------


def test_the_card_has_front_matter_and_what_was_trained(run, exported):
    card = ModelCard.load(exported / "README.md")
    assert card.data.library_name == "transformers" and card.data.pipeline_tag == "text-generation"
    assert "marsrl" in card.data.tags and card.data.datasets == ["openai/gsm8k"]
    assert card.data.base_model is None  # a folder is nothing that the hub knows
    manifest = hashlib.sha256((run / f"checkpoints/global_step_2/{MANIFEST_NAME}").read_bytes()).hexdigest()
    data = hashlib.sha256((run.parent / "kept_data.jsonl").read_bytes()).hexdigest()
    assert manifest in card.text and data in card.text
    assert "| data, gone.parquet | 7 bytes, SHA-256 5ad |" in card.text
    assert "python -m recipe.marsrl.main_marsrl cluster=cpu name=kept" in card.text


def test_the_card_has_the_figures_of_the_exported_step_alone(run, exported, tmp_path):
    text = (exported / "README.md").read_text()
    (row,) = (line for line in text.splitlines() if line.startswith("| Solver accuracy"))
    assert row.startswith("| Solver accuracy | 25.0 % [14.2, 40.2] | 75.0 % [59.8, 85.8] | +50.0 [")
    assert row.endswith(" | better |")
    assert main([f"checkpoint={run}/checkpoints/global_step_1", f"target={tmp_path / 'first'}"]) == 0
    text = (tmp_path / "first/README.md").read_text()
    assert "The run did not evaluate the weights of step 1." in text and "75.0 %" not in text


def test_the_card_has_the_tables_of_evaluations_of_the_checkpoint(run, tmp_path, capsys):
    table, config = make_run(tmp_path / "table", steps=()), tmp_path / "table/config.yaml"
    words = [f"checkpoint={run}", f"target={tmp_path / 'out'}", f"evaluations=[{table}]"]
    assert "holds no finished evaluation alone" in refused(capsys, *words)
    write_evaluation(table, "alone", 2, 10)
    assert "is an evaluation of a model as it began" in refused(capsys, *words)
    own = OmegaConf.load(config)
    own.trainer.resume_from_path = str(run / "checkpoints/global_step_2")
    config.write_text(OmegaConf.to_yaml(own))
    assert main(words) == 0
    text = (tmp_path / "out/README.md").read_text()
    assert "| Solver accuracy | 25.0 % [14.2, 40.2] | 40 |" in text[text.index("### table") :]
    of_first = [f"checkpoint={run}/checkpoints/global_step_1", f"target={tmp_path / 'no'}", words[2]]
    assert "global_step_2, not of" in refused(capsys, *of_first)


def test_the_prompts_are_templates(exported):
    text = (exported / "README.md").read_text()
    verifier = text[text.index("### verifier") : text.index("### corrector")]
    assert "**system**\n\n```text\nVerify\n```" in verifier
    assert "**user**\n\n```text\n{problem}\n{solution}\n```" in verifier
    assert "{report}" in text and "at most 24 tokens of prompt and 48 of response" in text


# --- refused ----------------------------------------------------------------------------------------


def refused(capsys, *words) -> str:
    assert main([str(word) for word in words]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_what_can_not_be_exported_is_refused(run, exported, tmp_path, capsys):
    target = f"target={tmp_path / 'out'}"
    bare = make_run(tmp_path / "bare", steps=())
    assert "The run has no complete checkpoint." in refused(capsys, f"checkpoint={bare}", target)
    assert "There is no such folder." in refused(capsys, f"checkpoint={tmp_path}/none", target)
    assert "has no run.json" in refused(capsys, f"checkpoint={tmp_path}", target)
    there = refused(capsys, f"checkpoint={run}", f"target={exported}")
    assert "It exists, and nothing is overwritten." in there
    policy = refused(capsys, f"checkpoint={run}", target, "policy=judge")
    assert "policy = judge The run trains no such policy. fix: Use one of: shared." in policy
    assert "The run trains no adapters" in refused(capsys, f"checkpoint={run}", target, "merge_adapters=true")
    assert "target Nothing names a value for it." in refused(capsys, f"checkpoint={run}")
    assert "Did you mean target?" in refused(capsys, f"checkpoint={run}", "targt=a")
    assert "not readable as key=value" in refused(capsys, "--checkpoint", run)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_or_damaged_checkpoint_is_refused(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    step, target = run / "checkpoints/global_step_2", f"target={tmp_path / 'out'}"
    weights = step / "actor/model_world_size_1_rank_0.pt"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    found = refused(capsys, f"checkpoint={step}", target)
    assert "model_world_size_1_rank_0.pt" in found and "sha256" in found
    (step / MANIFEST_NAME).unlink()
    assert f"{step} has no {MANIFEST_NAME}" in refused(capsys, f"checkpoint={step}", target)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_export_leaves_no_folder(run, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    (tmp_path / ".out.unfinished/shared").mkdir(parents=True)  # of one that was killed
    monkeypatch.setattr("marsrl_verl.export.application.model_card", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main([f"checkpoint={run}", f"target={tmp_path / 'out'}"])
    assert list(tmp_path.iterdir()) == []
