"""Methods by name, by entry point and by `package.module:Class`."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from marsrl_verl.algos import registry
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.registry import installed_methods, method_class
from marsrl_verl.settings.issues import ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the path for modules of somebody's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._load.cache_clear()
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("strange_")]:
        del sys.modules[name]


def test_ours_are_found_in_their_folders():
    assert method_class("marsrl") is MarsRL
    assert method_class("marsrl_verl.algos.marsrl.method:MarsRL") is MarsRL


def test_an_entry_point_names_a_method(folder, monkeypatch):
    (folder / "strange_one.py").write_text(
        "from marsrl_verl.algos.marsrl.method import MarsRL\nclass Mine(MarsRL):\n    pass\n"
    )
    point = EntryPoint("mine", "strange_one:Mine", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    installed_methods.cache_clear()
    try:
        assert set(installed_methods()) >= {"mine", "marsrl"}
        assert method_class("mine").__name__ == "Mine"
    finally:
        installed_methods.cache_clear()


REFUSED = {
    "an unknown name": ("mars", None, "Did you mean marsrl? Installed: "),
    "no such module": ("strange_none:Mine", None, "There is no module 'strange_none'"),
    "no such class": ("strange_two:Mine", "x = 1", "found no such name"),
    "another class": ("strange_three:Mine", "class Mine: pass", "Expected a class derived from"),
    "an import that fails": (
        "strange_four:Mine",
        "import json\nvalue = json.loads('{')\n",
        "JSONDecodeError: Expecting property name",
    ),
    "an import of what is missing": (
        "strange_five:Mine",
        "import strange_package_nobody_has\n",
        "ModuleNotFoundError: No module named 'strange_package_nobody_has'",
    ),
    "half a method": (
        "strange_six:Mine",
        "from marsrl_verl.core.credit import Credit\nfrom marsrl_verl.core.method import Method\n"
        "class Half(Credit):\n    pass\nclass Mine(Method):\n    Credit = Half\n",
        "Mine.Credit = Half does not define advantages, keep.",
    ),
    "a schedule without its settings": (
        "strange_nine:Mine",
        "from marsrl_verl.core.alternation import Alternating\nfrom marsrl_verl.core.method import Method\n"
        "class Mine(Method):\n    Schedule = Alternating\n",
        "marsrl_verl.core.alternation:AlternatingConfig, which Alternating reads, found EstimatorConfig.",
    ),
    "roles that are no roles": (
        "strange_seven:Mine",
        "from marsrl_verl.core.method import Method\nclass Mine(Method):\n    roles = 'alice'\n",
        "strange_seven.py:3 (docs/guides/new_method.md)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_method_is_refused_with_the_cause(folder, case):
    target, code, said = REFUSED[case]
    if code is not None:
        (folder / f"{target.partition(':')[0]}.py").write_text(code)
    with pytest.raises(ConfigError) as refused:
        method_class(target)
    text = " ".join(str(refused.value).split())
    assert f"marsrl.algo.name = {target}" in text
    assert said in text


@pytest.mark.parametrize(
    ("target", "module", "named"),
    [
        ("strange_eight:Mine", "strange_eight.py", "strange_eight:Mine"),
        ("strange_eight.method:Mine", "strange_eight.py", "strange_eight:Mine"),
        ("strange_eight.method:Mine", "strange_eight/method.py", "strange_eight.method:Mine"),
    ],
)
def test_a_folder_of_the_modules_name_is_to_be_on_the_path(folder, monkeypatch, target, module, named):
    monkeypatch.chdir(folder)
    file = folder / "strange_eight" / module
    file.parent.mkdir(parents=True)
    file.write_text("from marsrl_verl.core.method import Method\nclass Mine(Method):\n    pass\n")
    with pytest.raises(ConfigError) as refused:
        method_class(target)
    [issue] = refused.value.problems
    assert issue.what == f"`strange_eight` is a folder here ({folder / 'strange_eight'}), not a module."
    assert issue.fix == f"Put it on PYTHONPATH: PYTHONPATH=strange_eight python … {named}"
    for name in [name for name in sys.modules if name.startswith("strange_eight")]:
        del sys.modules[name]  # as a new command begins
    monkeypatch.syspath_prepend("strange_eight")
    registry._load.cache_clear()
    assert method_class(named).__name__ == "Mine"


def test_a_folder_of_modules_is_none(folder):
    (folder / "strange_nine").mkdir()
    (folder / "strange_nine" / "method.py").write_text("")
    with pytest.raises(ConfigError, match=r"no module 'strange_nine', but a folder with modules: method\."):
        method_class("strange_nine:Mine")
