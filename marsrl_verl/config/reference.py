"""Every key that exists: verl's tree, the fields of verl's dataclasses, and our schema; and the kind of value
that each of verl's keys takes.

verl is read as text (its generated configuration and the source of its dataclasses), never imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from marsrl_verl.config.locations import verl_folder
from marsrl_verl.config.node import BY_ROLE, installed_classes
from marsrl_verl.config.schema import MarsRLConfig, RootSettings
from marsrl_verl.settings.declaration import UNSET
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.reading import defaults

OWN_ROOT_KEYS = defaults(RootSettings)
"""Root keys that are not verl's, with their defaults."""

_GENERATED = "trainer/config/_generated_ppo_trainer.yaml"
_FREE_NODES = (
    "ray_kwargs.ray_init",
    "actor_rollout_ref.rollout.custom",
    "reward.custom_reward_function.reward_kwargs",
    "custom_reward_function.reward_kwargs",
)
"""Nodes that take any key, because verl hands them on as they are."""
_EXTRA_KEYS = ("trainer.wandb_proxy",)
"""Keys that verl reads although neither its YAML nor a dataclass names them."""
_DATACLASSES = ("workers/config/*.py", "trainer/config/*.py", "utils/profiler/config.py", "utils/skip/*.py")


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that does not exist, with what could have been meant."""

    key: str
    """Dotted path up to and including the first part that does not exist."""
    siblings: tuple[str, ...]
    """The keys that its parent does have."""


@lru_cache(maxsize=1)
def reference_tree() -> dict[str, Any]:
    """The whole tree with default values: verl's generated configuration plus ours.

    `marsrl` has the settings and roles of every installed method; which of them the chosen one has is said by
    its class (`node.node_issues`).
    """
    text = (verl_folder() / _GENERATED).read_text(encoding="utf-8")
    tree: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    tree.update(OWN_ROOT_KEYS)
    tree["marsrl"] = {**defaults(MarsRLConfig), "algo": {}, **{name: {} for name in BY_ROLE}}
    for method in installed_classes():
        tree["marsrl"]["algo"].update(defaults(method.Config))
        evaluation = tree["marsrl"]["evaluation"]
        between = {**evaluation["in_between"], **defaults(method.Evaluation)["in_between"]}
        evaluation.update({**defaults(method.Evaluation), "in_between": between})
        for name, kind in BY_ROLE.items():
            tree["marsrl"][name].update({role: defaults(kind) for role in method.roles})
    return tree


ABSENT: Any = object()
"""Stands for a key that there is not."""


def at(tree: Any, key: str) -> Any:
    """The value of a dotted key of nested dictionaries; `ABSENT` when there is none."""
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return ABSENT
        tree = tree[part]
    return tree


def default_of(key: str) -> Any:
    """The reference value of a dotted key; `ABSENT` when there is none."""
    return at(reference_tree(), key)


def find_unknown(key: str) -> UnknownKey | None:
    """The first part of a dotted key that does not exist; None when the key is fine."""
    node: Any = reference_tree()
    parts = key.split(".")
    for depth, part in enumerate(parts):
        path = ".".join(parts[: depth + 1])
        if path in _FREE_NODES or path in _EXTRA_KEYS:
            return None
        if not isinstance(node, dict):
            return None if node is None else UnknownKey(path, ())
        if part not in node:
            names = {*map(str, node), *dataclass_fields(str(node.get("_target_", "")))}
            return None if part in names else UnknownKey(path, tuple(sorted(names)))
        node = node[part]
        if node == {}:
            return None
    return None


def is_free_entry(key: str) -> bool:
    """True if a dotted key is a new entry of a node that takes any key."""
    node: Any = reference_tree()
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(node, dict) or part not in node:
            parent = ".".join(parts[:depth])
            return node == {} or any(parent == free or parent.startswith(f"{free}.") for free in _FREE_NODES)
        node = node[part]
    return False


def unknown_keys(tree: dict[str, Any], prefix: str = "") -> list[UnknownKey]:
    """All keys of a composed configuration that do not exist, without descending below them."""
    found: list[UnknownKey] = []
    for name, value in tree.items():
        if (unknown := find_unknown(f"{prefix}{name}")) is not None:
            found.append(unknown)
        elif isinstance(value, dict):
            found += unknown_keys(value, f"{prefix}{name}.")
    return found


def all_keys(node: Any = None, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the reference tree, for "did you mean"."""
    for name, value in (reference_tree() if node is None else node).items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from all_keys(value, f"{prefix}{name}.")


def dataclass_fields(target: str) -> dict[str, str]:
    """Fields of a verl dataclass by its `_target_` with their annotations; empty if unknown."""
    if not target.startswith("verl."):
        return {}
    return _fields_with_bases(target.rsplit(".", 1)[-1], _dataclass_index(verl_folder()))


def annotation_of(key: str) -> str | None:
    """The annotation of a dotted key in verl's dataclass, e.g. `Optional[int]`; None when it has none."""
    parent, _, name = key.rpartition(".")
    node = default_of(parent)
    return dataclass_fields(str(node.get("_target_", ""))).get(name) if isinstance(node, dict) else None


_Classes = dict[str, tuple[list[str], dict[str, str]]]
"""Class name -> (names of its bases, its public fields)."""


def _fields_with_bases(name: str, index: _Classes) -> dict[str, str]:
    bases, own = index.get(name, ([], {}))
    fields: dict[str, str] = {}
    for base in reversed(bases):
        fields.update(_fields_with_bases(base, index))
    return {**fields, **own}


@lru_cache(maxsize=1)
def _dataclass_index(folder: Path) -> _Classes:
    """verl's configuration classes."""
    files = [path for pattern in _DATACLASSES for path in sorted(folder.glob(pattern))]
    bodies = (ast.parse(path.read_text(encoding="utf-8")).body for path in files)
    classes = (node for body in bodies for node in body if isinstance(node, ast.ClassDef))
    return {node.name: _bases_and_fields(node) for node in classes}


def _bases_and_fields(node: ast.ClassDef) -> tuple[list[str], dict[str, str]]:
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    fields = {
        statement.target.id: ast.unparse(statement.annotation)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and not statement.target.id.startswith("_")
    }
    return bases, fields


_FLAG, _WHOLE, _NUMBER = "true or false", "a whole number", "a number"
_OURS = frozenset({"marsrl", *OWN_ROOT_KEYS})
"""Root keys with typed declarations of their own."""
_MAYBE_NULL = re.compile(r"Optional\[|\bNone\b|\bAny\b")


def kind_problems(tree: dict[str, Any]) -> list[ConfigIssue]:
    """Values of the wrong kind, among them null where one is needed, of verl's keys in a composed
    configuration; interpolations are not looked at. verl itself finds them only in a worker, or not at all,
    and our own keys have a schema."""
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
    """Kind of value that a key takes (None: any), and whether it takes null."""
    annotation = annotation_of(key)
    nullable = bool(annotation and _MAYBE_NULL.search(annotation))
    if isinstance(default, dict):
        return _node_kind(default), nullable
    nullable = default is None or nullable
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
