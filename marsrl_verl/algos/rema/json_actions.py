"""Plans as JSON objects: a way to help, and the text (ReMA, arXiv 2503.09501, §4.2.2 and appendix G.1.1).

The engine is held to the object's grammar, so that its tokens are those of valid JSON unless the limit of
tokens cuts it. The grammar is that of the compact form, `{"action":"REWRITE","output":"…"}`: a JSON schema
leaves blanks between the parts free, with which a plan could fill its limit, unless the whole engine is set
otherwise (vLLM's `disable_any_whitespace`). Tokens that spell nothing but what the grammar forced, however
the tokenizer cuts it, are neither trained nor part of a ratio (`Completion.forced`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.trajectory import RolloutOutput
from marsrl_verl.rollout.context import RolloutContext
from marsrl_verl.settings.choices import Choice

PROGRAM = "marsrl_verl.algos.rema.json_actions:ActionCall"
"""The workflow, as requests name it."""


class ActionKind(Choice):
    """Way in which the meta-thinking agent helps."""

    DECOMPOSE = "DECOMPOSE"
    """It breaks the question into smaller ones."""
    REWRITE = "REWRITE"
    """It words the question more simply."""
    EMPTY = "EMPTY"
    """It leaves the question as it is."""


INVALID = "INVALID"
"""Stands for the action of a plan that has none."""

_KINDS = " | ".join(f'"{kind}"' for kind in ActionKind)
GRAMMAR: dict[str, Any] = {
    "grammar": rf"""
root ::= "{{\"action\":\"" kind "\",\"output\":\"" character* "\"}}"
kind ::= {_KINDS}
character ::= [^"\\\x00-\x1F] | "\\" escape
escape ::= ["\\/bfnrt] | "u" [0-9a-ce-fA-CE-F] hex hex hex
hex ::= [0-9a-fA-F]
"""
}
"""Grammar that the engine is held to (`Decoding.structured`), in XGrammar's EBNF. Escapes of surrogates
(`\\uD8…`) are left out: half a pair is no text."""


@dataclass(frozen=True, slots=True)
class Action:
    """A plan that was given as JSON."""

    kind: ActionKind
    output: str

    @property
    def instruction(self) -> str:
        """Instruction to the reasoning agent; empty if the question is to be answered directly."""
        return "" if self.kind is ActionKind.EMPTY else self.output.strip()


def parse_action(text: str) -> Action | None:
    """Returns the action in a response; None if it is not such an object and nothing else. An action other
    than EMPTY needs an output."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.keys() != {"action", "output"}:
        return None
    if found["action"] not in [kind.value for kind in ActionKind] or not isinstance(found["output"], str):
        return None
    action = Action(ActionKind(found["action"]), found["output"])
    return action if action.instruction or action.kind is ActionKind.EMPTY else None


class ActionCall:
    """Implements `marsrl_verl.rollout.context.Rollout`: one call, held to the grammar of actions.

    A grammar begins anew with every request, so a response is never split into segments.

    Raises:
        EngineUnavailableError: the engine is gone.
    """

    grades_each = True

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        begun = context.conversation(0, request.role, request.messages)
        members = [one.trajectory() for one in await begun.sample_n(request.n, structured=GRAMMAR)]
        for one, reward in zip(members, await context.score(members), strict=True):
            one.reward = reward
        return RolloutOutput(request.group_id, members)
