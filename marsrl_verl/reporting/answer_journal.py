"""Journal of an evaluation's answers so far: an interrupted one goes on from there and repeats no request.

One line of JSON for each answered request, appended as the answer comes, with all that the evaluation and the
rollout log read of it; a line that a kill cut off is skipped. An answer is valid for the very same request:
its key is a checksum of the request, the sampling settings and the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import RolloutOutput, Trajectory
from marsrl_verl.reporting.files import to_json
from marsrl_verl.reporting.rollout_log import masked_parts
from marsrl_verl.rollout.engine import RolloutEngine


class AnswerJournal:
    """The journal's file.

    Args:
        path: where it lies; it need not be there.
        weights: identifies the weights that answer: models, checkpoint.
    """

    def __init__(self, path: Path, weights: str) -> None:
        self.path, self.weights = path, weights
        self.answers = dict(_read(path)) if path.is_file() else {}
        """Outputs by key, as they were found."""
        self._file: TextIO | None = None

    def key(self, request: RolloutRequest, sampling: Mapping[str, Sampling]) -> str:
        """The checksum of a request."""
        plain = request.to_plain()
        del plain["created_step"]
        asked = {**plain, "by": {role: asdict(one) for role, one in sampling.items()}, "of": self.weights}
        return hashlib.sha256(to_json(asked).encode()).hexdigest()

    def append(self, key: str, output: RolloutOutput) -> None:
        """Writes an answer down."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            cut = self.path.is_file() and not self.path.read_bytes().endswith(b"\n")
            self._file = self.path.open("a", encoding="utf-8", errors="backslashreplace")
            self._file.write("\n" if cut else "")
        members = [_plain(one) for one in output.trajectories]
        self._file.write(to_json({"key": key, "group": output.group_id, "trajectories": members}) + "\n")
        self._file.flush()

    def remove(self) -> None:
        """Removes the file, whose content is elsewhere now."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class JournaledEngine:
    """Implements `RolloutEngine`: returns the answers that the journal has, and has another engine generate
    the rest. Failed answers are not written down."""

    def __init__(self, engine: RolloutEngine, journal: AnswerJournal) -> None:
        self._engine, self._journal = engine, journal
        self._keys: dict[str, str] = {}
        """Keys of the requests under way, by group id."""
        self._ready: list[RolloutOutput] = []
        self.taken = self.failed = 0
        """Requests that the journal answered, and those whose answers or grades failed."""

    def submit(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> None:
        """See `RolloutEngine`."""
        asked = []
        for request in requests:
            key = self._journal.key(request, sampling)
            if key in self._journal.answers:
                self._ready.append(self._journal.answers[key])
                self.taken += 1
            else:
                self._keys[request.group_id] = key
                asked.append(request)
        if asked:
            self._engine.submit(asked, sampling)

    def outputs(self) -> list[RolloutOutput]:
        """See `RolloutEngine`."""
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        found = self._engine.outputs()
        for output in found:
            key = self._keys.pop(output.group_id)
            if all(map(_counts, output.trajectories)):
                self._journal.append(key, output)
            else:
                self.failed += 1
        return found


def _counts(one: Trajectory) -> bool:
    """True if a trajectory says something about the model: neither its request nor its grade failed."""
    return not one.finish.failed and (one.reward is None or one.reward.graded)


def _plain(one: Trajectory) -> dict[str, Any]:
    """A trajectory without log-probabilities, annotations and prompt ids, which evaluations do not need."""
    sequences = [
        {
            "role": each.role,
            "policy": each.policy,
            "prompt_tokens": len(each.prompt_ids),
            "response_ids": each.response_ids,
            "masked": masked_parts(each.response_mask),
            "versions": each.versions,
            "reward": each.reward,
            "prompt_text": each.prompt_text,
            "text": each.text,
            "figures": each.figures,
        }
        for each in one.sequences
    ]
    return {**one.to_plain(), "sequences": sequences}


def _sequence(plain: dict[str, Any]) -> Sequence:
    prompt, masked = np.zeros(plain.pop("prompt_tokens"), np.int32), plain.pop("masked")
    count = len(plain["response_ids"])
    mask = np.ones(count, np.uint8)
    for begin, end in masked:
        mask[begin:end] = 0
    one = {**plain, "prompt_ids": prompt, "rollout_log_probs": np.zeros(count, np.float32), "annotations": {}}
    return Sequence.from_plain({**one, "response_mask": mask})


def _read(path: Path) -> Iterator[tuple[str, RolloutOutput]]:
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            found = json.loads(line)
        except ValueError:  # a kill cut it off
            continue
        members = []
        for plain in found["trajectories"]:
            sequences = [_sequence(each).to_plain() for each in plain["sequences"]]
            members.append(Trajectory.from_plain({**plain, "sequences": sequences}))
        yield found["key"], RolloutOutput(found["group"], members)
