"""Checks of where metrics go beside `metrics.jsonl`."""

from __future__ import annotations

import importlib.util
import netrc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from omegaconf import OmegaConf

from marsrl_verl.config.checks.context import Context, check_choice
from marsrl_verl.config.upstream_names import loggers
from marsrl_verl.settings.issues import ConfigIssue

_KEY, _TABLE = "trainer.logger", "trainer.log_val_generations"
_WITH_TABLES = {"wandb", "vemlp_wandb", "swanlab", "mlflow", "trackio", "clearml", "tensorboard"}
"""Those of verl's loggers that its `ValidationGenerationsLogger` supports."""
AUTO = "auto"
"""Value in place of names: `default_loggers`, chosen where the trainer starts."""
_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
_SAME_NAME = ("wandb", "mlflow", "swanlab", "clearml", "trackio", "tensorboard", "rl_insight")
_PACKAGES = {**{name: name for name in _SAME_NAME}, "vemlp_wandb": "volcengine_ml_platform"}
"""Loggers that need a package, and what is imported."""
_NEEDED = {"vemlp_wandb": ("VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY", "MLP_TRACKING_REGION")}


def check_loggers(ctx: Context) -> list[ConfigIssue]:
    """Names, packages and logins. A dry run, which may be made on another machine, notes what is missing."""
    names = [str(name) for name in ctx.get(_KEY) or []]
    if names == [AUTO]:
        names = default_loggers(os.environ)
    if issue := _no_table(ctx, names):
        return [issue]
    if ctx.get(_KEY) == [AUTO]:
        return []
    if problems := [problem for name in names for problem in check_choice(_KEY, name, loggers())]:
        return problems
    configured = OmegaConf.select(ctx.config, _VARIABLES) or {}
    environment = {**os.environ, **{str(name): str(value) for name, value in configured.items()}}
    problems = [problem for name in names for problem in _check(name, environment)]
    if not ctx.dry_run:
        return problems
    ctx.notes += [f"{_KEY}={problem.value}: {problem.what}" for problem in problems]
    return []


def _no_table(ctx: Context, names: Sequence[str]) -> ConfigIssue | None:
    """A table of runs that no logger takes."""
    if not ctx.get(_TABLE) or set(names) & _WITH_TABLES:
        return None
    what = f"No logger of the run takes tables: {', '.join(names) or 'it has none'}."
    fix = f"Leave it out, or name one of {', '.join(sorted(_WITH_TABLES))} in {_KEY}."
    return ConfigIssue(_TABLE, what, fix, ctx.get(_TABLE))


def default_loggers(environment: Mapping[str, str]) -> list[str]:
    """verl's default where nobody names loggers: wandb, if it can start; its other one, the console, prints
    what the progress shows."""
    off = environment.get("WANDB_MODE", "").lower() == "disabled"
    return [] if off or _check("wandb", environment) else ["wandb"]


def _check(name: str, environment: Mapping[str, str]) -> list[ConfigIssue]:
    package = _PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        what = "The package of this logger is not installed."
        return [ConfigIssue(_KEY, what, f"pip install {package}", name)]
    if missing := [variable for variable in _NEEDED.get(name, ()) if not environment.get(variable)]:
        what = f"This logger reads {', '.join(missing)} from the environment, and they are not set."
        return [ConfigIssue(_KEY, what, "Set them before the start.", name)]
    if name == "wandb" and not _wandb_can_start(environment):
        what = "Weights & Biases would ask for a key: this machine has no login."
        fix = "Run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline to write into the run's folder."
        return [ConfigIssue(_KEY, what, fix, name)]
    return []


def _wandb_can_start(environment: Mapping[str, str]) -> bool:
    """True if wandb needs no key or finds one where it looks, and also where that can't be told."""
    key = environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE")
    if key or environment.get("WANDB_MODE", "").lower() in ("offline", "disabled", "dryrun"):
        return True
    home = Path(environment.get("HOME") or Path.home())
    settings = Path(environment.get("WANDB_CONFIG_DIR") or home / ".config" / "wandb") / "settings"
    if any(path.is_file() and path.stat().st_size > 0 for path in (settings, Path("wandb/settings"))):
        return True  # they may name a mode or a server of its own
    host = urlsplit(environment.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    named = environment.get("NETRC")
    for place in [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]:
        try:
            if place.is_file() and netrc.netrc(str(place)).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            return True
    return False
