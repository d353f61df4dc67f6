"""What the command writes is a method that runs, with a test that passes."""

from __future__ import annotations

import pytest

from marsrl_verl.testing.new_method import main


def test_it_runs_at_once(tmp_path, capsys):
    assert main(["my_method", "--folder", str(tmp_path)]) == 0
    assert "algo=my_method" in capsys.readouterr().out
    assert pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]) == 0
    assert "2 passed" in capsys.readouterr().out
    assert main(["my_method", "--folder", str(tmp_path)]) == 2, "nothing is overwritten"
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["My", "my-method", "class", "1st"])
def test_names_that_no_module_can_have_are_refused(tmp_path, capsys, name):
    assert main([name, "--folder", str(tmp_path)]) == 2
    assert f"name = {name}" in capsys.readouterr().err and not list(tmp_path.iterdir())
