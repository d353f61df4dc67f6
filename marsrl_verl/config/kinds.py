"""The kind of value that each of verl's keys takes, from its default and its dataclass.

verl itself finds a wrong kind only in a worker, or not at all. (Our own keys have a schema.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from marsrl_verl.config.reference import ABSENT, OWN_ROOT_KEYS, annotation_of, default_of
from marsrl_verl.settings.declaration import UNSET
from marsrl_verl.settings.issues import ConfigIssue

_FLAG, _WHOLE, _NUMBER = "true or false", "a whole number", "a number"
_OURS = frozenset({"marsrl", *OWN_ROOT_KEYS})
"""Root keys with typed declarations of their own."""
_MAYBE_NULL = re.compile(r"Optional\[|\bNone\b|\bAny\b")


def kind_problems(tree: dict[str, Any]) -> list[ConfigIssue]:
    """Values of the wrong kind, among them null where one is needed, of verl's keys in a composed
    configuration; interpolations are not looked at."""
    problems: list[ConfigIssue] = []
    for key, value in _values("", {name: tree[name] for name in tree if name not in _OURS}):
        default = default_of(key)
        if default is ABSENT or (isinstance(value, str) and ("${" in value or value == UNSET)):
            continue
        kind, nullable = _expected(key, default)
        if kind is not None and not (nullable if value is None else _fits(value, kind)):
            what = f"Expected {kind}{_as_default(default)}."
            problems.append(ConfigIssue(key, what, _fix(key, kind), value))
    return problems


def _values(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Every value, and every node in whose place the default has none or the other way round. (There is no
    default of a dataclass's key that verl's YAML leaves out, and below a node that takes any key.)"""
    if (
        isinstance(node, dict)
        and node
        and (not key or (default := default_of(key)) is ABSENT or isinstance(default, dict))
    ):
        for name, value in node.items():
            yield from _values(f"{key}.{name}" if key else str(name), value)
    else:
        yield key, node


def _expected(key: str, default: Any) -> tuple[str | None, bool]:
    """What a key takes (None: anything) and whether it takes null."""
    annotation = annotation_of(key)
    if isinstance(default, dict):
        return _node_kind(default), bool(annotation and _MAYBE_NULL.search(annotation))
    nullable = default is None or bool(annotation and _MAYBE_NULL.search(annotation))
    names = set(re.findall(r"\w+", annotation or "")) - {"Optional", "None"}
    known = {"bool": _FLAG, "int": _WHOLE, "float": _NUMBER}
    if len(names) == 1 and (name := names.pop()) in known:
        return known[name], nullable
    if isinstance(default, int) and not isinstance(default, bool):
        return (_WHOLE if annotation is None else _NUMBER), nullable
    kinds = {bool: _FLAG, float: _NUMBER, list: "a list"}
    return (kinds[type(default)], nullable) if type(default) in kinds else (None, True)


def _node_kind(default: dict[str, Any]) -> str:
    names = [name for name in default if name != "_target_"]
    if not names:
        return "a dictionary"
    return f"the keys {', '.join(names[:4])}{', …' if len(names) > 4 else ''} below it"


_TYPES: dict[str, Any] = {_FLAG: bool, _WHOLE: int, _NUMBER: (int, float), "a list": list}


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == _FLAG
    return isinstance(value, _TYPES.get(kind, dict))


def _as_default(default: Any) -> str:
    if default is None or isinstance(default, dict) or (isinstance(default, str) and "${" in default):
        return ""
    return f", as verl's default {default!r}"


def _fix(key: str, kind: str) -> str:
    if kind.startswith("the keys"):
        return f"Leave {key} out and set the keys below it, or none."
    if kind == "a dictionary":
        return f"Leave it out, or write '{key}={{name: value}}'."
    if kind == "a list":
        return f"Leave it out, or write '{key}=[a,b]'."
    examples = " such as 2, 0.5 or 1e-6" if kind == _NUMBER else ""
    return f"Leave it out, or set it to {kind}{examples}."
