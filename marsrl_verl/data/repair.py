r"""LaTeX commands that were written through a string literal: `\boxed` has become a backspace and `oxed`.

Published training files of agents have it in every system prompt. Only what is certain is repaired: a control
character that no text has, directly before the rest of a command. A tab or a line feed before such a rest may
be meant.
"""

from __future__ import annotations

import re

_RESTS = {
    "\a": ("a", "lpha|ngle|pprox"),
    "\b": ("b", "oxed|inom|eta|ar|egin|ig[lr]?|igg[lr]?|ullet|oldsymbol|mod|f|ot|ackslash"),
    "\v": ("v", "ec|ert|arepsilon|arphi|dots|ee"),
    "\f": ("f", "rac|orall|lat|box"),
}
_BROKEN = re.compile("|".join(f"{sign}(?:{rests})(?![a-zA-Z])" for sign, (_, rests) in _RESTS.items()))


def repaired(text: str) -> str:
    """The text with the backslash and the letter in place of the control character."""
    return _BROKEN.sub(lambda found: rf"\{_RESTS[found.group()[0]][0]}{found.group()[1:]}", text)
