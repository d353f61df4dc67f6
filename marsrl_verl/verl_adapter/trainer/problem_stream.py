"""Problems from verl's dataloader, epoch after epoch, with an exact state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from marsrl_verl.core.method import EndReason
from marsrl_verl.core.request import Message, Problem, problem_from_plain, problem_to_plain
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.data.problems import ground_truth_of, question_of

STATE_VERSION = 2


def problems_of(batch: dict[str, Any], first_number: int, prefix: str) -> list[Problem]:
    """Turn one dataloader batch into problems numbered from `first_number`."""
    problems = []
    for i, raw_prompt in enumerate(batch["raw_prompt"]):
        messages: list[Message] = [{"role": str(m["role"]), "content": str(m["content"])} for m in raw_prompt]
        problems.append(
            Problem(
                problem_id=f"{prefix}{first_number + i:08d}",
                question=question_of(messages),
                ground_truth=ground_truth_of(batch["reward_model"][i]),
                data_source=str(batch["data_source"][i]),
                messages=tuple(messages),
                extra_info=_plain(batch["extra_info"][i]) if "extra_info" in batch else {},
            )
        )
    return problems


def _plain(extra: Any) -> dict[str, Any]:
    """A row's `extra_info` without numpy's types, which no checkpoint could be read back with."""
    plain: dict[str, Any] = json.loads(json.dumps(extra or {}, default=_plain_value))
    return plain


def _plain_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


class NothingToTrainError(RuntimeError):
    """No problem of the training data is ever asked."""


class AskedProblems:
    """Looks whether any problem of the training data is asked.

    Args:
        rows: of the training data.
        limit: most tokens of a problem's prompt.
    """

    def __init__(self, rows: int, limit: int) -> None:
        self._rows, self._limit = rows, limit
        self._not_asked = 0

    def look(self, result: StepResult) -> None:
        """Look at a finished step.

        Raises:
            NothingToTrainError: in a whole pass over the data none was asked.
        """
        if result.completed or result.in_flight or any(result.waiting.values()):
            self._not_asked = 0
            return
        self._not_asked += sum(end.reason is EndReason.NOT_ASKED for end in result.ended)
        if self._not_asked >= self._rows:
            raise NothingToTrainError(
                f"none of the last {self._not_asked} problems was asked, a whole pass over the training "
                f"data: their prompts have more than marsrl.roles.solver.max_prompt_tokens = {self._limit} "
                "tokens; raise it, or give shorter problems"
            )


class ProblemStream:
    """An endless sequence of problems.

    A problem's number counts the problems read so far, so it is unique for the whole run.
    """

    def __init__(self, dataloader: Any) -> None:
        self._dataloader = dataloader
        self._iterator: Iterator[Any] | None = None
        self.epoch = 0
        self.taken = 0
        self._buffer: list[Problem] = []
        self._loaded: dict[str, Any] | None = None
        """The dataloader's saved state, until it is asked for the first time after a resume."""

    def take(self, count: int) -> list[Problem]:
        """The next so many problems, whatever the size of the dataloader's batches."""
        while len(self._buffer) < count:
            self._buffer += self._next_batch()
        problems, self._buffer = self._buffer[:count], self._buffer[count:]
        return problems

    def _next_batch(self) -> list[Problem]:
        """The next dataloader batch; starts a new epoch where the last one ended."""
        if self._iterator is None:
            self._iterator = iter(self._dataloader)
        batch = next(self._iterator, None)
        if batch is None:
            self.epoch += 1
            self._iterator = iter(self._dataloader)
            batch = next(self._iterator, None)
        if batch is None:
            raise RuntimeError("the training data holds no complete batch: lower data.train_batch_size")
        problems = problems_of(batch, self.taken, "p")
        self.taken += len(problems)
        return problems

    def state_dict(self) -> dict[str, Any]:
        """Position and dataloader state (sampler and generator included)."""
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "taken": self.taken,
            "buffer": [problem_to_plain(problem) for problem in self._buffer],
            "dataloader": self._loaded if self._iterator is None else self._dataloader.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        if state.get("version") != STATE_VERSION:
            raise ValueError(
                f"problem stream state has version {state.get('version')}, this code reads {STATE_VERSION}"
            )
        self.epoch = state["epoch"]
        self.taken = state["taken"]
        self._buffer = [problem_from_plain(plain) for plain in state["buffer"]]
        self._iterator = None
        self._loaded = state["dataloader"]
        if self._loaded is not None:
            self._dataloader.load_state_dict(self._loaded)
