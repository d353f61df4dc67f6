"""A configuration as the checks of a method's settings see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class RunView(Protocol):
    """A checked configuration (`declaration.MethodConfig.checks`)."""

    @property
    def settings(self) -> Any:
        """The `marsrl` node, typed; `settings.algo` is the method's `Config`."""

    @property
    def on_cpu(self) -> bool:
        """True if the run trains on the CPU."""

    @property
    def trains(self) -> bool:
        """False of an evaluation alone."""

    @property
    def frozen_roles(self) -> Mapping[str, str]:
        """The roles that are not trained here, with the names of their policies."""

    def get(self, key: str) -> Any:
        """The value of any dotted key, verl's included; None where it is missing."""

    def prompts(self) -> Any:
        """The object of `marsrl.prompts`."""

    def model_config(self) -> dict[str, Any] | None:
        """The model's `config.json` with the configured overrides; None where it is not here."""
