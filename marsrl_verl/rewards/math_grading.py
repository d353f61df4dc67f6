"""Mathematical equivalence by math-verify, without any timeout: runs inside a `GradeProcess`.

math-verify's own timeouts are alarms of the main thread and don't reach into C code; here they are off,
and the process as a whole is ended from outside.
"""

from __future__ import annotations

import logging
from typing import Any

from math_verify import parse, verify

from marsrl_verl.rewards.extraction import last_boxed, same_answer

# It would say on every call that its timeouts are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def grade(final_text: str, references: list[str]) -> dict[str, Any]:
    r"""Whether the final answer of a text equals one of the references.

    The answer is the content of the last `\boxed{…}`, or without a box what math-verify takes for the
    answer of the whole text.

    Returns:
        `correct` (bool), `answer` (the extracted text or None), `error` (why a comparison failed, or
        None).
    """
    boxed = last_boxed(final_text)
    if boxed is None:
        parsed, error = _parse(final_text)
        answer = str(parsed[-1]) if parsed else None
    else:
        parsed, error = _parse(f"\\boxed{{{boxed}}}")
        answer = boxed
    for reference in references:
        if answer and same_answer(answer, reference):
            return {"correct": True, "answer": answer, "error": None}
        if not parsed:
            continue
        equal, problem = _equal(reference, parsed)
        error = error or problem
        if equal:
            return {"correct": True, "answer": answer, "error": None}
    return {"correct": False, "answer": answer, "error": error}


def _parse(text: str) -> tuple[list[Any], str | None]:
    try:
        return parse(text, parsing_timeout=0, raise_on_error=True), None
    except Exception as error:
        return [], f"parsing failed with {type(error).__name__}: {error}"


def _equal(reference: str, parsed: list[Any]) -> tuple[bool, str | None]:
    gold, error = _parse(f"\\boxed{{{reference}}}")
    if not gold:
        return False, error or f"the reference {reference!r} can't be read"
    try:
        return bool(verify(gold, parsed, timeout_seconds=0, raise_on_error=True)), error
    except Exception as failure:
        return False, f"comparison failed with {type(failure).__name__}: {failure}"
