"""Recorded episodes of a workflow, played again: its agents say what they said, and are graded anew."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.context import RolloutContext
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.rollout.workflow import Episode, Workflow


class UnlikeRecordError(EngineUnavailableError):
    """An episode can't be played as it was; there is no engine to generate more."""


async def play_again(
    workflow: Workflow, recorded: Sequence[Trajectory], context: RolloutContext, chat: ChatTokenizer | None
) -> dict[str, Trajectory | Exception]:
    """Play episodes of one request again.

    Args:
        workflow: the trajectories' own.
        recorded: as they ended, with their sequences and events.
        context: of the request; used for grades and for no message.
        chat: the tokenizer, for messages whose text no event has.

    Returns:
        By id the trajectory with its reward and those of its sequences, or why there is none: it has come to
        another end, or requested a message that is not on record.
    """

    async def played(one: Trajectory) -> Episode:
        episode = Episode(workflow, one.number, context, _as_paused(one, workflow, chat))
        await episode.run(workflow)
        if episode.finish is not one.finish:
            was, now = one.finish.value, episode.finish.value
            raise UnlikeRecordError(f"it ended with {was}, and played again with {now}")
        return episode

    found: dict[str, Trajectory | Exception] = {}
    ended: list[tuple[Episode, Trajectory]] = []
    results = await asyncio.gather(*map(played, recorded), return_exceptions=True)
    for one, episode in zip(recorded, results, strict=True):
        if not isinstance(episode, Episode):
            if not isinstance(episode, Exception):
                raise episode
            found[one.trajectory_id] = episode
            continue
        again = episode.trajectory()
        again.sequences = [replace(each, reward=episode.rewards.get(each.role)) for each in one.sequences]
        found[one.trajectory_id] = again
        ended.append((episode, again))
    await workflow.finalize(ended, context)
    return found


def _as_paused(one: Trajectory, workflow: Workflow, chat: ChatTokenizer | None) -> Trajectory:
    """The episode as if a round had ended behind its last message. A message that has not come about ended
    it, and is in no event: each agent has it as its next one."""
    events = [event for event in one.events if event.get("role") in workflow.roles and "turn" in event]
    texts = _texts(one, events, chat)
    said: dict[str, list[dict[str, Plain]]] = {role: [] for role in workflow.roles}
    for place, (event, text) in enumerate(zip(events, texts, strict=True)):
        finish = FinishReason.LENGTH if event["cut"] else FinishReason.STOP
        said[str(event["role"])].append(_message(text, finish, None, place))
    if one.finish is not FinishReason.STOP:
        for number, messages in enumerate(said.values()):
            messages.append(_message("", one.finish, one.detail, len(events) + number))
    whose = zip(events, texts, strict=True)
    transcript = [[event["role"], workflow.shown(str(event["role"]), text)] for event, text in whose]
    state = {"said": said, "places": list(range(len(events))), "transcript": transcript}
    return replace(one, state=state, events=events)


def _message(text: str, finish: FinishReason, detail: str | None, place: int) -> dict[str, Plain]:
    return {"text": text, "finish": finish.value, "detail": detail, "failed_by": None, "place": place}


def _texts(one: Trajectory, events: Sequence[Mapping[str, Any]], chat: ChatTokenizer | None) -> list[str]:
    """The messages' texts: those of the events, else of as many tokens of the agent's sequence."""
    left = {each.role: each.response_ids[each.response_mask.astype(bool)] for each in one.sequences}
    opened: bool | None = None
    texts = []
    for event in events:
        count = event.get("tokens") or 0
        ids = left.get(event["role"], np.zeros(0, np.int32))
        left[event["role"]] = ids[count:]
        text = event.get("text")
        if text is None:
            if chat is None:
                raise UnlikeRecordError("the texts of its messages need the run's tokenizer")
            if len(ids) < count:
                raise UnlikeRecordError(
                    f"a message of {event['role']} has {count} tokens, {len(ids)} are there"
                )
            if opened is None:
                opened = _opens_thinking(chat)
            text = final_text(chat.text(ids[:count]), thinking_opened=opened)
        texts.append(str(text))
    return texts


def _opens_thinking(chat: ChatTokenizer) -> bool:
    prompt = chat.prompt_ids([{"role": "user", "content": "?"}])
    return chat.opens_thinking(np.asarray(prompt, dtype=np.int32))
