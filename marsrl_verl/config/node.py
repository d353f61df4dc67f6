"""The `marsrl` node of a configuration: what the chosen method adds to it, what is wrong with it, its values.

`marsrl.algo` and `marsrl.evaluation` have the settings of the method (`core.method.Method`), entries of
`marsrl.tools` those of their classes; the rest is in `config.schema`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from marsrl_verl.algos.registry import KEY as METHOD_KEY
from marsrl_verl.algos.registry import installed_methods, method_class
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.method import Method
from marsrl_verl.core.prompts import target_of
from marsrl_verl.rollout.external.config import PolicyConfig
from marsrl_verl.settings.declaration import UNSET, MethodConfig, RewardSpec, RoleSampling, Settings
from marsrl_verl.settings.evaluation import EvaluationConfig
from marsrl_verl.settings.issues import NO_VALUE, ConfigError, ConfigIssue, did_you_mean
from marsrl_verl.settings.reading import converted, defaults, find_issues, unknown_key
from marsrl_verl.tools.base import ToolConfig
from marsrl_verl.tools.registry import tool_config

UnknownKey = Callable[[str, tuple[str, ...]], ConfigIssue]
"""The message for a key that does not exist, from it and its siblings."""


def node_issues(
    node: dict[str, Any], *, kinds_only: bool = False, unknown: UnknownKey | None = None
) -> list[ConfigIssue]:
    """Problems of the `marsrl` node, `marsrl.algo` by the class of its method; interpolations are not looked
    at.

    Args:
        kinds_only: only unknown keys and values of the wrong kind.
        unknown: the message for a key that does not exist.
    """
    issues = find_issues(MarsRLConfig, _shared(node), "marsrl", kinds_only=kinds_only, unknown=unknown)
    for name, entry in _tools(node).items():
        try:
            kind: type[Settings] = tool_config(name, entry)
        except ConfigError as error:
            issues += error.problems
            continue
        key = f"marsrl.tools.{name}"
        issues += find_issues(kind, dict(entry), key, kinds_only=kinds_only, unknown=unknown)
    try:
        cls = chosen_method(node.get("algo"))
    except ConfigError as error:
        return [*error.problems, *issues]
    roles = tuple(cls.roles)
    issues += [
        unknown_role(f"marsrl.{name}.{role}", str(role), roles)
        for name in BY_ROLE
        if isinstance(entries := node.get(name), Mapping)
        for role in entries
        if role not in (*roles, DEFAULT)
    ]

    def not_of_method(key: str, siblings: tuple[str, ...]) -> ConfigIssue:
        issue = (unknown or unknown_key)(key, siblings)
        return other_methods_setting(key, node) if _having(key) else issue

    for name, kind in method_nodes(cls).items():
        key, own = f"marsrl.{name}", node.get(name, {})
        issues += find_issues(kind, own, key, kinds_only=kinds_only, unknown=not_of_method)
    return issues


def other_methods_setting(key: str, node: Mapping[str, Any], value: Any = NO_VALUE) -> ConfigIssue:
    """A setting that other methods have."""
    having, name = _having(key), node["algo"]["name"]
    what = f"It is a setting of {', '.join(having)}, and the method is {name}."
    fix = f"Leave it out, or choose {'that' if len(having) == 1 else 'another'} method (group algo)."
    return ConfigIssue(key, what, fix, value)


def method_nodes(method: type[Method]) -> dict[str, type[Settings]]:
    """Nodes that a method declares."""
    return {"algo": method.Config, "evaluation": method.Evaluation}


BY_ROLE: dict[str, type[Settings]] = {"roles": RoleSampling, "reward": RewardSpec}
"""Nodes that have an entry for each role of the method."""
DEFAULT = "default"
"""Name in presets of an entry for all roles."""
BY_NAME: dict[str, type[Settings]] = {**BY_ROLE, "policies": PolicyConfig, "tools": ToolConfig}
"""Nodes of entries."""


def _tools(node: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The entries of `marsrl.tools` that say whose settings they are."""
    tools = node.get("tools")
    entries = tools.items() if isinstance(tools, Mapping) else ()
    return {
        str(name): one
        for name, one in entries
        if isinstance(one, Mapping) and "${" not in str(one.get("target"))
    }


def _shared(node: Mapping[str, Any]) -> dict[str, Any]:
    """The node without the settings of method and tools: of `marsrl.tools` with what is no entry at all. (A
    target that is not resolved yet says nothing.)"""
    tools = node.get("tools", {})
    if isinstance(tools, Mapping):
        tools = {name: one for name, one in tools.items() if not isinstance(one, Mapping)}
    return {**node, "algo": MethodConfig(name=""), "evaluation": EvaluationConfig(), "tools": tools}


def unknown_role(key: str, role: str, roles: tuple[str, ...]) -> ConfigIssue:
    """An entry for a role that the method does not have."""
    near = did_you_mean(role, roles)
    guess = f"Did you mean {near[0]}? " if near else ""
    return ConfigIssue(key, "The method has no such role.", f"{guess}Its roles: {', '.join(roles)}.")


def with_defaults(node: dict[str, Any]) -> dict[str, Any]:
    """The node with what its method adds: its settings, its evaluation's, its prompts, and an entry for each
    of its roles. What presets for several methods say of other installed methods' roles and evaluations, and
    of settings that several of them share, is left out."""
    method = chosen_method(node["algo"])
    foreign, filled = foreign_settings(method), dict(node)
    for name, kind in method_nodes(method).items():
        if isinstance(specified := node.get(name, {}), dict):
            filled[name] = _filled(defaults(kind), _without(specified, foreign, f"marsrl.{name}."))
    if isinstance(specified := node.get("prompts", {}), dict) and specified.get("target", UNSET) == UNSET:
        filled["prompts"] = {**specified, "target": target_of(method.Prompts)}
    roles = tuple(method.roles)
    others = {role for one in installed_classes() for role in one.roles} - set(roles)
    for name, kind in BY_ROLE.items():
        specified = node.get(name, {})
        if not isinstance(specified, dict):
            continue  # the message about its kind comes later
        common = _filled(defaults(kind), specified.get(DEFAULT, {}))
        if not isinstance(common, dict):
            continue  # likewise
        own = {role: one.reward for role, one in method.roles.items() if name == "reward" and one.reward}
        role_defaults = {
            role: {**defaults(kind), "target": own[role]} if role in own else common for role in roles
        }
        entries = {role: _filled(role_defaults[role], specified.get(role, {})) for role in roles}
        left = {*entries, *others, DEFAULT}
        filled[name] = {**entries, **{role: one for role, one in specified.items() if role not in left}}
    if isinstance(specified := node.get("policies", {}), dict):
        filled["policies"] = {name: _filled(defaults(PolicyConfig), one) for name, one in specified.items()}
    if given_tools := _tools(node):
        kinds = {name: tool_config(name, one) for name, one in given_tools.items()}
        tools = {name: _filled(defaults(kinds[name]), dict(one)) for name, one in given_tools.items()}
        filled["tools"] = {**node["tools"], **tools}
    return filled


def foreign_settings(method: type[Method]) -> dict[str, Any]:
    """Settings that presets for several methods may have and this method does not, with their defaults, by
    dotted keys: those of any other installed method's evaluation, and those of `marsrl.algo` that two or more
    of the others share."""
    found: dict[str, Any] = {}
    others = [other for other in installed_classes() if other is not method]
    for name, least in (("evaluation", 1), ("algo", 2)):
        kind = method_nodes(method)[name]
        own = {*dict(leaves(defaults(kind))), *kind.model_fields}
        theirs = [dict(leaves(defaults(method_nodes(other)[name]))) for other in others]
        having = Counter(key for settings in theirs for key in settings if key not in own)
        values = {key: value for settings in reversed(theirs) for key, value in settings.items()}
        found |= {f"marsrl.{name}.{key}": values[key] for key, count in having.items() if count >= least}
    return found


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested dictionaries by its dotted key, which `key` begins."""
    if isinstance(node, dict) and (node or not key):
        for name, value in node.items():
            yield from leaves(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def dropped_settings(node: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, by dotted keys, that `with_defaults` leaves out of the nodes that a method declares."""
    method = chosen_method(node["algo"])
    nodes = {name: node.get(name) for name in method_nodes(method)}
    foreign = foreign_settings(method)
    return {key: value for key, value in leaves(nodes, "marsrl") if key in foreign}


def _without(node: dict[str, Any], keys: Collection[str], prefix: str) -> dict[str, Any]:
    """The node without these keys, and without nodes of which they are all."""
    remaining = {}
    for name, value in node.items():
        if isinstance(value, dict) and value:
            value = _without(value, keys, f"{prefix}{name}.")
            if not value:
                continue
        if f"{prefix}{name}" not in keys:
            remaining[name] = value
    return remaining


def _filled(values: dict[str, Any], node: Any) -> Any:
    """A node with the default values of what it leaves out."""
    if not isinstance(node, dict):
        return node
    return {
        name: _filled(value, node[name])
        if isinstance(value, dict) and name in node
        else node.get(name, value)
        for name, value in {**node, **values}.items()
    }


def installed_classes() -> Iterator[type[Method]]:
    """The installed methods that can be imported: only a run that names somebody's broken package need know
    of it."""
    for name in installed_methods():
        try:
            yield method_class(name)
        except ConfigError:
            continue


def _having(key: str) -> list[str]:
    """The installed methods that have a setting of this key."""
    _, node, name = key.split(".", 2)
    return [
        method.Config.model_fields["name"].default
        for method in installed_classes()
        if any(f"{one}.".startswith(f"{name}.") for one, _ in leaves(defaults(method_nodes(method)[node])))
    ]


def chosen_method(algo: Any) -> type[Method]:
    """The class of the method that a `marsrl.algo` node names; ConfigError: none, or none that can be had."""
    name = algo.get("name") if isinstance(algo, Mapping) else None
    if name is None:
        fix = f"Choose algo=…, or set {METHOD_KEY} to an installed method or package.module:Class."
        raise ConfigError([ConfigIssue(METHOD_KEY, "No method is named.", fix, name)])
    return method_class(name)


def converted_node(node: dict[str, Any]) -> dict[str, Any]:
    """The node with its values as the fields' types have them, interpolations as written; `node_issues` found
    nothing about their kinds."""
    kinds = method_nodes(chosen_method(node["algo"]))
    own = {name: converted(kind, node[name]) for name, kind in kinds.items()}
    if tools := _tools(node):
        ours = {name: converted(tool_config(name, one), dict(one)) for name, one in tools.items()}
        own["tools"] = {**node["tools"], **ours}
    return {**converted(MarsRLConfig, _shared(node)), **own}


def read_settings(node: dict[str, Any]) -> MarsRLConfig:
    """The `marsrl` node of a resolved configuration, typed; ConfigError with everything that is wrong."""
    if issues := node_issues(node):
        raise ConfigError(issues)
    node = with_defaults(node)
    kinds = method_nodes(chosen_method(node["algo"]))
    own: dict[str, Any] = {name: kind.model_validate(node[name]) for name, kind in kinds.items()}
    own["tools"] = {name: tool_config(name, one).model_validate(one) for name, one in _tools(node).items()}
    return MarsRLConfig.model_validate({**node, **own})
