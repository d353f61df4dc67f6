"""A method's system as a service: HTTP in this process, which drives the runs, and engines that are started
anew where they die."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import uvicorn
from omegaconf import DictConfig, OmegaConf

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.evaluation.workflow import method_evaluation
from marsrl_verl.reporting.record import recorded
from marsrl_verl.reporting.run_folder import RunFolder
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.serving.application import build_application
from marsrl_verl.serving.service import ServedSystem, Service
from marsrl_verl.settings.api_key import read_api_key
from marsrl_verl.verl_adapter.components import build_prompts, sampling_settings
from marsrl_verl.verl_adapter.rollout_server.engine_watch import POLL_S
from marsrl_verl.verl_adapter.run.system import System
from marsrl_verl.verl_adapter.terminal import terminal

_LAST_S = 5
"""Seconds that requests on their way have when the server is told to end."""


class SystemServer:
    """Serves the system of a configuration until it is told to end.

    Args:
        config: see `System`.
    """

    def __init__(self, config: DictConfig) -> None:
        OmegaConf.resolve(config)
        settings = typed_settings(config)
        self.settings = settings
        self._key = read_api_key(settings.serve)
        # Before the engines, which take long to start: another process may have the port.
        self._socket = socket.create_server((settings.serve.host, settings.serve.port), backlog=2048)
        folder = RunFolder.create(settings.run.output_dir, settings.run.if_exists)
        folder.write_config(OmegaConf.to_yaml(recorded(config)))
        self.system = System(config, folder.path / "weights", say)
        self._ended_runs = self._restarts = 0

    async def answer(self) -> None:
        """Answers clients, once the system has started.

        Raises:
            EngineUnavailableError: engines have died too often.
        """
        manager = self.system.manager
        settings = self.settings
        prompts, evaluation = build_prompts(settings), settings.evaluation
        method = method_class(settings.algo.name)
        served = ServedSystem(
            settings.run.name,
            method_evaluation(method, settings.algo, evaluation, prompts),
            sampling_settings(settings),
            evaluation,
        )
        self._failed = asyncio.Event()
        self.service = Service(served, manager.answer, settings.serve, lambda _: self._failed.set())
        app = build_application(self.service, self._key)
        options = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=_LAST_S, lifespan="off"
        )
        http = uvicorn.Server(options)
        say([f"{served.name} answers at http://{settings.serve.host}:{settings.serve.port}/v1"])
        watching = asyncio.ensure_future(self._watch())
        watching.add_done_callback(lambda _: setattr(http, "should_exit", True))
        try:
            await http.serve(sockets=[self._socket])
        finally:
            watching.cancel()
        if not watching.cancelled() and watching.done() and (error := watching.exception()) is not None:
            raise error

    async def _watch(self) -> None:
        """Looks after the engines, and starts them anew."""
        self.system.watch.begin()
        while True:
            try:
                await asyncio.wait_for(self._failed.wait(), POLL_S)
            except asyncio.TimeoutError:
                try:
                    signs = self.system.watch.look()
                    requests = sum(one[0] for one in signs if one is not None)
                    self.service.metrics.in_engines(requests)
                except EngineUnavailableError as error:
                    self.service.give_up(error)
            if self.service.down is not None:
                await self._restart()

    async def _restart(self) -> None:
        serve, ended = self.settings.serve, self.service.ended
        self._restarts = 1 if ended > self._ended_runs else self._restarts + 1
        self._ended_runs = ended
        if self._restarts > serve.max_restarts:
            raise EngineUnavailableError(
                f"{self.service.down}; marsrl.serve.max_restarts = {serve.max_restarts} in a row are used up"
            )
        say([f"{self.service.down}: the engines are started anew"])
        await asyncio.sleep(POLL_S)  # what was on its way is given up meanwhile
        manager = await asyncio.to_thread(self.system.restart)
        self.system.watch.begin()
        self._failed.clear()
        self.service.take_up(manager.answer)
        say(["the engines answer again"])

    def close(self) -> None:
        """Ends the engines."""
        self.system.close()
        self._socket.close()


def say(lines: Iterable[str]) -> None:
    """Shows lines on the terminal."""
    for line in lines:
        print(line, file=terminal(), flush=True)


def serve(config: DictConfig) -> None:
    """Serves as `config` says, until a signal ends it."""
    server = SystemServer(config)
    try:
        server.system.start()
        asyncio.run(server.answer())
    finally:
        server.close()
