"""The run's name and folder: refused before anything starts, held while the run lasts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from messages import assert_checks_refuse, assert_message

from marsrl_verl.config.application import main
from marsrl_verl.reporting import run_lock
from marsrl_verl.reporting.curve import draw_learning_curve
from marsrl_verl.settings.issues import EXIT_WRONG_CONFIGURATION

HOLDER = "import sys; from pathlib import Path; from marsrl_verl.reporting.run_lock import acquire\n" + (
    "acquire(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("", "may not be empty"),
        ("  ", "may not be empty"),
        ("a/b", "hold a slash"),
        ("..", "hold a slash"),
        ("two\nlines", "line breaks"),
        ("\x1b[31mred", "control characters"),
        ("n" * 201, "at most 200 bytes, found 201"),
        ("é" * 101, "at most 200 bytes, found 202"),
    ],
)
def test_names_that_no_folder_or_title_can_have(checked, name, hint):
    assert_checks_refuse(checked, {"marsrl.run.name": name}, "name", hint)


@pytest.mark.parametrize("name", ["cost_$5_$7{", "n" * 200, "größe 2", "100 % (new)"])
def test_names_that_stand_in_folder_and_picture(checked, tmp_path, name):
    checked({"marsrl.run.name": name, "marsrl.run.output_dir": f"outputs/{name}"})
    draw_learning_curve(tmp_path / "curve.png", [], [], f"marsrl · {name}")
    assert (tmp_path / "curve.png").stat().st_size > 0


@pytest.mark.parametrize("parent_exists", [False, True])
def test_a_folder_that_cannot_be_used(run, tmp_path, parent_exists):
    if parent_exists:
        (tmp_path / "outputs").mkdir()
    done = run("cluster=cpu", f"marsrl.run.output_dir=outputs/{'n' * 300}")
    assert done.status == EXIT_WRONG_CONFIGURATION
    assert_message(done.err, "marsrl.run.output_dir", "File name too long")


@pytest.mark.parametrize("existing", ["fail", "resume", "replace"])
@pytest.mark.parametrize("held", ["outputs/live", "place"])
def test_a_live_run_is_refused_by_name(run, tmp_path, existing, held):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / held)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "held\n"
    arguments = ["cluster=cpu", "name=live", f"marsrl.run.if_exists={existing}"]
    done = run(*arguments, *(["trainer.default_local_dir=place"] if held == "place" else []))
    assert done.status == EXIT_WRONG_CONFIGURATION and done.launched is None
    assert f"written by process {holder.pid} on" in " ".join(done.err.split())
    holder.communicate()
    assert run(*arguments).launched is not None


def test_the_folder_is_held_while_the_run_lasts(quiet_machine, base_overrides, tmp_path):
    seen = []

    def launch(config):
        seen.append(list(run_lock.held()))
        return 0

    assert main([*base_overrides, "cluster=cpu", "name=a"], launch) == 0
    assert tmp_path / "outputs" / "a" in seen[0]
    assert tmp_path / "outputs" / "a" not in run_lock.held()
