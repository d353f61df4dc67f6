"""A small system behind the server: a scripted engine that can be held, a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import openai
import uvicorn
from scripted_engine import Reply, ScriptedEngine

from marsrl_verl.core.prompts import ProblemPrompts
from marsrl_verl.core.request import Sampling
from marsrl_verl.evaluation.runs import Program, Run, is_usable
from marsrl_verl.evaluation.single_role import SingleRole
from marsrl_verl.serving.application import build_application
from marsrl_verl.serving.config import ServeConfig
from marsrl_verl.serving.service import ServedSystem, Service
from marsrl_verl.settings.evaluation import EvaluationConfig

CHAT = [{"role": "user", "content": "2+2?"}]


class DraftAndSolution(SingleRole):
    """A role writes a draft, then it is shown to the role again, whose answer counts."""

    def greedy(self):
        return DraftAndSolution(self.role, self.prompts)

    def program(self, run: Run) -> Program:
        asked = self.prompts.problem(run.problem)
        draft = yield run.request("draft", self.role, asked)
        shown = (*asked, {"role": "assistant", "content": draft.final_text})
        last = yield run.request("solution", self.role, (*shown, {"role": "user", "content": "Again."}))
        run.answer, run.end = (last if is_usable(last) else None), last.finish.value


class HeldAnswers:
    """Answers from a script; `open` lets them come, and what is given up on the way is counted."""

    def __init__(self, script=lambda item, k: Reply(f"It is {item.stage}. \\boxed{{4}}")) -> None:
        self.engine = ScriptedEngine(script)
        self.open = asyncio.Event()
        self.open.set()
        self.asked, self.given_up, self.error = [], 0, None
        self.sampling = {}

    async def __call__(self, request, sampling):
        self.asked.append(request)
        self.sampling = sampling
        self.engine.client.requests[request.group_id] = request
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.error is not None:
            raise self.error
        return await self.engine.runner.run(request, sampling)


def make_service(answers: HeldAnswers, evaluation=None, **settings) -> Service:
    """The draft and the solution, served."""
    used = evaluation or DraftAndSolution("solver", ProblemPrompts())
    sampling = {role: Sampling(200, 100) for role in used.roles}
    system = ServedSystem("tiny", used, sampling, EvaluationConfig(temperature=0.6, top_p=0.9))
    return Service(system, answers, ServeConfig(**settings))


@asynccontextmanager
async def served(service: Service, key: str | None = None) -> AsyncIterator[str]:
    """The server's address."""
    listening = socket.create_server(("127.0.0.1", 0))
    app = build_application(service, key)
    http = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    running = asyncio.ensure_future(http.serve(sockets=[listening]))
    try:
        while not http.started:
            await asyncio.sleep(0.01)  # uvicorn tells of its start by this flag alone
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        http.should_exit = True
        await running


def client(address: str, key: str = "none") -> openai.AsyncOpenAI:
    """The official client, which repeats nothing."""
    return openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)


async def ask(address: str, **fields):
    return await client(address).chat.completions.create(**{"model": "tiny", "messages": CHAT, **fields})


async def until(condition) -> None:
    """Returns when the condition holds, which takes a moment."""

    async def look():
        while not condition():
            await asyncio.sleep(0.01)  # other tasks of this loop bring it about

    await asyncio.wait_for(look(), 20)


async def metrics(address: str) -> dict[str, float]:
    """The server's figures."""
    async with httpx.AsyncClient() as asking:
        text = (await asking.get(f"{address}/metrics")).text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}
