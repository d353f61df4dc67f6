"""What the command writes is a method that runs, with a test that passes."""

from __future__ import annotations

import sys

import pytest

from marsrl_verl.commands import new_method
from marsrl_verl.config.locations import config_folder, group_options
from marsrl_verl.testing.new_method import main

OPTION = group_options([config_folder()])["algo"][0]


def test_it_runs_at_once(tmp_path, capsys):
    assert main(["my_method", "--folder", str(tmp_path)]) == 0
    assert "algo=my_method" in capsys.readouterr().out
    assert pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]) == 0
    assert "2 passed" in capsys.readouterr().out
    assert main(["my_method", "--folder", str(tmp_path)]) == 2, "nothing is overwritten"
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["My", "my-method", "_", "1st"])
def test_names_that_no_module_can_have_are_refused(tmp_path, capsys, name):
    assert main([name, "--folder", str(tmp_path)]) == 2
    assert f"name = {name}" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("class", "a word of Python"),
        ("math", "a module of Python's standard library"),
        (OPTION, f"an option of this package, algo={OPTION}"),
        ("numpy", "a module that is there already ("),
        ("recipe", "a module that is there already ("),
    ],
)
def test_names_that_are_taken_are_refused(tmp_path, capsys, monkeypatch, name, taken):
    monkeypatch.setattr(sys, "argv", ["new_method", name, "--folder", str(tmp_path)])
    assert new_method() == 2 and not list(tmp_path.iterdir())
    said = capsys.readouterr().err
    assert said.startswith(f"name = {name}: this is {taken}")
    assert said.endswith(f"choose another name, such as my_{name}\n")
