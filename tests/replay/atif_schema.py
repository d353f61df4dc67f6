"""The rules of ATIF 1.7 (Harbor's RFC 0001), as a JSON schema and as what no schema says."""

from __future__ import annotations

from typing import Any

import jsonschema

_TEXT, _COUNT, _ANY = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "object"}


def _object(required: str, **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": optional,
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


_METRICS = _object(
    "",
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    cached_tokens=_COUNT,
    cost_usd={"type": "number"},
    prompt_token_ids=_list(_COUNT),
    completion_token_ids=_list(_COUNT),
    logprobs=_list({"type": "number"}),
    extra=_ANY,
)
_CALL = _object(
    "tool_call_id function_name arguments",
    tool_call_id=_TEXT,
    function_name=_TEXT,
    arguments=_ANY,
    extra=_ANY,
)
_RESULT = _object("", source_call_id=_TEXT, content=_TEXT, subagent_trajectory_ref=_list(_ANY), extra=_ANY)
_STEP = _object(
    "step_id source message",
    step_id={"type": "integer", "minimum": 1},
    timestamp=_TEXT,
    source={"enum": ["system", "user", "agent"]},
    model_name=_TEXT,
    reasoning_effort={"type": ["string", "number"]},
    message=_TEXT,
    reasoning_content=_TEXT,
    tool_calls=_list(_CALL),
    observation=_object("results", results=_list(_RESULT)),
    metrics=_METRICS,
    is_copied_context={"type": "boolean"},
    llm_call_count=_COUNT,
    extra=_ANY,
)
SCHEMA = _object(
    "schema_version agent steps",
    schema_version={"const": "ATIF-v1.7"},
    session_id=_TEXT,
    trajectory_id=_TEXT,
    agent=_object(
        "name version",
        name=_TEXT,
        version=_TEXT,
        model_name=_TEXT,
        tool_definitions=_list(_ANY),
        extra=_ANY,
    ),
    steps=_list(_STEP, minItems=1),
    notes=_TEXT,
    final_metrics=_object(
        "",
        total_prompt_tokens=_COUNT,
        total_completion_tokens=_COUNT,
        total_cached_tokens=_COUNT,
        total_cost_usd={"type": "number"},
        total_steps=_COUNT,
        extra=_ANY,
    ),
    continued_trajectory_ref=_TEXT,
    extra=_ANY,
    subagent_trajectories=_list(_ANY),
)
_OF_AGENTS = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


def check_atif(document: dict[str, Any]) -> None:
    """Raises where a document is none of the format."""
    jsonschema.validate(document, SCHEMA)
    for number, step in enumerate(document["steps"], 1):
        assert step["step_id"] == number
        assert step["source"] == "agent" or not set(_OF_AGENTS) & step.keys()
        calls = {one["tool_call_id"] for one in step.get("tool_calls", ())}
        for result in step.get("observation", {}).get("results", ()):
            assert result.get("source_call_id") in {None, *calls}
        metrics = step.get("metrics", {})
        if "completion_token_ids" in metrics:
            assert len(metrics["completion_token_ids"]) == metrics["completion_tokens"]
            assert (
                len(metrics.get("logprobs") or metrics["completion_token_ids"])
                == metrics["completion_tokens"]
            )
