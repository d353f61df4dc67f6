"""What is written, printed and sent of a configuration holds nobody's keys."""

from __future__ import annotations

from omegaconf import OmegaConf

from marsrl_verl.config.locations import config_folder
from marsrl_verl.config.record import HIDDEN, SHOWN_VARIABLES, recorded

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


def test_the_recorded_command_line_has_none_either():
    words = [
        "python",
        f"+{VARIABLES}.KEY=s3cr3t",
        "ray_kwargs.ray_init.runtime_env={env_vars:{KEY: s3cr3t}}",
        "name=s",
    ]
    run = {"command": words}
    node = {"ray_init": {"runtime_env": {"env_vars": {"KEY": "s3cr3t"}}}}
    found = recorded(OmegaConf.create({"marsrl": {"run": run}, "ray_kwargs": node})).marsrl.run.command
    assert found == [
        "python",
        f"+{VARIABLES}.KEY={HIDDEN}",
        f"ray_kwargs.ray_init.runtime_env={HIDDEN}",
        "name=s",
    ]


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
