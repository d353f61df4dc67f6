"""Several policies on verl's own workers, as a program: one process per rank, no Ray.

    python rank_policies.py FOLDER

Every rank runs the trainer's hooks as `rank_updates.py` does, with AdamW: once with an adapter for each role,
once with a model for each role, one of which begins as another one, and a reference policy. What weights and
moments were after each update is left in `FOLDER/<kind>/ranks_<number of ranks>.pt`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rank_updates import SMALL, Ranks, compose, run_ranks, save, trained_groups, trainer_and_worker, whole

OVERRIDES = (
    *SMALL,
    "cluster=cpu",
    "actor_rollout_ref.actor.optim.lr=0.02",
    "actor_rollout_ref.actor.optim.weight_decay=0.1",
    # Two steps of warm-up: a schedule of its own shows in the weights.
    "actor_rollout_ref.actor.optim.lr_warmup_steps=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
)
KINDS = {
    "adapters": (
        "policies=lora_per_role",
        "actor_rollout_ref.model.lora_rank=4",
        "marsrl.roles.verifier.lr=0.03",
    ),
    "models": (
        "policies=model_per_role",
        "marsrl.policies.verifier.kind=model",
        "actor_rollout_ref.actor.use_kl_loss=true",
    ),
}
ROLES = ("solver", "verifier")
TURNS = (("solver",), ("verifier",), ("solver", "verifier"), ("solver",))
"""Whose turn each step is."""
RESUMED_AT = 2
"""The steps before the checkpoint."""


class Bench:
    """A trainer and this rank's worker."""

    def __init__(self, config: Any, kind: str) -> None:
        role = "actor" if kind == "adapters" else "actor_rollout_ref"
        self.trainer, self.worker = trainer_and_worker(config, role)
        self.models = self.worker._models
        for one in self.models.values():  # nobody decodes here
            one.role = one.role.replace("_rollout", "")
        self.worker.init_model()
        self.trainer.actor_rollout_wg = self.trainer.ref_policy_wg = Ranks(self.worker)
        self.metrics: list[dict[str, Any]] = []

    def step(self, roles: tuple[str, ...], *, reference: bool) -> dict[str, torch.Tensor]:
        """Trains the rows of these roles; what `log_probs` gives before it."""
        trainer = self.trainer
        batch, found = self._log_probs(roles, reference=reference)
        if reference and not trainer.use_reference_policy:
            del batch.rows.columns["ref_log_probs"]  # the loss is not to see it
        trainer._fit_compute_advantages(batch)
        trainer._fit_update_actor(batch)
        self.metrics.append(dict(trainer.metrics))
        return found

    def log_probs(self, roles: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Of the rows of each role under its own policy, and under its reference."""
        return self._log_probs(roles, reference=True)[1]

    def _log_probs(self, roles: tuple[str, ...], *, reference: bool) -> tuple[Any, dict[str, torch.Tensor]]:
        trainer, found = self.trainer, {}
        trainer.metrics, trainer.timing, trainer.global_steps = {}, {}, len(self.metrics) + 1
        groups = [group for group in trained_groups(partial=False) if group.request.role in roles]
        for group in groups:
            for one in group.trajectories:
                one.sequence.policy = group.request.role
        batch = trainer._fit_build_batch(SimpleNamespace(trained=groups, ended=[], deferred=0))
        trainer._fit_compute_log_prob(batch)
        if reference:
            asked, trainer.use_reference_policy = trainer.use_reference_policy, True
            trainer._fit_compute_ref_log_prob(batch)
            trainer.use_reference_policy = asked
        for part in batch.parts:
            for name in ("old_log_probs", "ref_log_probs")[: 1 + reference]:
                values = [batch.rows.columns[name][batch.rows.slice(int(row))] for row in part.members]
                found[f"{part.policy}/{name}"] = torch.cat([torch.from_numpy(one.copy()) for one in values])
        return batch, found

    def weights(self) -> dict[str, dict[str, torch.Tensor]]:
        """By policy; those of the model below all adapters by `model`."""
        if self.models:
            workers = self.models.items()
            return {policy: _weights(worker.actor.engine.module) for policy, worker in workers}
        found: dict[str, dict[str, torch.Tensor]] = {}
        for name, one in _weights(self.worker.actor.engine.module).items():
            owner = name.split(".")[-2] if "lora_" in name else "model"
            found.setdefault(owner, {})[name] = one
        return found

    def moments(self) -> dict[str, list[Any]]:
        """Of each policy's optimizer, and where its schedule stands."""
        found = {}
        for policy, (optimizer, schedule) in self._optimizers():
            states = [
                {key: whole(value) for key, value in state.items()} for state in optimizer.state.values()
            ]
            found[policy] = [states, schedule.last_epoch, optimizer.param_groups[0]["lr"]]
        return found

    def _optimizers(self) -> Iterator[tuple[str, tuple[Any, Any]]]:
        if not self.models:
            engine = self.worker.actor.engine
            yield from zip(engine.adapters, engine.optimizers(), strict=True)
        for policy, worker in self.models.items():
            yield policy, *worker.actor.engine.optimizers()


def _weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: whole(one) for name, one in module.named_parameters()}


def same(one: Any, other: Any) -> bool:
    """Whether two trees of tensors and numbers are equal in all bits."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def find(config: Any, kind: str, folder: Path, rank: int, world: int) -> dict[str, Any]:
    """Models are trained with a KL term; adapters have passes without them in the run of the Solver's turns
    alone, which one rank makes. Two stop and go on."""
    reference = kind == "models"
    bench, checkpoint = Bench(config, kind), folder / f"checkpoint_{world}"
    found: dict[str, Any] = {"weights": [bench.weights()], "moments": [bench.moments()], "log_probs": []}
    for number, roles in enumerate(TURNS):
        if number == RESUMED_AT:
            bench.worker.save_checkpoint(str(checkpoint), global_step=number)
        found["log_probs"].append(bench.step(roles, reference=reference))
        found["weights"].append(bench.weights())
        found["moments"].append(bench.moments())
    found["metrics"] = bench.metrics
    found["references"] = {policy: worker.ref is not None for policy, worker in bench.models.items()}
    if kind == "adapters":
        found["log_probs"].append(bench.log_probs(ROLES))
        found["exported"] = {role: bench.worker.export_adapter(role) for role in ROLES}
    if world == 1:
        alone = Bench(config, kind)
        for roles in TURNS:
            if "solver" in roles:
                alone.step(("solver",), reference=True)
        found["solver alone"] = alone.weights()["solver"]
    else:
        resumed = Bench(config, kind)
        resumed.worker.load_checkpoint(str(checkpoint))
        resumed.metrics = bench.metrics[:RESUMED_AT]
        for roles in TURNS[RESUMED_AT:]:
            resumed.step(roles, reference=reference)
        found["resumed"] = resumed.weights(), resumed.moments()
    return found


def main(folder: Path) -> None:
    from studies.tiny.model import build_model

    path = save(build_model(seed=5, layers=2), folder / "model")
    other = save(build_model(seed=6, layers=2), folder / "other")
    paths = {
        "adapters": [path],
        "models": [path, other.replace("actor_rollout_ref", "marsrl.policies.verifier")],
    }
    for kind, words in KINDS.items():
        config = compose(*OVERRIDES, *words, *paths[kind])
        (folder / kind).mkdir()
        run_ranks(config, folder / kind, functools.partial(find, config, kind, folder / kind))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
