"""The end of a run before its last step: its weights, its folder and its report."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marsrl_verl.evaluation.watch import CollapsedError, Watch
from marsrl_verl.reporting.storage import FolderLostError, StorageError, storage_error
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.rollout_server.round_watch import SAVABLE_ERRORS
from marsrl_verl.verl_adapter.stop_signals import StopRequested
from marsrl_verl.verl_adapter.trainer.finite import NotFiniteError, keep_sound
from marsrl_verl.verl_adapter.trainer.observer import TrainingObserver
from marsrl_verl.verl_adapter.trainer.policy_trainer import PolicyTrainer

_log = logging.getLogger(__name__)


class EndingTrainer(PolicyTrainer):
    """Saves what is sound."""

    observer: TrainingObserver
    watch: Watch

    @contextmanager
    def _ends_in_order(self) -> Iterator[None]:
        """Saves the last state whatever ends the steps inside, except an unknown error, as far as it is sound
        and there is a place for it."""
        with stop_signals.deferred():
            try:
                yield
            except (StopRequested, CollapsedError, *SAVABLE_ERRORS) as end:
                self._fit_save_last_state(end)
                if isinstance(end, CollapsedError):
                    self._fit_report_end(end)
                raise
            except NotFiniteError as found:
                told = self._fit_keep_sound(found)
                self._fit_report_end(told)
                raise told from found
            except (OSError, StorageError) as error:
                lost = storage_error(error, self.observer.folder.path)
                if lost is None:
                    raise
                self._fit_save_elsewhere(lost)
                raise lost from error

    def _save_checkpoint(self, state: dict[str, Any] | None = None) -> None:
        """Saves as `CheckpointTrainer`, if the run's folder has the steps before; at an early end, where
        `state` is given, in any case."""
        try:
            self.observer.flush()
        except OSError:
            if state is None:
                raise
            _log.exception("the run's folder lacks something of the last steps")
        except FolderLostError as error:
            if state is None or error.taken:
                raise
            self.observer.folder.restore()
        super()._save_checkpoint(state)

    def _fit_save_elsewhere(self, lost: StorageError) -> None:
        """Saves the last state if the folder of checkpoints can be written; a run's folder that was deleted
        is made anew for it."""
        if isinstance(lost, FolderLostError):
            if lost.taken:
                return
            self.observer.folder.restore()
        self._fit_save_last_state(lost)

    def _fit_keep_sound(self, found: NotFiniteError) -> NotFiniteError:
        """Lets a resume begin with sound weights; returns the error with what a user has to know."""
        root = Path(self.config.trainer.default_local_dir)
        # Without an update since the run was resumed, its checkpoint has these weights.
        since = self.changed_in.get(found.policy, self.complete_step or 0)
        return keep_sound(found, self.global_steps, since if found.before else self.global_steps, root)

    def _fit_report_end(self, end: Exception) -> None:
        """Leaves a report that says why the run has ended."""
        step = self.last_state["step"] if self.last_state is not None else 0
        self.observer.finish(step, {"ended early": str(end)}, self.watch.warnings)
