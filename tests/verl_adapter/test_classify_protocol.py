"""What reward models are asked (`rewards.reward_model`) is a request of vLLM's `/classify`, whose response
has the score."""

from __future__ import annotations

from pydantic import TypeAdapter
from vllm.entrypoints.openai.engine.protocol import UsageInfo
from vllm.entrypoints.pooling.classify.api_router import router
from vllm.entrypoints.pooling.classify.protocol import (
    ClassificationChatRequest,
    ClassificationData,
    ClassificationRequest,
    ClassificationResponse,
)

from marsrl_verl.rewards.reward_model import ScorerEndpoint, read_score, score_body


def test_the_request_is_a_chat_without_activation():
    body = score_body(ScorerEndpoint(model="rm"), "1 + 1 = ?", r"\boxed{2}")
    found = TypeAdapter(ClassificationRequest).validate_python(body)
    assert isinstance(found, ClassificationChatRequest)
    assert body.keys() <= ClassificationChatRequest.model_fields.keys()
    assert (found.use_activation, found.add_generation_prompt) == (False, False)
    assert found.to_pooling_params().use_activation is False
    assert "/classify" in {route.path for route in router.routes}


def test_the_response_has_the_score():
    data = [ClassificationData(index=0, label="LABEL_0", probs=[-3.5], num_classes=1)]
    body = ClassificationResponse(model="rm", data=data, usage=UsageInfo())
    assert read_score(body.model_dump(), "url") == -3.5
