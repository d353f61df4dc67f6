"""Rollouts as JSON lines: one line per sequence, one for a trajectory without any.

Keys of a line, schema version 2:

    schema_version   2
    step             training step (or the step whose weights were evaluated)
    role, stage      role that answered, and its position in the method's course
    group            id of the group: all lines with it answer the same request
    trajectory       id of the trajectory, `<group>#<k>`
    sequence         number of the sequence in its trajectory; 0 for the only one and where there is none
    policy           name of the weights that sampled the sequence
    parent           id of the trajectory that the request was built from, or null
    fork             {trajectory, token, sequence} where the trajectory left another one of its group, or null
    problem          {id, question, ground_truth, data_source}; in its first line of a file also {ability,
                     extra_info}, the rest of what rewards read of the row
    rollout, inputs  in a group's first line of a file: the workflow, and `RolloutRequest.inputs`,
                     which rewards read
    prompt           the request's messages as text, each headed by its role in brackets; where a trajectory
                     has several sequences, the sequence's own prompt as the template writes it
    response         the decoded response, thinking part included: of the trajectory, where it has several
                     sequences of the sequence
    final            the part of the trajectory's response that other roles may see
    prompt_tokens    number of prompt tokens of the sequence
    tokens           number of its response tokens
    token_ids        token ids of its response, as sampled
    masked           [begin, end] of parts of its response that the policy did not choose: tools, templates
    external         true if another model answered: there is no sequence then; its policy, numbers of tokens
                     and policy version are null, token ids, masked parts and versions empty
    reward           the sequence's own reward, else the trajectory's; null where it has none
    graded           false where grading failed (`error` says how): reward 0, not trained; else true, or null
    finish_reason    stop | length | limit | prompt_too_long | refused | aborted | error
    policy_version   training step whose weights sampled the sequence's last segment
    versions         [end, policy version] of every segment: tokens up to `end` came from that version
    error            why generation or grading failed, or null
    prefix_tokens    tokens of the response that are the beginning of its parent, which it continues, else 0
    events           what happened: tool calls, turns

and what the method adds (`Method.record`, `Evaluation.record`) of what has a reward; of answering roles:

    answer           the extracted answer or null
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.sequence import Mask, Sequence
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.evaluation.runs import Runs

SCHEMA_VERSION = 2

_PROBLEM = ("id", "question", "ground_truth", "data_source")

Record = Callable[[RolloutRequest, Trajectory], Mapping[str, Any]]
"""Function that returns the keys which a method adds to the lines of a trajectory that has a reward."""
Line = dict[str, Any]
"""One line; token ids are arrays, which `to_json` turns into lists."""


def rollout_lines(
    step: int, request: RolloutRequest, trajectory: Trajectory, record: Record
) -> Iterator[Line]:
    """The lines of one trajectory in the schema above; ValueError if the method adds a key that all have."""
    added = {} if trajectory.reward is None else dict(record(request, trajectory))
    common = _trajectory_part(step, request, trajectory)
    for number, sequence in enumerate(trajectory.sequences or [None]):
        line = {**common, **_sequence_part(number, sequence)}
        if sequence is not None and sequence.reward is not None:
            line["reward"] = sequence.reward
        if taken := sorted(line.keys() & added.keys()):
            raise ValueError(f"the method's record has the keys {taken}, which every line has; rename them")
        yield line | added


def _trajectory_part(step: int, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
    problem, reward, fork = request.problem, trajectory.reward, trajectory.fork
    return {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "role": request.role,
        "stage": request.stage,
        "group": request.group_id,
        "trajectory": trajectory.trajectory_id,
        "sequence": 0,
        "policy": None,
        "parent": request.parent_id,
        "fork": fork and {"trajectory": fork.trajectory_id, "token": fork.token, "sequence": fork.sequence},
        "problem": {
            "id": problem.problem_id,
            "question": problem.question,
            "ground_truth": problem.ground_truth,
            "data_source": problem.data_source,
            "ability": problem.ability,
            "extra_info": problem.extra_info,
        },
        "rollout": request.rollout,
        "inputs": request.inputs,
        "prompt": "\n\n".join(f"[{one['role']}]\n{one['content']}" for one in request.messages),
        "response": trajectory.text,
        "final": trajectory.final_text,
        "prompt_tokens": None,
        "tokens": None,
        "token_ids": [],
        "masked": [],
        "external": trajectory.external,
        "reward": None if reward is None else reward.value,
        "graded": None if reward is None else reward.graded,
        "finish_reason": trajectory.finish.value,
        "policy_version": None,
        "versions": [],
        "error": trajectory.detail or (None if reward is None else reward.error),
        "prefix_tokens": 0 if request.prefix is None else len(request.prefix),
        "events": trajectory.events,
    }


def _sequence_part(number: int, sequence: Sequence | None) -> dict[str, Any]:
    if sequence is None:
        return {}
    texts = {"prompt": sequence.prompt_text, "response": sequence.text}
    return {
        **{key: text for key, text in texts.items() if text is not None},
        "role": sequence.role,
        "sequence": number,
        "policy": sequence.policy,
        "prompt_tokens": len(sequence.prompt_ids),
        "tokens": len(sequence),
        "token_ids": sequence.response_ids,
        "masked": masked_parts(sequence.response_mask),
        "policy_version": sequence.version,
        "versions": [list(part) for part in sequence.versions],
    }


def masked_parts(mask: Mask) -> list[list[int]]:
    """[begin, end] of the runs of 0."""
    if mask.all():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[1], mask, [1]]).astype(np.int8)))
    return edges.reshape(-1, 2).tolist()


def step_lines(step: int, groups: Iterable[Group], record: Record) -> list[Line]:
    """The lines of all trajectories of the groups, as they are now."""
    found = ((group.request, one) for group in groups for one in group.trajectories)
    return list(_once(line for one in found for line in rollout_lines(step, *one, record)))


def evaluation_lines(step: int, runs: Runs, record: Record) -> Iterator[Line]:
    """The lines of every call of an evaluation, last those that were too long."""
    calls = [*runs.all_calls, *(call for run in runs.skipped for call in run.calls)]
    found = ((one.request, one.trajectory) for one in calls)
    yield from _once(line for one in found for line in rollout_lines(step, *one, record))


def _once(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines of a file, in which what may be long of a problem or of a request stands once."""
    seen: set[tuple[str, str]] = set()
    for line in lines:
        problem, group = ("problem", line["problem"]["id"]), ("group", line["group"])
        if problem in seen:  # lines of a trajectory share this dictionary
            line["problem"] = {name: line["problem"][name] for name in _PROBLEM}
        if group in seen:
            del line["rollout"], line["inputs"]
        seen |= {problem, group}
        yield line
