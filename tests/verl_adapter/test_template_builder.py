"""A chat that grows token by token is what the chat template renders of the whole chat."""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="verl's continuous-token builders")

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from marsrl_verl.demo.assets import model_path
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, check_builder
from marsrl_verl.verl_adapter.rollout_server.template_builder import ChatTemplateBuilder, model_type

CHATML = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# Roles must alternate, and an assistant's turn ends with the end of the sequence.
ALTERNATING = (
    "{%- for m in messages -%}"
    "{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{- raise_exception('roles must alternate') -}}{%- endif -%}"
    "{{- '[INST]' + m['content'] + '[/INST]' if m['role'] == 'user' else m['content'] + '</s>' -}}"
    "{%- endfor -%}"
)
R1_END = "<｜end▁of▁sentence｜>"
R1 = (
    "{%- for m in messages -%}{%- if m['role'] == 'user' -%}{{- '<｜User｜>' + m['content'] -}}{%- else -%}"
    "{{- '<｜Assistant｜>' + m['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>' -}}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<｜Assistant｜><think>\\n' -}}{%- endif -%}"
)
TEMPLATES = {
    "chatml": (CHATML, ("<|im_start|>", "<|im_end|>"), "<|im_end|>", "qwen3"),
    "alternating": (ALTERNATING, ("[INST]", "[/INST]", "</s>"), "</s>", "default"),
    "r1": (R1, ("<｜User｜>", "<｜Assistant｜>", R1_END), R1_END, "default"),
}


def bytes_tokenizer(template: str, special: tuple[str, ...], eos: str) -> PreTrainedTokenizerFast:
    """A byte a token, and control tokens of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={one: number for number, one in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(one) for one in special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


def made(name: str) -> tuple[ChatTokenizer, ChatTemplateBuilder]:
    if name == "tiny":
        chat = ChatTokenizer(AutoTokenizer.from_pretrained(model_path()))
        return chat, ChatTemplateBuilder.of(chat)
    template, special, eos, family = TEMPLATES[name]
    tokenizer = bytes_tokenizer(template, special, eos)
    builder = create_continuous_token_builder(tokenizer, model_family=family)
    return ChatTokenizer(tokenizer), ChatTemplateBuilder(builder)


NAMES = ("tiny", "chatml", "alternating", "r1")
BUILDERS = {name: made(name) for name in NAMES}
texts = st.text(alphabet="ab 12.?!\n", min_size=1, max_size=12).map(str.strip).filter(bool)


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), texts)
@settings(max_examples=25, deadline=None)
def test_a_grown_chat_is_the_whole_chat(name, turns, last):
    chat, builder = BUILDERS[name]
    opened = "<think>\n" if name == "r1" else ""  # written by the template for the turn that is open
    messages: list[dict[str, str]] = []
    ids: list[int] = []
    for question, answer in turns:
        prompted = [*messages, {"role": "user", "content": question}]
        ids = chat.prompt_ids(prompted) if not messages else builder.merge(messages, prompted, ids, [])
        ids += [*chat.tokenizer.encode(answer, add_special_tokens=False), *chat.turn_end()]
        messages = [*prompted, {"role": "assistant", "content": answer}]
    prompted = [*messages, {"role": "user", "content": last}]
    grown = chat.decode(builder.merge(messages, prompted, ids, []))
    whole = chat.decode(chat.prompt_ids(prompted))
    assert grown.replace(opened, "") == whole.replace(opened, "") if opened else grown == whole
    if not opened:
        assert builder.merge(messages, prompted, ids, []) == chat.prompt_ids(prompted)


@pytest.mark.parametrize("name", NAMES)
def test_templates_are_checked_before_a_chat_grows(name):
    check_builder(*BUILDERS[name])


def test_a_template_that_writes_something_else_is_refused():
    chat, builder = BUILDERS["chatml"]

    class Forgetful:
        def merge(self, previous, updated, tail, tools):
            return builder.merge(previous, updated, tail, tools)[:-1]

    with pytest.raises(ValueError, match="can't be continued token by token"):
        check_builder(chat, Forgetful())


def test_an_end_that_the_model_wrote_itself_is_followed_by_what_the_template_writes():
    chat, builder = BUILDERS["chatml"]
    end = chat.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert chat.turn_end() == [end, *chat.tokenizer.encode("\n")]
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    grown = [*said, {"role": "user", "content": "c"}]
    assert builder.merge(said, grown, [end], []) == builder.merge(said, grown, chat.turn_end(), [])


def test_a_tokenizer_that_is_not_of_its_models_family_has_the_general_builder(tmp_path):
    chat, _ = BUILDERS["r1"]
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    chat.tokenizer.name_or_path = str(tmp_path)
    with pytest.raises(ValueError, match="im_end"):
        create_continuous_token_builder(chat.tokenizer, hf_model_type="qwen2")
    assert ChatTemplateBuilder.of(chat).merge([], [{"role": "user", "content": "a"}], [], [])


def test_the_models_own_name_is_read_from_its_folder(tmp_path):
    assert model_type(model_path()) == "qwen3"
    assert model_type(str(tmp_path)) is None
