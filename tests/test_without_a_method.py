"""A method is its folder, and what is named after it: without AttnRL's the rest is whole.

Gone are all files and folders that have its name or that of TreeRL, which is a preset of it: code, presets,
suite, examples, documentation, tests. The studies in `benchmarks/` may compare methods.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1]
PARTS = ("marsrl_verl", "recipe", "configs", "examples", "docs", "tests", "requirements", "pyproject.toml")
NAMES = ("attnrl", "treerl")
STUDIES = TREE / "tests" / "benchmarks"
CHOSEN = (
    *("algos", "evaluation", "reporting", "rewards/test_loading.py"),
    *(f"config/test_{name}.py" for name in ("settings_page", "reference", "batching", "methods_elsewhere")),
    *("rollout/test_single_call.py", "golden"),
)
"""Tests that are run; all are collected."""


def left_out(folder: str, names: list[str]) -> set[str]:
    gone = {name for name in names if any(word in name for word in NAMES) or name == "__pycache__"}
    return gone | ({STUDIES.name} if Path(folder) == STUDIES.parent else set())


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The tree without the method; its settings' page follows."""
    root = tmp_path_factory.mktemp("without") / "tree"
    root.mkdir()
    for part in PARTS:
        source = TREE / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=left_out)
        else:
            shutil.copy(source, root / part)
    page = python(root, "-m", "marsrl_verl.config.settings_page")
    assert page.returncode == 0, page.stderr
    (root / "docs" / "settings.md").write_text(page.stdout)
    return root


def python(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=root, env=env, capture_output=True, text=True, check=False
    )


def run_tests(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(root, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not e2e", *words)


def test_the_copy_does_not_know_the_method(copy):
    code = (
        "from marsrl_verl.algos import registry; import marsrl_verl\n"
        "print(marsrl_verl.__file__, list(registry.installed_methods()))"
    )
    done = python(copy, "-c", code)
    assert str(copy) in done.stdout and "attnrl" not in done.stdout.rpartition("[")[2], done.stdout


def test_every_test_can_be_collected(copy):
    done = run_tests(copy, "--collect-only", "tests")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_rests_tests_pass(copy):
    done = run_tests(copy, *(f"tests/{name}" for name in CHOSEN))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
