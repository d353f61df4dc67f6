r"""What an answer may consist of. A grader of mathematics drops what it does not know, so that `6 \to 5`,
`\cancel{6} 5` and `5\text{ cannot be}` are 5 to it. What stands neither on these lists nor in the reference
makes another answer."""

from __future__ import annotations

import re

from marsrl_verl.rewards.equations import chain, is_name
from marsrl_verl.rewards.normal_form import elements
from marsrl_verl.rewards.unit_phrases import is_unit_phrase

_SIGNS = frozenset("0123456789.,;+-*/^_()[]{}!'%$=~ \t\n°")
_EXPRESSIONS = r"""
    frac dfrac tfrac cfrac sqrt binom dbinom tbinom cdot times div pm mp over
    left right big bigl bigr Big Bigl Bigr bigg biggl biggr displaystyle textstyle limits quad qquad thinspace
    text textbf textit textrm textsf textup mathrm mathbf mathit mathsf mathbb mathcal boldsymbol bm mbox
    operatorname rm bf boxed large Large LARGE huge Huge small normalsize
    sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth ln log lg exp
    max min sup inf lim gcd lcm deg det dim Pr arg mod bmod pmod
    sum prod int iint oint infty partial nabla lfloor rfloor lceil rceil lvert rvert lVert rVert vert
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi rho sigma
    tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell
    circ degree prime overline dot bar vec hat overrightarrow lbrace rbrace lbrack rbrack angle triangle
"""
_COMMANDS = frozenset(_EXPRESSIONS.split()) | frozenset("!,;: %${}")
_OF_SETS = r"""
    in notin cup cap setminus le leq leqslant ge geq geqslant lt gt ne neq to or and lor vee land wedge mid
    emptyset forall exists colon
"""
_SETS = frozenset(_OF_SETS.split())
_RELATIONS = frozenset("<>≤≥:∪∩∈")
_TOKEN = re.compile(r"\\(?:[a-zA-Z]+|.)|[a-zA-Z]+|.", re.DOTALL)
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|up)?|mathrm|mathbf|mathit|mathsf|mbox|operatorname)\s*\{([^{}]*)\}(\s?\^\s?\{?\d\}?)?"
)
_WORD = re.compile(r"[a-zA-Z]{2,}(?:['’-][a-zA-Z]+)*")
_PHRASE = re.compile(
    r"[a-zA-Z]{2,}(?:['’-][a-zA-Z]+)*(?:(?:[\s./,~]+(?:[a-zA-Z][\s./~]+)?|/)[a-zA-Z]{2,}(?:['’-][a-zA-Z]+)*)*"
)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}(?:\{[clr ]*\})?")
_SYMBOL, _COMMAND = re.compile(r"[a-zA-Z]"), re.compile(r"\\(?:[a-zA-Z]+|.)")
_FULL_STOP_INSIDE = re.compile(r"\.(?:\s+|\\[ ,;:])\S|\.\.|\.\\")
_BARS = re.compile(r"\||\\[lr]?[vV]ert(?![a-zA-Z])")
_NAMES = """
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp max min gcd lcm deg det dim mod
    and or
"""
_FUNCTIONS = frozenset(_NAMES.split())


def foreign(answer: str, reference: str) -> str | None:
    """The first part of an answer that is neither notation of numbers and expressions nor the reference's.

    Signs of sets, relations and intervals count as notation where the reference has one, words where they
    are a unit behind a number, the reference's or a function's name. None where there is no such part, and
    for an answer without digits or of words alone, which is compared as text.
    """
    if not any(character.isdigit() for character in answer):
        return None
    listed = elements(answer)
    for part in listed[1] if listed is not None and len(listed[1]) > 1 else [answer]:
        if (found := _foreign_part(part, reference)) is not None:
            return found
    return None


def _foreign_part(answer: str, reference: str) -> str | None:
    known = set(_TOKEN.findall(reference))
    is_set = elements(reference) is not None or any(
        token in _RELATIONS or token[1:] in _SETS or token == r"\infty" for token in known
    )
    members = chain(answer)
    for member in [answer] if members is None else [one for one in members if not is_name(one)]:
        if (words := _foreign_words(member, reference)) is not None:
            return words
        bare = _TEXT.sub(" ", member)
        if _FULL_STOP_INSIDE.search(bare.strip().removesuffix(".")) and not _FULL_STOP_INSIDE.search(
            reference
        ):
            return "."
        if len(_BARS.findall(bare)) % 2 and not _BARS.search(reference):
            return "|"
        if "==" in bare and "==" not in reference:
            return "=="
        for token in _TOKEN.findall(bare):
            if not (token in known or token == "|" or token.isalpha() or _is_notation(token, is_set)):
                return token
    return None


def _is_notation(token: str, is_set: bool) -> bool:
    if token[0] != "\\":
        return token in _SIGNS or (is_set and token in _RELATIONS)
    return token[1:] in _COMMANDS or (is_set and token[1:] in _SETS)


def _foreign_words(answer: str, reference: str) -> str | None:
    """Words that are no unit behind a number, no function, no product of the reference's unknowns and not the
    reference's."""
    own = {word.lower().removesuffix("s") for word in _WORD.findall(reference)}
    unknowns = set(_SYMBOL.findall(_COMMAND.sub(" ", reference)))
    text = _ENVIRONMENT.sub(" ", answer)
    text = _COMMAND.sub(" ", _TEXT.sub(lambda found: f" {found.group(1)} ", text))
    for found in _PHRASE.finditer(text):
        words = _WORD.findall(found.group())
        rest = [
            word
            for word in words
            if word.lower().removesuffix("s") not in own
            and word not in _FUNCTIONS
            and not set(word) <= unknowns
        ]
        if rest and not is_unit_phrase(words, text[: found.start()], text[found.end() :]):
            return found.group().strip()
    return None
