"""Influence and log-probabilities of a response, with the tiny model."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marsrl_verl.core.reasoning_steps import Steps
from marsrl_verl.demo.assets import model_path
from studies.tiny import influence

RESPONSE = "7+5=12\n12-3=9\n9+8=17\n17-2=15\n\\boxed{15}"


def test_log_probabilities_are_taken_in_pieces(monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(model_path(), attn_implementation="sdpa")
    response = AutoTokenizer.from_pretrained(model_path()).encode(RESPONSE, add_special_tokens=False)
    steps = Steps((len(response),), 1)
    monkeypatch.setattr(influence, "_LOGITS_AT_ONCE", 4)
    _, log_probs, _ = influence.measure_response(model, [5, 6], response, steps, 1, "chunked")
    ids = torch.tensor([[5, 6, *response]])
    with torch.no_grad():
        expected = model(ids).logits[0].log_softmax(-1)[range(1, ids.shape[1] - 1), response]
    torch.testing.assert_close(torch.tensor(log_probs), expected)
