"""The supervised start of SmolLM2 as MarsRL's roles."""

from __future__ import annotations

import re

import pytest

from marsrl_verl.algos.marsrl.verdict import Verdict, parse_verdict
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.demo.problems import Split
from marsrl_verl.demo.smollm2 import problems
from marsrl_verl.demo.smollm2.prompts import SOLVER_SYSTEM, VERIFIER_SYSTEM
from marsrl_verl.rewards.exact import ExactAnswerReward
from studies.smollm2 import supervised
from studies.tiny.transcripts import Transcript

_BOX = re.compile(r"\\boxed\{(-?\d+)\}")


def learnt(count):
    """(role, chat, response, the problem)"""
    drawn = {one.question: one for one in problems.generate(Split.TRAIN, count, 77)}
    for found in supervised.examples(count):
        speakers = [message["role"] for message in found.messages]
        role = "verifier" if found.messages[0]["content"] == VERIFIER_SYSTEM else "solver"
        assert role == "verifier" or found.messages[0]["content"] == SOLVER_SYSTEM
        asked = found.messages[1]["content"].partition("\n")[0]
        yield "corrector" if "assistant" in speakers else role, found.messages, found.response, drawn[asked]


def test_answers_are_right_and_verdicts_true():
    truths = []
    for kind, chat, answer, one in learnt(200):
        if kind != "verifier":
            assert ExactAnswerReward().grade(answer, [str(one.answer)]).value == 1.0
            continue
        said = int(_BOX.findall(chat[-1]["content"])[-1])
        verdict = parse_verdict(answer, FinishReason.STOP)
        assert verdict.verdict is (Verdict.CORRECT if said == one.answer else Verdict.WRONG)
        assert verdict.report == f"{one.steps[0]}\nThe solution says {said}."
        truths.append(said == one.answer)
    pairs = list(zip(truths[::2], truths[1::2], strict=True))
    assert all(first != second for first, second in pairs), "a right and a wrong solution of each problem"
    assert 0.35 < sum(first for first, _ in pairs) / len(pairs) < 0.65, "in either order"


def test_roles_come_in_turn_and_corrected_solutions_are_wrong():
    found = list(learnt(40))
    in_turn = ["solver", *["verifier"] * 6, "corrector", *["verifier"] * 6]
    assert [kind for kind, *_ in found[:14]] == in_turn
    for kind, chat, _, one in found:
        if kind == "corrector":
            shown = next(message["content"] for message in chat if message["role"] == "assistant")
            assert int(_BOX.findall(shown)[-1]) != one.answer
            assert f"The solution says {_BOX.findall(shown)[-1]}." in chat[-1]["content"]


def test_a_model_learns_the_answers_and_is_saved(tmp_path, capsys, monkeypatch):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<|im_start|>", "<|im_end|>", *letters])}
    built = Tokenizer(models.BPE(vocabulary, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=built, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=template
    )
    torch.manual_seed(0)
    net = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2,
        )
    )  # fmt: skip
    source, target = tmp_path / "source", tmp_path / "target"
    net.save_pretrained(source)
    tokenizer.save_pretrained(source)
    monkeypatch.setattr(supervised, "_RATE", 1e-2)
    supervised.train(source, target, [Transcript(({"role": "user", "content": "a"},), "right")] * 400)
    losses = [float(found) for found in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert losses[-1] < 0.1 < 3 < losses[0]
    again = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    ids = torch.tensor([tokenizer("<|im_start|>a<|im_end|><|im_start|>")["input_ids"]])
    out = again.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=1, pad_token_id=1)
    assert tokenizer.decode(out[0, ids.shape[1] :]) == "right<|im_end|>"


def test_a_folder_that_is_not_there_is_told_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(supervised, "usual_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"python -m studies.smollm2.supervised"):
        supervised.folder()
