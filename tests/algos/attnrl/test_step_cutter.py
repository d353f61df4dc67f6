"""Steps of the ids of real tokenizers: the closing tag as one token and as several."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from marsrl_verl.algos.attnrl.step_cutter import StepDelimiter, split_after_tokens, step_cutter
from marsrl_verl.core.reasoning_steps import TokenTexts, split_steps
from studies.tiny.tokenizer import build_tokenizer

TEXT = "7+5=12\n\nso 12-3=9</think>9\n\n\\boxed{9}"


def with_tag():
    """The tiny task's tokenizer with `</think>` as an added token, as reasoning models have it."""
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken("</think>", normalized=False)])
    return tokenizer


def spread():
    """A tokenizer that takes the tag apart and joins its end to what follows."""
    words = ["?", "</", "think", ">9", ">", "\n\n", *"0123456789+-=so \\boxed{}<"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(dict.fromkeys(words))}, unk_token="?"))
    pieces = Regex(r"</|think|>9|\n\n|[\s\S]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pieces, behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")


@pytest.mark.parametrize(
    ("build", "tokens"),
    [(with_tag, 1), (build_tokenizer, 8), (spread, 3)],
    ids=["one", "characters", "three"],
)
def test_the_step_that_closes_the_thinking_part(build, tokens):
    tokenizer = build()
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert len(tokenizer.encode("</think>", add_special_tokens=False)) == tokens
    steps = step_cutter(tokenizer).cut(ids)
    assert [tokenizer.decode(ids[steps.start(at) : steps.ends[at]]) for at in range(len(steps))] == [
        "7+5=12\n\n",
        "so 12-3=9</think>9\n\n",
        "\\boxed{9}",
    ]
    assert steps.thinking == 1
    unclosed = tokenizer.encode(TEXT.replace("</think>", "</thin>"), add_special_tokens=False)
    assert step_cutter(tokenizer).cut(unclosed).thinking == 3


def test_the_released_cut_is_another():
    tokenizer = build_tokenizer()
    ids = tokenizer.encode("7+5=12\n\n12-3=9", add_special_tokens=False)
    assert len(step_cutter(tokenizer).cut(ids)) == 2
    assert len(step_cutter(tokenizer, StepDelimiter.TOKENS).cut(ids)) == 3, (
        "two tokens of one line break each"
    )


@pytest.mark.parametrize(
    ("texts", "ends", "released"),
    [
        (("a", "\n\n", "b"), (2, 3), (2, 3)),
        (("a", "\n", "b"), (2, 3), (2, 3)),
        (("\n\n", "a", "\n\n", "b"), (3, 4), (1, 3, 4)),  # a blank line before any text
        (("a", "\n\n", "\n\n", "b"), (3, 4), (2, 3, 4)),  # two tokens of blank lines
        (("a", "\n\n", "\n", "b"), (3, 4), (2, 4)),  # a blank line, then a line break
        (("a", "\n", "\n", "b"), (3, 4), (2, 3, 4)),  # a blank line that two tokens spell
        (("a", "b", "c"), (3,), (1, 2, 3)),  # no line break
        (("a", "\n\n"), (2,), (2,)),  # one at the end
        (("a", "\n\n", "</think>", "\n\n", "b"), (2, 4, 5), (2, 4, 5)),
        ((), (), ()),
    ],
)
def test_where_the_released_code_cuts_otherwise(texts, ends, released):
    ids = range(len(texts))
    assert split_steps(ids, TokenTexts(texts.__getitem__)).ends == ends
    steps = split_after_tokens(ids, TokenTexts(texts.__getitem__))
    assert steps.ends == released
    assert steps.thinking == (1 if "</think>" in texts else len(released))
