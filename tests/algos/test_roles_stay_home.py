"""What is MarsRL's stays in its folder: nothing else in the package knows its roles."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "marsrl_verl"
HOMES = (
    "algos/marsrl/",
    "demo/",  # the tiny task is one of MarsRL's
)
NAMES = ("verifier", "corrector")


@functools.cache
def code_words(path: Path) -> set[str]:
    """Identifiers, imported modules and texts of a module, but for docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            words.add(node.value)
        words |= {
            value
            for field in ("id", "attr", "name", "arg", "module")
            if isinstance(value := getattr(node, field, None), str)
        }
    return words


def test_code_outside_its_folder_names_neither_verifier_nor_corrector():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith(HOMES):
            continue
        said = sorted(word for word in code_words(path) if any(role in word.lower() for role in NAMES))
        if said:
            found[name] = said
    assert found == {}


def test_nothing_outside_imports_it():
    importers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if not path.relative_to(PACKAGE).as_posix().startswith(HOMES)
        and any("algos.marsrl" in word for word in code_words(path))
    }
    assert importers == set()
