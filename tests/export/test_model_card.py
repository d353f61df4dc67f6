"""Prompts and front matter of model cards, whatever the method."""

from __future__ import annotations

import pytest
from composing import skip_without
from exporting import make_run
from huggingface_hub import ModelCard
from omegaconf import OmegaConf

from marsrl_verl.algos.registry import installed_methods
from marsrl_verl.core.prompts import PLACEHOLDER, placeholder
from marsrl_verl.export.model_card import Exported, model_card
from marsrl_verl.reporting.manifest import MANIFEST_NAME, step_folder

REAL = ("model=custom", "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B")
"""A model whose prompts are the methods' own."""


def exported(folder, *words: str, adapter: bool = False) -> Exported:
    """Of a run without weights, which a card does not look at."""
    run = make_run(folder / "run", *words, steps=())
    checkpoint = step_folder(run / "checkpoints", 2)
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST_NAME).write_text("{}")
    return Exported(run, OmegaConf.load(run / "config.yaml"), checkpoint, adapter, {})


@pytest.mark.parametrize("preset", [*installed_methods(), "rema_judge"])
def test_each_role_has_a_template_with_all_that_it_is_shown(tmp_path, preset):
    skip_without([f"algo={preset}"])
    one = exported(tmp_path, f"algo={preset}", "policies=shared", *REAL)
    ((policy, roles),) = ((name, roles) for name, roles in one.roles.items() if name == "shared")
    shapes = one.method.prompt_shapes(one.settings.algo, one.prompts, PLACEHOLDER, placeholder)
    card = model_card(one, policy, "out")
    for shape in (shape for shape in shapes if shape.role in roles):
        asked = "\n".join(message["content"] for message in shape.wording)
        assert all(part in asked for part in ("{problem}", *(f"{{{name}}}" for name in shape.shown)))
        assert all(f"```text\n{message['content']}\n```" in card for message in shape.wording)
    assert "Worded by" not in card
    texts = {name for shape in shapes for name in shape.row_texts}
    assert all(f"from the data's row: `{name}`." in card for name in texts)


def test_an_adapter_names_its_model_and_its_own_roles_prompts(tmp_path):
    words = (*REAL, "policies=lora_per_role", "actor_rollout_ref.model.lora_rank=12")
    one = exported(tmp_path, "algo=marsrl", *words, adapter=True)
    text = model_card(one, "verifier", "lora/verifier")
    card = ModelCard(text)
    assert card.data.base_model == "Qwen/Qwen3-0.6B" and card.data.library_name == "peft"
    assert "lora" in card.data.tags
    assert "vllm serve Qwen/Qwen3-0.6B --enable-lora --max-lora-rank 16 \\\n" in text
    assert "--lora-modules verifier=lora/verifier" in text
    assert "### verifier" in text and "### solver" not in text
    assert "| policy solver | solver (trained with it) |" in text
    assert "The run did not evaluate the weights of step 2." in text


@pytest.mark.with_presets("grpo")
def test_prompts_that_need_a_row_are_named(tmp_path, monkeypatch):
    one = exported(tmp_path, "algo=grpo", "policies=shared", *REAL)

    def refuses(problem):
        raise KeyError("level")

    monkeypatch.setattr(one.prompts, "problem", refuses)
    text = model_card(one, "shared", "out")
    assert "can't word a placeholder (KeyError('level'))" in text
    assert f"Worded by `{one.settings.prompts.target}`." in text


def test_text_of_the_run_is_no_markup(tmp_path):
    one = exported(tmp_path, "algo=marsrl", "policies=shared")
    one.config.marsrl.run.name = "a <b> | [c](d)"
    one.config.marsrl.run.command = ["python", "```", "x"]
    text = model_card(one, "shared", "out")
    assert r"# a \<b\> \| \[c\](d): shared, step 2" in text
    assert "````text\npython '```' x\n````" in text
