"""Problems from verl's dataloader, epoch after epoch, with an exact state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from marsrl_verl.core.request import Message, Problem, problem_from_plain, problem_to_plain
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.stage import EndReason
from marsrl_verl.data.columns import ground_truth_of
from marsrl_verl.data.problems import ability_of, question_of, repaired_messages


def problems_of(batch: dict[str, Any], first_number: int, prefix: str) -> list[Problem]:
    """Turns one dataloader batch into problems numbered from `first_number`."""
    problems = []
    for i, raw_prompt in enumerate(batch["raw_prompt"]):
        written: list[Message] = [{"role": str(m["role"]), "content": str(m["content"])} for m in raw_prompt]
        messages = repaired_messages(written)
        ground_truth, source = ground_truth_of(batch["reward_model"][i]), str(batch["data_source"][i])
        problems.append(
            Problem(
                problem_id=f"{prefix}{first_number + i:08d}",
                question=question_of(messages),
                ground_truth=ground_truth,
                data_source=source,
                messages=tuple(messages),
                extra_info=_plain(batch["extra_info"][i]) if "extra_info" in batch else {},
                row=_row_key(messages, ground_truth, source),
                ability=ability_of(batch["ability"][i]) if "ability" in batch else "",
            )
        )
    return problems


def _row_key(*content: Any) -> str:
    """A row's key, a hash of its prompt, reference and data source: verl gives rows no number of their
    own."""
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=12).hexdigest()


def _plain(extra: Any) -> dict[str, Any]:
    """A row's `extra_info` without numpy's types, which no checkpoint could be read back with."""
    plain: dict[str, Any] = json.loads(json.dumps(extra or {}, default=_plain_value))
    return plain


def _plain_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


def limits_text(limits: Mapping[str, int]) -> str:
    """The settings that say how long prompts of roles may be."""
    return " or ".join(f"marsrl.roles.{role}.max_prompt_tokens = {limit}" for role, limit in limits.items())


class NothingToTrainError(RuntimeError):
    """No problem of the training data is ever used."""


class SkippedProblems:
    """Counts rows of the training data that are skipped one after another; `limits`: by role, most tokens of
    a prompt that decides whether a problem is skipped."""

    def __init__(self, rows: int, limits: Mapping[str, int]) -> None:
        self._rows, self._limits = rows, limits
        self._skipped = 0

    def look(self, result: StepResult) -> None:
        """Looks at a finished step; NothingToTrainError if a whole epoch was skipped."""
        if result.completed or result.in_flight or any(result.waiting.values()):
            self._skipped = 0
            return
        self._skipped += sum(end.reason is EndReason.SKIPPED for end in result.ended)
        if self._skipped >= self._rows:
            raise NothingToTrainError(
                f"the last {self._skipped} problems were all skipped, all of the training "
                f"data: their prompts have more than {limits_text(self._limits)} tokens; raise it, or give "
                "shorter problems"
            )


Admits = Callable[[Problem], bool]
"""Returns true if a problem is used in this epoch (`Schedule.admits`)."""


class ProblemStream:
    """The problems of verl's dataloader, epoch after epoch, numbered through the whole run. Without
    `whole_epochs` the last ones of an epoch are left out where they make no whole batch."""

    def __init__(self, dataloader: Any, *, whole_epochs: bool = False) -> None:
        self._dataloader = dataloader
        if whole_epochs:
            dataloader.batch_sampler.drop_last = False
        self._iterator: Iterator[Any] | None = None
        self.epoch = 0
        self.taken = 0
        self._buffer: list[Problem] = []
        self._over = False
        """If true, everything of this epoch was read."""
        self._begun = False
        """If true, something of the iterator was read."""
        self._loaded: dict[str, Any] | None = None
        """The dataloader's saved state, until the dataloader is first read after a resume."""

    def take(self, count: int, admits: Admits = lambda problem: True) -> list[Problem]:
        """The next so many admitted problems, whatever the size of the dataloader's batches and where passes
        end; NothingToTrainError if a whole epoch has none."""
        problems, read = self.take_from_epoch(count, admits), self.taken
        while len(problems) < count:
            self.begin_epoch()
            added = self.take_from_epoch(count - len(problems), admits)
            if not added:
                raise NothingToTrainError(
                    "the training data holds no complete batch: lower data.train_batch_size"
                    if self.taken == read
                    else "the method admits no problem of the training data (Schedule.admits)"
                )
            problems, read = problems + added, self.taken
        return problems

    def take_from_epoch(self, count: int, admits: Admits) -> list[Problem]:
        """The next so many admitted problems of this epoch; fewer where it ends."""
        found: list[Problem] = []
        while len(found) < count and self.has_more(admits):
            found.append(self._buffer.pop(0))
        return found

    def has_more(self, admits: Admits) -> bool:
        """True if another problem of this epoch is admitted; those before it are passed over."""
        while True:
            while self._buffer and not admits(self._buffer[0]):
                self._buffer.pop(0)
            if self._buffer or not self._read():
                return bool(self._buffer)

    def begin_epoch(self) -> None:
        """Goes on with the next epoch."""
        self.epoch += 1
        self._iterator, self._over, self._begun = iter(self._dataloader), False, False

    def _read(self) -> bool:
        """The next dataloader batch, if the epoch has one."""
        if self._over:
            return False
        if self._iterator is None:
            self._iterator, self._begun = iter(self._dataloader), True
        batch = next(self._iterator, None)
        if batch is None and not self._begun:  # a loader that was resumed at its end goes on with nothing
            self._iterator = iter(self._dataloader)
            batch = next(self._iterator, None)
        self._begun, self._over = True, batch is None
        problems = [] if batch is None else problems_of(batch, self.taken, "p")
        self._buffer += problems
        self.taken += len(problems)
        return not self._over

    def state_dict(self) -> dict[str, Any]:
        """Position and dataloader state (sampler and generator included)."""
        return {
            "epoch": self.epoch,
            "taken": self.taken,
            "over": self._over,
            "buffer": [problem_to_plain(problem) for problem in self._buffer],
            "dataloader": self._loaded if self._iterator is None else self._dataloader.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.epoch, self.taken, self._over = state["epoch"], state["taken"], state["over"]
        self._buffer = [problem_from_plain(plain) for plain in state["buffer"]]
        self._iterator, self._loaded = None, state["dataloader"]
        if self._loaded is not None:
            self._dataloader.load_state_dict(self._loaded)
