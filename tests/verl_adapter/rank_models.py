"""Several whole models on verl's own workers, as a program: one process per rank, no Ray.

    python rank_models.py FOLDER

Every rank runs the trainer's hooks as `rank_updates.py` does, with a model for each role, one of which begins
as another one, AdamW, and a reference policy. What weights and moments were after each update is left in
`FOLDER/ranks_<number of ranks>.pt`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rank_adapters import RESUMED_AT, TURNS
from rank_updates import Ranks, fork_ranks, join_ranks, trained_groups, whole

WORLDS = (1, 2)
OVERRIDES = (
    "cluster=cpu",
    "policies=model_per_role",
    "marsrl.run.progress=false",
    "marsrl.policies.verifier.kind=model",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.optim.lr=0.02",
    "actor_rollout_ref.actor.optim.weight_decay=0.1",
    # Two steps of warm-up: a schedule of its own shows in the weights.
    "actor_rollout_ref.actor.optim.lr_warmup_steps=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "data.train_batch_size=4",
    "data.train_max_samples=4",
    "data.val_max_samples=4",
)


class RanksWithReference(Ranks):
    """The reference policies' ranks are the same."""

    def compute_ref_log_prob(self, data: Any) -> Any:
        return self._everywhere(self._worker.compute_ref_log_prob, data)


class Bench:
    """A trainer and this rank's worker."""

    def __init__(self, config: Any) -> None:
        from marsrl_verl.verl_adapter.engine.workers import MarsRLActorRolloutRefWorker
        from marsrl_verl.verl_adapter.run.task_runner import MarsRLTaskRunner

        self.trainer = MarsRLTaskRunner().build_trainer(config)
        self.worker = MarsRLActorRolloutRefWorker(config.actor_rollout_ref, role="actor_rollout_ref")
        self.models = self.worker._models
        for one in self.models.values():  # nobody decodes here
            one.role = one.role.replace("_rollout", "")
        self.worker.init_model()
        self.trainer.actor_rollout_wg = self.trainer.ref_policy_wg = RanksWithReference(self.worker)
        self.metrics: list[dict[str, Any]] = []

    def step(self, roles: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Train the rows of these roles; their log-probabilities by role, and the references'."""
        trainer = self.trainer
        trainer.metrics, trainer.timing, trainer.global_steps = {}, {}, len(self.metrics) + 1
        groups = [group for group in trained_groups(partial=False) if group.request.role in roles]
        for group in groups:
            for one in group.trajectories:
                one.sequence.policy = group.request.role
        result = SimpleNamespace(trained=groups, ended=[], deferred=0)
        batch = trainer._fit_build_batch(result)
        trainer._fit_compute_log_prob(batch)
        trainer._fit_compute_ref_log_prob(batch)
        found = {}
        for part in batch.parts:
            for name in ("old_log_probs", "ref_log_probs"):
                values = [batch.rows.columns[name][batch.rows.slice(int(row))] for row in part.members]
                found[f"{part.policy}/{name}"] = torch.cat([torch.from_numpy(one.copy()) for one in values])
        trainer._fit_compute_advantages(batch)
        trainer._fit_update_actor(batch)
        self.metrics.append(dict(trainer.metrics))
        return found

    def weights(self) -> dict[str, dict[str, torch.Tensor]]:
        return {
            policy: {name: whole(one) for name, one in worker.actor.engine.module.named_parameters()}
            for policy, worker in self.models.items()
        }

    def moments(self) -> dict[str, list[Any]]:
        """Of each model's optimizer, and where its schedule stands."""
        found = {}
        for policy, worker in self.models.items():
            ((optimizer, schedule),) = worker.actor.engine.optimizers()
            states = [
                {key: whole(value) for key, value in state.items()} for state in optimizer.state.values()
            ]
            found[policy] = [states, schedule.last_epoch, optimizer.param_groups[0]["lr"]]
        return found

    def references(self) -> dict[str, bool]:
        """Which workers hold a reference policy."""
        return {policy: worker.ref is not None for policy, worker in self.models.items()}


def run_rank(config: Any, folder: Path, rank: int, world: int, port: int) -> None:
    join_ranks(rank, world, port)
    config.marsrl.run.output_dir = str(folder / f"run_{world}_{rank}")
    bench, checkpoint = Bench(config), folder / f"checkpoint_{world}"
    found: dict[str, Any] = {"weights": [bench.weights()], "moments": [bench.moments()], "log_probs": []}
    for number, roles in enumerate(TURNS):
        if number == RESUMED_AT:
            bench.worker.save_checkpoint(str(checkpoint), global_step=number)
        found["log_probs"].append(bench.step(roles))
        found["weights"].append(bench.weights())
        found["moments"].append(bench.moments())
    found["metrics"], found["references"] = bench.metrics, bench.references()
    resumed = Bench(config)
    resumed.worker.load_checkpoint(str(checkpoint))
    resumed.metrics = bench.metrics[:RESUMED_AT]
    for roles in TURNS[RESUMED_AT:]:
        resumed.step(roles)
    found["resumed"] = resumed.weights(), resumed.moments()
    alone = Bench(config)
    for roles in TURNS:
        if "solver" in roles:
            alone.step(("solver",))
    found["solver alone"] = alone.weights()["solver"]
    if rank == 0:
        torch.save(found, folder / f"ranks_{world}.pt")
    torch.distributed.destroy_process_group()


def main(folder: Path) -> None:
    from marsrl_verl.config.command_line import parse_arguments
    from marsrl_verl.config.compose import compose_config
    from marsrl_verl.verl_adapter.environment import prepare_environment
    from studies.tiny.model import build_model
    from studies.tiny.tokenizer import build_tokenizer

    for name, seed in {"model": 5, "other": 6}.items():
        build_model(seed=seed, layers=2).save_pretrained(folder / name)
        build_tokenizer().save_pretrained(folder / name)
    paths = (
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"marsrl.policies.verifier.model.path={folder / 'other'}",
    )
    config = compose_config(parse_arguments([*OVERRIDES, *paths])).config
    prepare_environment(config)
    # What takes the time is imported once; the ranks are forks of this process.
    import marsrl_verl.verl_adapter.run.task_runner  # noqa: F401

    for world in WORLDS:
        fork_ranks(world, lambda rank, port, world=world: run_rank(config, folder, rank, world, port))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
