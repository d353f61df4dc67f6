"""pytest puts every folder of tests on the import path, so a file's name must be unique in all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def test_every_test_file_has_a_name_of_its_own():
    tests = Path(__file__).parent
    files = [*tests.rglob("*.py"), *(tests.parent / "examples").rglob("*.py")]
    names = Counter(file.name for file in files if file.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
