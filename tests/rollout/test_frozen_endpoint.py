"""A frozen policy behind an endpoint: what is asked, what becomes of each answer. The server is real."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from fake_services import FakeService

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.group import Group
from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.endpoints.chat import Pace
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.reporting.rollout_files import write_rollouts
from marsrl_verl.reporting.rollout_log import step_lines
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.external.config import PolicyEndpoint
from marsrl_verl.rollout.external.endpoint import EndpointSource
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.settings.run_logs import RolloutLogConfig
from marsrl_verl.testing.client import AddedTokens

KEY = "sk-secret"
CONTROL_TOKENS = AddedTokens(("<|im_end|>", "<think>", "</think>"))
EXTERNAL = PolicySet((Policy(), Policy("big", PolicyKind.ENDPOINT)), {"solver": "big"})


def make_request(name: str = "p1", n: int = 2) -> RolloutRequest:
    problem = Problem(name, "1 + 1?", "2")
    chat = ({"role": "system", "content": "Think."}, {"role": "user", "content": "1 + 1?"})
    return RolloutRequest(f"{name}/solver/0", problem, "solver", "solver", chat, n)


async def trajectories_of(
    source: EndpointSource, requests: list[RolloutRequest], sampling: Sampling | None
) -> list[Trajectory]:
    """What a worker makes of the endpoint's answers, in the order of the requests."""

    async def score(request, trajectories):
        return [RewardResult(0.0) for _ in trajectories]

    runner = RolloutRunner(
        None, ChatTokenizer(CONTROL_TOKENS), score, policies=EXTERNAL, sources={"big": source}
    )
    by_role = {} if sampling is None else {"solver": sampling}
    outputs = await asyncio.gather(*[runner.run(item, by_role) for item in requests])
    return [one for output in outputs for one in output.trajectories]


def completion(content: str | None = "It is 2.", reason: str | None = "stop", **message: Any) -> web.Response:
    body = {"choices": [{"message": {"content": content, **message}, "finish_reason": reason}]}
    return web.json_response(body)


class Server(FakeService):
    """An endpoint: what it answers to request number … (from 0) with that body; None breaks off."""

    def __init__(self, answer: Callable[[int, dict[str, Any]], Any] = lambda number, body: completion()):
        super().__init__(lambda one: answer(one.number, one.body))

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [one.body for one in self.requests]

    @property
    def headers(self) -> list[Any]:
        return [one.request.headers for one in self.requests]


def closed_url() -> str:
    """A URL at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


def solve(
    *servers: Server,
    requests: list[RolloutRequest] | None = None,
    more_urls: tuple[str, ...] = (),
    api_key: str | None = KEY,
    concurrency: int = 8,
    sampling: Sampling | None = None,
    **settings: Any,
) -> list[Trajectory]:
    """The trajectories that the requests get from these servers, in their order."""

    async def run() -> list[Trajectory]:
        async with contextlib.AsyncExitStack() as stack:
            urls = [f"{await stack.enter_async_context(server.running())}/v1" for server in servers]
            config = PolicyEndpoint(
                base_urls=[*more_urls, *urls], **{"model": "big", "backoff_s": 0.01, "retries": 2, **settings}
            )
            source = EndpointSource(config, "big", api_key=api_key, concurrency=concurrency, seed=1)
            return await trajectories_of(source, requests or [make_request()], sampling)

    return asyncio.run(run())


def solve_one(answer: Callable[[int, dict[str, Any]], Any], **settings: Any) -> tuple[Trajectory, int]:
    """What becomes of a request for one answer, and how often the server was asked."""
    server = Server(answer)
    (one,) = solve(server, requests=[make_request(n=1)], **settings)
    return one, len(server.bodies)


def test_every_answer_is_a_request_with_the_problems_chat():
    server = Server()
    trajectories = solve(server, temperature=0.6, top_p=0.95, max_tokens=99, extra_body={"top_k": 20})
    assert [one.trajectory_id for one in trajectories] == ["p1/solver/0#0", "p1/solver/0#1"]
    sampling = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 99, "top_k": 20}
    assert server.bodies == [{"model": "big", "messages": list(make_request().messages), **sampling}] * 2
    assert {one.request.path for one in server.requests} == {"/v1/chat/completions"}
    assert [headers["Authorization"] for headers in server.headers] == [f"Bearer {KEY}"] * 2


def test_what_has_no_value_is_not_sent():
    server = Server()
    solve(server, api_key=None)
    assert set(server.bodies[0]) == {"model", "messages"}
    assert "Authorization" not in server.headers[0]


def test_an_answer_is_text_without_tokens():
    (one, _) = solve(Server())
    assert (one.text, one.final_text, one.finish) == ("It is 2.", "It is 2.", FinishReason.STOP)
    assert one.external and (one.sequences, one.new_tokens) == ([], 0)


THINKING = {
    "a field": ("It is 2.", {"reasoning_content": "hm\n"}, "<think>\nhm\n</think>\n\nIt is 2.", "It is 2."),
    "its other name": ("2", {"reasoning": "hm"}, "<think>\nhm\n</think>\n\n2", "2"),
    "in the text": ("<think>hm</think>\n2", {}, "<think>hm</think>\n2", "2"),
    "opened by the template": ("hm</think>2", {}, "hm</think>2", "2"),
    "without an end": ("<think>and on", {}, "<think>and on", ""),
    "alone": (None, {"reasoning_content": "and on"}, "<think>\nand on\n</think>\n\n", ""),
    "none": ("2", {"reasoning_content": None}, "2", "2"),
    "with control tokens": (
        "2<|im_end|>", {"reasoning": "a<|im_<|im_end|>end|>b"}, "<think>\na<|im_ end|>b\n</think>\n\n2 ", "2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("content", "more", "text", "final"), THINKING.values(), ids=THINKING)
def test_only_the_text_after_the_thinking_part_is_final(content, more, text, final):
    one, _ = solve_one(lambda number, body: completion(content, **more))
    assert (one.text, one.final_text) == (text, final)


def test_half_of_a_surrogate_pair_is_replaced(tmp_path):
    # JSON may hold one, and no tokenizer and no file takes it.
    message = b'{"content": "2\\ud800", "reasoning": "\\udc00"}'
    body = b'{"choices": [{"message": ' + message + b', "finish_reason": "stop"}]}'
    one, _ = solve_one(lambda number, _: web.Response(body=body, content_type="application/json"))
    assert (one.text, one.final_text) == ("<think>\n\ufffd\n</think>\n\n2\ufffd", "2\ufffd")
    group = Group(make_request(n=1), [replace(one, reward=RewardResult(1.0))])
    lines = step_lines(1, [group], lambda request, one: {})
    write_rollouts(tmp_path, "step_1", lines, RolloutLogConfig())
    assert training_metrics([group], MarsRL)["role/solver/invalid_text_frac"] == 1.0


def test_the_note_of_a_failed_request_can_not_write_to_a_terminal():
    one, _ = solve_one(lambda number, body: web.Response(status=400, text=f"\x1b]0;own\x07\x9b31m {KEY}"))
    assert one.detail.endswith("\\x1b]0;own\\x07\\x9b31m [api key]")


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.REFUSED),
        (None, FinishReason.ABORTED),
    ],
)
def test_finish_reasons(ending, reason):
    one, _ = solve_one(lambda number, body: completion("2", ending))
    assert one.finish is reason
    assert (one.detail is None) == (reason in (FinishReason.STOP, FinishReason.LENGTH))
    assert one.detail is None or repr(ending) in one.detail


def asked_with_stop(choice: dict[str, Any], **settings: Any) -> tuple[ChatAnswer, dict[str, Any]]:
    """What comes of this choice of an answer to a chat that `[FINISH]` ends, and what was sent."""
    server = Server(lambda number, body: web.json_response({"choices": [choice]}))

    async def run() -> ChatAnswer:
        async with server.running() as url:
            config = PolicyEndpoint(base_urls=[f"{url}/v1"], model="big", retries=0, **settings)
            source = EndpointSource(config, "big", api_key=None, concurrency=1, seed=1)
            return await source.answer(make_request(), 0, make_request().messages, (FINISH,))

    return asyncio.run(run()), server.bodies[0]


FINISH = "[FINISH]"
STOPPED = {
    "vLLM": ({"stop_reason": FINISH}, {"content": "Enough. "}, f"Enough. {FINISH}"),
    "SGLang": ({"matched_stop": FINISH}, {"content": "Enough. "}, f"Enough. {FINISH}"),
    "at once": ({"stop_reason": FINISH}, {"content": None}, FINISH),
    "behind the thinking part": (
        {"stop_reason": FINISH}, {"content": "Enough. ", "reasoning": "hm"}, f"Enough. {FINISH}",
    ),
    "kept by the server": ({}, {"content": f"Enough. {FINISH}"}, f"Enough. {FINISH}"),
    "ended by the model": ({"stop_reason": None}, {"content": "Go on."}, "Go on."),
    "ended by a token": ({"matched_stop": 151645}, {"content": "Go on."}, "Go on."),
    "another string": ({"stop_reason": "END"}, {"content": "Go on."}, "Go on."),
    "cut": ({"finish_reason": "length"}, {"content": "Go o"}, "Go o"),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPPED)
def test_the_string_that_ended_an_answer_is_part_of_it(name):
    more, message, content = STOPPED[name]
    answer, sent = asked_with_stop({"message": message, "finish_reason": "stop", **more}, send_stop=True)
    assert sent["stop"] == [FINISH]
    assert (answer.content, answer.detail) == (content, None)
    assert answer.finish is (FinishReason.LENGTH if name == "cut" else FinishReason.STOP)


@pytest.mark.parametrize(
    ("more", "message", "note"),
    [
        ({}, {"content": "Enough. "}, "does not say what ended the answer (stop_reason or matched_stop)"),
        ({"stop_reason": FINISH}, {"content": "", "reasoning": "When do I write "}, "ended a thinking part"),
        ({"stop_reason": FINISH}, {"content": "<think>When do I write "}, "ended a thinking part"),
    ],
)
def test_an_answer_whose_end_is_unknown_is_none(more, message, note):
    answer, _ = asked_with_stop({"message": message, "finish_reason": "stop", **more}, send_stop=True)
    assert (answer.finish, answer.content) == (FinishReason.ERROR, "")
    assert note in answer.detail and "set send_stop=false" in answer.detail


def test_no_string_is_sent_unasked():
    """A server that knows no `stop_reason` would lose it."""
    answer, sent = asked_with_stop({"message": {"content": "Enough. "}, "finish_reason": "stop"})
    assert "stop" not in sent and (answer.content, answer.finish) == ("Enough. ", FinishReason.STOP)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_request_that_may_succeed_later_is_repeated(status):
    def busy_once(number: int, body: dict) -> web.Response:
        return web.Response(status=status, text="busy") if number == 0 else completion()

    one, asked = solve_one(busy_once)
    assert (one.text, one.detail, asked) == ("It is 2.", None, 2)


def test_a_server_that_asks_for_patience_gets_it():
    def busy_once(number: int, body: dict) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "0.2"}) if number == 0 else completion()

    started = time.monotonic()
    one, _ = solve_one(busy_once)
    assert one.finished
    assert time.monotonic() - started >= 0.2


def test_a_request_that_never_succeeds_is_a_trajectory_with_a_note():
    one, asked = solve_one(lambda number, body: web.Response(status=500, text="out of memory"))
    assert (one.finish, one.text, one.final_text, asked) == (FinishReason.ERROR, "", "", 3)
    assert "HTTP 500: out of memory" in one.detail and "attempt 3" in one.detail


@pytest.mark.parametrize(
    ("status", "reason"),
    [(302, "error"), (401, "error"), (404, "error"), (400, "refused"), (413, "refused"), (422, "refused")],
)
def test_a_refused_request_is_not_repeated(status, reason):
    said = {"status": status, "text": f"no {KEY}", "headers": {"Location": "/v1"}}
    one, asked = solve_one(lambda number, body: web.Response(**said))
    assert (one.finish.value, asked) == (reason, 1)
    assert f"HTTP {status}: no [api key]" in one.detail, "the key stays out of logs"


@pytest.mark.parametrize(
    "response",
    [
        {"text": "<html>"},
        {"text": "[]"},
        {"text": f'{{"error": "no such model for {KEY}"}}'},
        {"text": '{"choices": []}'},
        {"text": '{"choices": [{"message": {"content": ["2"]}, "finish_reason": "stop"}]}'},
        {"text": f'{{"choices": [{{"message": {{"content": ["{KEY}"]}}}}]}}'},
        {"text": "[" * 100_000},
        *({"text": "x" * n + KEY, "status": 404} for n in range(420, 500, 13)),
    ],
)
def test_something_else_than_a_completion_is_an_error(response):
    one, asked = solve_one(lambda number, body: web.Response(**response))
    assert (one.finish, asked) == (FinishReason.ERROR, 1)
    assert "/v1/chat/completions" in one.detail
    assert "sk-" not in one.detail, "the key, or a part of it"


def test_one_failure_leaves_the_others_of_the_group():
    server = Server(lambda number, body: web.Response(status=400) if number == 0 else completion())
    trajectories = solve(server, requests=[make_request(n=3)], concurrency=1)
    assert [one.finish.value for one in trajectories] == ["refused", "stop", "stop"]


def test_an_answer_that_takes_too_long_is_given_up():
    async def slow(number: int, body: dict) -> web.Response:
        await asyncio.sleep(5)
        return completion()

    one, asked = solve_one(slow, timeout_s=0.2)
    assert (one.finish, asked) == (FinishReason.ERROR, 1)
    assert "marsrl.policies.big.endpoint.timeout_s = 0.2" in one.detail


def test_an_answer_without_an_end_is_not_read(monkeypatch):
    monkeypatch.setattr("marsrl_verl.endpoints.chat.MAX_BYTES", 1 << 20)
    one, asked = solve_one(lambda number, body: web.Response(text="x" * (1 << 21)))
    assert (one.finish, asked) == (FinishReason.ERROR, 1)
    assert "answered more than 1 MiB" in one.detail


def test_servers_take_turns():
    first, second = Server(), Server()
    solve(first, second, requests=[make_request(n=6)])
    assert (len(first.bodies), len(second.bodies)) == (3, 3)


def test_another_server_answers_for_one_that_is_down():
    server = Server()
    trajectories = solve(server, requests=[make_request(n=4)], more_urls=(closed_url(),))
    assert all(one.finished for one in trajectories) and len(server.bodies) == 4


def test_a_connection_that_breaks_off_is_made_again():
    one, asked = solve_one(lambda number, body: completion() if number else None)
    assert one.finished and asked == 2


def test_no_more_requests_at_a_time_than_allowed():
    async def takes_a_moment(number: int, body: dict) -> web.Response:
        await asyncio.sleep(0.02)
        return completion()

    server = Server(takes_a_moment)
    trajectories = solve(server, requests=[make_request(f"p{i}", n=4) for i in range(4)], concurrency=3)
    assert all(one.finished for one in trajectories)
    assert (len(server.bodies), server.max_at_once) == (16, 3)


def test_no_more_requests_a_minute_than_allowed():
    """Repeated ones count, too: the first is rejected, five are sent."""
    times: list[float] = []

    def busy_once(number: int, body: dict) -> web.Response:
        times.append(time.monotonic())
        return completion() if len(times) > 1 else web.Response(status=429)

    solve(Server(busy_once), requests=[make_request(n=4)], max_requests_per_minute=1200.0, backoff_s=0.0)
    assert len(times) == 5
    assert times[-1] - times[0] >= 4 * 0.05 - 0.01 and min(np.diff(times)) > 0.03


def test_who_gives_up_waiting_takes_no_turn():
    async def run() -> float:
        pace = Pace(600.0)
        await pace.wait()
        waiting = [asyncio.ensure_future(pace.wait()) for _ in range(20)]
        await asyncio.sleep(0.01)
        for one in waiting[:-1]:
            one.cancel()
        began = time.monotonic()
        await waiting[-1]
        return time.monotonic() - began

    assert asyncio.run(run()) < 0.5, "twenty turns would take two seconds"


def test_a_proxy_of_the_environment_is_used(monkeypatch):
    seen: list[str] = []

    async def run() -> list[Trajectory]:
        async def proxy(request: web.BaseRequest) -> web.Response:
            seen.append(str(request.url))
            return completion()

        runner = web.ServerRunner(web.Server(proxy))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "")
        config = PolicyEndpoint(base_urls=["http://solver.invalid/v1/"], model="big", retries=0)
        source = EndpointSource(config, "big", api_key=KEY, concurrency=1, seed=1)
        try:
            return await trajectories_of(source, [make_request(n=1)], None)
        finally:
            await runner.cleanup()

    (one,) = asyncio.run(run())
    assert (one.text, one.detail) == ("It is 2.", None)
    assert seen == ["http://solver.invalid/v1/chat/completions"]


def test_the_roles_sampling_is_sent_where_the_settings_say_so():
    sampling = Sampling(90, 500, temperature=0.6, top_p=0.9, top_k=20, seed=7)

    def bodies(one: Sampling, **settings: Any) -> list[dict[str, Any]]:
        server = Server()
        solve(server, sampling=one, **settings)
        return [{key: body[key] for key in body.keys() - {"model", "messages"}} for body in server.bodies]

    sent = bodies(sampling, send_sampling=True, top_p=0.5)
    named = {"temperature": 0.6, "top_p": 0.5, "top_k": 20, "max_tokens": 90}
    assert [{**body, "seed": 0} for body in sent] == [{**named, "seed": 0}] * 2, (
        "a named one takes precedence"
    )
    seeds = {body["seed"] for body in sent}
    assert len(seeds) == 2 and max(seeds) < 2**31
    assert {body["seed"] for body in bodies(sampling, send_sampling=True)} == seeds
    assert bodies(sampling) == [{}, {}]
    plain = bodies(Sampling(90, 500), send_sampling=True)
    assert plain == [{"temperature": 1.0, "top_p": 1.0, "max_tokens": 90}] * 2
