"""A file of rollouts as requests with their trajectories, as far as lines tell (`reporting.rollout_log`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import FinishReason, Fork, Trajectory
from marsrl_verl.reporting.rollout_files import read_lines

Line = dict[str, Any]


def read_groups(path: Path, stages: Mapping[str, Stage]) -> Iterator[tuple[Group, list[Line]]]:
    """Each group of a file with its lines, which are together there.

    Of a trajectory with several sequences the whole text is not on record, of no prompt the token ids (zeros
    stand for them), nor the chats of rows and requests.

    Args:
        path: of rollouts.
        stages: the method's by name, for the role that a request prompted first, and for the workflows
            of files in which they are not recorded.
    """
    problems: dict[str, Problem] = {}
    for lines in _by_group(read_lines(path)):
        first = lines[0]
        name = first["problem"]["id"]
        if name not in problems:
            problems[name] = _problem(first["problem"])
        stage = stages.get(first["stage"])
        members = [_trajectory(some) for some in by_trajectory(lines)]
        request = RolloutRequest(
            first["group"],
            problems[name],
            first["stage"],
            first["role"] if stage is None else stage.role,
            (),
            len(members),
            rollout=first.get("rollout") or (stage.workflow if stage else ""),
            inputs=first.get("inputs") or {},
            parent_id=first["parent"],
            created_step=first["step"],
        )
        yield Group(request, members), lines


def _by_group(lines: Iterable[Line]) -> Iterator[list[Line]]:
    some: list[Line] = []
    for line in lines:
        if some and line["group"] != some[0]["group"]:
            yield some
            some = []
        some.append(line)
    if some:
        yield some


def by_trajectory(lines: Iterable[Line]) -> list[list[Line]]:
    """The lines of each trajectory, in the order of its sequences."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["trajectory"], []).append(line)
    return list(found.values())


def _problem(data: Mapping[str, Any]) -> Problem:
    more = {name: data[name] for name in ("ability", "extra_info") if name in data}
    return Problem(data["id"], data["question"], data["ground_truth"], data["data_source"], **more)


def _trajectory(lines: list[Line]) -> Trajectory:
    first, finish = lines[0], FinishReason(lines[0]["finish_reason"])
    fork = first["fork"]
    return Trajectory(
        first["trajectory"],
        [_sequence(line) for line in lines if line["policy"] is not None],
        finish,
        text=first["response"] if len(lines) == 1 else "",
        final_text=first["final"],
        detail=None if finish is FinishReason.STOP else first["error"],
        fork=None if fork is None else Fork(fork["trajectory"], fork["token"], fork["sequence"]),
        events=first["events"],
    )


def _sequence(line: Line) -> Sequence:
    mask = np.ones(line["tokens"], np.uint8)
    for begin, end in line["masked"]:
        mask[begin:end] = 0
    return Sequence(
        line["role"],
        np.zeros(line["prompt_tokens"], np.int32),
        line["token_ids"],
        np.zeros(line["tokens"], np.float32),
        mask,
        tuple((end, version) for end, version in line["versions"]),
        line["policy"],
        prompt_text=line["prompt"],
        text=line["response"],
    )
