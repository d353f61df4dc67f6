"""Answers to questions compared as words: exact match and token F1, the better of several accepted answers.

SQuAD's measures (Rajpurkar et al., arXiv 1606.05250) with another normal form. Theirs drops all punctuation,
which makes one answer of -3 and 3, of 1.5 and 15 and of 12/3 and 1/23, and one that is all article (`A`) can
never be met.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import AnswerReward
from marsrl_verl.rewards.extraction import boxed_answer, tagged_answer
from marsrl_verl.settings.choices import Choice

ARTICLES = frozenset({"a", "an", "the"})
WHOLE = frozenset({("yes",), ("no",), ("noanswer",), ("no", "answer")})
"""Answers that agree as a whole or not at all: "no" is no part of "No Doubt"."""

_LATEX = (
    (re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}"), r" \1/\2"),
    (re.compile(r"\\(?=[%$&_#])"), ""),
    (re.compile(r"\\[,;: ]|~"), " "),
)
_LETTER = r"[^\W\d_]"
_INITIALS = re.compile(rf"(?<!\w)(?:{_LETTER}\.\s{{0,3}}){{2,}}")
_INSIDE_WORDS = re.compile(rf"(?<={_LETTER})['’ʼ`.](?={_LETTER})")
_PERCENT = re.compile(r"%|\bper cent\b")
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(
    # A number with its sign: as in (-3), not as in 1990-95 or F-16.
    rf"(?P<number>(?:(?<![\w)\].])-)?(?:(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d+)(?:\.\d+)*(?:/\d+)*|(?<![\w.])\.\d+))"
    rf"|(?P<sign>[{_CJK}])"
    rf"|(?P<word>(?:(?![{_CJK}]){_LETTER}){{1,2}}[+-](?!\w)|(?:(?![{_CJK}]){_LETTER})+(?:\+\+|\#(?!\w))?)"
)
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"))


def words(text: str) -> tuple[str, ...]:
    r"""The normal form of an answer: its words and numbers, in order, in lower case.

    - Numbers keep sign, decimal point and fraction bar, and are compared as they are written: `1,000` is
      `1000` and `.5` is `0.5`, but `1.50` is not `1.5`, nor `1/2` `0.5`. A minus belongs to a number that
      follows it directly, where neither a word nor a closing bracket stands in front of it.
    - Other punctuation separates; inside words apostrophes and full stops are dropped, and initials are
      drawn together (`J. R. R.` is `JRR`). `&` is "and", `%` is "percent". Digits and letters are apart
      (`F16` is `F-16`). `C++`, `C#`, `A+` and `A-` keep their signs.
    - Accents of Latin letters are dropped. Of Chinese and Japanese text every sign is a word.
    - An article is dropped where another word follows it: not in `Vitamin A`, nor where it is the answer.
    """
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    text = _without_accents("".join(map(_plain_character, text))).translate(_DASHES).casefold()
    text = _INITIALS.sub(lambda found: re.sub(r"[.\s]", "", found.group()) + " ", text)
    text = _PERCENT.sub(" percent ", _INSIDE_WORDS.sub("", text)).replace("&", " and ")
    found = [_number(match.group()) if match["number"] else match.group() for match in _TOKEN.finditer(text)]
    return tuple(one for at, one in enumerate(found) if one not in ARTICLES or at == len(found) - 1)


def exact_match(prediction: str, golds: Sequence[str]) -> bool:
    """True if a prediction has the normal form of an accepted answer."""
    return any(_pair(prediction, gold)[0] for gold in golds)


def f1(prediction: str, golds: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of the prediction's words, each as often as it stands there:
    the highest over the accepted answers. `WHOLE` answers have 1 or 0."""
    return max((_pair(prediction, gold)[1] for gold in golds), default=0.0)


def raw_f1(prediction: str, golds: Sequence[str]) -> float:
    """F1 of what stands between spaces, in lower case and without articles, punctuation kept: as the released
    evaluation of arXiv 2507.19849 has it. The highest over the accepted answers."""
    predicted = _raw_words(prediction)
    found = [0.0]
    for reference in map(_raw_words, golds):
        if common := (Counter(predicted) & Counter(reference)).total():
            found.append(2 * common / (len(predicted) + len(reference)))
    return max(found)


def _raw_words(text: str) -> list[str]:
    return re.sub(r"\b(?:a|an|the)\b", " ", text.lower()).split()


def _pair(prediction: str, gold: str) -> tuple[bool, float]:
    """Exact match and F1 with one accepted answer."""
    predicted, reference = words(prediction), words(gold)
    if not predicted or not reference:  # signs alone, such as `?`
        same = prediction.strip() == gold.strip() != ""
        return same, float(same)
    if predicted == reference:
        return True, 1.0
    if predicted in WHOLE or reference in WHOLE:
        return False, 0.0
    common = (Counter(predicted) & Counter(reference)).total()
    return False, 2 * common / (len(predicted) + len(reference))


@lru_cache(maxsize=4096)
def _plain_character(character: str) -> str:
    """A character without its typesetting (width, ligature), a fraction with a space in front of it. Raised
    digits stay: 10² is not 102."""
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if kind == "<fraction>":
        return " " + unicodedata.normalize("NFKC", character).replace("\u2044", "/")
    is_typeset = kind in ("<wide>", "<narrow>", "<compat>")
    return unicodedata.normalize("NFKC", character) if is_typeset else character


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    characters: list[str] = []
    latin = False
    for character in unicodedata.normalize("NFD", text):
        is_accent = unicodedata.category(character) == "Mn"
        if not is_accent:
            latin = unicodedata.name(character, "").startswith("LATIN")
        if not (is_accent and latin):
            characters.append(character)
    return unicodedata.normalize("NFC", "".join(characters))


def _number(text: str) -> str:
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    return sign + ("0" if digits.startswith(".") else "") + digits.replace(",", "")


class QAMetric(Choice):
    """Metric that a grade is."""

    F1 = "f1"
    EXACT_MATCH = "exact_match"


class QAGrader(AnswerReward):
    r"""The answer's F1 with the best of the references, or whether it equals one.

    The answer is the last `\boxed{…}` of the last `<answer>…</answer>`, or all of that element; without one
    the last box of the text.

    Args:
        metric: `f1` or `exact_match`.
        allow_plain: without element and box, an element that is not closed is the answer, else what follows
            the last "answer is" or "answer:", else the last line.
        tell_raw_f1: evaluations report `raw_f1` as well.
    """

    graded_ability = "qa"

    def __init__(
        self, metric: str = QAMetric.F1.value, allow_plain: bool = False, tell_raw_f1: bool = False
    ) -> None:
        self.metric, self.allow_plain = QAMetric(metric), allow_plain
        self.tell_raw_f1 = tell_raw_f1

    def grade(self, final_text: str, references: list[str]) -> RewardResult:
        """Compares words."""
        answer = stated_answer(final_text, allow_plain=self.allow_plain)
        if answer is None:
            return RewardResult(0.0)
        same, overlap = exact_match(answer, references), f1(answer, references)
        value = float(same) if self.metric is QAMetric.EXACT_MATCH else overlap
        told: dict[str, Plain] = {"answer": answer, "exact_match": same, "f1": overlap}
        if self.tell_raw_f1:
            told["raw_f1"] = raw_f1(answer, references)
        return RewardResult(value, told)


def stated_answer(final_text: str, *, allow_plain: bool = False) -> str | None:
    """The answer that a text states (`QAGrader`); None where there is none."""
    element = tagged_answer(final_text)
    text = final_text if element is None else element
    boxed = boxed_answer(text)
    if boxed is not None:
        return boxed.text
    if element is None:
        element = _plain_answer(final_text) if allow_plain else ""
    return element.strip() or None


_SAYS = re.compile(r"\banswer(?:\s+is\b\s*:?|\s*:)[\s*]*(?=\S)", re.IGNORECASE)


def _plain_answer(text: str) -> str:
    """The answer in a text without a complete element and without a box, whatever stands there."""
    _, opened, inside = text.rpartition("<answer>")
    shown = inside if opened and inside.strip() else text.replace("<answer>", "")
    shown = shown.replace("</answer>", "").strip()
    if not (opened and inside.strip()) and (said := list(_SAYS.finditer(shown))):
        return shown[said[-1].end() :].splitlines()[0]
    lines = shown.splitlines()
    return lines[-1] if lines else ""
