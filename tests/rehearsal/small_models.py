"""Folders of models with random weights: the configuration of a published model with small sizes, and a
tokenizer of its family with a small vocabulary."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PACKAGE = Path(__file__).resolve().parents[2] / "marsrl_verl"
SMALL = {
    # Heads of 32: vLLM's attention on the CPU takes no smaller ones.
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
VOCABULARY = 1200
MARKS = (
    *("<search>", "</search>", "<python>", "</python>", "<answer>", "</answer>"),
    *("\\boxed{", "[FINISH]", '"}'),
)
"""What roles write so that something happens: a token each."""
ODDS = {
    **{"</think>": 0.1, "</search>": 0.1, "<search>": 0.05},
    **{"\\boxed{": 0.05, "[FINISH]": 0.05, '"}': 0.15},
}
"""How likely some tokens are, whatever stands before them."""
END_ODDS = 0.2
"""How likely a token ends the response. Above all others: greedy responses end, too."""


@dataclass(frozen=True)
class Family:
    """What tokenizers of a family have in common.

    Args:
        template: the chat template.
        specials: end of message first, then padding, then the others.
        thinking: added tokens that are not special.
    """

    template: str
    specials: tuple[str, ...]
    thinking: tuple[str, ...] = ()


def _turns(before: str, after: str, answer: str, start: str = "") -> str:
    """A chat template in which each message stands between two marks."""
    return (
        f"{start}{{%- for message in messages -%}}"
        f"{before}{{{{- message['content'] -}}}}{after}"
        f"{{%- endfor -%}}{{%- if add_generation_prompt -%}}{{{{- {answer} -}}}}{{%- endif -%}}"
    )


_CHATML = "{{- '<|im_start|>' + message['role'] + '\\n' -}}", "{{- '<|im_end|>\\n' -}}"
_THINK = ("<think>", "</think>")
_QWEN = ("<|im_end|>", "<|endoftext|>", "<|im_start|>")
CHATML = Family(_turns(*_CHATML, "'<|im_start|>assistant\\n'"), _QWEN, _THINK)
THINKING = Family(_turns(*_CHATML, "'<|im_start|>assistant\\n<think>\\n'"), _QWEN, _THINK)
LLAMA = Family(
    _turns(
        "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}",
        "{{- '<|eot_id|>' -}}",
        "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'",
        "{{- '<|begin_of_text|>' -}}",
    ),
    ("<|eot_id|>", "<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
)
DISTILLED = Family(
    _turns(
        "{{- {'user': '<｜User｜>', 'assistant': '<｜Assistant｜>'}.get(message['role'], '') -}}",
        "{{- '<｜end▁of▁sentence｜>' if message['role'] == 'assistant' else '' -}}",
        "'<｜Assistant｜><think>\\n'",
        "{{- '<｜begin▁of▁sentence｜>' -}}",
    ),
    ("<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    _THINK,
)

FAMILIES = {"chatml": CHATML, "thinking": THINKING, "llama": LLAMA, "distilled": DISTILLED}
MODELS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())["models"]
"""By hub id."""


def make_model(name: str, folder: Path) -> Path:
    """Writes the folder of a small model that is made like the one with this hub id."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {**MODELS[name], **SMALL}
    tokenizer = build_tokenizer(FAMILIES[values.pop("family")])
    config = AutoConfig.for_model(
        values.pop("model_type"),
        **values,
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,  # larger than the tokenizer's, as the published ones
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="bfloat16",
    )
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    ids = dict(zip(ODDS, tokenizer.convert_tokens_to_ids(list(ODDS)), strict=True))
    likely = {ids[token]: odds for token, odds in ODDS.items() if ids[token] is not None}
    _write_now_and_then(model, {**likely, tokenizer.eos_token_id: END_ODDS})
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [tokenizer.eos_token_id, tokenizer.pad_token_id]})
    )
    return folder


def _write_now_and_then(model: PreTrainedModel, odds: Mapping[int, float]) -> None:
    """Lets each token of `odds` come about so often, the others alike.

    All embeddings have one direction in common, which is most of what arrives at the head; there the logits
    of these tokens are raised.
    """
    import torch

    rest = 1.0 - sum(odds.values())
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        head = model.get_output_embeddings().weight
        for weight in (embeddings, head):
            weight.normal_(0.0, 0.05)
            weight[:, 0] = 3.0
        arrives = math.sqrt(weight.shape[1])  # after the last norm
        for token, share in odds.items():
            for weight in (embeddings, head):
                weight[token, 1:] = 0.0
            head[token, 0] += math.log(share / rest * len(head)) / arrives


def build_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """Byte-level pairs, learnt from the package's own source, so that its prompts stay short."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_texts(), trainer)
    end, padding, *others = family.specials
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in family.specials])
    tokenizer.add_tokens(
        [AddedToken(one, special=False, normalized=False) for one in (*family.thinking, *MARKS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=padding,
        additional_special_tokens=others,
        chat_template=family.template,
        clean_up_tokenization_spaces=False,
    )


def _texts() -> Sequence[str]:
    files = sorted((PACKAGE / "algos").glob("**/prompts.py")) + sorted((PACKAGE / "core").glob("*.py"))
    return [path.read_text(encoding="utf-8") for path in files]
