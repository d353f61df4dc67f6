"""Reads what packages define from their source, without importing them: another stack cannot be imported.

Names are written `module:qualified.name`, as in `contracts.yaml`. Those that a module takes from another one
are followed, branches of `if` and `try` are all read, and so are `TYPE_CHECKING` blocks, which say what a
package gives out that loads its modules late.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Found:
    """What a name stands for."""

    module: str
    node: ast.AST
    """A definition, an assignment, or a whole module."""


class NotFoundError(LookupError):
    """The sources do not define the name; the message says which part of it."""


class Sources:
    """The Python files of packages.

    Args:
        folders: where each top-level package lies, by its name.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)
        self._trees: dict[str, ast.Module] = {}
        self._texts: dict[str, str] = {}

    def file(self, module: str) -> Path | None:
        """The file of a module; None where it is not there, or is of another package."""
        top, *rest = module.split(".")
        if top not in self._folders:
            return None
        place = self._folders[top].joinpath(*rest)
        candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
        return next((one for one in candidates if one.is_file()), None)

    def find(self, name: str) -> Found:
        """What `module:qualified.name` stands for.

        Raises:
            NotFoundError: there is no such thing.
        """
        module, _, path = name.partition(":")
        if self.file(module) is None:
            raise NotFoundError(f"there is no module {module}")
        found = Found(module, self._tree(module))
        for part in path.split("."):
            inner = self._member(found, part)
            if inner is None:
                raise NotFoundError(f"{_title(found)} has no {part}")
            found = inner
        return found

    def parameters(self, name: str) -> list[str]:
        """Names of the parameters of a function, or of a class when it is called; without `self` there,
        and without a class method's class.

        Raises:
            NotFoundError: there is no such thing, or it is nothing to call.
        """
        found = self.find(name)
        if isinstance(found.node, ast.ClassDef):
            maker = self._member(found, "__init__")
            if maker is None or isinstance(maker.node, ast.ClassDef):
                return self._fields(found)
            return self._arguments(maker)[1:]
        return self._arguments(found)

    def text(self, module: str) -> str:
        """A module's source."""
        path = self.file(module)
        if path is None:
            raise NotFoundError(f"there is no module {module}")
        return path.read_text()

    def _arguments(self, found: Found) -> list[str]:
        if not isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef):
            raise NotFoundError(f"{_title(found)} is no function")
        arguments = found.node.args
        one_by_one = [*arguments.posonlyargs, *arguments.args]
        if any(ast.unparse(one) == "classmethod" for one in found.node.decorator_list):
            del one_by_one[0]
        rest = [arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
        return [one.arg for one in [*one_by_one, *rest] if one is not None]

    def _fields(self, found: Found) -> list[str]:
        """Those of a class whose annotated names are its parameters, the bases' first."""
        classes = [one.node for one in reversed([found, *self._bases(found)])]
        annotated = (one for node in classes for one in _statements(node) if isinstance(one, ast.AnnAssign))
        names = dict.fromkeys(name for one in annotated for name in _names(one))
        if not names:
            raise NotFoundError(f"{_title(found)} says nowhere which parameters it takes")
        return list(names)

    def _member(self, found: Found, name: str) -> Found | None:
        if isinstance(found.node, ast.Module):
            return self._of_module(found.module, name, set())
        if not isinstance(found.node, ast.ClassDef):
            return None
        for one in [found, *self._bases(found)]:
            own = sorted(_statements(one.node), key=lambda node: not isinstance(node, Definition))
            places = [(node, name) for node in own]
            places += [(node, f"self.{name}") for node in ast.walk(one.node)]
            for node, written in places:
                if written in _names(node):
                    return Found(one.module, node)
        return None

    def _bases(self, found: Found) -> list[Found]:
        """The classes that it inherits from, as far as the sources have them, nearest first."""
        assert isinstance(found.node, ast.ClassDef)
        bases: list[Found] = []
        for expression in found.node.bases:
            named = expression.value if isinstance(expression, ast.Subscript) else expression  # Generic[T]
            base = self._named(found.module, ast.unparse(named).split("."))
            if base is not None and isinstance(base.node, ast.ClassDef) and base not in bases:
                bases += [base, *(one for one in self._bases(base) if one not in bases)]
        return bases

    def _named(self, module: str, parts: list[str]) -> Found | None:
        found: Found | None = Found(module, self._tree(module))
        for part in parts:
            found = None if found is None else self._member(found, part)
        return found

    def _of_module(self, module: str, name: str, seen: set[tuple[str, str]]) -> Found | None:
        if (module, name) in seen:
            return None
        seen.add((module, name))
        defined: Found | None = None  # a definition goes before what stands in for it
        for node in _statements(self._tree(module)):
            if isinstance(node, Definition) and node.name == name:
                return Found(module, node)
            if isinstance(node, ast.Assign | ast.AnnAssign) and name in _names(node):
                other = node.value.id if isinstance(node.value, ast.Name) else name  # another name for it
                defined = self._of_module(module, other, seen) or defined or Found(module, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if defined is None and (alias.name == "*" or (alias.asname or alias.name) == name):
                        wanted = name if alias.name == "*" else alias.name
                        defined = self._imported(module, node, wanted, seen)
        if defined is None and self.file(f"{module}.{name}") is not None:
            return Found(f"{module}.{name}", self._tree(f"{module}.{name}"))
        return defined

    def _imported(
        self, module: str, node: ast.ImportFrom, name: str, seen: set[tuple[str, str]]
    ) -> Found | None:
        source = node.module or ""
        if node.level:
            path = self.file(module)
            up = node.level - (path is not None and path.name == "__init__.py")
            package = module.split(".")[: len(module.split(".")) - up]
            source = ".".join([*package, *([source] if source else [])])
        if self.file(source) is None or not self._mentioned(source, name):
            return None
        return self._of_module(source, name, seen)

    def _mentioned(self, module: str, name: str) -> bool:
        """Whether the files of a module or package have the name at all: transformers gives out what hundreds
        of packages define, and to parse all of them takes a minute."""
        if module not in self._texts:
            path = self.file(module)
            assert path is not None
            files = path.parent.rglob("*.py") if path.name == "__init__.py" else [path]
            self._texts[module] = "".join(one.read_text() for one in files)
        return name in self._texts[module]

    def _tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            self._trees[module] = ast.parse(self.text(module))
        return self._trees[module]


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Those of a module or a class, in all branches."""
    for field in ("body", "orelse", "finalbody", "handlers"):
        for one in getattr(node, field, ()):
            yield one
            if not isinstance(one, Definition):
                yield from _statements(one)


def _names(node: ast.AST) -> list[str]:
    """What a statement defines or gives a value to; of what has attributes, as it is written."""
    if isinstance(node, Definition):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return [ast.unparse(one) for target in targets for one in getattr(target, "elts", [target])]


def _title(found: Found) -> str:
    name = getattr(found.node, "name", None)
    return f"{found.module}:{name}" if name else f"the module {found.module}"
