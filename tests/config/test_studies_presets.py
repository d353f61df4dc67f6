"""Presets that name modules of `studies`, a folder that an installed package does not have."""

from __future__ import annotations

import re
import sys

import pytest
import yaml
from messages import assert_refused

from marsrl_verl.config.application import main
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.config.locations import config_folder
from marsrl_verl.settings.issues import ConfigError
from studies.assets import model_path

OF_STUDIES = sorted(
    f"{path.parent.name}={path.stem}"
    for path in config_folder().glob("*/*.yaml")
    if re.search(r"\bstudies\.", str(yaml.safe_load(path.read_text())))
)


@pytest.fixture
def installed_alone(quiet_machine, monkeypatch):
    """No module of `studies` can be imported."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "studies":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "studies", None)


def message(*words: str) -> str:
    """Why a command line is rejected, spaces made single."""
    with pytest.raises(ConfigError) as refused:
        compose_config(parse_arguments([*words, "cluster=cpu"]))
    assert str(refused.value).count("fix:") == 1
    return " ".join(str(refused.value).split())


def test_toy_tasks_are_known_by_their_presets():
    assert {
        "model=tiny_careless_errors",
        "data=careless_errors",
        "data=tool_task",
        "model=smollm2_roles",
    } <= {*OF_STUDIES}
    assert not {"model=tiny", "data=tiny", "model=smollm2", "data=word_problems"} & {*OF_STUDIES}


@pytest.mark.parametrize("preset", OF_STUDIES)
def test_without_studies_a_preset_says_where_its_files_are(installed_alone, preset, caplog):
    text = message(preset)
    assert f" {preset} It needs the folder `studies`, which comes with a clone of the repository" in text
    assert "not with the installed package: studies." in text
    assert "Give the command in the folder of a clone" in text and "model=tiny data=tiny" in text
    assert caplog.records == [], "and nobody else says anything"


def test_all_presets_are_in_one_message(installed_alone):
    text = message("model=tiny_careless_errors", "data=careless_errors")
    assert "data=careless_errors model=tiny_careless_errors It needs the folder" in text
    assert "studies.assets, studies.toy_tasks.careless_errors" in text
    assert "in actor_rollout_ref.model.path, data.train_files" in text


def test_a_class_of_studies_is_named_by_its_key(run, installed_alone):
    done = run(
        "marsrl.prompts.target=studies.toy_tasks.careless_errors.prompts:CarelessPrompts", "cluster=cpu"
    )
    assert_refused(done, "marsrl.prompts.target", "studies.toy_tasks.careless_errors.prompts")


def test_the_demo_needs_no_studies(installed_alone):
    assert main(["name=demo", "cluster=cpu", "dry_run=true"], lambda config: 1) == 0


def test_a_package_of_the_users_may_have_that_name(run, installed_alone, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "studies")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "__init__.py").touch()
    (tmp_path / "studies" / "own.py").write_text(
        "from marsrl_verl.demo.prompts import TinyPrompts\nclass Own(TinyPrompts): pass\n"
    )
    assert run("marsrl.prompts.target=studies.own:Own", "cluster=cpu", "dry_run=true").status == 0
    assert " model=tiny_careless_errors It needs the folder `studies`" in message(
        "model=tiny_careless_errors"
    )


def test_a_clone_has_them(quiet_machine):
    config = compose_config(
        parse_arguments(["model=tiny_careless_errors", "data=careless_errors", "cluster=cpu"])
    ).config
    assert config.actor_rollout_ref.model.path == model_path("careless_errors")
