"""Trajectories as a log of Inspect (`inspect_ai`, the extra `inspect`): a sample each, with its events."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marsrl_verl.replay.parts import Responses, Turn, reasoning_and_answer
from marsrl_verl.replay.recorded import Line

if TYPE_CHECKING:
    from inspect_ai.event import Event
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessage, ModelOutput

REWARD = "reward"
_STOPS = {"stop": "stop", "length": "max_tokens"}
_ELSEWHERE = ("prompt", "response", "token_ids", "events", "schema_version", "problem", "error")


def write_log(
    target: Path,
    trajectories: Sequence[Sequence[Line]],
    responses: Responses,
    *,
    task: str,
    model: str,
    written: float,
) -> None:
    """Writes an `.eval` file.

    A sample's id is its group's, its epoch the trajectory's number from 1; its events are calls of the model
    and of tools, and the reward, of several agents in a span for each. There are no times on record: every
    event has the file's.

    Args:
        target: the file.
        trajectories: the lines of each; with `advantages` as [end, value], where it was trained.
        responses: of the run.
        task: what they are of.
        model: by name or path.
        written: when, in seconds since 1970.
    """
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalResults,
        EvalScore,
        EvalSpec,
        EvalStats,
        write_eval_log,
    )

    when = datetime.datetime.fromtimestamp(written, datetime.timezone.utc)
    samples = [_sample(lines, responses, model, when) for lines in trajectories]
    values = [float(one.scores[REWARD].value) for one in samples if one.scores]  # type: ignore[arg-type]
    mean = sum(values) / len(values) if values else 0.0
    score = EvalScore(name=REWARD, scorer=REWARD, metrics={"mean": EvalMetric(name="mean", value=mean)})
    ids = list(dict.fromkeys(one.id for one in samples))
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=when.isoformat(),
            task=task,
            dataset=EvalDataset(name=task, samples=len(ids), sample_ids=[str(one) for one in ids]),
            model=model,
            config=EvalConfig(epochs=max(one.epoch for one in samples)),
        ),
        results=EvalResults(total_samples=len(samples), completed_samples=len(samples), scores=[score]),
        stats=EvalStats(started_at=when.isoformat(), completed_at=when.isoformat()),
        samples=samples,
    )
    write_eval_log(log, str(target), format="eval")


def _sample(lines: Sequence[Line], responses: Responses, model: str, when: datetime.datetime) -> EvalSample:
    from inspect_ai.event import SpanBeginEvent, SpanEndEvent
    from inspect_ai.log import EvalError, EvalSample
    from inspect_ai.model import ModelOutput, ModelUsage
    from inspect_ai.scorer import Score

    first = lines[0]
    events: list[Event] = []
    messages: list[ChatMessage] = []
    output, usage = ModelOutput(model=model), ModelUsage()
    for line in lines:
        said: list[ChatMessage] = []
        span = f"{line['trajectory']}/{line['role']}" if len(lines) > 1 else None
        common: dict[str, Any] = {"span_id": span, "timestamp": when, "working_start": 0.0}
        if span is not None:
            events.append(SpanBeginEvent(**common, id=span, name=line["role"], type="agent"))
        for event, last in _events(line, said, responses, model, common):
            events.append(event)
            if last is not None:
                output, usage = last, usage + (last.usage or ModelUsage())
        if span is not None:
            events.append(SpanEndEvent(**common, id=span))
        messages += said
    score = None
    if first["reward"] is not None:
        answer = first.get("answer")
        score = {REWARD: Score(value=first["reward"], answer=None if answer is None else str(answer))}
    error = None
    if first["finish_reason"] == "error":
        why = first["error"] or ""
        error = EvalError(message=why, traceback=why, traceback_ansi=why)
    return EvalSample(
        id=first["group"],
        epoch=int(first["trajectory"].rpartition("#")[2]) + 1,
        input=first["problem"]["question"],
        target=first["problem"]["ground_truth"],
        messages=messages,
        output=output,
        model_usage={model: usage},
        scores=score,
        metadata={
            "sequences": [
                {name: value for name, value in line.items() if name not in _ELSEWHERE} for line in lines
            ]
        },
        events=events,
        error=error,
    )


def _events(
    line: Line, said: list[ChatMessage], responses: Responses, model: str, common: dict[str, Any]
) -> Iterator[tuple[Event, ModelOutput | None]]:
    """The events of a sequence, and what the model put out; `said` becomes its messages, `common` is of all
    events."""
    from inspect_ai.event import InfoEvent, ModelEvent, ScoreEvent, ToolEvent
    from inspect_ai.model import ChatMessageTool, ChatMessageUser, GenerateConfig
    from inspect_ai.scorer import Score

    about = ("parent", "fork", "finish_reason", "error", "versions", "advantages")
    yield InfoEvent(**common, source="marsrl-verl", data={key: line.get(key) for key in about}), None
    said.append(ChatMessageUser(content=line["prompt"]))
    spoken = responses.turns(line)
    for number, turn in enumerate(spoken):
        if not turn.part.own:
            said.append(ChatMessageUser(content=turn.part.text))
            continue
        ended = _STOPS.get(line["finish_reason"], "unknown") if number == len(spoken) - 1 else "stop"
        output = _output(turn, line, model, ended)
        yield (
            ModelEvent(
                **common, model=model, role=line["role"], input=list(said), tools=[], tool_choice="auto",
                config=GenerateConfig(), output=output,
            ),
            output,
        )  # fmt: skip
        said.append(output.choices[0].message)
        for place, call in enumerate(turn.calls):
            # One piece of text has the results of all of a turn's calls.
            result = (turn.result or "") if place == len(turn.calls) - 1 else ""
            yield ToolEvent(
                **common, id=call["call_id"], function=call["tool"], arguments=_arguments(call),
                result=result, working_time=call["seconds"], failed=call["outcome"] != "ok" or None,
                metadata={"outcome": call["outcome"], "executed": call["executed"]},
            ), None  # fmt: skip
            said.append(ChatMessageTool(content=result, tool_call_id=call["call_id"], function=call["tool"]))
    if line["reward"] is not None:
        target = line["problem"]["ground_truth"]
        yield ScoreEvent(**common, score=Score(value=line["reward"]), target=target, scorer=REWARD), None


def _output(turn: Turn, line: Line, model: str, ended: str) -> ModelOutput:
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ContentReasoning,
        ContentText,
        ModelOutput,
        ModelUsage,
    )
    from inspect_ai.tool import ToolCall

    reasoning, text = reasoning_and_answer(turn.part.text)
    content: Any = text
    if reasoning is not None:
        content = [ContentReasoning(reasoning=reasoning), ContentText(text=text)]
    calls = [
        ToolCall(id=one["call_id"], function=one["tool"], arguments=_arguments(one)) for one in turn.calls
    ]
    message = ChatMessageAssistant(content=content, tool_calls=calls or None, model=model)
    usage = None
    if not line["external"]:
        read, wrote = line["prompt_tokens"] + turn.part.begin, len(turn.token_ids)
        usage = ModelUsage(input_tokens=read, output_tokens=wrote, total_tokens=read + wrote)
    choice = ChatCompletionChoice(message=message, stop_reason="tool_calls" if calls else ended)  # type: ignore[arg-type]
    return ModelOutput(
        model=model, choices=[choice], usage=usage, metadata={"token_ids": list(turn.token_ids)}
    )


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    found = call["arguments"]
    return dict(found) if isinstance(found, Mapping) else {"value": found}
