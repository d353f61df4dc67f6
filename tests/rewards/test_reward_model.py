"""A reward model's scores beside a grader's: what it is asked, what it answers, what becomes of failures. The
server is real, and its requests are those of vLLM's `/classify`."""

from __future__ import annotations

import asyncio
import re

import pytest
from aiohttp import web
from fake_services import FakeService
from reward_tools import request

from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rewards.base import RoleReward
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.rewards.reward_model import ScoredReward
from marsrl_verl.rewards.running import RewardRunner

EXACT = {"target": "marsrl_verl.rewards.exact:ExactAnswerReward"}
THERE = {"base_urls": ["http://h"], "model": "m"}


def answered(*values, **more):
    data = [{"index": 0, "label": "LABEL_0", "probs": list(values), "num_classes": len(values)}]
    return web.json_response({"object": "list", "data": data, **more})


def scored(answer, *requests, **endpoint):
    """The results of requests, asked at a time, and the server."""

    async def run():
        server = FakeService(answer)
        async with server.running() as url:
            settings = {"base_urls": [url], "model": "rm", "backoff_s": 0.0, "timeout_s": 5, **endpoint}
            runner = RewardRunner(ScoredReward(endpoint=settings, grader=EXACT))
            try:
                return await asyncio.gather(*map(runner.score, requests)), server
            finally:
                runner.close()

    return asyncio.run(run())


def test_an_answer_is_graded_and_scored():
    (right, wrong), server = scored(
        lambda one: answered(-3.25 if "3" in one.body["messages"][1]["content"] else 7),
        request(r"<think>3?</think>\boxed{2}", final_text=r"\boxed{2}"),
        request(r"\boxed{3}"),
        extra_body={"truncate_prompt_tokens": 900},
    )
    assert (right.value, right.info["reward_model"], right.info["answer"]) == (1.0, 7.0, "2")
    assert (wrong.value, wrong.info["reward_model"]) == (0.0, -3.25)
    (asked,) = [one for one in server.requests if "2" in one.body["messages"][1]["content"]]
    assert asked.request.path == "/classify"
    assert asked.body == {
        "model": "rm",
        "messages": [
            {"role": "user", "content": "1 + 1 = ?"},
            {"role": "assistant", "content": r"\boxed{2}"},
        ],
        "use_activation": False,
        "truncate_prompt_tokens": 900,
    }


def test_what_has_not_ended_is_not_scored():
    (cut, empty), server = scored(
        lambda one: answered(1.0), request(r"\boxed{2}", reason=FinishReason.LENGTH), request(" ")
    )
    assert (cut.value, empty.value) == (0.0, 0.0) and server.requests == []
    assert "reward_model" not in {**cut.info, **empty.info}


def test_a_busy_server_is_asked_again():
    (one,), server = scored(
        lambda one: web.Response(status=503) if one.number < 2 else answered(0.5),
        request(r"\boxed{2}"),
        retries=2,
    )
    assert one.info["reward_model"] == 0.5 and len(server.requests) == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda one: web.Response(status=503, text="loading"), r"HTTP 503: loading \(attempt 2, the last\)"),
        (lambda one: web.Response(status=400, text="too long"), "HTTP 400: too long"),
        (lambda one: answered(0.2, 0.8), "expected data with a score of one label"),
        (lambda one: web.json_response({"choices": []}), "expected data with a score of one label"),
        (lambda one: web.json_response([1]), "expected data with a score of one label"),
        (lambda one: answered(None), "answered the score None, expected a number"),
    ],
)
def test_a_failed_reward_model_is_a_failed_grade(answer, said):
    (one,), server = scored(answer, request(r"\boxed{2}"), retries=1)
    assert (one.value, one.graded, one.raised) == (0.0, False, False)
    assert re.search(f"ServiceError: the reward model gave no score: .*{said}", one.error)
    assert len(server.requests) == (2 if "503" in said else 1)


def test_no_more_requests_than_allowed_at_a_time():
    async def slowly(one):
        await asyncio.sleep(0.02)
        return answered(1.0)

    results, server = scored(slowly, *[request(r"\boxed{2}")] * 9, max_concurrent_requests=3)
    assert len(results) == 9 and server.max_at_once == 3


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({}, "kwargs.endpoint needs base_urls"),
        ({"endpoint": {**THERE, "temperature": 0.5}}, "kwargs.endpoint.temperature"),
        ({"endpoint": {**THERE, "api_key_env": "NO_SUCH"}}, "api_key_env: it is not"),
        ({"endpoint": THERE, "grader": {"kwargs": {}}}, "kwargs.grader is"),
        ({"endpoint": THERE, "grader": {"target": "no.such:Reward"}}, "no.such"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(kwargs, said):
    base: type = RoleReward
    with pytest.raises(ClassLoadError, match=said):
        load_class("marsrl_verl.rewards.reward_model:ScoredReward", kwargs, base)


def test_it_asks_of_problems_and_time_what_its_grader_asks():
    there = {**THERE, "retries": 1, "timeout_s": 10}
    found = ScoredReward(endpoint=there, grader=EXACT)
    assert found.tells_answer and found.longest_s(17) == 2 * (2 * 10 + 60)
    paced = ScoredReward(endpoint={**there, "max_requests_per_minute": 30}, grader=EXACT)
    assert paced.longest_s(17) - found.longest_s(17) == 17 * 2 * 2, "two seconds for each of 17 * 2 attempts"
