"""A person behind chat completions: what is shown, what is answered, one after the other."""

from __future__ import annotations

import asyncio
import io

import pytest
from fastapi.testclient import TestClient

from marsrl_verl.replay.play import Person, application

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?\x1b[2J"}]


def served(typed: str) -> tuple[TestClient, io.StringIO]:
    screen = io.StringIO()
    return TestClient(application(Person(screen, io.StringIO(typed)), "me")), screen


def test_a_chat_is_shown_and_what_is_typed_is_the_answer():
    client, screen = served("Two.\n\\boxed{2}\n.\nThree\n.\n")
    done = client.post("/v1/chat/completions", json={"model": "me", "messages": CHAT}).json()
    (choice,) = done["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Two.\n\\boxed{2}", "stop")
    shown = screen.getvalue()
    assert "[system]\nBe brief." in shown and "1+1?\\x1b[2J" in shown, "a prompt can't steer the terminal"
    again = client.post("/v1/chat/completions", json={"messages": CHAT}).json()
    assert again["choices"][0]["message"]["content"] == "Three"
    assert client.get("/v1/models").json()["data"][0]["id"] == "me"


def test_whoever_has_left_answers_no_more():
    client, _ = served("half an answer\n")
    assert client.post("/v1/chat/completions", json={"messages": CHAT}).status_code == 503


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": [{"role": "user", "content": [1]}]},
        {"messages": CHAT, "stream": True},
    ],
)
def test_what_nobody_can_read_is_refused(body):
    client, screen = served("")
    assert client.post("/v1/chat/completions", json=body).status_code == 400 and not screen.getvalue()


def test_chats_of_clients_that_have_left_are_not_shown():
    screen = io.StringIO()

    async def left() -> bool:
        return True

    with pytest.raises(ConnectionError):
        asyncio.run(Person(screen, io.StringIO("a\n.\n")).answer(CHAT, left))
    assert not screen.getvalue()


def test_two_chats_at_a_time_are_shown_one_after_the_other():
    screen = io.StringIO()

    async def both() -> list[str]:
        person = Person(screen, io.StringIO("a\n.\nb\n.\n"))
        chats = ([{"role": "user", "content": name}] for name in ("first", "second"))
        return await asyncio.gather(*map(person.answer, chats))

    assert asyncio.run(both()) == ["a", "b"]
    first, second = screen.getvalue().split("second")
    assert first.count("your answer") == second.count("your answer") == 1
