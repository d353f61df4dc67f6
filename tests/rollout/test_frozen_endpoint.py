"""A frozen policy behind an endpoint: what is asked, what becomes of each answer. The server is real."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from fake_services import FakeService

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.group import Group
from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.reporting.rollout_log import step_lines, write_lines
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.failed_round import LEAST_REQUESTS, RequestWatch
from marsrl_verl.rollout.frozen.config import PolicyEndpoint
from marsrl_verl.rollout.frozen.endpoint import EndpointSource
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.testing.client import AddedTokens

KEY = "sk-secret"


CONTROL_TOKENS = AddedTokens(("<|im_end|>", "<think>", "</think>"))


EXTERNAL = PolicySet((Policy(), Policy("big", PolicyKind.ENDPOINT)), {"solver": "big"})


def make_request(name: str = "p1", n: int = 2) -> RolloutRequest:
    problem = Problem(name, "1 + 1?", "2")
    chat = ({"role": "system", "content": "Think."}, {"role": "user", "content": "1 + 1?"})
    return RolloutRequest(f"{name}/solver/0", problem, "solver", "solver", chat, n)


async def trajectories_of(source: EndpointSource, requests: list[RolloutRequest]) -> list[Trajectory]:
    """What a worker makes of the endpoint's answers, in the order of the requests."""

    async def score(request, trajectories):
        return [RewardResult(0.0) for _ in trajectories]

    runner = RolloutRunner(
        None, ChatTokenizer(CONTROL_TOKENS), score, policies=EXTERNAL, sources={"big": source}
    )
    outputs = await asyncio.gather(*[runner.run(item, {}) for item in requests])
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
            return await trajectories_of(source, requests or [make_request()])

    return asyncio.run(run())


def test_every_answer_is_a_request_with_the_problems_chat():
    server = Server()
    trajectories = solve(server, temperature=0.6, top_p=0.95, max_tokens=99, extra_body={"top_k": 20})
    assert [one.trajectory_id for one in trajectories] == ["p1/solver/0#0", "p1/solver/0#1"]
    assert (
        server.bodies
        == [
            {
                "model": "big",
                "messages": list(make_request().messages),
                "temperature": 0.6,
                "top_p": 0.95,
                "max_tokens": 99,
                "top_k": 20,
            }
        ]
        * 2
    )
    assert {one.request.path for one in server.requests} == {"/v1/chat/completions"}
    assert [headers["Authorization"] for headers in server.headers] == [f"Bearer {KEY}"] * 2


def test_what_has_no_value_is_not_sent():
    server = Server()
    solve(server, api_key=None)
    assert set(server.bodies[0]) == {"model", "messages"}
    assert "Authorization" not in server.headers[0]


def test_an_answer_is_text_without_tokens():
    (one, _) = solve(Server())
    assert (one.text, one.final_text, one.finish) == (
        "It is 2.",
        "It is 2.",
        FinishReason.STOP,
    )
    assert one.external
    assert (one.sequences, one.new_tokens) == ([], 0)


@pytest.mark.parametrize(
    ("message", "text", "final"),
    [
        (
            {"content": "It is 2.", "reasoning_content": "1 and 1\n"},
            "<think>\n1 and 1\n</think>\n\nIt is 2.",
            "It is 2.",
        ),
        ({"content": "2", "reasoning": "hm"}, "<think>\nhm\n</think>\n\n2", "2"),
        ({"content": "<think>hm</think>\n2"}, "<think>hm</think>\n2", "2"),
        ({"content": "hm</think>2"}, "hm</think>2", "2"),
        ({"content": "<think>and on"}, "<think>and on", ""),
        ({"content": None, "reasoning_content": "and on"}, "<think>\nand on\n</think>\n\n", ""),
        ({"content": "2", "reasoning_content": None}, "2", "2"),
        ({"content": "2<|im_end|>", "reasoning_content": "a<|im_<|im_end|>end|>b"}, None, "2"),
    ],
)
def test_only_the_text_after_the_thinking_part_is_final(message, text, final):
    (one,) = solve(Server(lambda number, body: completion(**message)), requests=[make_request(n=1)])
    assert one.final_text == final
    assert one.text == (text if text is not None else "<think>\na<|im_ end|>b\n</think>\n\n2 ")


def test_half_of_a_surrogate_pair_is_replaced(tmp_path):
    # JSON may hold one, and no tokenizer and no file takes it.
    message = b'{"content": "2\\ud800", "reasoning": "\\udc00"}'
    body = b'{"choices": [{"message": ' + message + b', "finish_reason": "stop"}]}'
    server = Server(lambda number, _: web.Response(body=body, content_type="application/json"))
    (one,) = solve(server, requests=[make_request(n=1)])
    assert (one.text, one.final_text) == ("<think>\n\ufffd\n</think>\n\n2\ufffd", "2\ufffd")
    group = Group(make_request(n=1), [replace(one, reward=RewardResult(1.0))])
    write_lines(tmp_path / "step_1.jsonl", step_lines(1, [group], lambda request, one: {}))
    assert training_metrics([group], MarsRL)["role/solver/invalid_text_share"] == 1.0


def test_the_note_of_a_failed_request_can_not_write_to_a_terminal():
    server = Server(lambda number, body: web.Response(status=400, text=f"\x1b]0;own\x07\x9b31m {KEY}"))
    (one,) = solve(server, requests=[make_request(n=1)])
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
    (one,) = solve(Server(lambda number, body: completion("2", ending)), requests=[make_request(n=1)])
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

    server = Server(busy_once)
    (one,) = solve(server, requests=[make_request(n=1)])
    assert (one.text, one.detail, len(server.bodies)) == ("It is 2.", None, 2)


def test_a_server_that_asks_for_patience_gets_it():
    def busy_once(number: int, body: dict) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "0.4"}) if number == 0 else completion()

    started = time.monotonic()
    (one,) = solve(Server(busy_once), requests=[make_request(n=1)])
    assert one.finished
    assert time.monotonic() - started >= 0.4


def test_a_request_that_never_succeeds_is_a_trajectory_with_a_note():
    server = Server(lambda number, body: web.Response(status=500, text="out of memory"))
    (one,) = solve(server, requests=[make_request(n=1)])
    assert len(server.bodies) == 3
    assert (one.finish, one.text, one.final_text) == (FinishReason.ERROR, "", "")
    assert "HTTP 500: out of memory" in one.detail
    assert "attempt 3" in one.detail


@pytest.mark.parametrize(
    ("status", "reason"),
    [(302, "error"), (401, "error"), (404, "error"), (400, "refused"), (413, "refused"), (422, "refused")],
)
def test_a_refused_request_is_not_repeated(status, reason):
    server = Server(
        lambda number, body: web.Response(status=status, text=f"no {KEY}", headers={"Location": "/v1"})
    )
    (one,) = solve(server, requests=[make_request(n=1)])
    assert len(server.bodies) == 1
    assert one.finish.value == reason
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
    server = Server(lambda number, body: web.Response(**response))
    (one,) = solve(server, requests=[make_request(n=1)])
    assert (one.finish, len(server.bodies)) == (FinishReason.ERROR, 1)
    assert "/v1/chat/completions" in one.detail
    assert KEY not in one.detail
    assert "sk-" not in one.detail, "not a part of it either"


def test_one_failure_leaves_the_others_of_the_group():
    server = Server(lambda number, body: web.Response(status=400) if number == 0 else completion())
    trajectories = solve(server, requests=[make_request(n=3)], concurrency=1)
    assert [one.finish.value for one in trajectories] == ["refused", "stop", "stop"]


def test_an_answer_that_takes_too_long_is_given_up():
    async def slow(number: int, body: dict) -> web.Response:
        await asyncio.sleep(5)
        return completion()

    server = Server(slow)
    (one,) = solve(server, requests=[make_request(n=1)], timeout_s=0.2)
    assert (one.finish, len(server.bodies)) == (FinishReason.ERROR, 1)
    assert "marsrl.policies.big.endpoint.timeout_s = 0.2" in one.detail


def test_an_answer_without_an_end_is_not_read(monkeypatch):
    monkeypatch.setattr("marsrl_verl.endpoints.chat.MOST_BYTES", 1 << 20)
    server = Server(lambda number, body: web.Response(text="x" * (1 << 21)))
    (one,) = solve(server, requests=[make_request(n=1)])
    assert (one.finish, len(server.bodies)) == (FinishReason.ERROR, 1)
    assert "answered more than 1 MiB" in one.detail


def test_servers_take_turns():
    first, second = Server(), Server()
    solve(first, second, requests=[make_request(n=6)])
    assert (len(first.bodies), len(second.bodies)) == (3, 3)


def test_another_server_answers_for_one_that_is_down():
    server = Server()
    trajectories = solve(server, requests=[make_request(n=4)], more_urls=(closed_url(),))
    assert all(one.finished for one in trajectories)
    assert len(server.bodies) == 4


def test_a_connection_that_breaks_off_is_made_again():
    server = Server(lambda number, body: completion() if number else None)
    (one,) = solve(server, requests=[make_request(n=1)])
    assert one.finished
    assert len(server.bodies) == 2


def test_no_more_requests_at_a_time_than_allowed():
    async def takes_a_moment(number: int, body: dict) -> web.Response:
        await asyncio.sleep(0.02)
        return completion()

    server = Server(takes_a_moment)
    trajectories = solve(server, requests=[make_request(f"p{i}", n=4) for i in range(4)], concurrency=3)
    assert all(one.finished for one in trajectories)
    assert len(server.bodies) == 16
    assert server.most_at_once == 3


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
            return await trajectories_of(source, [make_request(n=1)])
        finally:
            await runner.cleanup()

    (one,) = asyncio.run(run())
    assert (one.text, one.detail) == ("It is 2.", None)
    assert seen == ["http://solver.invalid/v1/chat/completions"]


# --- a whole round --------------------------------------------------------------------------------


def engine_answer(reason: FinishReason, group: int = 0) -> Trajectory:
    return Trajectory(f"v{group}#0", [Sequence("verifier", [1], [], [])], reason, detail="gone")


def test_a_frozen_policy_that_never_answers_stops_the_run():
    trajectories = solve(more_urls=(closed_url(),), requests=[replace(make_request(), n=LEAST_REQUESTS)])
    policies = {one.group_id: "big" for one in trajectories}
    with pytest.raises(
        EngineUnavailableError,
        match=r"last 8 requests of the frozen policy big \(marsrl\.policies\.big\) failed",
    ):
        RequestWatch().look([*trajectories, engine_answer(FinishReason.STOP)], policies=policies)


def test_the_engine_is_judged_by_its_own_requests():
    trajectories = solve(Server())
    failed = [engine_answer(FinishReason.ERROR, group) for group in range(LEAST_REQUESTS)]
    with pytest.raises(
        EngineUnavailableError, match=r"last 8 requests of the engine failed, the first of.*: gone"
    ):
        RequestWatch().look([*trajectories, *failed])


def test_failed_requests_add_up_over_small_rounds_until_one_is_answered():
    watch = RequestWatch()
    for group in range(LEAST_REQUESTS - 1):
        watch.look([engine_answer(FinishReason.ERROR, group)] * 8)
    watch.look([engine_answer(FinishReason.STOP), engine_answer(FinishReason.ERROR, 1)])
    for group in range(LEAST_REQUESTS - 1):
        watch.look([engine_answer(FinishReason.ERROR, group)])
    with pytest.raises(EngineUnavailableError):
        watch.look([engine_answer(FinishReason.ABORTED)])


def test_prompts_that_the_chat_template_refuses_say_nothing_about_the_engine():
    class Refuses:
        def apply_chat_template(self, messages, **kwargs):
            raise ValueError("roles must alternate")

    async def score(request, trajectories):
        return [RewardResult(0.0) for _ in trajectories]

    runner = RolloutRunner(None, ChatTokenizer(Refuses()), score)
    refused = asyncio.run(runner.run(make_request(), {"solver": Sampling(99, 99)})).trajectories
    assert [one.finish for one in refused] == [FinishReason.ERROR] * 2
    watch = RequestWatch()
    for _ in range(2 * LEAST_REQUESTS):
        watch.look([replace(one, trajectory_id=f"g{k}#0") for one in refused for k in range(LEAST_REQUESTS)])
    for group in range(LEAST_REQUESTS - 1):
        watch.look([engine_answer(FinishReason.ERROR, group), *refused])
    with pytest.raises(EngineUnavailableError):
        watch.look([engine_answer(FinishReason.ERROR)])


def test_a_single_answer_keeps_the_run_going():
    server = Server(lambda number, body: completion() if number else web.Response(status=404))
    watch = RequestWatch()
    watch.look(solve(server, concurrency=1, requests=[replace(make_request(), n=LEAST_REQUESTS + 1)]))
    watch.look([])


def test_an_endpoint_that_fails_often_in_round_after_round_ends_the_run_with_the_first_error():
    def round_(failing: int) -> list[Trajectory]:
        """Of 8 groups, those that fail."""
        kinds = [FinishReason.ERROR] * failing + [FinishReason.STOP] * (8 - failing)
        return [
            Trajectory(f"g{k}#{n}", [], kind, detail=f"HTTP 503 {k}")
            for k, kind in enumerate(kinds)
            for n in range(2)
        ]

    policies = {f"g{k}": "big" for k in range(8)}
    watch = RequestWatch({"big": 0.5}.__getitem__)
    for failing in (5, 4, 5, 3, 5):  # never in two rounds running
        watch.look(round_(failing), policies=policies)
    parts = round_(5)[::-1]
    watch.look(parts[:9], policies=policies, round_ended=False)  # a part is no round
    message = (
        r"20 of 32 requests of the frozen policy big .*2 rounds.*marsrl\.policies\.big\.endpoint\."
        r"max_failed_frac = 0\.5.*first error: HTTP 503 0"
    )
    with pytest.raises(EngineUnavailableError, match=message):
        watch.look(parts[9:], policies=policies)


def test_what_is_refused_for_its_content_says_nothing_about_the_endpoint():
    server = Server(lambda number, body: web.Response(status=400, text="longer than the context"))
    RequestWatch().look(solve(server, requests=[replace(make_request(), n=LEAST_REQUESTS)]))
