"""Configurations are composed hundreds of times, from the same files and interpolations: each is parsed once,
and what a choice of options gives is put together once. Values of the command line are set anew each time. Of
plain dictionaries nodes are made once: reading a pickled copy takes a tenth of the time.
"""

from __future__ import annotations

import copy
import functools
import marshal
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import omegaconf.base
import omegaconf.omegaconf
import pytest
import yaml
from hydra._internal import config_loader_impl
from hydra._internal.defaults_list import DefaultsList
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_omega_conf_dumper

from marsrl_verl.config.locations import config_folder, verl_folder

WITHOUT = "WITHOUT"
"""A file beside this one, in a copy of the tree without a method (`method_removal`): the name of it."""
TAKEN_AWAY = Path(__file__).with_name(WITHOUT).is_file()


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

    class Dumper(yaml.CDumper):
        """Writes as OmegaConf's own, a multiple as fast."""

        yaml_representers = get_omega_conf_dumper().yaml_representers

    def dump(data: Any, **more: Any) -> Any:
        return yaml.dump(data, **{**more, "Dumper": Dumper})

    omegaconf.omegaconf.yaml = SimpleNamespace(**{**vars(yaml), "load": load, "dump": dump})
    omegaconf.base.parse = functools.lru_cache(maxsize=None)(omegaconf.base.parse)
    _remember_nodes()
    _remember_choices()


def _remember_nodes() -> None:
    """`OmegaConf.create` puts a dictionary together from the nodes of dictionaries that it has met."""
    create = OmegaConf.create
    pickled: dict[bytes, bytes] = {}

    def node_of(tree: dict[Any, Any]) -> DictConfig:
        key = marshal.dumps(tree, 0)  # tells types apart, and takes no others than Python's own
        if key not in pickled:
            node = create({name: None if type(value) is dict else value for name, value in tree.items()})
            for name, value in tree.items():
                if type(value) is dict:
                    child = node_of(value)
                    child._set_parent(node)
                    child._set_key(name)
                    node.__dict__["_content"][name] = child
            pickled[key] = pickle.dumps(node)
        return pickle.loads(pickled[key])

    def create_remembered(obj: Any = omegaconf.omegaconf._DEFAULT_MARKER_, *args: Any, **more: Any) -> Any:
        if type(obj) is dict and not args and not more:
            try:
                return node_of(obj)
            except ValueError:  # a value of another type
                pass
        return create(obj, *args, **more)

    OmegaConf.create = staticmethod(create_remembered)


def _remember_choices() -> None:
    """Lists of options and their trees, which begin with verl's files, where all files are of the checkout or
    of installed packages."""
    create = config_loader_impl.create_defaults_list
    build = config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list
    load = config_loader_impl.ConfigLoaderImpl._load_single_config
    folders = tuple(str(folder) for folder in (config_folder(), verl_folder()))
    lists: dict[Any, DefaultsList] = {}
    trees: dict[int, bytes] = {}
    upstream: dict[tuple[str | None, ...], bytes] = {}

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
            names = tuple(one.config_path for one in defaults)
            own = names.index("marsrl_schema") if "marsrl_schema" in names else 0
            if names[:own] not in upstream:
                upstream[names[:own]] = pickle.dumps(build(loader, defaults[:own], repo))
            begun = SimpleNamespace(config=pickle.loads(upstream[names[:own]]))
            trees[id(defaults)] = pickle.dumps(build(loader, [begun, *defaults[own:]], repo))
        return pickle.loads(trees[id(defaults)])

    def loaded(loader: Any, default: Any, repo: Any) -> Any:
        return default if isinstance(default, SimpleNamespace) else load(loader, default, repo)

    config_loader_impl.create_defaults_list = list_of
    config_loader_impl.ConfigLoaderImpl._load_single_config = loaded
    config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list = tree_of


def has_presets(words: Iterable[str]) -> bool:
    """Whether the method of a command line is here: one that is taken away takes its presets with it."""
    named = (word.split("=", 1) for word in words if word.startswith(("algo=", "suite=")))
    return all((Path(config_folder()) / group / f"{preset}.yaml").is_file() for group, preset in named)


def skip_without(words: Iterable[str]) -> None:
    """Skips a test of a command line whose method is taken away."""
    if TAKEN_AWAY and not has_presets(words):
        pytest.skip("its method is taken away")
