"""What solutions marked with who would say what say as dialogues, and each agent's view of one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from marsrl_verl.algos.rema.dialogue.rollout import without_finish
from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING, ROLES, DialoguePrompts
from marsrl_verl.core.request import Message, Problem
from marsrl_verl.rewards.extraction import boxed_answer, references
from marsrl_verl.rewards.normal_form import same_answer

_TAG = re.compile(rf"<(/?)({'|'.join(ROLES)})>")
_FIRST = re.compile(r"Question:\n(?P<question>.*?)\n\nInstruction:\n(?P<instruction>.*)", re.DOTALL)
"""The reasoning agent's first message."""
_EMPTY_MATHS = re.compile(r"\\\(\s*\\\)|\\\[\s*\\\]|(?<!\$)\$\s*\$(?!\$)|\$\$\s*\$\$")
"""What is left of `\\([FINISH]\\)`."""


class Unfit(ValueError):
    """A solution that is no dialogue; the message says why, in words that are the same for all alike."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The messages of both agents in turn, the meta-thinking agent's first."""

    question: str
    messages: tuple[str, ...]

    @property
    def turns(self) -> int:
        """Pairs of messages."""
        return len(self.messages) // 2


def parts_of(solution: str) -> list[tuple[str, str]]:
    """The marked parts of a solution, as (role, text).

    Raises:
        Unfit: a tag is not closed, or stands inside of another part, or there is text outside of the parts.
    """
    parts, role, at = [], None, 0
    for tag in _TAG.finditer(solution):
        between = solution[at : tag.start()]
        at = tag.end()
        if not tag[1]:
            if role is not None:
                raise Unfit("a part begins inside of another")
            if between.strip():
                raise Unfit("text outside of the parts")
            role = tag[2]
            continue
        if role != tag[2]:
            raise Unfit("a part ends that has not begun")
        parts.append((role, between.strip()))
        role = None
    if role is not None:
        raise Unfit("a part does not end")
    if solution[at:].strip():
        raise Unfit("text outside of the parts")
    return parts


def parts_of_view(line: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """The question and the parts of the reasoning agent's view of a dialogue.

    Raises:
        Unfit: it is the other agent's view, which lacks the last answer, or none at all.
    """
    history = line["history"] or []
    pairs = [*history, [line["instruction"], line["output"]]]
    if not all(isinstance(pair, list) and list(map(type, pair)) == [str, str] for pair in pairs):
        raise Unfit("a history that is no list of pairs of texts")
    found = _FIRST.fullmatch(pairs[0][0])
    if found is None:
        raise Unfit("no view of the reasoning agent: its first message has no question and instruction")
    texts = [found["instruction"], pairs[0][1], *(text for pair in pairs[1:] for text in pair)]
    return found["question"], [(ROLES[k % 2], text.strip()) for k, text in enumerate(texts)]


MENDED = {
    "finish_added": "whose meta-thinking agent did not end by [FINISH]",
    "finish_removed": "with [FINISH] elsewhere, such as behind the answer",
    "parts_joined": "with parts of one agent behind each other",
    "parts_empty": "with empty parts",
    "control_tokens": "with control tokens, which were taken out",
}
"""What may have been put right in a dialogue; the report counts dialogues by these names."""


def mendings(parts: Sequence[tuple[str, str]]) -> set[str]:
    """What `dialogue_of` puts right in a solution's parts, by names of `MENDED`."""
    texts = [(role, _cleaned(text)) for role, text in parts]
    said = [at for at, (role, text) in enumerate(texts) if role == META_THINKING and text]
    last = said[-1] if said else None
    found = {"parts_empty"} if not all(text for _, text in texts) else set()
    told = [role for role, text in texts if text]
    if any(one == other for one, other in pairwise(told)):
        found.add("parts_joined")
    ends = last is not None and parts[last][1].rstrip().endswith(FINISH)
    if not ends:
        found.add("finish_added")
    if sum(text.count(FINISH) for _, text in parts) > ends:
        found.add("finish_removed")
    return found


def dialogue_of(question: str, parts: Sequence[tuple[str, str]], answer: str | None = None) -> Dialogue:
    """The dialogue of a solution's parts.

    Parts of one agent that follow each other are one message; empty ones are none. `[FINISH]` is taken out
    wherever it stands and put at the end of the last message of the meta-thinking agent.

    Args:
        question: the problem.
        parts: as (role, text).
        answer: the reference, if it is known: the answer in the box has to have its normal form.

    Raises:
        Unfit: it is none, or its answer is wrong or has no box.
    """
    merged: list[tuple[str, str]] = []
    for role, text in parts:
        text = _cleaned(text)
        if text and merged and merged[-1][0] == role:
            merged[-1] = role, f"{merged[-1][1]}\n\n{text}"
        elif text:
            merged.append((role, text))
    roles = [role for role, _ in merged]
    if not roles:
        raise Unfit("no message")
    if roles[0] != META_THINKING:
        raise Unfit("the reasoning agent begins")
    if roles[-1] != REASONING:
        raise Unfit("the meta-thinking agent has the last word")
    messages = [text for _, text in merged]
    messages[-2] = f"{messages[-2]} {FINISH}"
    found = boxed_answer(messages[-1])
    if found is None:
        raise Unfit("no answer in a box")
    if answer is not None and not any(
        same_answer(one, other) for one in found.readings for other in references(answer)
    ):
        raise Unfit("another answer than the reference")
    return Dialogue(question, tuple(messages))


def _cleaned(text: str) -> str:
    if FINISH not in text:
        return text
    return _EMPTY_MATHS.sub("", without_finish(text)).strip()


def views(dialogue: Dialogue, prompts: DialoguePrompts) -> dict[str, list[Message]]:
    """Each agent's list of messages, as `rollout` builds it: its own are the assistant's. The meta-thinking
    agent's ends with its last message, which nobody answers in it."""
    problem = Problem("", dialogue.question, "")
    first, *rest = dialogue.messages
    lists = {
        META_THINKING: [*prompts.meta_thinking(problem), _message("assistant", first)],
        REASONING: list(prompts.reasoning(problem, first)),
    }
    for number, text in enumerate(rest, start=1):
        own = ROLES[number % 2]
        for role, messages in lists.items():
            messages.append(_message("assistant" if role == own else "user", text))
    lists[META_THINKING].pop()
    return lists


def _message(role: str, text: str) -> Message:
    return {"role": role, "content": text}
