"""LoRA adapters on verl's own workers, as a program: one process per rank, no Ray.

    python rank_adapters.py FOLDER

Every rank runs the trainer's hooks as `rank_updates.py` does, with an adapter for each role and AdamW. What
the weights and moments were after each update is left in `FOLDER/ranks_<number of ranks>.pt`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rank_updates import Ranks, fork_ranks, join_ranks, trained_groups, whole

WORLDS = (1, 2)
OVERRIDES = (
    "cluster=cpu",
    "policies=lora_per_role",
    "actor_rollout_ref.model.lora_rank=4",
    "marsrl.run.progress=false",
    "actor_rollout_ref.actor.optim.lr=0.02",
    "marsrl.roles.verifier.lr=0.03",
    "actor_rollout_ref.actor.optim.weight_decay=0.1",
    # Two steps of warm-up: a schedule of its own shows in the weights.
    "actor_rollout_ref.actor.optim.lr_warmup_steps=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "data.train_batch_size=4",
    "data.train_max_samples=4",
    "data.val_max_samples=4",
)
ROLES = ("solver", "verifier")
TURNS = (("solver",), ("verifier",), ("solver", "verifier"), ("solver",))
"""Whose turn each step is."""
RESUMED_AT = 2
"""The steps before the checkpoint."""


class Bench:
    """A trainer and this rank's worker."""

    def __init__(self, config: Any) -> None:
        from marsrl_verl.verl_adapter.engine.workers import MarsRLActorRolloutRefWorker
        from marsrl_verl.verl_adapter.run.task_runner import MarsRLTaskRunner

        self.trainer = MarsRLTaskRunner().build_trainer(config)
        self.worker = MarsRLActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
        self.worker.init_model()
        self.trainer.actor_rollout_wg = Ranks(self.worker)
        self.engine = self.worker.actor.engine
        self.metrics: list[dict[str, Any]] = []

    def step(self, roles: tuple[str, ...], *, reference: bool = False) -> None:
        """Train the rows of these roles; with `reference`, after a pass without adapters."""
        trainer = self.trainer
        trainer.metrics, trainer.timing, trainer.global_steps = {}, {}, len(self.metrics) + 1
        groups = [group for group in trained_groups(partial=False) if group.request.role in roles]
        for group in groups:
            for one in group.trajectories:
                one.sequence.policy = group.request.role
        batch = trainer._fit_build_batch(SimpleNamespace(trained=groups, ended=[], deferred=0))
        trainer._fit_compute_log_prob(batch)
        if reference:
            self._reference_pass(batch)
            del batch.rows.columns["ref_log_probs"]  # the loss is not to see it
        trainer._fit_compute_advantages(batch)
        trainer._fit_update_actor(batch)
        self.metrics.append(dict(trainer.metrics))

    def _reference_pass(self, batch: Any) -> None:
        self.trainer.use_reference_policy = True
        self.trainer._fit_compute_ref_log_prob(batch)
        self.trainer.use_reference_policy = False

    def log_probs(self, roles: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Of the rows of each role under its own adapter, and under the model without any."""
        trainer, found = self.trainer, {}
        for role in roles:
            for adapter in (True, False):
                trainer.metrics, trainer.timing, trainer.global_steps = {}, {}, 9
                groups = [group for group in trained_groups(partial=False) if group.request.role == role]
                for group in groups:
                    for one in group.trajectories:
                        one.sequence.policy = role
                result = SimpleNamespace(trained=groups, ended=[], deferred=0)
                batch = trainer._fit_build_batch(result)
                trainer._fit_compute_log_prob(batch)
                if not adapter:
                    self._reference_pass(batch)
                name = "old_log_probs" if adapter else "ref_log_probs"
                found[f"{role}/{name}"] = torch.from_numpy(batch.rows.columns[name].copy())
        return found

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: whole(one) for name, one in self.engine.module.named_parameters()}

    def moments(self) -> dict[str, list[Any]]:
        """Of each adapter's optimizer, and where its schedule stands."""
        found = {}
        for name, (optimizer, schedule) in zip(self.engine.adapters, self.engine.optimizers(), strict=True):
            states = [
                {key: whole(value) for key, value in state.items()} for state in optimizer.state.values()
            ]
            found[name] = [states, schedule.last_epoch, optimizer.param_groups[0]["lr"]]
        return found


def same(one: Any, other: Any) -> bool:
    """Whether two trees of tensors and numbers are equal in all bits."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def run_rank(config: Any, folder: Path, rank: int, world: int, port: int) -> None:
    join_ranks(rank, world, port)
    config.marsrl.run.output_dir = str(folder / f"run_{world}_{rank}")
    bench, checkpoint = Bench(config), folder / f"checkpoint_{world}"
    found: dict[str, Any] = {"weights": [bench.weights()], "moments": [bench.moments()]}
    for number, roles in enumerate(TURNS):
        if number == RESUMED_AT:
            bench.worker.save_checkpoint(str(checkpoint), global_step=number)
        bench.step(roles)
        found["weights"].append(bench.weights())
        found["moments"].append(bench.moments())
    found["metrics"] = bench.metrics
    found["log_probs"] = bench.log_probs(ROLES)
    exported = {role: bench.worker.export_adapter(role) for role in ROLES}
    resumed = Bench(config)
    resumed.worker.load_checkpoint(str(checkpoint))
    resumed.metrics = bench.metrics[:RESUMED_AT]
    for roles in TURNS[RESUMED_AT:]:
        resumed.step(roles)
    found["resumed"] = resumed.weights(), resumed.moments()
    alone = Bench(config)
    for roles in TURNS:
        if "solver" in roles:
            alone.step(("solver",), reference=True)
    found["solver alone"] = alone.weights()
    if rank == 0:
        torch.save(found, folder / f"ranks_{world}.pt")
        for role, files in exported.items():
            place = folder / f"exported_{world}" / role
            place.mkdir(parents=True)
            for name, content in files.items():
                (place / name).write_bytes(content)
    torch.distributed.destroy_process_group()


def main(folder: Path) -> None:
    from marsrl_verl.config.command_line import parse_arguments
    from marsrl_verl.config.compose import compose_config
    from marsrl_verl.verl_adapter.environment import prepare_environment
    from studies.tiny.model import build_model
    from studies.tiny.tokenizer import build_tokenizer

    model = folder / "model"
    build_model(seed=5, layers=2).save_pretrained(model)
    build_tokenizer().save_pretrained(model)
    config = compose_config(parse_arguments([*OVERRIDES, f"actor_rollout_ref.model.path={model}"])).config
    prepare_environment(config)
    # What takes the time is imported once; the ranks are forks of this process.
    import marsrl_verl.verl_adapter.run.task_runner  # noqa: F401

    for world in WORLDS:
        fork_ranks(world, lambda rank, port, world=world: run_rank(config, folder, rank, world, port))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
