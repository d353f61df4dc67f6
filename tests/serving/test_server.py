"""The official client against the server, with a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import openai
import pytest
from scripted_engine import Reply
from served import CHAT, HeldAnswers, ask, client, make_service, metrics, served, until

from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import EngineUnavailableError


def run(scenario, answers=None, key=None, **settings):
    """A scenario (answers, service, address) in an event loop of its own."""

    async def play():
        held = answers or HeldAnswers()
        service = make_service(held, **settings)
        async with served(service, key) as address:
            return await scenario(held, service, address)

    return asyncio.run(play())


def test_the_final_solution_comes_with_the_trail_and_the_usage_of_all_roles():
    async def scenario(answers, service, address):
        got = await ask(address)
        assert got.choices[0].message.content == "It is solution. \\boxed{4}"
        assert got.choices[0].finish_reason == "stop"
        about = got.run
        assert [(one["stage"], one["role"], one["answer"]) for one in about["trail"]] == [
            ("draft", "solver", "4"),
            ("solution", "solver", "4"),
        ]
        # A token is a byte: `user: 2+2?`, then the whole chat with the draft.
        chat = "user: 2+2?\nassistant: It is draft. \\boxed{4}\nuser: Again."
        prompts = len("user: 2+2?") + len(chat)
        written = len("It is draft. \\boxed{4}") + len("It is solution. \\boxed{4}")
        assert about["usage"] == {"solver": {"prompt_tokens": prompts, "completion_tokens": written}}
        assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (prompts, written)
        assert got.usage.total_tokens == prompts + written
        assert [one.id for one in (await client(address).models.list()).data] == ["tiny"]

    run(scenario)


def test_a_stream_tells_each_stage_then_the_solution():
    async def scenario(answers, service, address):
        answers.open.clear()
        stream = await ask(address, stream=True, stream_options={"include_usage": True})
        chunks = aiter(stream)
        assert (await anext(chunks)).choices[0].delta.role == "assistant"
        begun = (await anext(chunks)).run
        assert begun == {"event": "begins", "stage": "draft", "role": "solver"}  # while nothing is answered
        answers.open.set()
        rest = [one async for one in chunks]
        events = [one.run["event"] for one in rest if getattr(one, "run", None)]
        assert events == ["ends", "begins", "ends", "answer"]
        texts = [one.choices[0].delta.content for one in rest if one.choices]
        assert [one for one in texts if one] == ["It is solution. \\boxed{4}"]
        assert [one.choices[0].finish_reason for one in rest if one.choices][-1] == "stop"
        whole = await ask(address)
        assert rest[-1].usage.total_tokens == whole.usage.total_tokens

    run(scenario)


def test_requests_without_room_wait_or_are_refused_with_advice():
    async def scenario(answers, service, address):
        answers.open.clear()
        first = [asyncio.ensure_future(ask(address)) for _ in range(5)]
        await until(lambda: len(service._tasks) == 5 and len(answers.asked) == 2)
        figures = await metrics(address)
        assert (figures["marsrl_runs_running"], figures["marsrl_runs_waiting"]) == (2, 3)
        with pytest.raises(openai.RateLimitError) as refused:
            await ask(address)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        with pytest.raises(openai.RateLimitError):
            await ask(address, stream=True)
        answers.open.set()
        assert len({one.id for one in await asyncio.gather(*first)}) == 5
        assert len((await ask(address)).run["trail"]) == 2

    run(scenario, max_running=2, max_waiting=3)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_its_requests(stream):
    async def scenario(answers, service, address):
        answers.open.clear()

        async def read():
            got = await ask(address, stream=stream)
            if stream:
                async for _ in got:
                    pass

        asking = [asyncio.ensure_future(read()) for _ in range(4)]
        await until(lambda: len(answers.asked) == 2 and len(service._tasks) == 4)
        for one in asking:
            one.cancel()
        await until(lambda: not service._tasks)
        assert answers.given_up == 2
        figures = await metrics(address)
        assert (figures["marsrl_runs_running"], figures["marsrl_runs_waiting"]) == (0, 0)
        assert figures['marsrl_requests_total{status="499"}'] == 4
        answers.open.set()
        assert (await ask(address)).choices[0].message.content

    run(scenario, max_running=2)


def test_a_dead_engine_is_503_until_another_answers():
    async def scenario(answers, service, address):
        told = []
        service.engine_failed = told.append
        answers.open.clear()
        others = [asyncio.ensure_future(ask(address)) for _ in range(3)]
        await until(lambda: len(answers.asked) == 1)
        answers.error = EngineUnavailableError("the process at /srv/logs/x has ended")
        answers.open.set()
        for one in others:  # the one that ran, and those that waited
            with pytest.raises(openai.InternalServerError) as refused:
                await one
            assert refused.value.status_code == 503 and refused.value.response.headers["retry-after"]
            assert "/srv" not in str(refused.value)
        async with httpx.AsyncClient() as asking:
            assert (await asking.get(f"{address}/health")).status_code == 503
            with pytest.raises(openai.InternalServerError):
                await ask(address)
            assert len(told) == 1 and len(answers.asked) == 1
            answers.error = None
            service.take_up(answers)
            assert (await asking.get(f"{address}/health")).status_code == 200
        assert (await ask(address)).choices[0].message.content
        assert (await metrics(address))["marsrl_engine_restarts_total"] == 1

    run(scenario, max_running=1)


def test_a_key_is_asked_for():
    async def scenario(answers, service, address):
        for wrong in ("other", "sesame2", "sesam", "é"):
            with pytest.raises(openai.AuthenticationError):
                await client(address, "other").models.list()
            headers = {"Authorization": f"Bearer {wrong}".encode()}
            async with httpx.AsyncClient() as asking:
                sent = {"model": "tiny", "messages": CHAT}
                refused = await asking.post(f"{address}/v1/chat/completions", json=sent, headers=headers)
            assert refused.status_code == 401 and not answers.asked
        right = client(address, "sesame").chat.completions
        assert (await right.create(model="tiny", messages=CHAT)).choices

    run(scenario, key="sesame")


def test_without_the_key_no_body_is_read_and_a_large_one_is_refused():
    taken = []

    async def pieces():
        for _ in range(1000):
            taken.append(1)
            yield b"x" * 10_000
            await asyncio.sleep(0)

    async def scenario(answers, service, address):
        async with httpx.AsyncClient() as asking:
            for headers, status in ((None, 401), ({"Authorization": "Bearer sesame"}, 413)):
                taken.clear()
                url = f"{address}/v1/chat/completions"
                # Some servers end the connection before the client has sent all.
                with contextlib.suppress(httpx.WriteError, httpx.ReadError):
                    refused = await asking.post(url, content=pieces(), headers=headers)
                    assert refused.status_code == status
                    assert refused.json()["error"]["type"]
                assert (await asking.get(f"{address}/health")).status_code == 200
        assert not answers.asked

    run(scenario, key="sesame", max_body_kib=64)


def test_requests_of_one_seed_leave_room_to_others():
    async def scenario(answers, service, address):
        answers.open.clear()
        same = [asyncio.ensure_future(ask(address, seed=3)) for _ in range(4)]
        await until(lambda: len(service._tasks) == 4 and len(answers.asked) == 1)
        other = asyncio.ensure_future(ask(address))
        await until(lambda: len(answers.asked) == 2)
        answers.open.set()
        await asyncio.gather(other, *same)

    run(scenario, max_running=2)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"n": 2}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "Hi"}]}, "user message"),
        ({"messages": [{"role": "user", "content": "x" * 200}]}, "solver takes 100"),
        ({"extra_body": {"presence_penalty": 1}}, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_would_have_no_effect_is_refused(fields, names):
    async def scenario(answers, service, address):
        with pytest.raises(openai.BadRequestError, match=names):
            await ask(address, **fields)

    run(scenario)


def test_another_model_is_not_found():
    async def scenario(answers, service, address):
        with pytest.raises(openai.NotFoundError, match="tiny"):
            await ask(address, model="gpt")

    run(scenario)


def test_a_clients_sampling_is_that_of_all_roles():
    async def scenario(answers, service, address):
        await ask(address)
        [one] = answers.sampling.values()
        assert (one.temperature, one.top_p, one.max_new_tokens, one.seed) == (0.6, 0.9, 200, None)
        await ask(address, temperature=0.3, top_p=0.5, max_tokens=50, seed=7)
        [one] = answers.sampling.values()
        assert (one.temperature, one.top_p, one.max_new_tokens, one.seed) == (0.3, 0.5, 50, 7)
        await ask(address, temperature=0, max_completion_tokens=500)
        [one] = answers.sampling.values()
        assert (one.temperature, one.top_p, one.max_new_tokens) == (0.0, 1.0, 200)
        cut = await ask(address, max_tokens=5)
        assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("", "length")
        stopped = await ask(address, stop=["\\boxed", "\n"])
        assert stopped.choices[0].message.content == "It is solution. "

    run(scenario)


def test_a_seed_gives_the_requests_of_a_problem_the_same_names_one_run_after_the_other():
    async def scenario(answers, service, address):
        answers.open.clear()
        together = [asyncio.ensure_future(ask(address, seed=number)) for number in (3, 3, 3, 3, 4)]
        await until(lambda: len(service._tasks) == 5 and len(answers.asked) >= 2)
        await asyncio.sleep(0.05)  # time for a request too many
        assert len(answers.asked) == 2
        answers.open.set()
        await asyncio.gather(*together)
        names = [one.group_id for one in answers.asked if "/draft" in one.group_id]
        assert sorted(names.count(one) for one in set(names)) == [1, 4]
        running = [one.group_id for one in answers.asked if one.group_id.startswith("chat-3-")]
        assert running == [*running[:2]] * 4  # draft, solution, and only then the next run's draft

    run(scenario)


def test_a_run_whose_request_failed_is_no_answer():
    def script(item, k):
        return Reply("", FinishReason.ABORTED) if item.stage == "solution" else Reply("\\boxed{4}")

    async def scenario(answers, service, address):
        with pytest.raises(openai.InternalServerError) as failed:
            await ask(address)
        assert failed.value.status_code == 502
        with pytest.raises(openai.APIError, match="aborted"):
            async for _ in await ask(address, stream=True):
                pass

    run(scenario, HeldAnswers(script))


def test_what_asks_for_nothing_else_is_taken():
    async def scenario(answers, service, address):
        zeros = {"presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "store": False}
        more = {"n": 1, "user": "u", "metadata": {"a": "b"}, "response_format": {"type": "text"}}
        found = await ask(address, **zeros, **more)
        assert found.choices[0].finish_reason == "stop"

    run(scenario)
