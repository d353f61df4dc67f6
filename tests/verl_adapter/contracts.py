"""What the adapter takes from verl and vLLM, as `contracts.yaml` lists it: `test_upstream_contracts.py`
checks it.

A new import from verl or vLLM, a new override and a new use of an inherited method each need a line there;
the tests say which is missing. Names are `module:qualified.name`.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses a name that stands twice: the earlier one's rows would go unnoticed."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [name.value for name, _ in node.value]
        twice = {name for name in names if names.count(name) > 1}
        assert not twice, f"contracts.yaml has them twice: {twice}"
        return super().construct_mapping(node, deep)


_LISTED = yaml.load(Path(__file__).with_suffix(".yaml").read_text(), _Loader)


def _by_name(section: Mapping[str, Any]) -> dict[str, Any]:
    """By whole names; members of a module or a class may stand below it."""
    found: dict[str, Any] = {}
    for name, value in section.items():
        inside = value if isinstance(value, dict) else {}
        joint = "." if ":" in name else ":"
        found |= {f"{name}{joint}{part}": one for part, one in inside.items()} or {name: value}
    return found


SIGNATURES: dict[str, list[str]] = _by_name(_LISTED["signatures"])
AT_LEAST: dict[str, set[str]] = {name: set(some) for name, some in _by_name(_LISTED["at_least"]).items()}
PRESENT: dict[str, type] = {
    name: getattr(builtins, kind)
    for kind, places in _LISTED["present"].items()
    for place, names in places.items()
    for name in _by_name({place: dict.fromkeys(names)})
}
FINGERPRINTS: dict[str, list[str]] = _by_name(_LISTED["fingerprints"])
VLLM_FINGERPRINTS: dict[str, list[str]] = _by_name(_LISTED["vllm_fingerprints"])
SAYS: dict[str, list[str]] = _by_name(_LISTED["says"])
