r"""The reward of the released code, for runs that are to be compared with it.

Its formula, holes included (docs/methods/arpo.md): token F1 for mathematics too, on text without any
punctuation, and a bonus for closing tags of two tools wherever they stand.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import RoleReward, ScoreRequest
from marsrl_verl.rewards.extraction import references

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_WHOLE = frozenset({"yes", "no", "noanswer"})
_BOTH = ("</search>", "</python>")
_BONUS = 0.1


class ReleasedReward(RoleReward):
    """F1 of the answer, 0.1 more where both closing tags occur, 0 without a common word, -1 for a wrong
    form."""

    pays_unfinished = True

    def score(self, request: ScoreRequest) -> RewardResult:
        """Scores the whole response, results included."""
        answer = released_answer(request.text)
        if answer is None:
            return RewardResult(-1.0, {"well_formed": False})
        accepted = references(request.problem.ground_truth)
        overlap = max((released_f1(answer, gold) for gold in accepted), default=0.0)
        bonus = _BONUS if overlap > 0 and all(tag in request.text for tag in _BOTH) else 0.0
        info = {"answer": answer, "well_formed": True, "f1": overlap, "bonus": bonus}
        return RewardResult(overlap + bonus, info)


def released_answer(text: str) -> str | None:
    """Returns the boxed answer of a response of the right form; None if the form is wrong."""
    opened, closed = text.count("<think>"), text.count("</think>")
    if opened == 0 or opened != closed or text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return None
    if any(not _calls_are_answered(text, name) for name in ("search", "python")):
        return None
    _, _, rest = text.partition("<answer>")
    inside, found, _ = rest.partition("</answer>")
    if not found or "\\boxed{" not in inside or "}" not in inside:
        return None
    return _last_box(inside)


def _calls_are_answered(text: str, name: str) -> bool:
    """True if each opening tag is followed by its closing one and by a result, searched from there on."""
    at = 0
    while (at := text.find(f"<{name}>", at)) >= 0:
        for tag in (f"</{name}>", "<result>", "</result>"):
            at = text.find(tag, at)
            if at < 0:
                return False
    return True


def _last_box(text: str) -> str | None:
    begin = next(reversed([found.end() for found in _BOX.finditer(text)]), None)
    if begin is None:
        return None
    depth = 1
    for at in range(begin, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[begin:at]
    return None


def released_f1(answer: str, gold: str) -> float:
    """Returns the token F1 of two texts as the released code normalises them."""
    predicted, reference = _words(answer), _words(gold)
    if predicted != reference and (" ".join(predicted) in _WHOLE or " ".join(reference) in _WHOLE):
        return 0.0
    common = (Counter(predicted) & Counter(reference)).total()
    return 2 * common / (len(predicted) + len(reference)) if common else 0.0


def _words(text: str) -> Sequence[str]:
    """Splits a text into words in lower case, without ASCII punctuation and articles."""
    plain = "".join(one for one in text.lower() if one not in string.punctuation)
    return re.sub(r"\b(?:a|an|the)\b", " ", plain).split()
