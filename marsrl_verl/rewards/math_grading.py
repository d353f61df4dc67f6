"""Mathematical equivalence by math-verify, without any time limit: runs inside a `GradePool`.

math-verify's own time limits are alarms of the main thread and don't reach into C code; here they are off,
and the kernel ends the process.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Expr, Float, I, Integer, UnevaluatedExpr

from marsrl_verl.rewards.bare_answer import same_bare_answer, same_based, split_unit
from marsrl_verl.rewards.equations import chain, has_letters, is_name
from marsrl_verl.rewards.extraction import boxed_answer, mention
from marsrl_verl.rewards.guards import contradiction, doubted, qualification
from marsrl_verl.rewards.letters import distinct_cases, same_word
from marsrl_verl.rewards.normal_form import (
    MAGNITUDES,
    aligned,
    as_interval,
    elements,
    normal_form,
    same_answer,
)
from marsrl_verl.rewards.spelling import latex

# It would say on every call that its time limits are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_READ_WITHOUT_BOX = 4000
"""Characters at the end of a text without a box in which math-verify looks for an answer."""
_LONGEST_CHAIN = 12
_ZERO = 1e-50
_CERTAIN = 1e-9
"""A difference of which sympy has found 15 digits is none of rounding."""
_TOO_LARGE = 1e80
"""sympy finds a difference of such numbers to no digit."""
_LATEX = LatexExtractionConfig()
_READING = [
    # Its own reading of units takes letters of products for them, as the b of 2ab.
    replace(_LATEX, normalization_config=replace(_LATEX.normalization_config, units=False)),
    ExprExtractionConfig(),
]
_APPROXIMATED = re.compile(r"(.{1,200}?)\s*(?:\\approx(?![a-zA-Z])|≈)\s*(-?[\d,]{0,15}\.?\d{1,15})\s*")
_ROUNDED = 0.05
_INTEGER = re.compile(r"-?\d{1,40}", re.ASCII)
_SCIENTIFIC = re.compile(r"[+-]?\d{1,40}(?:\.\d{0,40})?[eE][+-]?\d{1,3}")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])[^+]*\\circ")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})")
_MODULUS = re.compile(r"\s*(?:\\(p|b?)mod)\s*\{?\s*(\d{1,9})\s*\}?\s*\Z")
_WARM_UP = (
    r"\frac{\sqrt{3}}{2}",
    r"2x^2+3x-1",
    r"\left(1, \frac{\pi}{2}\right)",
    r"\{1, 2\}",
    r"[0, \infty)",
    r"x = 5",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    "0.5",
)


def warm_up() -> None:
    """Fills the parser's caches once, for all processes that are forked."""
    for one in _WARM_UP:
        grade(rf"\boxed{{{one}}}", [one + "+0", "7"])


def grade(final_text: str, references: list[str]) -> dict[str, Any]:
    r"""Checks whether the final answer of a text equals one of the references.

    The answer is what `boxed_answer` finds; without a box it is what math-verify takes for the answer of the
    text's last 4,000 characters, with the words around it in its sentence.

    Returns:
        `correct` (bool), `answer` (the extracted text or None), `error` (why a comparison failed, or
        None).
    """
    boxed = boxed_answer(final_text)
    if boxed is None:
        return _grade_unboxed(final_text[-_READ_WITHOUT_BOX:], references)
    return _verdict(boxed.text, (_same(one, known) for known in references for one in boxed.readings))


def _verdict(answer: str, comparisons: Iterable[tuple[bool, str | None]]) -> dict[str, Any]:
    error: str | None = None
    for equal, problem in comparisons:
        if equal:
            return {"correct": True, "answer": answer, "error": None}
        error = error or problem
    return {"correct": False, "answer": answer, "error": error}


def _grade_unboxed(text: str, references: list[str]) -> dict[str, Any]:
    """The answer that math-verify finds is held to the same rules; so are the words that it stands among."""
    parsed, error = _parse(text)
    answer = str(parsed[-1]) if parsed else None
    if not answer:
        return {"correct": False, "answer": answer, "error": error}
    found = mention(text, answer)
    sentence, with_unit = (answer, answer) if found is None else (found.sentence, found.with_unit)

    def is_plausible(reference: str) -> bool:
        if qualification(sentence, reference) or contradiction(with_unit, reference):
            return False
        return found is None or not doubted(found, reference)

    return _verdict(answer, (_same(answer, one, parsed) for one in filter(is_plausible, references)))


def _same(answer: str, reference: str, parsed: list[Any] | None = None) -> tuple[bool, str | None]:
    """Checks whether an answer is the reference. `parsed`: what math-verify has read already."""
    if answer and (same_answer(answer, reference) or same_word(answer, reference)):
        return True, None
    (answer, modulus), (reference, other) = _modulus(latex(answer)), _modulus(latex(reference))
    if modulus and other and modulus != other:
        return False, None
    if (modulus or other) and same_answer(answer, reference):
        return True, None
    if r"\approx" not in reference and (found := _APPROXIMATED.fullmatch(answer)) is not None:
        return _same_approximated(found.group(1), found.group(2), reference)
    answer, reference = distinct_cases(answer, _counted(reference))
    if not answer or contradiction(_counted(answer), reference):
        return False, None
    if same_bare_answer(answer, reference) or same_based(answer, reference):
        return True, None
    if (pairs := aligned(answer, reference)) is not None:
        return _all_same(pairs) if 0 < len(pairs) <= _LONGEST_CHAIN else (False, None)
    members = chain(answer)
    if members is not None and chain(reference) is None:
        return _same_chain(members, reference)
    are_sets = [_is_set(one) for one in (answer, reference)]
    if are_sets[1] and (interval := as_interval(answer)) != answer:
        answer, parsed = interval, None
    if any(are_sets):
        reference = as_interval(reference)
    if parsed is None:
        parsed, error = _parse_answer(_counted(answer))
        if not parsed:
            return False, error
    return _equal(reference, parsed)


def _is_set(answer: str) -> bool:
    return elements(answer) is not None or r"\cup" in answer or r"\in" in answer


def _counted(answer: str) -> str:
    r"""`5\text{ million}` as a number, its unit kept."""
    if _SCIENTIFIC.fullmatch(answer.strip()):
        return str(normal_form(answer))
    bare, unit = split_unit(answer)
    number = normal_form(bare) if any(word in bare for word in MAGNITUDES) else ""
    if isinstance(number, str):
        return answer
    return rf"{number}\text{{ {unit}}}" if unit else str(number)


def _all_same(pairs: Iterable[tuple[str, str]]) -> tuple[bool, str | None]:
    error: str | None = None
    for answer, reference in pairs:
        equal, error = _same(answer, reference)
        if not equal:
            return False, error
    return True, error


def _same_chain(members: list[str], reference: str) -> tuple[bool, str | None]:
    """Checks whether the last member and every one without letters is the reference. If others have letters,
    an end must be a name: `5 = x` is read from its end."""
    if len(members) > _LONGEST_CHAIN:
        return False, f"a chain of {len(members)} equalities, expected at most {_LONGEST_CHAIN}"
    if is_name(members[-1]) and not is_name(members[0]):
        members = members[::-1]
    if any(has_letters(one) for one in members[:-1]) and not is_name(members[0]):
        return False, None
    values = [one for one in members[:-1] if not (has_letters(one) or is_name(one))]
    return _all_same((member, reference) for member in (*values, members[-1]))


def _same_approximated(answer: str, decimal: str, reference: str) -> tuple[bool, str | None]:
    """Checks whether an answer with a decimal behind it is the reference, and the decimal about as large."""
    equal, error = _same(answer, reference)
    value, _ = _parse_answer(reference)
    if not equal or not value or not isinstance(value[0], Expr) or not value[0].is_number:
        return False, error
    exact = complex(value[0].evalf(15))
    return abs(exact - float(decimal.replace(",", ""))) <= _ROUNDED * abs(exact), error


def _modulus(answer: str) -> tuple[str, str]:
    r"""A residue without its `\pmod{7}`, and the 7; "" without one."""
    found = _MODULUS.search(answer)
    if found is None or not (found.group(1) == "p" or r"\equiv" in answer):
        return answer, ""
    return answer[: found.start()].replace(r"\equiv", "="), found.group(2)


def _parse_answer(answer: str) -> tuple[list[Any], str | None]:
    if _INTEGER.fullmatch(answer):  # as math-verify reads it, in a thousandth of the time
        return [Integer(answer), answer], None
    if _TRIGONOMETRY.search(answer):
        answer = _DEGREES.sub(r"{(\\frac{\1 \\pi}{180})}", answer)
    # Percent signs are understood between dollar signs only.
    return _parse(f"${answer}$" if "%" in answer and "$" not in answer else f"\\boxed{{{answer}}}")


def _parse(text: str) -> tuple[list[Any], str | None]:
    try:
        return parse(text, _READING, parsing_timeout=0, raise_on_error=True), None
    except Exception as error:
        return [], f"parsing failed with {type(error).__name__}: {error}"


def _equal(reference: str, parsed: list[Any]) -> tuple[bool, str | None]:
    gold, error = _parse_answer(reference)
    if not gold:
        return False, error or f"the reference {reference!r} can't be read"
    try:
        if _are_apart(gold, parsed):
            return False, error
        equal = bool(verify(gold, parsed, timeout_seconds=0, raise_on_error=True))
        equal = equal or _same_complex(gold[0], parsed[0])
        return equal and not _small_and_apart(gold[0], parsed[0]), error
    except Exception as failure:
        return False, f"comparison failed with {type(failure).__name__}: {failure}"


def _are_apart(gold: list[Any], parsed: list[Any]) -> bool:
    """True if two exact numbers certainly differ, by 15 digits of their difference and without algebra.
    Decimals and percentages are left to math-verify, which rounds the ones and overlooks the others."""
    for one in (gold, parsed):
        if not all(isinstance(text, str) for text in one[1:]):  # several answers
            return False
        if not isinstance(one[0], Expr) or not one[0].is_number or one[0].has(Float, UnevaluatedExpr):
            return False
    try:
        if abs(gold[0].evalf(15)) > _TOO_LARGE:
            return False
        difference = (gold[0] - parsed[0]).evalf(15, chop=True)
    except Exception:  # whatever sympy can't evaluate, math-verify decides
        return False
    return bool(difference.is_Float) and abs(float(difference)) > _CERTAIN


def _same_complex(gold: Any, parsed: Any) -> bool:
    """True if two expressions are one complex number, their `i` the imaginary unit."""
    if not all(isinstance(one, Expr) for one in (gold, parsed)):
        return False
    unknowns = {symbol.name: symbol for one in (gold, parsed) for symbol in one.free_symbols}
    if set(unknowns) != {"i"}:
        return False
    one, other = (complex(number.subs(unknowns["i"], I).evalf(15)) for number in (gold, parsed))
    return abs(one - other) <= _CERTAIN * max(abs(one), abs(other))


def _small_and_apart(gold: Any, parsed: Any) -> bool:
    """True if two numbers agree to six places only because they are small."""
    if not all(isinstance(one, Expr) and one.is_number for one in (gold, parsed)):
        return False
    one, other = (complex(number.evalf(15)) for number in (gold, parsed))
    size = max(abs(one), abs(other))
    # What is 0 comes out as something like 1e-125.
    return _ZERO < size < 1e-3 and abs(one - other) > 1e-5 * size
