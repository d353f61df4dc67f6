"""A failed request is data; a round of nothing else is a broken engine, or a broken external Solver."""

from __future__ import annotations

from collections.abc import Iterable

from marsrl_verl.core.inert_text import printable
from marsrl_verl.core.types import Sample
from marsrl_verl.rollout.single_call import EngineUnavailableError


def refuse_failed_round(samples: Iterable[Sample]) -> None:
    """Look at what the engine and the external Solver answered in one round, each by itself.

    Raises:
        EngineUnavailableError: one of the two was asked and not one of its requests was answered.
    """
    by_source: dict[bool, list[Sample]] = {}
    for sample in samples:
        by_source.setdefault(sample.external, []).append(sample)
    for external, some in by_source.items():
        if all(sample.finish_reason.failed for sample in some):
            whose = " of the external Solver (marsrl.external_solver)" if external else ""
            raise EngineUnavailableError(
                f"all {len(some)} samples{whose} of a round failed, the first: {printable(some[0].error)}"
            )
