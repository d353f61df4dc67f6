from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.uneven_lengths import LIMIT, PROMPT_LIMITS, write_rambling_model
from marsrl_verl.demo.files import tiny_model


def test_logits_are_divided_by_the_temperature(tmp_path):
    folder = write_rambling_model(tiny_model(), tmp_path / "model", 2.8)
    tokens = torch.tensor([[4, 214, 11, 201, 212, 1, 5]])
    with torch.no_grad():
        before = AutoModelForCausalLM.from_pretrained(tiny_model())(tokens).logits
        after = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
    torch.testing.assert_close(after, before / 2.8)


def test_a_report_on_the_longest_responses_fits_into_the_model():
    positions = AutoModelForCausalLM.from_pretrained(tiny_model()).config.max_position_embeddings
    assert PROMPT_LIMITS["solver"] + LIMIT <= PROMPT_LIMITS["verifier"]
    assert PROMPT_LIMITS["solver"] + 2 * LIMIT <= PROMPT_LIMITS["corrector"]
    assert PROMPT_LIMITS["corrector"] + LIMIT <= positions


def test_a_temperature_of_zero_is_refused(tmp_path):
    with pytest.raises(ValueError, match="above 0, found 0"):
        write_rambling_model(tiny_model(), tmp_path / "model", 0)
