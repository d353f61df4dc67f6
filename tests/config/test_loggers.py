"""Loggers that could not start are found before anything else starts."""

from __future__ import annotations

import pytest

from marsrl_verl.config.checks import loggers
from marsrl_verl.settings.issues import ConfigError

KEY = "trainer.logger"
WANDB = {KEY: ["wandb"]}


@pytest.fixture
def no_login(monkeypatch, tmp_path):
    """A home without a key of Weights & Biases; every package is there."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_CONFIG_DIR", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: object())
    return home


def test_wandb_without_a_login(checked, no_login):
    with pytest.raises(ConfigError) as caught:
        checked(WANDB)
    assert "this machine has no login" in str(caught.value) and "WANDB_MODE=offline" in str(caught.value)
    (note,) = checked(WANDB, dry_run=True).notes
    assert note.startswith("trainer.logger=wandb: Weights & Biases would ask for a key")


@pytest.mark.parametrize(
    "how", ["key", "offline", "netrc", "own server", "unreadable netrc", "settings", "ray"]
)
def test_ways_to_log_in(checked, no_login, monkeypatch, how):
    changes = dict(WANDB)
    if how == "key":
        monkeypatch.setenv("WANDB_API_KEY", "k")
    elif how == "offline":
        monkeypatch.setenv("WANDB_MODE", "offline")
    elif how == "netrc":
        (no_login / ".netrc").write_text("machine api.wandb.ai login user password k")
    elif how == "own server":
        monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
        (no_login / ".netrc").write_text("machine wandb.example.org login user password k")
    elif how == "unreadable netrc":
        (no_login / ".netrc").write_text("machine")
    elif how == "settings":
        (no_login / ".config" / "wandb").mkdir(parents=True)
        (no_login / ".config" / "wandb" / "settings").write_text("[default]\nmode = offline")
    else:
        changes["ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY"] = "k"
    checked(changes)


def test_a_login_elsewhere_is_none(checked, no_login):
    (no_login / ".netrc").write_text("machine example.org login user password k")
    with pytest.raises(ConfigError, match="no login"):
        checked(WANDB)


def test_a_missing_package_is_noted_in_a_dry_run(checked, no_login, monkeypatch):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install volcengine_ml_platform"):
        checked({KEY: ["vemlp_wandb"]})
    notes = checked({KEY: ["console", "tensorboard", "mlflow"]}, dry_run=True).notes
    assert notes == [
        f"trainer.logger={name}: The package of this logger is not installed."
        for name in ("tensorboard", "mlflow")
    ]


def test_variables_that_a_logger_reads(checked, no_login, monkeypatch):
    monkeypatch.setenv("VOLC_ACCESS_KEY_ID", "k")
    with pytest.raises(ConfigError, match="VOLC_SECRET_ACCESS_KEY, MLP_TRACKING_REGION"):
        checked({KEY: ["vemlp_wandb"]})


def test_a_table_needs_a_logger_that_takes_one(checked, no_login):
    table = {"trainer.log_val_generations": 8}
    for names in ([], ["console", "file"], ["auto"]):
        with pytest.raises(ConfigError, match="No logger of the run takes tables"):
            checked({KEY: names, **table})
    checked({KEY: ["tensorboard"], **table})
