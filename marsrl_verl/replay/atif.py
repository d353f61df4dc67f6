"""Trajectories in the Agent Trajectory Interchange Format (ATIF 1.7, Harbor's RFC 0001), with token ids.

A document is a sequence: the prompt as one user step, then an agent step for each piece that the policy
wrote, with the calls at its end and what they returned. What other agents said in between are user steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marsrl_verl.replay.parts import Responses, Turn, reasoning_and_answer
from marsrl_verl.version import __version__

SCHEMA = "ATIF-v1.7"
_ELSEWHERE = ("prompt", "response", "token_ids", "events", "tokens", "prompt_tokens", "schema_version")
"""Keys of a line whose values the steps have; all others are in `extra`."""


def document(
    line: Mapping[str, Any],
    responses: Responses,
    model: str,
    *,
    alone: bool,
    log_probs: Sequence[float | None] = (),
) -> dict[str, Any]:
    """A line as a document.

    Args:
        line: of rollouts.
        responses: of its run; without a tokenizer an agent's step has tools' results in its text too.
        model: by name or path.
        alone: whether its trajectory has no other sequence.
        log_probs: (T,) of its tokens as they were sampled, where they are on record.
    """
    steps: list[dict[str, Any]] = [{"source": "user", "message": line["prompt"]}]
    steps += [_step(one, line, log_probs) for one in responses.turns(line)]
    agent = {"name": line["role"], "version": __version__, "model_name": model}
    total = {
        "total_completion_tokens": sum(
            len(step["metrics"]["completion_token_ids"]) for step in steps if "metrics" in step
        )
    }
    found: dict[str, Any] = {
        "schema_version": SCHEMA,
        "session_id": line["trajectory"],
        "trajectory_id": line["trajectory"] if alone else f"{line['trajectory']}/{line['role']}",
        "agent": agent,
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": {**total, "total_steps": len(steps)},
        "extra": {name: value for name, value in line.items() if name not in _ELSEWHERE},
    }
    if line["masked"] and responses.chat is None:
        found["notes"] = "The agent's message holds what tools or others wrote: the tokenizer was not there."
    return found


def _step(turn: Turn, line: Mapping[str, Any], log_probs: Sequence[float | None]) -> dict[str, Any]:
    copied = {"is_copied_context": True} if turn.part.copied else {}
    if not turn.part.own:
        return {"source": "user", "message": turn.part.text, **copied}
    reasoning, message = reasoning_and_answer(turn.part.text)
    step: dict[str, Any] = {"source": "agent", "message": message, **copied}
    if reasoning is not None:
        step["reasoning_content"] = reasoning
    if turn.calls:
        step["tool_calls"] = [_call(event) for event in turn.calls]
    if turn.result is not None:
        # Of several calls one piece of text has all results.
        of = {"source_call_id": turn.calls[0]["call_id"]} if len(turn.calls) == 1 else {}
        step["observation"] = {"results": [{**of, "content": turn.result}]}
    if not line["external"]:
        step["metrics"] = {
            "prompt_tokens": line["prompt_tokens"] + turn.part.begin,
            "completion_tokens": len(turn.token_ids),
            "completion_token_ids": list(turn.token_ids),
        }
        known = log_probs[turn.part.begin : turn.part.end]
        if turn.token_ids and len(known) == len(turn.token_ids) and None not in known:
            step["metrics"]["logprobs"] = list(known)
    return step


def _call(event: Mapping[str, Any]) -> dict[str, Any]:
    arguments = event["arguments"]
    return {
        "tool_call_id": event["call_id"],
        "function_name": event["tool"],
        "arguments": arguments if isinstance(arguments, Mapping) else {"value": arguments},
        "extra": {name: event[name] for name in ("outcome", "executed", "seconds") if name in event},
    }
