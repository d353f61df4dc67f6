"""Reads what a step of a golden run did into plain data. Names in a trace are those of the tables here."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from scenarios import RANKS
from tensordict import TensorDict
from trace_files import ENDINGS, digest, spans

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.rows import RESPONSE_MASK, ROLLOUT_LOG_PROBS, TOKEN_VERSIONS, Rows
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, RECORDED_LOG_PROBS
from marsrl_verl.core.stage import EndReason
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.verl_adapter.engine.batch import StepBatch

FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "prompt_too_long": FinishReason.PROMPT_TOO_LONG,
    "aborted": FinishReason.ABORTED,
    "refused": FinishReason.REFUSED,
    "error": FinishReason.ERROR,
}
"""How a response ends, by the traces' names. One that goes on is never shown."""
ENDED = {
    EndReason.FINISHED: "finished",
    EndReason.NO_REQUESTS: "no_inputs",
    EndReason.SKIPPED: "not_asked",
    EndReason.REJECTED: "rejected",
    EndReason.DROPPED: "dropped",
    EndReason.STALE: "stale",
}
FINISH_LETTERS = {FINISH[name]: letter for letter, name in ENDINGS.items()}


# --- reading ----------------------------------------------------------------------------------


def read_request(item: RolloutRequest) -> str:
    """A decoded request: with the trajectory from which it was made or the numbers of those that go on."""
    if item.resume is not None:
        numbers = " ".join(str(one.number) for one in item.resume.trajectories if one.paused)
        return f"{item.group_id} continues {numbers}"
    return f"{item.group_id} from {item.parent_id}" if item.parent_id else item.group_id


def read_completed(group: Group) -> list[Any]:
    """A row of the completed groups by the columns `COLUMNS["completed"]`."""
    members = group.trajectories
    rewards = [one.reward for one in members]
    return [
        group.group_id,
        "".join(FINISH_LETTERS[one.finish] for one in members),
        " ".join(f"{reward.value:g}" if reward and reward.graded else "?" for reward in rewards),
        digest(np.array([token for one in members for token in (*_tokens(one), -1)], np.int32)),
        digest("\0".join(one.final_text for one in members).encode()),
    ]


def _tokens(one: Trajectory) -> list[int]:
    """Prompt and response with -1 between them."""
    if one.external:
        return [-1]
    return [*one.sequence.prompt_ids.tolist(), -1, *one.sequence.response_ids.tolist()]


def read_trained(group: Group) -> list[Any]:
    """A row of the trained groups by the columns `COLUMNS["trained"]`."""
    numbers = [str(one.number) for one in group.trajectories]
    before = sorted(int(name.rpartition("#")[2]) for name in group.trained_before)
    return [group.group_id, " ".join(numbers), " ".join(map(str, before))]


def read_pools(result: StepResult) -> dict[str, Any]:
    """What waits after the step; nothing is said of a pool that is empty."""
    pools = {
        **{f"waiting {stage}": count for stage, count in result.waiting.items()},
        **{f"oldest waiting {stage}": age for stage, age in result.oldest_waiting.items()},
        **{f"input age {stage}": age for stage, age in sorted(result.request_ages.items())},
        "in flight": result.in_flight,
        "unfinished": result.paused,
        "held": result.deferred,
        "stale": result.stale,
    }
    return {name: number for name, number in pools.items() if number}


def read_batch(step: StepBatch | None, sent: TensorDict | None) -> dict[str, Any]:
    """The batch of the only policy, with the advantages that the workers were sent."""
    if step is None or sent is None:
        assert step is sent, "a batch that was not sent, or another one"
        return {"updates": 0, "padding rows": 0, "roles": {}, "rows": []}
    (batch,) = step.parts
    advantages = sent["advantages"].unbind()
    return {
        "updates": batch.updates,
        "padding rows": batch.padding,
        "roles": read_roles(batch.rows),
        "rows": [
            read_row(batch.rows, row, _part(slot, len(batch), batch.updates), advantages[slot].numpy())
            for slot, row in enumerate(batch.slots.tolist())
            if row >= 0
        ],
    }


def read_roles(rows: Rows) -> dict[str, str]:
    """The roles of the batch's stages, which the trajectories' ids name."""
    pairs = set()
    for row in range(len(rows)):
        stage, name = rows.group(row).request.stage, rows.trajectory(row).trajectory_id
        assert name.split("/")[1] == stage, f"trajectory {name} is of stage {stage}"
        pairs.add((stage, rows.sequence(row).role))
    assert len(dict(pairs)) == len(pairs), f"a stage has two roles: {sorted(pairs)}"
    return dict(sorted(pairs))


def _part(at: int, rows: int, updates: int) -> str:
    """The rank and the mini-batch to which verl gives a row of a batch."""
    share = rows // RANKS
    return f"{at // share}/{at % share // (share // updates)}"


def read_row(rows: Rows, row: int, part: str, advantages: np.ndarray) -> list[Any]:
    """A row of the training batch by the columns `COLUMNS["rows"]`."""
    one, sequence = rows.trajectory(row), rows.sequence(row)

    def column(name: str) -> np.ndarray:
        return rows.columns[name][rows.slice(row)]

    def recorded(name: str) -> str:
        return _recorded(sequence.annotations[name]) if name in sequence.annotations else ""

    return [
        one.trajectory_id,
        part,
        len(sequence),
        digest(sequence.prompt_ids),
        digest(sequence.response_ids),
        _runs(column(RESPONSE_MASK)),
        digest(column(ROLLOUT_LOG_PROBS)),
        recorded(RECORDED_LOG_PROBS),
        recorded(RECORDED_ENTROPIES),
        _runs(column(TOKEN_VERSIONS)),
        float(one.value),
        _runs(advantages.astype(np.float64)),
    ]


def read_loss(batch: StepBatch | None, sent: TensorDict | None) -> dict[str, Any]:
    """What else the loss compares, by the columns `COLUMNS["loss"]`."""
    if batch is None or sent is None:
        return {"loss": []}
    (part,) = batch.parts
    weights = sent.get("rollout_is_weights", None)
    old = sent["old_log_probs"].unbind()
    return {
        "loss": [
            [
                batch.rows.trajectory(row).trajectory_id,
                digest(old[slot].numpy()),
                "" if weights is None else float(weights.unbind()[slot].double().mean()),
            ]
            for slot, row in enumerate(part.slots.tolist())
            if row >= 0
        ]
    }


def _runs(values: Any) -> str:
    """Equal neighbours as spans."""
    runs, end = [], 0
    for value, members in groupby(values.tolist()):
        end += len(list(members))
        runs.append((end, value))
    return spans(runs)


def _recorded(values: Any) -> str:
    """What the trainer recorded: how many tokens have a value, and these."""
    known = ~np.isnan(values)
    positions = np.flatnonzero(known).astype(np.int32)
    if not len(positions):
        return ""
    return f"{len(positions)} {digest(positions.tobytes() + values[known].tobytes())}"
