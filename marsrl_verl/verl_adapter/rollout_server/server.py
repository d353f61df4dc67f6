"""verl's vLLM server with a whole group in one call, adapters by name, counts of what it read, no open port.

Upstream behaviour: `vLLMHttpServer.generate` answers one sample a call, streams every token through
the event loop, and reports neither `stop` nor `length`. A group of G samples shares its prompt, so
one request with `n=G` and only the final output saves G-1 round trips and every intermediate one.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.workers.rollout.replica import RolloutMode, RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout import vllm_async_server
from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.v1.engine.exceptions import EngineDeadError

from marsrl_verl.config.models import adapters, models, unadapted
from marsrl_verl.core.policy import SHARED
from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.rollout.generation import Completion, Decoding, EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server.client import packed
from marsrl_verl.verl_adapter.rollout_server.dead_process import of_this_process
from marsrl_verl.verl_adapter.rollout_server.engine_requests import accepted_params, completion, unanswered
from marsrl_verl.verl_adapter.rollout_server.forced_tokens import ForcedTokens
from marsrl_verl.verl_adapter.rollout_server.prefill_counters import PrefillCounters, read_counters
from marsrl_verl.verl_adapter.rollout_server.weight_sockets import (
    EXTENSION,
    own_folder,
    use_own_engine_sockets,
)

_METRICS_PATHS = ("/metrics", "/health")
_FIRST_ADAPTER = VLLM_LORA_INT_ID + 1
"""vLLM tells adapters by their numbers, of which verl's own weight sync uses one."""

_LOOK_S = 1.0
"""Seconds between two looks whether the core that is asked lives."""


@contextmanager
def _dead_engine_named() -> Iterator[None]:
    """Raises our own error for vLLM's of a dead engine: callers must tell it from a rejected request."""
    try:
        yield
    except EngineDeadError as error:
        raise EngineUnavailableError(f"the engine's process has ended{of_this_process()}") from error


@dataclass(frozen=True, slots=True)
class _Adapter:
    """A LoRA adapter that the engine has."""

    request: LoRARequest
    version: int


class MarsRLvLLMServer(vLLMHttpServer):
    """One vLLM engine that answers a prompt `n` times."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        use_own_engine_sockets()
        super().__init__(*args, **kwargs)
        self._own_adapters = frozenset(adapters(self.config))
        """The policies with an adapter."""
        base = {SHARED, *unadapted(self.config)} - self._own_adapters
        self._answered = frozenset(models(self.config) or base)
        """Those that the model's own weights answer for."""
        self._adapters: dict[str, _Adapter] = {}
        self._next_adapter = _FIRST_ADAPTER

    @cached_property
    def _forced_tokens(self) -> ForcedTokens:
        return ForcedTokens(self.engine)

    def _get_worker_extension_cls(self) -> str:
        return EXTENSION

    async def run_server(self, args: argparse.Namespace) -> None:
        """Starts the engine, with room for all adapters and without the HTTP server. Upstream behaviour:
        there is room for one adapter, and the engine is also served over HTTP at the node's address, to
        everybody who reaches it. Here a new adapter is there before its former goes, and all calls of a run
        are calls of this actor; where somebody reads the engine's statistics there is a server, for them
        alone."""
        if self._own_adapters:
            args.max_loras = len(self._own_adapters)
            args.max_cpu_loras = len(self._own_adapters) + 1
        upstream = vllm_async_server.run_uvicorn

        async def serve(app: Any, server_args: Any, address: str) -> tuple[int, Any]:
            if self.config.prometheus.enable or vllm_async_server.RLInsightLogger.enabled():
                only_statistics(app)
                return await upstream(app, server_args, address)
            # The load balancer names servers by address and port. This one is reserved for the server.
            return self._master_port, None

        vllm_async_server.run_uvicorn = serve
        try:
            await super().run_server(args)
        finally:
            vllm_async_server.run_uvicorn = upstream

    async def generate_group(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, request_id: str, n: int
    ) -> list[Completion]:
        """`n` completions of a prompt (P,), sampled in one request with an id that is unique among those in
        flight, of the version that the engine had when it admitted the request; where the engine aborted it
        they have the tokens that were there. `policy` names whose weights answer: the model's own, or those
        of an adapter.

        EngineUnavailableError: the engine has died, or has other policies' weights alone, which must not
        answer for this one. ValueError, VLLMValidationError: it cannot answer such a request.
        """
        if policy not in self._adapters and policy not in self._answered:
            known = ", ".join(sorted({*self._adapters, *self._answered})) or "none"
            raise EngineUnavailableError(
                f"policy {policy!r} has no weights in this engine (those that have: {known}); send an "
                "adapter before its first request"
            )
        with _dead_engine_named():
            params = accepted_params(decoding, n, self.engine.model_config)
            forced = None if decoding.structured is None else self._forced_tokens.reader(decoding.structured)
            if await self._park_until_admitted(request_id) is not None:
                return unanswered(n, self.global_steps or 0, decoding.top_log_probs)
            try:
                adapter = self._adapters.get(policy)
                collector = await self.engine.add_request(
                    request_id,
                    TokensPrompt(prompt_token_ids=prompt_ids.tolist()),
                    params,
                    lora_request=None if adapter is None else adapter.request,
                )
            finally:
                # The engine holds the request from here on: a pause need not wait for this admission.
                self._admitting -= 1
            version = (self.global_steps or 0) if adapter is None else adapter.version
            output = None
            try:
                while output is None or not output.finished:
                    output = await collector.get()
            except BaseException:
                await self.engine.abort(request_id)
                raise
        return [completion(one, version, decoding, forced) for one in output.outputs]

    async def generate_packed(self, payload: bytes) -> bytes:
        """`generate_group` with `packed` arguments, and a `packed` answer."""
        return packed(await self.generate_group(*pickle.loads(payload)))

    async def set_adapter(self, policy: str, folder: str, version: int) -> None:
        """Lets requests of `policy` be answered from now on with the adapter in a folder on this server's
        node, as PEFT saves it, in the place of an earlier one. EngineUnavailableError: the engine has died;
        ValueError: it was started without adapters.

        vLLM keeps prefixes of an adapter under its name, and an adapter under its number. Both are new ones
        here: nothing that was cached under the earlier weights is found again, and requests that are on their
        way keep the weights that they began with as long as those are in their folder.
        """
        if self.engine.vllm_config.lora_config is None:
            raise ValueError(
                f"policy {policy!r}: this engine takes no adapters; actor_rollout_ref.model.lora_rank lets it"
            )
        request = LoRARequest(f"{policy}#{self._next_adapter}", self._next_adapter, folder)
        self._next_adapter += 1
        with _dead_engine_named():
            await self.engine.add_lora(request)
            former = self._adapters.get(policy)
            self._adapters[policy] = _Adapter(request, version)
            if former is not None:
                await self.engine.remove_lora(former.request.lora_int_id)

    async def store_adapter(self, policy: str, files: Mapping[str, bytes], version: int) -> None:
        """Keeps an adapter's files, of a PEFT folder by name, on this server's node for `use_adapter`."""
        folder = self._adapter_folder(policy, version)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)

    async def use_adapter(self, policy: str, version: int) -> None:
        """Uses the adapter of this version, which every node of the engine has; see `set_adapter`."""
        await self.set_adapter(policy, str(self._adapter_folder(policy, version)), version)

    async def drop_old_adapters(self, policy: str, version: int) -> None:
        """Deletes the policy's files of other versions."""
        current = self._adapter_folder(policy, version)
        for folder in current.parent.iterdir():
            if folder != current:
                shutil.rmtree(folder)

    def _adapter_folder(self, policy: str, version: int) -> Path:
        """The same on all nodes of the engine, and another for each engine of a node."""
        return own_folder() / "adapters" / f"replica_{self.replica_rank}" / policy / str(version)

    async def pulse(self, through_core: bool) -> tuple[int, int]:
        """A sign of life of the engine: how many requests are in it, and how many tokens they have so far,
        one of which changes while it works on them. EngineUnavailableError: it has died. Upstream behaviour:
        `AsyncLLM` marks itself as broken when its core's process ends. That a core hangs shows by a question
        that it leaves open (`through_core`); it answers one between two of its steps. A question to a core
        that has just died is left open too, while vLLM cleans up and has not marked the engine yet."""
        with _dead_engine_named():
            await self.engine.check_health()
            if through_core:
                await self._ask_core()
        states = list(self.engine.output_processor.request_states.values())
        return len(states), sum(state.detokenizer.num_output_tokens() for state in states)

    async def _ask_core(self) -> None:
        """Returns when the engine's core has answered; raises EngineDeadError if it dies meanwhile."""
        asked = asyncio.ensure_future(self.engine.is_sleeping())
        try:
            while not asked.done():
                await asyncio.wait([asked], timeout=_LOOK_S)
                await self.engine.check_health()
            await asked
        finally:
            asked.cancel()

    async def prefill_counters(self) -> PrefillCounters | None:
        """vLLM's count of the prompts read so far; None where the engine keeps no statistics. All requests
        that were answered are in it: `AsyncLLM`'s output handler, a task of this event loop, counts what an
        engine step did before any other task sees that step's last outputs."""
        return read_counters()


def only_statistics(app: Any) -> None:
    """Leaves an application of vLLM's nothing but its metrics and its health check."""
    app.router.routes[:] = [
        route for route in app.router.routes if getattr(route, "path", None) in _METRICS_PATHS
    ]


class MarsRLvLLMReplica(vLLMReplica):
    """A replica made of `MarsRLvLLMServer`s."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(MarsRLvLLMServer)

    async def init_hybrid(self, worker_group: RayWorkerGroup) -> None:
        """Starts as upstream, on the GPUs of the workers of its number among the engines of its model.
        Upstream behaviour: all engines have different workers."""
        here = self.replica_rank % (worker_group.world_size // self.world_size)
        self.rollout_mode = RolloutMode.HYBRID
        self.workers = worker_group.workers[self.world_size * here : self.world_size * (here + 1)]
        await self.launch_servers()

    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        """Returns upstream's class and arguments, but for the worker, which has sockets of its own."""
        from marsrl_verl.verl_adapter.rollout_server.weight_transfer import OwnSocketEngineWorker

        return RayClassWithInitArgs(
            cls=ray.remote(OwnSocketEngineWorker),
            rollout_config=self.config,
            model_config=self.model_config,
            replica_rank=self.replica_rank,
        )


def register_replica() -> None:
    """Lets `rollout.name=vllm` build our replica in this process (the trainer's). verl's settings test for
    the name "vllm", so the name stays and the loader changes."""
    RolloutReplicaRegistry.register("vllm", lambda: MarsRLvLLMReplica)
