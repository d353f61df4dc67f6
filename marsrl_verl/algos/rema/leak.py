r"""Does a plan give the answer away? By what it claims, not by how it looks.

A plan that says "the answer is 12", that has 12 in a box, or that ends a computation in `= 12` leaks it
where 12, 0.5 * 24 or \frac{24}{2} is right; one that says "add 12 and 7", or that shows another number in a
box, does not. The released code of ReMA (arXiv 2503.09501) looks for the substring `boxed`."""

from __future__ import annotations

import re
from typing import Any

from marsrl_verl.algos.rema.json_actions import parse_action
from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.answer import AnswerReward
from marsrl_verl.rewards.base import RoleReward, ScoreRequest
from marsrl_verl.rewards.extraction import boxes, references
from marsrl_verl.rewards.loading import load_class
from marsrl_verl.rewards.normal_form import same_answer

LONGEST_PLAN = 20_000
"""Characters of a plan that are looked at, from its end."""
MOST_CLAIMS = 24
"""Claims of a plan that are compared as text, the last ones."""
MOST_GRADED = 4
"""Of these, the last ones, which the grader is asked about where no text tells."""
_LONGEST_CLAIM = 200

_NOUN = "answer|result|solution|value|total|sum|product|difference|quotient|probability|area|volume|number"
_NAMED = re.compile(
    rf"\b(?:{_NOUN})\b"
    r"(?:[^.:=\n]|\.(?=\d)){0,60}?(?:\b(?:is|are|was|be|equals|will\s+be|should\s+be|must\s+be|comes\s+to)\b|[:=])"
    r"[ \t*]{0,6}(?=(?P<said>[^\n]{1,200}))",
    re.IGNORECASE,
)
_REACHED = re.compile(
    r"\b(?:(?:gets?|getting|gives?|giving|yields?|yielding|obtains?|obtaining|equals?|equalling|makes?|making)\b"
    r"|(?:comes?|coming|works?)[ \t]+(?:out[ \t]+)?(?:as|at|to)\b"
    r"|(?:evaluates?|simplif(?:y|ies)|amounts?)[ \t]+to\b"
    r"|(?:results?|resulting)[ \t]+in\b|(?:so|thus|hence|therefore|namely)\b)"
    r"[ \t]{0,3}[:,]?[ \t*]{0,6}(?=(?P<said>[^\n]{1,200}))",
    re.IGNORECASE,
)
"""Verbs and words before what something comes to; of these only what looks like an answer is a claim."""
_REVERSED = re.compile(
    r"(?P<said>\$[^$\n]{1,100}\$|(?<!\S)[^\s$]{1,80})[ \t*]{1,6}"
    r"(?:is|are|was|(?:will|should|must)[ \t]+be)[ \t]{1,3}"
    rf"(?:the|your|our|its)[ \t]{{1,3}}(?:[a-z]{{1,12}}[ \t]{{1,3}})?(?:{_NOUN})\b",
    re.IGNORECASE,
)
_LIKE_AN_ANSWER = re.compile(r"[\d\\π√∞]")
_EQUAL = re.compile(
    r"(?:=>|->|(?<![=<>!:\\])=(?![=>])|[≡≈→⇒⟹]"
    r"|\\(?:equiv|approx|cong|simeq|to|[lL]?(?:ong)?[rR]ightarrow|implies)(?![a-zA-Z]))\s{0,6}"
)
_END = re.compile(r"[;\n]|,\s|\.(?:\s|$)|\s(?:and|so|then|but|where|because|since|which|to)\s|\\\]|\$\$")
_MARKS = " \t$*`_\"'()."
_PLAIN = re.compile(r"[\s$*`{}\\()\[\]]")


def claims(text: str) -> list[str]:
    r"""What a plan says that something comes to, in its order: contents of boxes, what follows "the answer
    is", "you get", "so" or the like or stands before "is the answer", and what follows an equality sign or an
    arrow.

    Every member of a chain `3 + 4 = 7 = x` behind its first sign counts. Numbers elsewhere are no claims.
    """
    found: list[tuple[int, str]] = []
    text = text[-LONGEST_PLAN:]
    found += [(at, claim) for at, claim in boxes(text) if len(claim) <= _LONGEST_CLAIM]
    for match in _NAMED.finditer(text):
        found.append((match.start("said"), _first_part(match["said"])))
    for match in (*_REACHED.finditer(text), *_REVERSED.finditer(text)):
        if _LIKE_AN_ANSWER.search(claim := _first_part(match["said"])):
            found.append((match.start("said"), claim))
    for match in _EQUAL.finditer(text):
        behind = text[match.end() : match.end() + _LONGEST_CLAIM]
        found.append((match.end(), _first_part(_EQUAL.split(behind)[0])))
    cleaned = [(at, claim.strip(_MARKS)) for at, claim in sorted(found)]
    return list(dict.fromkeys(claim for _, claim in cleaned if claim))[-MOST_CLAIMS:]


def _first_part(text: str) -> str:
    """Up to where the phrase ends."""
    return _END.split(text, maxsplit=1)[0]


def stated_in_question(claim: str, question: str) -> bool:
    """Whether the question itself states the claim as what something is: `x = 5` in the question is no
    secret."""
    bare = _PLAIN.sub("", claim)
    return any(bare == _PLAIN.sub("", one) for one in claims(question))


class PlanReward(RoleReward):
    """Looks whether a plan gives the answer away; what a plan is worth is told by the solutions that follow
    it.

    The result's `info` has `leak`, and `leaked` with the claim. Its value is 0: `Method.late_rewards`
    replaces it.

    Args:
        grader: the reward for answers (`package.module:Class`, an `AnswerReward`) that says which claims
        equal a
            reference.
        kwargs: its keyword arguments.
        look: false where nobody asks for it, as for plans to judge two answers by.
    """

    pays_unfinished = True

    def __init__(
        self,
        grader: str = "marsrl_verl.rewards.hybrid:HybridReward",
        kwargs: dict[str, Any] | None = None,
        look: bool = True,
    ) -> None:
        base: type[Any] = AnswerReward
        self.grader: AnswerReward | None = load_class(grader, kwargs, base) if look else None

    def score(self, request: ScoreRequest) -> RewardResult:
        """Compare the plan's claims with the references."""
        if self.grader is None:
            return RewardResult(0.0)
        text = request.final_text
        if request.inputs.get("form") == "json":
            action = parse_action(text)
            text = text if action is None else action.output
        accepted = references(request.problem.ground_truth)
        found = [
            one for one in reversed(claims(text)) if not stated_in_question(one, request.problem.question)
        ]
        leaked = next((one for one in found if any(same_answer(one, each) for each in accepted)), None)
        leaked = leaked or next((one for one in found[:MOST_GRADED] if self._equal(one, accepted)), None)
        return RewardResult(0.0, {"leak": False} if leaked is None else {"leak": True, "leaked": leaked})

    def longest_s(self, calls: int) -> float | None:
        """Each claim that the grader is asked about may take it that long."""
        one = None if self.grader is None else self.grader.longest_s(calls)
        return None if one is None else MOST_GRADED * one

    def close(self) -> None:
        """Release the grader's processes."""
        if self.grader is not None:
            self.grader.close()

    def _equal(self, claim: str, accepted: list[str]) -> bool:
        assert self.grader is not None
        if not accepted:
            return False
        return self.grader.grade(rf"\boxed{{{claim}}}", accepted).value > 0.5
