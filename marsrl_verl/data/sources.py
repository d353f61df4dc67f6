"""Published files by name (`sources.yaml`): where a row's parts stand, and what kind of problem it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from marsrl_verl.data.columns import Columns
from marsrl_verl.data.problems import Instruction

MAX_BAD_FRAC = 0.01
"""Most bad rows, as a share of all, that are left out; more are rejected: then it is another file."""


@dataclass(frozen=True, slots=True)
class Source:
    """A published file, or several of one form."""

    columns: Columns
    """Places of a row's parts; `Columns.ability` is None if the rows name their own."""
    instruction: Instruction | None
    """Instruction that is removed wherever it stands around a problem; the prompts' class words its own."""


_TEXT = Path(__file__).with_name("sources.yaml").read_text(encoding="utf-8")
_DECLARED: dict[str, dict[str, Any]] = yaml.safe_load(_TEXT)["sources"]


def _source(columns: Mapping[str, Any], instruction: Mapping[str, str] | None) -> Source:
    extra = tuple(columns.get("extra", ()))
    text = None if instruction is None else Instruction(**instruction)
    return Source(Columns(**{**columns, "extra": extra}), text)


SOURCES: Mapping[str, Source] = {
    name: _source(one.get("columns", {}), one.get("instruction")) for name, one in _DECLARED.items()
}
DAPO_INSTRUCTION = Instruction(**_DECLARED["dapo_math"]["instruction"])
"""Instruction around every problem of DAPO-Math-17k's released rows."""
