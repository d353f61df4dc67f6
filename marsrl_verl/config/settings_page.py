"""The reference of all settings, `docs/reference/settings.md`, from their declarations.

python -m marsrl_verl.config.settings_page > docs/reference/settings.md
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from typing import Any

from marsrl_verl.algos.registry import installed_methods, method_class
from marsrl_verl.config.node import BY_NAME, BY_ROLE
from marsrl_verl.config.schema import MarsRLConfig, RootSettings
from marsrl_verl.settings.declaration import UNSET, MethodConfig, Settings
from marsrl_verl.settings.evaluation import EvaluationConfig
from marsrl_verl.settings.reading import Declared, declared
from marsrl_verl.tools.registry import installed_tools

_HEAD = """\
# Settings

Generated from the declarations by `python -m marsrl_verl.config.settings_page`. A value of another kind or
out of its range is rejected before anything starts, and so is a key that does not exist. All other keys are
verl's ([coming from verl](../guides/from_verl.md)).
"""
_TABLE_HEAD = ("| key | takes | default | |", "|---|---|---|---|")


def page(methods: Iterable[str]) -> str:
    """The page as text, with the settings of the methods of these names."""
    parts = [_HEAD, _section("Root keys", RootSettings, ""), _own_values(), *_nodes(), *_tools()]
    for name in methods:
        method = method_class(name)
        parts.append(_section(f"`marsrl.algo` with `name: {name}`", method.Config, "marsrl.algo"))
        if method.Evaluation is not EvaluationConfig:
            title, key = f"`marsrl.evaluation` with `name: {name}`", "marsrl.evaluation"
            parts.append(_section(title, method.Evaluation, key, leave_out=EvaluationConfig))
    return "\n".join(parts)


def _own_values() -> str:
    """A table of what is a value of the `marsrl` node itself."""
    values = [one for one in declared(MarsRLConfig, "marsrl") if one.key.count(".") == 1]
    rows = [_row(one, "marsrl") for one in values if one.key.rpartition(".")[2] not in BY_NAME]
    return "\n".join(["## `marsrl`", "", *_TABLE_HEAD, *rows, ""])


def _nodes() -> list[str]:
    sections = []
    for name, field in MarsRLConfig.model_fields.items():
        kind: Any = BY_NAME.get(name, field.annotation)
        if name in BY_NAME:
            key = f"marsrl.{name}.<{'role' if name in BY_ROLE else 'name'}>"
            sections.append(_section(f"`{key}`", kind, key))
            continue
        if not (isinstance(kind, type) and issubclass(kind, Settings)) or issubclass(kind, MethodConfig):
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        sections.append(_section(f"`marsrl.{name}`", kind, f"marsrl.{name}", default))
    return sections


def _tools() -> Iterator[str]:
    """The built-in tools' settings."""
    for target, tool in installed_tools().items():
        title = f"`marsrl.tools.<name>` with `target: {target}`"
        yield _section(title, tool.Config, "marsrl.tools.<name>")


def _section(
    title: str,
    model: type[Settings],
    key: str,
    default: Settings | None = None,
    leave_out: type[Settings] | None = None,
) -> str:
    """A table of the settings, without those of the model that is left out."""
    others = {one.key for one in declared(leave_out, key)} if leave_out is not None else set()
    lines = [f"## {title}", "", inspect.cleandoc(model.__doc__ or ""), ""]
    rows = [_row(one, key) for one in declared(model, key, default) if one.key not in others]
    return "\n".join([*lines, *_TABLE_HEAD, *rows, ""])


def _row(one: Declared, node: str) -> str:
    key = one.key.removeprefix(f"{node}.")
    known = not one.required and one.default != UNSET
    default = f"`{json.dumps(one.default, ensure_ascii=False)}`" if known else ""
    cells = (text.replace("|", "\\|") for text in (f"`{key}`", one.kind, default, one.documentation))
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(installed_methods()), end="")
