"""Contracts which do not hold are named. (That the reader of sources finds what there is, installed packages
show: `test_upstream_contracts.py`.)"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import gpu_sources
import pytest
import stack_contracts
from stack_contracts import broken, fingerprint
from static_sources import NotFoundError, Sources

FILES = {
    "__init__.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from .engine import Engine as Motor
    from .parts import *
""",
    "engine/__init__.py": "from ..engine.core import Engine\nfrom . import core as inner\n",
    "engine/core.py": """
from dataclasses import dataclass
from pkg.parts import Part

@dataclass
class Options:
    name: str
    seed: int = 0

@dataclass
class MoreOptions(Options):
    top_k: int = -1

class Base:
    def start(self, name, *, seed=None): ...

class Engine(Base):
    limit = 3
    def __init__(self, options, *args, part: Part = None, **kwargs):
        self.options, self.part = options, part
        self.count: int = 0
    @property
    def idle(self): return True
    @classmethod
    def of(cls, name): ...

try:
    import fast
except ImportError:
    def ask(what, then): ...
else:
    ask = fast.ask
""",
    "parts.py": "class Part:\n    size: int\n    def weigh(self): return 1\n",
}


def package(folder: Path, **changed: str) -> Sources:
    """The package, with texts of its files replaced: old=new."""
    for name, text in FILES.items():
        for old, new in changed.items():
            text = text.replace(old, new)
        path = folder / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Sources({"pkg": folder / "pkg"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pkg.gone:Engine", "there is no module pkg.gone"),
        ("other:Engine", "there is no module other"),
        ("pkg:Gearbox", "the module pkg has no Gearbox"),
        ("pkg:Motor.stop", "pkg.engine.core:Engine has no stop"),
        ("pkg:Motor.limit.bits", "pkg.engine.core has no bits"),
        ("pkg:Motor.limit", "is no function"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, name, message):
    with pytest.raises(NotFoundError, match=message):
        package(tmp_path).parameters(name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("pkg:Motor.of", ["name"]),
        ("pkg.engine:inner.MoreOptions", ["name", "seed", "top_k"]),
        ("pkg.engine.core:ask", ["what", "then"]),
    ],
)
def test_parameters_of_a_class_method_of_fields_and_of_what_stands_in_a_branch(tmp_path, name, parameters):
    assert package(tmp_path).parameters(name) == parameters


def test_each_contract_that_does_not_hold_is_named(tmp_path, monkeypatch):
    old = package(tmp_path / "old")
    tables = {
        "SIGNATURES": {"pkg:Motor.start": ["self", "name", "seed"]},
        "BEGINS_WITH": {"pkg:Motor": ["options", "args"]},
        "AT_LEAST": {"pkg.engine.core:MoreOptions": {"seed"}},
        "PRESENT": {"pkg:Motor.idle": property},
        "READ": ("pkg:Motor.count",),
        "CONTAINS": {"pkg.engine.core": ("limit = 3",)},
        "SAME": {"pkg:Part.weigh": ()},
    }
    for name, table in tables.items():
        monkeypatch.setattr(stack_contracts, name, table)
    assert broken(old, old, ("pkg",)) == []
    changes = {
        "name, *, seed=None": "name, seed, more",
        "options, *args": "args",
        "seed: int = 0": "",
        "idle": "busy",
        "self.count: int": "total",
        "limit = 3": "limit = 4",
        "return 1": "return 2",
    }
    found = broken(package(tmp_path / "new", **changes), old, ("pkg",))
    weigh = fingerprint(package(tmp_path / "new", **changes), "pkg:Part.weigh")
    assert found == [
        "pkg:Motor.start: takes ['self', 'name', 'seed', 'more'], expected ['self', 'name', 'seed']",
        "pkg:Motor: takes ['args', 'part'], expected ['options', 'args']",
        "pkg.engine.core:MoreOptions: lacks seed",
        "pkg:Motor.idle: pkg.engine.core:Engine has no idle",
        "pkg:Motor.count: pkg.engine.core:Engine has no count",
        "pkg.engine.core: lacks limit = 3",
        "pkg:Part.weigh: is not what it is in the installed stack; read it, then add "
        f"{weigh} to its fingerprints",
    ]
    monkeypatch.setattr(stack_contracts, "SAME", {"pkg:Part.weigh": (weigh,)})
    assert len(broken(package(tmp_path / "new", **changes), old, ("pkg",))) == len(found) - 1
    assert broken(old, old, ("other",)) == [], "contracts of other packages are not looked at"


def test_only_a_packages_python_files_are_kept():
    buffer = io.BytesIO()
    names = ("p-1/p/__init__.py", "p-1/p/a/b.py", "p-1/p/c.so", "p-1/tests/p/d.py", "p-1/p/../../e.py")
    with tarfile.open(fileobj=buffer, mode="w:gz") as files:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            files.addfile(member, io.BytesIO(b"1\n"))
    assert [name for name, _ in gpu_sources.python_files(buffer.getvalue(), "p")] == ["__init__.py", "a/b.py"]


def test_an_archive_that_was_changed_is_refused(tmp_path, monkeypatch):
    archive = {"url": (tmp_path / "p.tar.gz").as_uri(), "hashes": {"sha256": "0" * 64}}
    (tmp_path / "p.tar.gz").write_bytes(b"other")
    with pytest.raises(ValueError, match="checksum differs"):
        gpu_sources.fetched({"name": "p", "version": "1", "sdist": archive}, tmp_path / "sources")
    assert not (tmp_path / "sources").exists()
