r"""Notation that an answer may consist of. A grader of mathematics drops what it does not know, so that `6
\to 5`, `\cancel{6} 5` and `5\text{ cannot be}` are 5 to it. Anything that stands neither on these lists nor
in the reference makes it another answer."""

from __future__ import annotations

import re

from marsrl_verl.rewards.bare_answer import is_unit_word
from marsrl_verl.rewards.equations import chain, is_name
from marsrl_verl.rewards.normal_form import MAGNITUDES, elements


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_SIGNS = frozenset("0123456789.,;+-*/^_()[]{}!'%$=~ \t\n°")
_COMMANDS = frozenset("!,;: %${}") | _listed(r"""
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
""")
_SETS = _listed("""
    in notin cup cap setminus le leq leqslant ge geq geqslant lt gt ne neq to or and lor vee land wedge mid
    emptyset forall exists colon
""")
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
_FUNCTIONS = _listed("""
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp max min gcd lcm deg det dim mod
    and or
""")
_NO_PLURALS = _listed("""
    is was has does fails works equals exceeds lies misses differs needs gives makes becomes goes says seems
    holds satisfies contradicts violates plus minus always perhaps sometimes besides unless thus this its
    his hers yes contains appears looks means remains stays solves results
""")
"""Verbs and the like, which end in s and are no nouns in the plural."""
_NO_UNITS = _NO_PLURALS.union(
    MAGNITUDES,
    _listed("""
    not no cannot can could should would might may must never be been being are were isn't doesn't ain't
    excluded excluding exclude unlikely negative negated wrong false incorrect invalid impossible undefined
    root power powers or if when except than but nor neither either maybe perhaps possibly probably fake
    rejected denied mistaken contradiction opposite inverse reciprocal squared cubed doubled halved tripled
    minus plus approximately about roughly almost nearly around below above under over beyond least most
    only mod modulo factorial th nd rd st ago ish point halves thirds fourths fifths sixths sevenths eighths
    ninths tenths hundredths thousandths millionths any other everything anything else nope nah oops
    error mistake typo joke placeholder bad unknown unsure none zero twice
"""),
)
"""They deny the number, doubt it or make another one of it."""
_PLURALS = _listed("people men women children teeth mice geese sheep fish cattle dice")
_TRAILING = _listed("total altogether each left remaining overall possible all over")
_NO_NOUN = re.compile(r".*(?:ed|ly|ive|ble|ful|ous|less|n['’]t)\Z")
_AT_MOST_ONE = re.compile(r"(?:(?<![\d.,}])1|(?<!\d)0?\.\d+|\}|(?<!\d)\d/\d+)[\s$~]*\Z")


def foreign(answer: str, reference: str) -> bool:
    """True if a part of an answer is neither notation of numbers and expressions nor the reference's. Signs
    of sets, relations and intervals count as notation where the reference has one, words where they are a
    unit behind a number, the reference's or a function's name. An answer without digits or of words alone has
    no such part: it is compared as text."""
    if not any(character.isdigit() for character in answer):
        return False
    listed = elements(answer)
    parts = listed[1] if listed is not None and len(listed[1]) > 1 else [answer]
    return any(_is_foreign(part, reference) for part in parts)


def _is_foreign(answer: str, reference: str) -> bool:
    known = set(_TOKEN.findall(reference))
    is_set = elements(reference) is not None or any(
        token in _RELATIONS or token[1:] in _SETS or token == r"\infty" for token in known
    )
    members = chain(answer)
    for member in [answer] if members is None else [one for one in members if not is_name(one)]:
        bare = _TEXT.sub(" ", member)
        stops = _FULL_STOP_INSIDE.search(bare.strip().removesuffix("."))
        if (
            _has_foreign_words(member, reference)
            or (stops and not _FULL_STOP_INSIDE.search(reference))
            or (len(_BARS.findall(bare)) % 2 and not _BARS.search(reference))
            or ("==" in bare and "==" not in reference)
        ):
            return True
        tokens = (token for token in _TOKEN.findall(bare) if token != "|" and not token.isalpha())
        if any(token not in known and not _is_notation(token, is_set) for token in tokens):
            return True
    return False


def _is_notation(token: str, is_set: bool) -> bool:
    if token[0] != "\\":
        return token in _SIGNS or (is_set and token in _RELATIONS)
    return token[1:] in _COMMANDS or (is_set and token[1:] in _SETS)


def _has_foreign_words(answer: str, reference: str) -> bool:
    """True if it has words that are no unit behind a number, no function, no product of the reference's
    unknowns and not the reference's."""
    own = {word.lower().removesuffix("s") for word in _WORD.findall(reference)}
    unknowns = set(_SYMBOL.findall(_COMMAND.sub(" ", reference)))
    text = _ENVIRONMENT.sub(" ", answer)
    text = _COMMAND.sub(" ", _TEXT.sub(lambda found: f" {found.group(1)} ", text))

    def is_known(word: str) -> bool:
        return word.lower().removesuffix("s") in own or word in _FUNCTIONS or set(word) <= unknowns

    for found in _PHRASE.finditer(text):
        words = _WORD.findall(found.group())
        if all(map(is_known, words)):
            continue
        if not _is_unit_phrase(words, text[: found.start()], text[found.end() :]):
            return True
    return False


def _is_unit_phrase(words: list[str], before: str, behind: str) -> bool:
    """True for words behind a number that count something: `cannot be` and `excluded` count nothing.
    Known units do, and nouns in the plural with what is said of them (red apples, inches taller). At the end
    of an answer any one or two words do that are no adverb, adjective or participle by their ending (pizza),
    and behind 1 and what is less any words."""
    if not _says_more(before):
        return False
    words = [word.lower() for word in words]
    while len(words) > 1 and words[-1] in _TRAILING:
        words = words[:-1]
    if words[-1:] == ["in"]:  # in total, in all
        words = words[:-1]
    if not words or words == ["left"] or all(is_unit_word(word) for word in words):
        return True
    if not _NO_UNITS.isdisjoint(words):
        return False
    if any(
        is_unit_word(word) or word in _PLURALS or word.endswith("s") > word.endswith("ss") for word in words
    ):
        return words != ["times"] or not _says_more(behind)
    if _says_more(behind):
        return False
    if _AT_MOST_ONE.search(before):
        return True
    return len(words) <= 2 and not any(_NO_NOUN.fullmatch(word) for word in words)


def _says_more(text: str) -> bool:
    return any(character.isalnum() for character in text)
