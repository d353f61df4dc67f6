"""Locations of configuration files, ours and verl's, without importing verl (that takes 13 seconds)."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

from marsrl_verl.settings.issues import ConfigError, ConfigIssue
from marsrl_verl.version import REQUIRED_VERL

_PACKAGE = Path(__file__).resolve().parent.parent


def config_folder() -> Path:
    """The folder of our root configuration: inside the installed package, or in the checkout."""
    for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs"):
        if (folder / "marsrl.yaml").is_file():
            return folder
    raise FileNotFoundError(
        f"marsrl.yaml is neither in {_PACKAGE / 'configs'} nor in {_PACKAGE.parent / 'configs'}"
    )


@lru_cache(maxsize=1)
def verl_folder() -> Path:
    """The folder of the installed verl package; ConfigError: it is not installed."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        what = "The package verl is not installed in this environment."
        raise ConfigError([ConfigIssue("verl", what, f"pip install verl=={REQUIRED_VERL}")])
    return Path(next(iter(spec.submodule_search_locations)))


def group_options(folders: list[Path]) -> dict[str, list[str]]:
    """The groups of configuration folders and the options of each, sorted; a file that begins with an
    underscore is a part of others."""
    options: dict[str, set[str]] = {}
    for folder in folders:
        for group in sorted(path for path in folder.iterdir() if path.is_dir()):
            names = {path.stem for path in group.glob("*.yaml") if not path.name.startswith("_")}
            if names:
                options.setdefault(group.name, set()).update(names)
    return {group: sorted(names) for group, names in options.items()}
