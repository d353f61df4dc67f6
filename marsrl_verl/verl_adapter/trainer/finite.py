"""Numbers that are not finite: which show spoiled weights, and since when.

Upstream behaviour: verl skips an update whose gradient norm is not finite, with a line in a worker's log, and
goes on. With a gradient scaler (fp16) such updates are the scaler's way to find its scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import ENTROPIES, OLD_LOG_PROBS, REF_LOG_PROBS, RESPONSE_MASK
from marsrl_verl.core.sequence import TRAINER_LOG_PROBS
from marsrl_verl.reporting.manifest import step_folder
from marsrl_verl.verl_adapter.checkpoint import files as checkpoint
from marsrl_verl.verl_adapter.engine.batch import PolicyBatch

LOSSES = ("actor/loss", "actor/pg_loss")
GRADIENT, WEIGHTS = "actor/grad_norm", "actor/weights_max"


class NotFiniteError(RuntimeError):
    """Training has come to numbers of a policy that are not finite; `before`: the weights from before the
    step gave them, else the step's update did."""

    def __init__(self, policy: str, what: str, *, before: bool) -> None:
        super().__init__(what)
        self.policy, self.before = policy, before


def check_samples(groups: Iterable[Group]) -> None:
    """Raises NotFiniteError if the engine's log-probabilities of sampled tokens are not finite."""
    counted: dict[str, int] = {}
    total = 0
    for sequence in (one for group in groups for each in group.trajectories for one in each.sequences):
        total += 1
        # One pass over the tokens: a sum is not finite where one of them is not.
        if not np.isfinite(sequence.rollout_log_probs.sum(dtype=np.float64)):
            counted[sequence.policy] = counted.get(sequence.policy, 0) + 1
    for policy, count in counted.items():
        where = f"{count} of {total} responses of policy {policy}"
        what = f"the engine's log-probabilities are not finite in {where}"
        raise NotFiniteError(policy, what, before=True)


def check_probed(part: PolicyBatch) -> None:
    """Raises NotFiniteError if a probe's pass gave log-probabilities of sampled tokens that are not
    finite."""
    sequences = [part.rows.sequence(row) for row in part.members.tolist()]
    bad = sum(
        int((~np.isfinite(one.annotations[TRAINER_LOG_PROBS]) & (one.response_mask > 0)).sum())
        for one in sequences
        if TRAINER_LOG_PROBS in one.annotations
    )
    if bad:
        what = f"{bad} log-probabilities of policy {part.policy} are not finite when it is looked at"
        raise NotFiniteError(part.policy, what, before=True)


def check_columns(part: PolicyBatch) -> None:
    """Raises NotFiniteError if what the trainer computed of a policy's tokens before its update is not
    finite."""
    rows, before = part.rows, f"of policy {part.policy} are not finite, before the step's update"
    faults = {
        OLD_LOG_PROBS: f"log-probabilities {before}",
        ENTROPIES: f"entropies {before}",
        REF_LOG_PROBS: "log-probabilities of the reference model are not finite",
    }
    for name, what in faults.items():
        if name not in rows.columns:
            continue
        by_row = rows.row_sums(~np.isfinite(rows.columns[name]) & (rows.columns[RESPONSE_MASK] > 0))
        if bad := int(by_row[part.members].sum()):
            raise NotFiniteError(part.policy, f"{bad} {what}", before=name != REF_LOG_PROBS)


def not_finite(metrics: Mapping[str, float], *, scaled: bool) -> tuple[str, ...]:
    """Names of what one policy's update reports and is not finite: losses, weights, and the gradient norm
    unless a gradient scaler looks after it."""
    names = (*LOSSES, *(() if scaled else (GRADIENT,)), WEIGHTS)
    return tuple(name for name in names if not np.isfinite(metrics.get(name, 0.0)))


def keep_sound(found: NotFiniteError, step: int, since: int, root: Path) -> NotFiniteError:
    """Has a resume begin with weights that were sound: checkpoints of spoiled ones go to `replaced/`. Returns
    the error with what a user has to know.

    Args:
        found, step: the error, and the step in which it was found.
        since: the first step whose checkpoint would have the spoiled weights; 0: they were so from the start.
        root: the folder of checkpoints.
    """
    moved = checkpoint.set_aside_after(root, since - 1) if since > 0 and root.is_dir() else []
    good = checkpoint.newest_complete(root) if root.is_dir() else None
    where = "There is no checkpoint from before"
    if good is not None:
        where = f"The last good checkpoint is {step_folder(root, good)}"
    if moved:
        where += f"; those with spoiled weights are now in {root / checkpoint.SET_ASIDE}"
    advice = (
        "Lower the learning rate (actor_rollout_ref.actor.optim.lr, or marsrl.roles.<role>.lr where its role "
        "names one) before you go on"
    )
    if found.before and since == 0:
        advice = "The model gives them before any training: look at its files and its number format"
    what = f"step {step}: {found}. Nothing of this step is kept. {where}. {advice}"
    return NotFiniteError(found.policy, what, before=found.before)
