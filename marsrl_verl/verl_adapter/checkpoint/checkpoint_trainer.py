"""verl's trainer with checkpoints that a kill at any moment cannot spoil."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import open_dict
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from marsrl_verl.reporting.manifest import remedy, step_folder
from marsrl_verl.verl_adapter.checkpoint import files as checkpoint


class CheckpointTrainer(RayPPOTrainer, ABC):
    """Upstream behaviour: verl writes weights, optimizer and data state one after another, marks the step as
    the newest last, and deletes older weights in between."""

    continues_run = True
    """If true, the run's folder held a run that goes on; otherwise `resume_mode=auto` starts from scratch,
    whatever lies in the folder of checkpoints by now."""

    complete_step: int | None = None
    """The step of the checkpoint that was written or loaded last."""

    @abstractmethod
    def plugin_state(self) -> dict[str, Any]:
        """The plugin's part of a checkpoint, beside verl's."""

    @abstractmethod
    def load_plugin_state(self, state: dict[str, Any]) -> None:
        """Continues with a saved state."""

    def _save_checkpoint(self, state: dict[str, Any] | None = None) -> None:
        """verl's checkpoint with the plugin's state in it, and the manifest when all of it is written.

        Older ones are deleted after that, by `trainer.max_actor_ckpt_to_keep`. What could not be written as a
        whole is deleted, and CheckpointError raised. `state` is the plugin's at the end of step
        `global_steps`; None: as it is now.
        """
        root = Path(self.config.trainer.default_local_dir)
        folder = step_folder(root, self.global_steps)
        checkpoint.without_lock_files()
        try:
            checkpoint.remove_manifest(folder)
            checkpoint.save_state(folder, self.plugin_state() if state is None else state)
            with self._verl_deletes_nothing() as keep:
                super()._save_checkpoint()
            checkpoint.write_manifest(folder, self._shards)
        except Exception as error:
            raise checkpoint.give_up(folder, error) from error
        self.complete_step = self.global_steps
        checkpoint.keep_newest(root, keep)

    @contextmanager
    def _verl_deletes_nothing(self) -> Iterator[int | None]:
        """Hides `trainer.max_actor_ckpt_to_keep` from verl, and yields it.

        Upstream behaviour: verl deletes older weights as soon as the new ones are written, when data state
        and manifest are still missing; a kill at that moment would leave no complete checkpoint.
        """
        settings = self.config.trainer
        keep = settings.get("max_actor_ckpt_to_keep")
        with open_dict(settings):
            settings.max_actor_ckpt_to_keep = None
        try:
            yield keep
        finally:
            settings.max_actor_ckpt_to_keep = keep

    def _shards(self, folder: Path) -> dict[str, checkpoint.Facts]:
        """Size and checksum of the ranks' files: each rank reads what it wrote, on its own node."""
        found: dict[str, checkpoint.Facts] = {}
        for files in self.actor_rollout_wg.describe_shards(str(folder.absolute())):
            found.update(files)
        return found

    def _load_checkpoint(self) -> int:
        """Restores verl's part, then the plugin's, if there is a checkpoint; CheckpointError if it is damaged
        or another trainer's."""
        self.global_steps = 0
        mode, root = self.config.trainer.resume_mode, Path(self.config.trainer.default_local_dir)
        if mode == "auto" and not self.continues_run:
            return 0
        if mode == "resume_path":
            with self._remedy():
                checkpoint.check_manifest(self._resumed_folder(), self._shards)
        elif mode == "auto":
            self.global_steps = checkpoint.newest_complete(root) or 0
            with self._remedy():
                checkpoint.point_tracker_at_newest(root, self._shards)
            self.global_steps = 0
        super()._load_checkpoint()
        if self.global_steps:
            with self._remedy():
                state = checkpoint.load_state(self._resumed_folder())
            self.load_plugin_state(state)
            self.complete_step = self.global_steps
        return self.global_steps

    @contextmanager
    def _remedy(self) -> Iterator[None]:
        """Adds to an error of the resumed checkpoint what to do about it."""
        try:
            yield
        except checkpoint.CheckpointError as error:
            named = self.config.trainer.resume_mode == "resume_path"
            raise checkpoint.CheckpointError(f"{error}. {remedy(self._resumed_folder(), named)}") from None

    def _resumed_folder(self) -> Path:
        if self.config.trainer.resume_mode == "resume_path":
            return Path(self.config.trainer.resume_from_path)
        return step_folder(Path(self.config.trainer.default_local_dir), self.global_steps)
