"""What a check sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config.data_files import FileReport
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.types import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.rollout.external.answer_file import FileSource
from marsrl_verl.rollout.external.solver import SolverSource

ROLES = (SOLVER, VERIFIER, CORRECTOR)


@dataclass(slots=True)
class Context:
    """A composed configuration in the forms that checks need."""

    config: DictConfig
    """Interpolations resolved."""
    raw: dict[str, Any]
    """As composed, interpolations unresolved: shows what somebody changed."""
    settings: MarsRLConfig
    """The `marsrl` node as dataclasses."""
    dry_run: bool
    """Only a plan is wanted: this machine need not be the one that trains."""
    prepares_data: bool = False
    """Only data are prepared: what training takes is not wanted."""
    estimator_named: bool = False
    """Whether the command line asks for group-relative advantages by verl's name."""
    files: list[FileReport] = field(default_factory=list)
    """What the data check found, for the plan."""
    warnings: list[str] = field(default_factory=list)
    """What runs, but hardly as its user means it; shown before a run and in the plan."""
    notes: list[str] = field(default_factory=list)
    """What could not be checked here, for the plan."""
    external_answers: FileSource | None = None
    """The Solver's answers from a file, as the check found them."""

    @property
    def on_cpu(self) -> bool:
        """Whether the run trains on the processor."""
        return str(self.config.trainer.device) == "cpu"

    @property
    def external_solver(self) -> bool:
        """Whether another model than the trained one solves."""
        return self.settings.external_solver.source != SolverSource.NONE.value

    def get(self, key: str) -> Any:
        """The value of a dotted key; None where it is missing."""
        return OmegaConf.select(self.config, key, throw_on_missing=False)


def typed_settings(config: DictConfig) -> MarsRLConfig:
    """The `marsrl` node of a resolved configuration as dataclasses."""
    plain = OmegaConf.to_container(config.marsrl, resolve=True)
    merged = OmegaConf.merge(OmegaConf.structured(MarsRLConfig), OmegaConf.create(plain))
    settings = OmegaConf.to_object(merged)
    if not isinstance(settings, MarsRLConfig):
        raise TypeError(f"the marsrl node became {type(settings).__name__}, expected MarsRLConfig")
    return settings
