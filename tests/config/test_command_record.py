"""The command line that started a run goes with its configuration."""

from __future__ import annotations

import sys

from marsrl_verl.config.application import _command


def test_the_command_is_the_one_that_was_typed(monkeypatch):
    typed = ["/venv/bin/python", "-m", "recipe.marsrl.main_marsrl", "name=a b", "cluster=cpu"]
    monkeypatch.setattr(sys, "orig_argv", typed)
    assert _command(["name=a b", "cluster=cpu"]) == typed
    monkeypatch.setattr(sys, "orig_argv", typed[:3])
    assert _command([]) == typed[:3]


def test_elsewhere_it_is_the_recipes():
    assert _command(["name=x"]) == ["python", "-m", "recipe.marsrl.main_marsrl", "name=x"]


def test_a_launched_run_has_it(run):
    done = run("cluster=cpu")
    assert done.launched.marsrl.run.command[-1] == "cluster=cpu"
