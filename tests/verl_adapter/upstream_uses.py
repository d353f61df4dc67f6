"""Finds in our own source what it takes from verl, vLLM and transformers."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import marsrl_verl

PACKAGE = Path(marsrl_verl.__file__).parent
UPSTREAM = ("verl", "vllm", "transformers")


@functools.cache
def sources() -> list[tuple[Path, ast.Module]]:
    """Every module of the package and of the recipe."""
    folders = (PACKAGE, PACKAGE.parent / "recipe")
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return [(path, ast.parse(path.read_text())) for path in paths]


def is_upstream(name: str) -> bool:
    return name.split(".")[0] in UPSTREAM


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def imported_names() -> dict[str, str]:
    """`module:name` for every name taken from them, with the file that takes it.

    Of an imported module, the attributes that the file uses.
    """
    found: dict[str, str] = {}
    for path, tree in sources():
        modules: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and is_upstream(node.module):
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    if is_module(whole):
                        modules[alias.asname or alias.name] = whole
                    else:
                        found[f"{node.module}:{alias.name}"] = path.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if is_upstream(alias.name):
                        modules[alias.asname or alias.name] = alias.name
        for node in ast.walk(tree):
            used = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if used and node.value.id in modules:
                found[f"{modules[node.value.id]}:{node.attr}"] = path.name
    return found


def module_strings() -> dict[str, str]:
    """Dotted upstream module names in string constants (lists of modules to import), with their file."""
    pattern = re.compile(rf"({'|'.join(UPSTREAM)})(\.[a-z_0-9]+)+")
    return {
        node.value: path.name
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.fullmatch(node.value)
    }


def upstream_bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__[1:] if is_upstream(base.__module__)]


def overridden(cls: type) -> Iterator[tuple[type, str]]:
    """Methods of upstream bases that `cls` defines itself, abstract ones left out."""
    for name, value in vars(cls).items():
        if not inspect.isfunction(value):
            continue
        for base in upstream_bases(cls):
            inherited = vars(base).get(name)
            if inherited is not None and not getattr(inherited, "__isabstractmethod__", False):
                yield base, name
                break


def read_from_self(cls: type) -> set[str]:
    """Attributes that `cls` reads from `self` and does not make itself; one that it sets and an upstream
    base sets too counts as upstream's."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    read: set[str] = set()
    stored: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and _is_of_self(node.target):
            read.add(node.target.attr)  # counts up or down what was there
        elif _is_of_self(node):
            if isinstance(node.ctx, ast.Load):
                read.add(node.attr)
            elif not _is_counted(tree, node):
                stored.add(node.attr)
    ours = [one for one in cls.__mro__ if not is_upstream(one.__module__)]
    declared = {name for one in ours for name in vars(one).get("__annotations__", ())}  # made below
    own = set(vars(cls)) | declared | {name for name in stored if not sets_on_self(cls, name)}
    return read - own


def _is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_counted(tree: ast.AST, attribute: ast.Attribute) -> bool:
    return any(isinstance(node, ast.AugAssign) and node.target is attribute for node in ast.walk(tree))


def sets_on_self(cls: type, name: str) -> bool:
    """Whether the source of an upstream base assigns `self.<name>`."""
    pattern = re.compile(rf"\bself\.{name}\s*(:[^=\n]+)?=(?!=)|[(,]\s*self\.{name}\s*[,)]?.*=(?!=)")
    return any(pattern.search(_text(base)) for base in upstream_bases(cls))


@functools.cache
def _text(cls: type) -> str:
    return inspect.getsource(cls)


def resolve(name: str) -> Any:
    """The object that `module:qualified.name` stands for."""
    module, _, path = name.partition(":")
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        # Ray wraps an actor's class; inside is the class as it was written.
        actor = getattr(value, "__ray_metadata__", None)
        value = getattr(value if actor is None else actor.modified_class, part)
    return value


def parameters(function: Any) -> list[str]:
    """Names of a function's parameters, without the one that Ray's decorator adds."""
    names = inspect.signature(inspect.unwrap(function)).parameters
    return [name for name in names if name != "_ray_trace_ctx"]


def source(name: str) -> str:
    """Source text of an upstream name."""
    found = resolve(name)
    return inspect.getsource(inspect.unwrap(found.fget if isinstance(found, property) else found))
