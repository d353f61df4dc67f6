"""Files of the user's that set what the chosen method does not have: nothing of it is dropped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from messages import accepted, assert_refused

GLOBAL = "# @package _global_\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Configuration files of the user's."""
    for group in ("algo", "model", "evaluation"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    return tmp_path / "conf"


def own(folder: Path) -> tuple[str, ...]:
    return "--config-dir", str(folder), "cluster=cpu"


def test_a_preset_of_the_method_with_anothers_setting_is_refused(run, folder):
    text = f"{GLOBAL}defaults: [grpo, _self_]\nmarsrl: {{evaluation: {{correction_rounds: 2}}}}\n"
    (folder / "algo" / "mine.yaml").write_text(text)
    done = run(*own(folder), "algo=mine")
    assert_refused(
        done, "marsrl.evaluation.correction_rounds = 2", "setting of marsrl, and the method is grpo"
    )


def test_so_is_one_with_anothers_role_wherever_it_takes_it_from(run, folder):
    """Also from a file of the user's that the preset builds on."""
    base = f"{GLOBAL}defaults: [grpo, _self_]\nmarsrl: {{roles: {{verifier: {{temperature: 0.5}}}}}}\n"
    (folder / "algo" / "base.yaml").write_text(base)
    (folder / "algo" / "mine.yaml").write_text(f"{GLOBAL}defaults: [base, _self_]\n")
    assert_refused(run(*own(folder), "algo=mine"), "marsrl.roles.verifier", "Its roles: solver.")


PACKAGES = {
    "the whole tree": f"{GLOBAL}marsrl: {{evaluation: {{accept_passes: 3}}}}\n",
    "its node": "# @package marsrl.evaluation\naccept_passes: 3\n",
}


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.with_presets("grpo")
def test_what_another_file_sets_for_nothing_is_said(run, folder, package):
    (folder / "evaluation" / "mine.yaml").write_text(PACKAGES[package])
    # Named in a root configuration, not on the command line, where it would be rejected.
    (folder / "root.yaml").write_text("defaults: [marsrl, override algo: grpo, override evaluation: mine]\n")
    done = accepted(run, *own(folder), "--config-name", "root")
    assert done.out.count("has no effect") == 1
    assert (
        f"warning: {folder}/evaluation/mine.yaml: marsrl.evaluation.accept_passes has no effect." in done.out
    )
    assert "accept_passes" not in done.launched.marsrl.evaluation


def test_the_plan_says_it_too(run, folder):
    roles = "{verifier: {max_new_tokens: 9, top_p: 0.9}, default: {top_p: 0.9}}"
    text = f"{GLOBAL}defaults: [tiny, _self_]\nmarsrl: {{roles: {roles}}}\n"
    (folder / "model" / "mine.yaml").write_text(text)
    words = ("model=mine", "actor_rollout_ref.rollout.top_p=0.9", "dry_run=true")
    done = accepted(run, *own(folder), "algo=grpo", *words)
    said = f"  ! {folder}/model/mine.yaml: marsrl.roles.verifier has no effect. The method has no such role."
    assert done.text.count(said.strip()) == 1
    done = run(*own(folder), "model=mine", *words)
    assert done.status == 0 and "has no effect" not in done.out, "the usual method has this role"


def test_what_says_nothing_of_it_is_no_warning(run, folder):
    text = f"{GLOBAL}marsrl: {{evaluation: {{correction_rounds: 0, reject_fails: null, greedy: false}}}}\n"
    (folder / "model" / "mine.yaml").write_text(f"{text}defaults: [tiny, _self_]\n")
    done = run(*own(folder), "algo=grpo", "model=mine")
    assert (done.status, done.err) == (0, "") and "has no effect" not in done.out


def test_presets_of_the_package_are_for_several_methods(run):
    done = run("cluster=cpu", "algo=grpo")
    assert (done.status, done.err) == (0, "") and "has no effect" not in done.out
