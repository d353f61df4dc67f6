"""Former names of settings: read with a note, on the command line and in files."""

from __future__ import annotations

import pytest
from messages import accepted, assert_refused
from omegaconf import OmegaConf

from marsrl_verl.algos.registry import installed_methods, method_class
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.config.reference import find_unknown
from marsrl_verl.config.renamed import RENAMED, RENAMED_VALUES, rename_settings
from marsrl_verl.settings.reading import defaults
from marsrl_verl.tools.base import ToolConfig
from marsrl_verl.tools.python.config import PythonConfig


def composed(*words):
    return compose_config(parse_arguments(["cluster=cpu", *words]))


def has(kind, key):
    return OmegaConf.select(OmegaConf.create(defaults(kind)), key, default="absent") != "absent"


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_the_former_name_is_gone_and_the_new_one_exists(old, new):
    name = old.rpartition(".")[2]
    if old.startswith("marsrl.tools."):
        kind = PythonConfig if "@python" in old else ToolConfig
        assert has(kind, new) and not has(kind, name)
    elif old.startswith("marsrl.algo."):
        kinds = [method_class(one).Config for one in installed_methods()]
        having = [has(kind, new.removeprefix("marsrl.algo.")) for kind in kinds]
        assert not any(has(kind, old.removeprefix("marsrl.algo.")) for kind in kinds)
        assert any(having) == (("rema" if "guards" in old else "attnrl") in installed_methods())
    else:
        assert find_unknown(old) is not None and find_unknown(new) is None


def test_on_the_command_line():
    found = composed("marsrl.run.existing=replace", "marsrl.run.cluster_wait=600")
    assert found.config.marsrl.run.if_exists == "replace" and found.config.marsrl.run.cluster_wait_s == 600
    assert found.notes[0].startswith("marsrl.run.existing is named marsrl.run.if_exists now")
    assert len(found.notes) == 2


@pytest.mark.with_presets("attnrl")
def test_settings_of_a_method_with_their_values():
    found = composed("algo=attnrl", "marsrl.algo.shortfall=apart", "marsrl.algo.top_share=0.1")
    assert found.config.marsrl.algo.on_too_few == "spread" and found.config.marsrl.algo.top_frac == 0.1
    assert "shortfall" not in found.config.marsrl.algo and len(found.notes) == 2
    assert set(RENAMED_VALUES) <= set(RENAMED.values())


@pytest.mark.with_presets("arpo")
def test_settings_of_tools_by_their_kind(run):
    tool = "marsrl.tools.my_python"
    words = ("algo=arpo", f"+{tool}.target=python", f"{tool}.warm=2", f"{tool}.places=3")
    found = composed(*words).config.marsrl.tools.my_python
    assert (found.prewarmed, found.max_concurrency) == (2, 3)
    other = ("algo=arpo", "+marsrl.tools.my_search.target=search", "marsrl.tools.my_search.warm=2")
    assert_refused(run("cluster=cpu", *other), "marsrl.tools.my_search.warm", "There is no such key.")


@pytest.mark.with_presets("grpo", "attnrl")
def test_in_files_where_the_command_line_has_the_last_word(run, tmp_path):
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [attnrl, _self_]\n"
        "marsrl: {run: {existing: replace}, algo: {keep_unbranched: false, num_branch_points: 3}}\n"
    )
    own = ("--config-dir", str(tmp_path), "algo=mine")
    found = composed(*own)
    algo, notes = found.config.marsrl.algo, " ".join(found.notes)
    assert found.config.marsrl.run.if_exists == "replace" and algo.train_unbranched is False
    assert "marsrl.algo.keep_unbranched is named" in notes and "marsrl.run.existing is named" in notes
    assert composed(*own, "marsrl.algo.train_unbranched=true").config.marsrl.algo.train_unbranched is True
    done = accepted(run, *own, "cluster=cpu", "dry_run=true")
    assert "marsrl.run.existing is named marsrl.run.if_exists now" in done.text


@pytest.mark.with_presets("grpo", "attnrl")
def test_both_names_or_another_methods_are_refused(run):
    both = ("marsrl.algo.shortfall=apart", "marsrl.algo.on_too_few=fill")
    done = run("cluster=cpu", "algo=attnrl", *both)
    assert_refused(done, "marsrl.algo.shortfall", "is named marsrl.algo.on_too_few now")
    assert_refused(run("cluster=cpu", "algo=grpo", both[0]), "marsrl.algo.shortfall", "")


@pytest.mark.with_presets("grpo", "attnrl")
def test_dictionaries_count_as_the_settings_in_them(run, tmp_path):
    (tmp_path / "algo").mkdir()
    text = "marsrl: {run: {existing: resume}, algo: {shortfall: apart}}"
    (tmp_path / "algo" / "mine.yaml").write_text(f"# @package _global_\ndefaults: [attnrl, _self_]\n{text}\n")
    words = ("marsrl.run={if_exists: fail}", "marsrl.algo.on_too_few=fill")
    found = composed("--config-dir", str(tmp_path), "algo=mine", *words).config.marsrl
    assert (found.run.if_exists, found.algo.on_too_few) == ("fail", "fill")
    done = run("cluster=cpu", "algo=attnrl", "marsrl.algo.shortfall=[apart]")
    assert_refused(done, "marsrl.algo.on_too_few", "")
    done = run("cluster=cpu", "marsrl.run={existing: resume}")
    assert_refused(done, "marsrl.run.existing", "It is named marsrl.run.if_exists now.")
    both = ("marsrl.run.existing=replace", "marsrl.run.if_exists=fail")
    assert_refused(run("cluster=cpu", *both), "marsrl.run.existing", "is named marsrl.run.if_exists now")


@pytest.mark.with_presets("grpo", "attnrl")
def test_records_of_earlier_runs():
    config = composed("algo=attnrl").config
    old = OmegaConf.create(OmegaConf.to_container(config))
    old.marsrl.run.existing = old.marsrl.run.pop("if_exists")
    old.marsrl.algo.shortfall = old.marsrl.algo.pop("on_too_few")
    assert len(rename_settings(old, ())) == 2
    assert old == config


@pytest.mark.with_presets("attnrl")
def test_a_run_of_before_goes_on(run, tmp_path):
    """Of the settings that a checkpoint is bound to, some had other names in its record."""
    words = ("cluster=cpu", "algo=attnrl", "name=old", "marsrl.run.if_exists=resume")
    config = OmegaConf.create(OmegaConf.to_container(accepted(run, *words).launched))
    folder = tmp_path / "outputs" / "old"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text('{"format_version": 1}')
    (folder / "metrics.jsonl").write_text("{}\n")
    for key in ("train_unbranched", "on_too_few"):
        former = next(old for old, new in RENAMED.items() if new == f"marsrl.algo.{key}")
        OmegaConf.update(config, former, config.marsrl.algo.pop(key), force_add=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    accepted(run, *words)
    assert_refused(run(*words, "marsrl.algo.on_too_few=repeat"), "marsrl.algo.on_too_few", "has fill")
