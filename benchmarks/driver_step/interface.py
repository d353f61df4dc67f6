"""What an implementation of the measured step does. The order of the calls is `child.run_step`'s.

An implementation calls the project's own functions, as the trainer does, and nothing else: what it leaves
out or does by itself is not measured. It may open further phases of the meter between the given ones, or
report work that moved to another process by that process's meter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.driver_step.inputs import Inputs
from benchmarks.driver_step.meter import Meter, Store


@dataclass(frozen=True, slots=True)
class Cluster:
    """How many processes the driver talks to, and what the ranks are told."""

    workers: int = 8
    """Rollout workers."""
    ranks: int = 4
    """Data-parallel ranks: 32 GPUs with sequences over 8 of them."""
    micro_batch_tokens: int = 196_608
    """Most tokens of a rank's micro-batch: 24,576 on each of 8 GPUs."""
    updates: int = 1


Call = Callable[..., dict[str, Any]]
"""`call(command, **arguments)` of another process; arguments and answer are JSON."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an implementation runs."""

    inputs: Inputs
    store: Store
    meter: Meter
    cluster: Cluster
    folder: Path
    """For what the run writes."""
    step: int = 8
    """Number of the step; its tokens come from the weights of the step before, or of earlier ones."""


class Driver(ABC):
    """The driver's process."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def set_up(self) -> None:
        """Brings the scheduler where the step begins, its inputs waiting. Not measured."""

    @abstractmethod
    def hand_out(self) -> None:
        """Takes the round's requests from the scheduler and sends each worker its share."""

    @abstractmethod
    def receive(self, paths: list[str]) -> None:
        """Unpacks what the workers sent, and counts it."""

    @abstractmethod
    def absorb(self) -> None:
        """Gives it to the scheduler."""

    @abstractmethod
    def finish_step(self) -> None:
        """Closes the step: chains go on, groups are handed out for training."""

    @abstractmethod
    def keep_state(self) -> None:
        """Takes the state that a run which has to end would save, as in every step."""

    def credit(self) -> None:  # noqa: B027  (they may come with the loss's inputs)
        """Advantages and their metrics, where they come before the batch."""

    @abstractmethod
    def build_batch(self) -> None:
        """Rows in the order of ranks and mini-batches."""

    @abstractmethod
    def log_probs(self, rank: Call) -> None:
        """Has the ranks compute log-probabilities and entropies, and merges them into the batch.

        Opens the phases `send for log-probs` and `merge log-probs`.
        """

    @abstractmethod
    def loss_inputs(self) -> None:
        """Masks, off-policy columns and their metrics, and advantages if they were not there before."""

    @abstractmethod
    def update(self, rank: Call) -> None:
        """Sends the ranks what their update takes."""

    @abstractmethod
    def record(self) -> None:
        """Writes rollouts and trained advantages, if it is done in the foreground; else begins it."""

    @abstractmethod
    def describe(self) -> None:
        """Metrics of the step."""

    @abstractmethod
    def save(self) -> None:
        """Writes the plugin's part of a checkpoint."""

    def finish_background(self) -> None:  # noqa: B027  (nothing need run there)
        """Waits for what runs in the background; its time is a phase of its own, not the driver's."""


class Worker(ABC):
    """A rollout worker's and a rank's part, in a process of its own; `place.meter` measures it.

    What the driver has its ranks do (cut micro-batches, send made-up log-probabilities) are further methods,
    known to the two alone.
    """

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def requests(self, path: str) -> dict[str, Any]:
        """Unpacks the requests of one worker."""

    @abstractmethod
    def reply(self, worker: int) -> dict[str, Any]:
        """Sends what worker number `worker` brings back: `{"path", "size"}`. Phase `pack the reply`."""
