"""The trainer's work with its engines, and their end when a run must end."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from marsrl_verl.config.pools import SHARED_SYNC
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.policy import PolicyKind, PolicySet
from marsrl_verl.evaluation.watch import CollapsedError
from marsrl_verl.reporting.manifest import newest_complete
from marsrl_verl.reporting.storage import StorageError
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter.checkpoint.checkpoint_trainer import CheckpointTrainer
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineGuard, EngineWatch, reason, within
from marsrl_verl.verl_adapter.rollout_server.generation import Generation
from marsrl_verl.verl_adapter.rollout_server.prefill_counters import keeps_statistics
from marsrl_verl.verl_adapter.rollout_server.rollout_pool import engines_placed, give_adapter
from marsrl_verl.verl_adapter.stop_signals import StopRequested
from marsrl_verl.verl_adapter.terminal import terminal
from marsrl_verl.verl_adapter.trainer.observer import TrainingObserver

SILENCE_SECONDS = 10.0
"""Seconds for the engines to drop their round: a run that was told to end has little time."""
_WELL = (StopRequested, CollapsedError, StorageError)
"""Ends of a run that are no engine's fault."""
_log = logging.getLogger(__name__)


def _nothing(worker: Any) -> None:
    """Returns at once, from a process that is idle."""


class EngineTrainer(CheckpointTrainer):
    """Never waits for an engine without a limit, and saves the last state when there is none any more."""

    settings: MarsRLConfig
    generation: Generation
    engines: EngineGuard
    policies: PolicySet
    engine_versions: dict[str, int]
    """By policy, the version of the weights that the engines have; while asleep, of those that they keep."""
    engines_sleep = True
    """If true, the engines are asleep, where they can be (`free_cache_engine`), as after verl's start."""
    last_state: dict[str, Any] | None = None
    """State for a checkpoint of the last step that has trained; None before the first."""
    timing: dict[str, float]
    observer: TrainingObserver

    def init_workers(self) -> None:
        """verl's, with the engines on the trainer's GPUs or on their own. They are made known to the rollout
        manager, to which verl gives a client only."""
        with engines_placed(self.config):
            super().init_workers()
        servers = [replica.server_handle for replica in self.llm_server_manager.get_replicas()]
        run = self.settings.run
        self.engines = EngineGuard(EngineWatch(servers, run.engine_timeout_s), run.sync_timeout_s)
        self.async_rollout_manager.watch(self.engines.watch, run.progress_timeout_s, self.observer.show_round)
        if keeps_statistics(self.config.actor_rollout_ref.rollout):
            self.async_rollout_manager.measure_prefill(servers)

    def _fit_update_weights(self) -> None:
        """Sends the weights of every policy of which the engines have none or older ones; what they cached
        under older ones is dropped."""
        versions = {name: self.policies.version(name) for name in self.policies.trained}
        missing = [name for name, version in versions.items() if self.engine_versions.get(name) != version]
        asleep = self._engines_can_sleep and self.engines_sleep
        if not missing and not asleep:
            return
        if self.generation.in_flight:
            raise RuntimeError(
                f"weights of {missing}: a generation round is in flight, and its samples would come "
                "from two sets of weights; collect it first"
            )
        with self._timed("update_weights"):
            if asleep and all(map(self._is_adapter, versions)):
                # Upstream behaviour: a sync of the model's weights wakes the engines.
                self.engines.run("waking the engines", self.checkpoint_manager.wake_up_replicas)
            for name in missing:
                self._send_weights(name, versions[name])
                self.engine_versions[name] = versions[name]
            self.engines_sleep = False
            self.async_rollout_manager.forget_routes()

    def _send_weights(self, policy: str, version: int) -> None:
        """Has the engines take a policy's weights as they are in the trainer."""
        if self._is_adapter(policy):
            send = functools.partial(self._send_adapter, policy, version)
        elif len(self.policies.trained) > 1:
            send = functools.partial(self._send_model, policy, version)
        else:
            send = functools.partial(self.checkpoint_manager.update_weights, version)
        try:
            self.engines.run("the weight sync", send)
        except EngineUnavailableError:
            # An engine that rejected the weights lets go of its own rank. The others may wait for that one.
            if not self._ranks_answer(policy):
                self.engines.left_behind = True
            raise

    def _ranks_answer(self, policy: str) -> bool:
        """True if every rank of the trainer is idle, within `SILENCE_SECONDS`."""
        asked = [rank.__ray_call__.remote(_nothing) for rank in self._workers(policy).workers]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=SILENCE_SECONDS)
        return len(done) == len(asked)

    def _is_adapter(self, policy: str) -> bool:
        return self.policies[policy].kind is PolicyKind.LORA

    def _workers(self, policy: str) -> Any:
        """The worker group that trains a policy: there is one, with models or adapters on one."""
        return self.actor_rollout_wg

    def _send_model(self, policy: str, version: int) -> None:
        """Upstream behaviour: verl's manager has one model sent to all engines. Here the ranks send to the
        engines on their GPUs, which are the policy's own."""
        ray.get(self._workers(policy).update_weights(global_steps=version, mode=SHARED_SYNC, policy=policy))

    def _send_adapter(self, policy: str, version: int) -> None:
        """Sends an adapter to the engines as the PEFT folder that a checkpoint has, too.

        Upstream behaviour: verl's own transfer knows one adapter, by a fixed number, and none where the
        engines have GPUs of their own.
        """
        (files,) = (found for found in self._workers(policy).export_adapter(policy) if found is not None)
        give_adapter(self.llm_server_manager.get_replicas(), policy, files, version)

    def _sleep_engine(self) -> None:
        # With free_cache_engine the engine gives its memory to the trainer; verl's sleep waits for requests,
        # of which there is none between rounds.
        if self._engines_can_sleep and not self.engines_sleep:
            self.engines.run("putting the engines to sleep", self.checkpoint_manager.sleep_replicas)
            self.engines_sleep = True
            # Upstream behaviour: an engine with adapters sleeps at vLLM's level 1. There the model waits in
            # main memory, and so does the room for adapters, with them in it. Others lose their weights.
            for name in [name for name in self.engine_versions if not self._is_adapter(name)]:
                del self.engine_versions[name]

    @property
    def _engines_can_sleep(self) -> bool:
        return bool(self.config.actor_rollout_ref.rollout.free_cache_engine)

    # --- the end of a run that was not finished -----------------------------------------------------

    def _fit_save_last_state(self, end: BaseException) -> None:
        """Saves the weights with the state at the end of the step that updated them last, unless a checkpoint
        holds them already. A round in flight is dropped: a resumed run sends its requests again."""
        state = self.last_state
        if state is None or self.config.trainer.save_freq <= 0:
            return
        if (
            state["step"]
            == self.complete_step
            == newest_complete(Path(self.config.trainer.default_local_dir))
        ):
            return
        try:
            self._silence_engines(stopped=isinstance(end, _WELL))
            self.global_steps = state["step"]
            self._save_checkpoint(state)
        except Exception as error:  # the run ends anyway, and for the reason that it has
            print(f"Step {state['step']} could not be saved: {reason(error)}", file=terminal())
            _log.exception("step %s could not be saved", state["step"])

    def _silence_engines(self, stopped: bool) -> None:
        """Leaves memory and processors to the trainer; `stopped`: the engines are well, and only told to
        end."""
        if self.engines.left_behind:
            raise RuntimeError("the trainer's processes are in the midst of a weight sync that does not end")
        if stopped:
            try:
                within(SILENCE_SECONDS, "the engines did not drop their round", self._drop_round)
                return
            except Exception:
                # Whatever it was: an engine that did not drop its round may hold what saving needs, and
                # killing takes nothing of it. The error must not keep the state from being saved.
                _log.exception("the engines are killed")
        # One of them is broken, and may hold what the trainer needs.
        self.engines.watch.kill()

    def _drop_round(self) -> None:
        self.checkpoint_manager.abort_replicas(reject_request=True)
        if self._engines_can_sleep and not self.engines_sleep:
            self.checkpoint_manager.sleep_replicas()

    def kill_workers(self) -> None:
        """Ends the trainer's processes and the engines, whatever they wait for."""
        if hasattr(self, "engines"):
            self.engines.watch.kill()
        if hasattr(self, "actor_rollout_wg"):
            for worker in self.actor_rollout_wg.workers:
                ray.kill(worker)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.timing[name] = self.timing.get(name, 0.0) + time.monotonic() - start
