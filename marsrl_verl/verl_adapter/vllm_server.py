"""verl's vLLM server with a whole group in one call, the count of what it read, and no open port.

Upstream behaviour: `vLLMHttpServer.generate` answers one sample a call, streams every token through
the event loop, and reports neither `stop` nor `length`. A group of G samples shares its prompt, so
one request with `n=G` and only the final output saves G-1 round trips and every intermediate one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from verl.single_controller.ray import RayClassWithInitArgs
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout import vllm_async_server
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from marsrl_verl.rollout.single_call import EngineUnavailableError
from marsrl_verl.verl_adapter.prefill_counters import PrefillCounters, read_counters
from marsrl_verl.verl_adapter.weight_sockets import EXTENSION, use_own_engine_sockets

_METRICS_PATHS = ("/metrics", "/health")


@contextmanager
def _dead_engine_named() -> Iterator[None]:
    """Raise our own error for vLLM's of a dead engine: callers must tell it from a refused request."""
    try:
        yield
    except EngineDeadError as error:
        raise EngineUnavailableError("the engine's process has ended; its log says why") from error


class MarsRLvLLMServer(vLLMHttpServer):
    """One vLLM engine that answers a prompt `n` times."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        use_own_engine_sockets()
        super().__init__(*args, **kwargs)

    def _get_worker_extension_cls(self) -> str:
        return EXTENSION

    async def run_server(self, args: argparse.Namespace) -> None:
        """Start the engine, without the HTTP server.

        Upstream behaviour: the engine is also served over HTTP at the node's address, to everybody who
        reaches it. All calls of a run are calls of this actor. Where somebody reads the engine's statistics
        there is a server, for them alone.
        """
        upstream = vllm_async_server.run_uvicorn

        async def serve(app: Any, server_args: Any, address: str) -> tuple[int, Any]:
            if self.config.prometheus.enable or vllm_async_server.RLInsightLogger.enabled():
                only_statistics(app)
                served: tuple[int, Any] = await upstream(app, server_args, address)
                return served
            # The load balancer names servers by address and port. This one is reserved for the server.
            return self._master_port, None

        vllm_async_server.run_uvicorn = serve
        try:
            await super().run_server(args)
        finally:
            vllm_async_server.run_uvicorn = upstream

    async def generate_group(
        self, prompt_ids: list[int], sampling: dict[str, Any], request_id: str, n: int
    ) -> list[tuple[list[int], list[float], str, int]]:
        """Sample `n` completions of one prompt.

        Args:
            prompt_ids: the prompt's token ids.
            sampling: keyword arguments of vLLM's `SamplingParams`, `max_tokens` included.
            request_id: unique among the requests in flight.
            n: how many completions.

        Returns:
            For each completion: token ids, their log-probabilities under the sampling distribution,
            vLLM's finish reason, and the training step whose weights sampled it. Empty where the
            engine aborted the request.

        Raises:
            EngineUnavailableError: the engine has died.
        """
        with _dead_engine_named():
            return await self._generate_group(prompt_ids, sampling, request_id, n)

    async def _generate_group(
        self, prompt_ids: list[int], sampling: dict[str, Any], request_id: str, n: int
    ) -> list[tuple[list[int], list[float], str, int]]:
        if await self._park_until_admitted(request_id) is not None:
            return []
        try:
            # Only ids and log-probabilities are wanted; the rollout code makes the text of the ids.
            params = SamplingParams(
                n=n,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                **sampling,
            )
            collector = await self.engine.add_request(
                request_id, TokensPrompt(prompt_token_ids=prompt_ids), params
            )
        finally:
            # The engine holds the request from here on: a pause need not wait for this admission.
            self._admitting -= 1
        version = self.global_steps or 0
        output = None
        try:
            while output is None or not output.finished:
                output = await collector.get()
        except BaseException:
            await self.engine.abort(request_id)
            raise
        return [
            (
                list(completion.token_ids),
                # `logprobs=0` gives one entry a position: that of the sampled token.
                list(completion.logprobs.logprobs),
                completion.finish_reason or "abort",
                version,
            )
            for completion in output.outputs
        ]

    async def pulse(self, through_core: bool) -> tuple[int, int]:
        """A sign of life of the engine.

        Upstream behaviour: `AsyncLLM` marks itself as broken when its core's process ends. That a core hangs
        shows by a question that it leaves open; it answers one between two of its steps.

        Args:
            through_core: ask the core too.

        Returns:
            How many requests are in the engine, and how many tokens they have so far. While it works on them,
            one of the two changes.

        Raises:
            EngineUnavailableError: the engine has died.
        """
        with _dead_engine_named():
            await self.engine.check_health()
            if through_core:
                await self.engine.is_sleeping()
        states = list(self.engine.output_processor.request_states.values())
        return len(states), sum(state.detokenizer.num_output_tokens() for state in states)

    async def prefill_counters(self) -> PrefillCounters | None:
        """vLLM's count of the prompts read so far; None where the engine keeps no statistics.

        All requests that were answered are in it: `AsyncLLM`'s output handler, a task of this event loop,
        counts what an engine step did before anybody else's turn comes to see that step's last outputs.
        """
        return read_counters()


def only_statistics(app: Any) -> None:
    """Leave an application of vLLM's nothing but its metrics and the sign that it is there."""
    app.router.routes[:] = [
        route for route in app.router.routes if getattr(route, "path", None) in _METRICS_PATHS
    ]


class MarsRLvLLMReplica(vLLMReplica):
    """A replica made of `MarsRLvLLMServer`s."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(MarsRLvLLMServer)

    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        """As upstream, with the worker that has sockets of its own."""
        from marsrl_verl.verl_adapter.weight_transfer import OwnSocketEngineWorker

        return RayClassWithInitArgs(
            cls=ray.remote(OwnSocketEngineWorker),
            rollout_config=self.config,
            model_config=self.model_config,
            replica_rank=self.replica_rank,
        )


def register_replica() -> None:
    """Let `rollout.name=vllm` build our replica in this process (the trainer's).

    verl's settings test for the name "vllm", so the name stays and the loader changes.
    """
    RolloutReplicaRegistry.register("vllm", lambda: MarsRLvLLMReplica)
