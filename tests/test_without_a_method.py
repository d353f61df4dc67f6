"""A method is its folder, and what is named after it: without it the rest is whole.

Here nothing that is left imports what is gone; `make test-without METHOD=attnrl` runs all of the unit tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from method_removal import (
    IMPORTERS,
    copy_without,
    default_method,
    is_named_after,
    main,
    missing_imports,
    names_of,
    python,
    removable,
)

pytestmark = pytest.mark.slow

ONE = "attnrl" if "attnrl" in removable() else removable()[0]
"""These tests run in a tree without it, too."""


@pytest.fixture(scope="module", params=removable())
def copy(request, tmp_path_factory) -> tuple[str, Path]:
    """A method and the tree without it."""
    root = tmp_path_factory.mktemp("without")
    copy_without(request.param, root)
    return request.param, root


def test_the_copy_does_not_know_the_method(copy):
    method, root = copy
    code = (
        "from marsrl_verl.algos import registry; import marsrl_verl\n"
        "print(marsrl_verl.__file__, list(registry.installed_methods()))"
    )
    done = python(root, "-c", code, capture_output=True)
    file, _, methods = done.stdout.partition(" ")
    assert Path(file) == root / "marsrl_verl" / "__init__.py"
    assert f"'{default_method()}'" in methods and f"'{method}'" not in methods


def test_nothing_is_named_after_the_method(copy):
    method, root = copy
    names = names_of(method)
    assert not [path for path in root.rglob("*") if is_named_after(names, path)]


def test_nothing_imports_what_is_gone(copy):
    method, root = copy
    assert missing_imports(root) == {}
    (root / "tests" / "late.py").write_text(
        f"def one():\n    from marsrl_verl.algos.{method} import METHOD\n"
    )
    assert missing_imports(root) == {"tests/late.py": {f"marsrl_verl.algos.{method}"}}
    (root / "tests" / "late.py").unlink()


@pytest.mark.parametrize("copy", [ONE], indirect=True)  # half a minute each
def test_every_test_can_be_collected(copy):
    _, root = copy
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "tests")
    done = python(root, *words, capture_output=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "tests/algos/test_marsrl.py" in done.stdout


@pytest.mark.skipif(ONE != "attnrl", reason="it was taken away")
def test_presets_that_build_on_a_methods_are_its():
    assert {"attnrl", "attnrl_released", "treerl", "treerl_baseline"} <= names_of("attnrl")


def test_the_default_method_stays():
    with pytest.raises(SystemExit, match=rf"marsrl can't be taken away: .* the demo .*{ONE}"):
        main(default_method())
    with pytest.raises(SystemExit, match=rf"no method 'treerl'.*{ONE}"):
        main("treerl")


def test_no_study_is_left_that_imports_it(copy):
    method, root = copy
    files = [path for part in IMPORTERS for path in (root / part).rglob("*.py")]
    assert files and not [path for path in files if f"algos.{method}" in path.read_text()]
