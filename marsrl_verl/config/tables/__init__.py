"""Tables that are data: verl's keys, their values, and what is rejected of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def read_table(name: str) -> Any:
    """The content of `NAME.yaml` beside this file."""
    text = (Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
