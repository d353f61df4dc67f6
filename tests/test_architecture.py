"""The picture in docs/reference/architecture.md is what the packages import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from marsrl_verl.core.method import Method

TREE = Path(__file__).parents[1]
PACKAGE = TREE / "marsrl_verl"
PAGE = TREE / "docs" / "reference" / "architecture.md"
APART = {"__init__", "version"}

Edges = set[tuple[str, str]]


def imported(file: Path) -> Iterator[str]:
    """The packages of ours that a file imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE.name:
            yield from (alias.name for alias in node.names)
        else:
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            yield from (name.split(".")[1] for name in names if name and name.startswith(f"{PACKAGE.name}."))


def all_edges() -> Edges:
    """Of every file but those in a method's folder, which are the method's own matter."""
    methods = PACKAGE.glob("algos/*/**/*.py")
    return {
        (importer, name)
        for file in set(PACKAGE.rglob("*.py")) - set(methods)
        for importer in [file.relative_to(PACKAGE).parts[0].removesuffix(".py")]
        for name in imported(file)
        if name != importer and not {name, importer} & APART
    }


def reduced(edges: Edges) -> Edges:
    """Without arrows between packages that a longer way joins, so that the picture can be read."""

    def reach(start: str, without: tuple[str, str]) -> set[str]:
        seen, todo = {start}, [start]
        while todo:
            here = todo.pop()
            fresh = {b for a, b in edges if a == here and (a, b) != without} - seen
            seen |= fresh
            todo += fresh
        return seen

    return {edge for edge in edges if edge[1] not in reach(edge[0], without=edge)}


def block(edges: Edges) -> str:
    return "\n".join(["```mermaid", "graph TD", *(f"    {a} --> {b}" for a, b in sorted(edges)), "```"])


def test_the_picture_is_that_of_the_imports():
    right = block(reduced(all_edges()))
    assert right in PAGE.read_text(), f"docs/reference/architecture.md should have\n\n{right}"


def test_the_page_names_what_there_is():
    """Paths and `module.Class` in backquotes exist."""
    text = PAGE.read_text()
    names = re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py)?):([A-Za-z_.]+)`", text)
    assert len(names) > 20
    missing = []
    for path, name in names:
        file = PACKAGE / (path if path.endswith(".py") else f"{path}.py")
        first, *rest = name.split(".")
        source = file.read_text() if file.exists() else ""
        if not re.search(rf"^(class|def|async def) {first}\b|^{first}\b.* = ", source, re.M) or not all(
            re.search(rf"^    (async )?def {one}\b|^    {one}\b", source, re.M) for one in rest
        ):
            missing.append(f"{path}:{name}")
    assert missing == []


def test_a_method_has_at_most_25_members():
    """All of them with a default: a newcomer has to read what is different alone."""
    members = [name for name in vars(Method) if not name.startswith("_")]
    assert len(members) <= 25, sorted(members)
