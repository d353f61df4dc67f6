"""Answers judged by a model: what it is told, what its reply means, and what becomes of its failures. The
server is real."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from aiohttp import web
from fake_services import FakeService
from hypothesis import given
from hypothesis import strategies as st
from reward_tools import request

from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.base import RoleReward
from marsrl_verl.rewards.judge import JudgeReward, UnclearVerdictError, question_message, read_verdict
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.rewards.running import RewardRunner

THERE = {"base_urls": ["http://h/v1"], "model": "m"}
JUDGE = "marsrl_verl.rewards.judge:JudgeReward"


class Server(FakeService):
    """Answers chat completions by a function of the told object, in a thread of its own."""

    def __init__(self, reply) -> None:
        super().__init__(self._reply)
        self.reply, self.told, self.url = reply, [], Future()
        self.loop, self.over = asyncio.new_event_loop(), asyncio.Event()
        threading.Thread(target=self.loop.run_until_complete, args=(self._serve(),), daemon=True).start()

    def _reply(self, received) -> web.Response:
        self.told.append(json.loads(received.body["messages"][1]["content"]))
        said = self.reply(self.told[-1], len(self.told))
        if isinstance(said, int):
            return web.Response(status=said, text="busy")
        choice = {"message": {"content": said}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    async def _serve(self) -> None:
        async with self.running() as url:
            self.url.set_result(f"{url}/v1")
            await self.over.wait()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.over.set)


@pytest.fixture
def judge():
    """A judge whose model replies by a function."""
    made = []

    def build(reply, **settings) -> tuple[JudgeReward, Server]:
        server = Server(reply)
        endpoint = {"base_urls": [server.url.result(30)], "model": "judge", "backoff_s": 0.0, "timeout_s": 5}
        reward = JudgeReward(endpoint={**endpoint, **settings.pop("endpoint", {})}, **settings)
        made.extend([reward, server])
        return reward, server

    yield build
    for one in made:
        one.close()


def same_letters(told, number) -> str:
    right = any(told["answer"][0] == one[0] for one in told["references"])
    return f"It begins alike.\n**Verdict: {'Correct' if right else 'Incorrect'}**"


def test_the_judge_decides_what_words_do_not(judge):
    reward, server = judge(same_letters)
    golds = ["the United Kingdom", "UK"]
    found = reward.score(request(r"\boxed{Uganda}", json.dumps(golds)))
    assert found == RewardResult(1.0, {"answer": "Uganda", "judged": True})
    assert reward.score(request(r"\boxed{France}", json.dumps(golds))).value == 0.0
    assert server.told[0] == {"question": "1 + 1 = ?", "references": golds, "answer": "Uganda"}


def test_what_needs_no_judge_is_not_asked(judge):
    reward, server = judge(same_letters, answer_chars=20)
    assert reward.score(request(r"\boxed{uk}", "UK")) == RewardResult(1.0, {"answer": "uk", "judged": False})
    assert reward.score(request(r"\boxed{" + 30 * "U" + "}", "UK")).value == 0.0
    assert reward.score(request("  ", "UK")).value == 0.0
    assert reward.score(request("UN", "UK", reason=FinishReason.LENGTH)).value == 0.0
    assert server.told == []


def test_one_answer_is_asked_about_once_however_many_wait(judge):
    reward, server = judge(same_letters)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: reward.score(request("UN", "UK")).value, range(8)))
    assert results == [1.0] * 8 and len(server.told) == 1


def test_a_failed_attempt_is_repeated_and_a_failure_is_asked_again(judge):
    reward, server = judge(
        lambda told, number: 503 if number < 4 else "Verdict: Correct", endpoint={"retries": 1}
    )
    with pytest.raises(RuntimeError, match=r"the judge gave no answer \(error\).*HTTP 503"):
        reward.score(request("UN", "UK"))
    assert len(server.told) == 2
    assert reward.score(request("UN", "UK")).value == 1.0
    assert len(server.told) == 4


def test_a_failed_judge_is_a_failed_grade(judge):
    reward, _ = judge(lambda told, number: "I don't know.")
    result = asyncio.run(RewardRunner(reward).score(request("UN", "UK")))
    assert (result.value, result.graded) == (0.0, False)
    assert "UnclearVerdictError: the judge's reply has no verdict: …I don't know." in result.error


def test_the_key_comes_from_the_environment_and_is_nowhere_else(judge, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    reward, server = judge(lambda told, number: 401, endpoint={"api_key_env": "JUDGE_KEY"})
    with pytest.raises(RuntimeError) as error:
        reward.score(request("UN", "UK"))
    assert server.requests[0].request.headers["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in str(error.value) + repr(reward.config)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({}, "kwargs.endpoint needs base_urls"),
        ({"endpoint": {**THERE, "api_key_env": "NO_SUCH"}}, "api_key_env: it is not"),
        ({"endpoint": {**THERE, "retrys": 1}}, "kwargs.endpoint.retrys"),
        ({"answer_chars": 0}, "kwargs.answer_chars"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(kwargs, said):
    with pytest.raises(ClassLoadError, match=said):
        load_class(JUDGE, kwargs, RoleReward)


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("Verdict: Correct", True),
        ("**Verdict:** Incorrect.", False),
        ("so\n`verdict: WRONG`\n", False),
        ("<think>Verdict: Correct</think>\nVerdict: Incorrect", False),
        ("Verdict: Correct\nVerdict: correct", True),
        ("> Verdict: _Correct_", True),
    ],
)
def test_a_verdict(reply, right):
    assert read_verdict(reply) is right


UNCLEAR = ["", "Correct", "The verdict: Correct", "<think>Verdict: Correct", "Verdict: Not correct"]


@pytest.mark.parametrize(
    "reply", [*UNCLEAR, "Verdict: Correct, I think", "Verdict: Correct\nVerdict: Incorrect"]
)
def test_an_unclear_verdict(reply):
    with pytest.raises(UnclearVerdictError):
        read_verdict(reply)


@given(st.text(max_size=40), st.lists(st.text(max_size=10), min_size=1, max_size=3), st.text(max_size=40))
def test_nothing_in_the_texts_leaves_its_place(question, golds, answer):
    told = question_message(question, golds, answer)
    assert "\n" not in told
    assert json.loads(told) == {"question": question, "references": golds, "answer": answer}


def test_limits_leave_room_for_all_attempts(judge):
    reward, _ = judge(same_letters, endpoint={"retries": 1, "timeout_s": 10, "max_concurrent_requests": 8})
    assert reward.longest_s(16) == 2 * (2 * 10 + 60)
