"""What is written, printed and sent of a configuration holds nobody's keys, and the command."""

from __future__ import annotations

import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from marsrl_verl.config.application import _command
from marsrl_verl.config.command_line import EVALUATE, TRAIN
from marsrl_verl.config.locations import config_folder
from marsrl_verl.reporting.record import HIDDEN, SHOWN_VARIABLES, recorded

VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
SECRET = "s3cr3t-of-mine"
ARGUMENTS = (
    "cluster=cpu",
    f"+{VARIABLES}.MY_KEY={SECRET}",
    "+ray_kwargs.ray_init._redis_password=s3cr3t-too",
)


def test_values_of_variables_are_left_out_and_the_names_and_presets_stay(run):
    config = run(*ARGUMENTS).launched
    text = OmegaConf.to_yaml(recorded(config))
    assert "s3cr3t" not in text and f"MY_KEY: {HIDDEN}" in text and "VERL_PLATFORM: cpu" in text
    assert config.ray_kwargs.ray_init.runtime_env.env_vars.MY_KEY == SECRET, "the run gets it"


@pytest.mark.parametrize(
    ("word", "written"),
    [
        (f"+{VARIABLES}.KEY=4567e12", f"+{VARIABLES}.KEY={HIDDEN}"),
        (f"++{VARIABLES}.KEY=1_000_777", f"++{VARIABLES}.KEY={HIDDEN}"),
        (f"{VARIABLES}.KEY=se\\,cret", f"{VARIABLES}.KEY={HIDDEN}"),
        (f"{VARIABLES}.KEY='a=b'", f"{VARIABLES}.KEY={HIDDEN}"),
        (f"{VARIABLES}.NCCL_IB_DISABLE=1", f"{VARIABLES}.NCCL_IB_DISABLE={HIDDEN}"),
        (f"{VARIABLES}={{KEY: secret}}", f"{VARIABLES}={{}}"),
        ("ray_kwargs.ray_init.runtime_env={env_vars:{KEY: secret}}", "ray_kwargs.ray_init.runtime_env={}"),
        ("ray_kwargs={ray_init:{_redis_password: secret}}", "ray_kwargs={}"),
        ("+ray_kwargs.ray_init._redis_password=secret", f"+ray_kwargs.ray_init._redis_password={HIDDEN}"),
        (f"~{VARIABLES}.KEY=secret", f"~{VARIABLES}.KEY"),
        # What holds no variable's value stays, also where the same characters are in it.
        (f"{VARIABLES}.VERL_PLATFORM=cpu", None),
        ("ray_kwargs.ray_init.num_cpus=16", None),
        ("ray_kwargs.ray_init.address=10.0.0.1:6379", None),
        ("+ray_kwargs.ray_init.runtime_env.working_dir=/a", None),
        ("name=secret", None),
        (f"~{VARIABLES}.KEY", None),
        ("python", None),
    ],
)
def test_words_of_the_command_line_are_hidden_by_their_keys(word, written):
    run = {"command": ["python", word, f"+{VARIABLES}.OTHER=1"]}
    found = recorded(OmegaConf.create({"marsrl": {"run": run}})).marsrl.run.command
    assert found[1] == (word if written is None else written)
    if "=" in found[1] and word != "python":
        OverridesParser.create().parse_override(found[1])


def test_plan_and_printed_configuration(run, tmp_path):
    assert "s3cr3t" not in run(*ARGUMENTS, "--cfg", "job").out
    done = run(*ARGUMENTS, "dry_run=true", "name=plan")
    assert done.status == 0 and "s3cr3t" not in done.out
    assert "s3cr3t" not in (tmp_path / "outputs" / "plans" / "plan.yaml").read_text()


def test_shown_variables_are_those_of_the_presets():
    found = set()
    for path in config_folder().rglob("*.yaml"):
        found |= set(OmegaConf.select(OmegaConf.load(path), VARIABLES) or ())
    assert found == SHOWN_VARIABLES


def test_the_command_is_the_one_that_was_typed(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    typed = ["/venv/bin/python", "-m", "recipe.marsrl.main_marsrl", "name=a b", "cluster=cpu"]
    monkeypatch.setattr(sys, "orig_argv", typed)
    assert _command(["name=a b", "cluster=cpu"], TRAIN) == typed
    monkeypatch.setattr(sys, "orig_argv", typed[:3])
    assert _command([], TRAIN) == typed[:3]
    monkeypatch.setenv("PYTHONPATH", "mine")
    assert _command([], TRAIN) == ["PYTHONPATH=mine", *typed[:3]]


def test_elsewhere_it_is_the_recipes(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for program in (TRAIN, EVALUATE):
        assert _command(["name=x"], program) == [*program.split(), "name=x"]


def test_a_launched_run_has_it(run):
    done = run("cluster=cpu")
    assert done.launched.marsrl.run.command[-1] == "cluster=cpu"
