"""Configurations are composed hundreds of times, from the same files and interpolations: each is parsed once,
and what a choice of options gives is put together once. Values of the command line are set anew each time.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import omegaconf.base
import omegaconf.omegaconf
import yaml
from hydra._internal import config_loader_impl
from hydra._internal.defaults_list import DefaultsList

from marsrl_verl.config.locations import config_folder, verl_folder


def remember_what_is_read() -> None:
    """For this process."""
    parsed: dict[str, Any] = {}

    def load(stream: Any, Loader: type) -> Any:
        text = stream if isinstance(stream, str) else stream.read()
        if text not in parsed:
            if stream is not text:
                stream.seek(0)  # a message names the stream
            parsed[text] = yaml.load(stream, Loader)
        return copy.deepcopy(parsed[text])

    omegaconf.omegaconf.yaml = SimpleNamespace(**{**vars(yaml), "load": load})
    omegaconf.base.parse = functools.lru_cache(maxsize=None)(omegaconf.base.parse)
    _remember_choices()


def _remember_choices() -> None:
    """Lists of options and their trees, where all files are of the checkout or of installed packages."""
    create = config_loader_impl.create_defaults_list
    build = config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list
    folders = tuple(str(folder) for folder in (config_folder(), verl_folder()))
    lists: dict[Any, DefaultsList] = {}
    trees: dict[int, Any] = {}

    def list_of(repo: Any, config_name: Any, overrides_list: Sequence[Any], **more: Any) -> DefaultsList:
        sources = [source for source in repo.get_sources() if source.scheme() == "file"]
        groups = [one for one in overrides_list if repo.group_exists(one.key_or_group)]
        plain = all(isinstance(one.value(), str) and not one.is_sweep_override() for one in groups)
        if not plain or not all(one.path.startswith(folders) for one in sources):
            return create(repo, config_name, overrides_list, **more)
        key = config_name, *(one.input_line for one in groups), *(one.path for one in sources)
        if key not in lists:
            lists[key] = create(repo, config_name, groups, **more)
        values = [one for one in overrides_list if one not in groups]
        return replace(lists[key], config_overrides=values)

    def tree_of(loader: Any, defaults: Any, repo: Any) -> Any:
        if not any(defaults is known.defaults for known in lists.values()):
            return build(loader, defaults, repo)
        if id(defaults) not in trees:
            trees[id(defaults)] = build(loader, defaults, repo)
        return copy.deepcopy(trees[id(defaults)])

    config_loader_impl.create_defaults_list = list_of
    config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list = tree_of
