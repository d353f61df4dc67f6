"""A copy of the tree without a method, and the unit tests of what is left.

    python tests/method_removal.py METHOD [words for pytest]

Gone are the method's folder, its presets, every file and folder with its name or that of a preset of it, what
imports it among the studies of `benchmarks/` and `studies/`, and the lines of documentation that
name any of these.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import yaml
from composing import WITHOUT

TREE = Path(__file__).parents[1]
PARTS = (
    *("marsrl_verl", "recipe", "configs", "examples", "docs", "tests", "benchmarks", "studies", "docker"),
    *("requirements", ".ci"),
    *(
        "pyproject.toml",
        "Makefile",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        "mkdocs.yml",
    ),
)
PACKAGES = ("marsrl_verl", "recipe", "benchmarks", "studies")
IMPORTERS = ("benchmarks", "studies")
"""Packages that may be about a method."""


def default_method() -> str:
    """The one that the root configuration chooses."""
    root = yaml.safe_load((TREE / "configs/marsrl.yaml").read_text())
    (preset,) = (one["algo"] for one in root["defaults"] if isinstance(one, dict) and "algo" in one)
    return method_of(preset)


def method_of(preset: str) -> str:
    """The method of an option of group `algo`, which may build on another one."""
    found = yaml.safe_load((TREE / f"configs/algo/{preset}.yaml").read_text())
    name = found.get("marsrl", {}).get("algo", {}).get("name")
    return name or method_of(next(one for one in found["defaults"] if one != "_self_"))


def removable() -> list[str]:
    """All methods but the default one."""
    folders = (TREE / "marsrl_verl" / "algos").glob("*/__init__.py")
    return sorted({one.parent.name for one in folders} - {default_method()})


def names_of(method: str) -> set[str]:
    """The method's name and those of its presets.

    Raises:
        ValueError: there is no such method, or it can't be taken away.
    """
    if method == default_method():
        raise ValueError(
            f"{method} can't be taken away: the default configuration, the tiny model and the demo are its. "
            f"Methods that can: {', '.join(removable())}"
        )
    if method not in removable():
        raise ValueError(
            f"there is no method {method!r}; methods that can be taken away: {', '.join(removable())}"
        )
    presets = (path.stem for path in (TREE / "configs/algo").glob("*.yaml"))
    # Further methods of a folder (`METHODS`) begin with its name.
    own = {preset for preset in presets if f"{method_of(preset)}_".startswith(f"{method}_")}
    return {method, *own}


def is_named_after(names: set[str], path: Path) -> bool:
    """Whether a file or folder has one of a method's names. Another method's preset may have it in its
    own."""
    if path.parent.name == "algo":
        return path.stem in names
    return any(name in path.name for name in names)


def copy_without(method: str, root: Path) -> None:
    """Makes the copy in the empty folder `root`; its generated pages follow."""
    names = names_of(method)

    def left_out(folder: str, entries: list[str]) -> set[str]:
        return {one for one in entries if one == "__pycache__" or is_named_after(names, Path(folder, one))}

    for part in PARTS:
        source = TREE / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=left_out)
        else:
            shutil.copy(source, root / part)
    names |= remove_importers(root, {f"marsrl_verl.algos.{method}"})
    # Not the beginning of another word.
    named = re.compile(rf"({'|'.join(map(re.escape, sorted(names)))})(?![a-z])")
    for page in root.rglob("*.md"):
        lines = page.read_text().splitlines(keepends=True)
        page.write_text("".join(line for line in lines if not named.search(line)))
    (root / "tests" / WITHOUT).write_text(method)
    for name, module in (("settings", "settings_page"), ("options", "groups_page")):
        made = python(root, "-m", f"marsrl_verl.config.{module}", capture_output=True)
        made.check_returncode()
        (root / "docs" / "reference" / f"{name}.md").write_text(made.stdout)


def remove_importers(root: Path, gone: set[str]) -> set[str]:
    """Takes away the modules of `benchmarks/`, of `studies/` and of their tests that import what is gone, and
    those that import these; the names of all that is gone then."""
    packages = (path for part in IMPORTERS for path in (root / part).rglob("*.py"))
    modules = {
        path: ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for path in packages
    }
    for part in IMPORTERS:
        modules |= {path: path.stem for path in (root / "tests" / Path(part).name).glob("*.py")}
    while found := [path for path in modules if any(is_in(name, gone) for name in imported(path))]:
        for path in found:
            gone.add(modules.pop(path))
            path.unlink()
    return gone


def is_in(module: str, packages: Iterable[str]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in packages)


def imported(file: Path) -> frozenset[str]:
    """The modules that a file imports, and what it imports from them, which may be modules."""
    return _imports_of(file.read_text())


@cache
def _imports_of(text: str) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def missing_imports(root: Path) -> dict[str, set[str]]:
    """By file of the copy, the tree's modules that it imports and that are gone, inside functions too."""
    here, there = _modules(TREE), _modules(root)
    found = {}
    for path in sorted(root.rglob("*.py")):
        # What is imported from a module may be a module or not.
        names = {name if name in here else name.rpartition(".")[0] for name in imported(path)}
        if gone := (names & here) - there:
            found[str(path.relative_to(root))] = gone
    return found


def _modules(root: Path) -> set[str]:
    """Those of the packages by their dotted names, those of the tests, which see each other, by their own."""
    packages = (path for part in PACKAGES for path in (root / part).rglob("*.py"))
    names = {".".join(path.relative_to(root).with_suffix("").parts) for path in packages}
    return {name.removesuffix(".__init__") for name in names} | {
        path.stem for path in (root / "tests").rglob("*.py")
    }


def python(root: Path, *words: str, capture_output: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs Python in the copy, on the copy's modules."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=root, env=env, capture_output=capture_output, text=True, check=False
    )


def main(method: str, *words: str) -> int:
    """The status of pytest in the copy."""
    with tempfile.TemporaryDirectory(prefix="without-") as folder:
        try:
            copy_without(method, Path(folder))
        except ValueError as error:
            sys.exit(str(error))
        return python(Path(folder), "-m", "pytest", "-p", "no:cacheprovider", *words).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
