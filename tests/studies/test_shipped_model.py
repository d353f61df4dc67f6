"""The warm-started model that is shipped: mediocre in every role, so that there is something to learn."""

from __future__ import annotations

import pytest
from tiny_ranges import assert_mediocre

from marsrl_verl.demo.assets import model_path
from studies.tiny.measure import measure


@pytest.fixture(scope="module")
def shipped():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_path())


def test_every_role_is_mediocre(shipped):
    assert_mediocre(measure(shipped, problems=400))


def test_it_is_small():
    from pathlib import Path

    assert sum(path.stat().st_size for path in Path(model_path()).iterdir()) <= 2_000_000


def test_its_tokenizer_is_the_tiny_one():
    from transformers import AutoTokenizer

    from studies.tiny.tokenizer import vocabulary

    assert AutoTokenizer.from_pretrained(model_path()).get_vocab() == vocabulary()
