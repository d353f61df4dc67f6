"""The remote back end against a local server that speaks SandboxFusion's API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from fake_services import FakeService, ReceivedRequest
from pydantic import ValidationError

from marsrl_verl.tools.base import ToolCall, ToolOutcome, ToolResult, ToolUnavailableError
from marsrl_verl.tools.python import remote
from marsrl_verl.tools.python.config import PythonConfig
from marsrl_verl.tools.python.tool import PythonTool
from marsrl_verl.tools.toolbox import Toolbox, read_all_secrets

FIRST = "print(6 * 7)"
"""What a starting tool asks."""


class Server(FakeService):
    """Runs programs as they are, which only a test's own may be."""

    def __init__(self) -> None:
        super().__init__(self._run)
        self.script: list[Callable[[dict[str, Any]], Any]] = []
        """How further programs are answered, in turn; then by running them."""

    async def _run(self, received: ReceivedRequest) -> web.StreamResponse:
        code = received.body["code"]
        if code != FIRST and self.script:
            answer = self.script.pop(0)(received.body)
            answer = await answer if asyncio.iscoroutine(answer) else answer
        else:
            command = [sys.executable, "-c", code]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
            answer = finished(done.stdout, done.stderr, done.returncode)
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    @property
    def programs(self) -> list[dict[str, Any]]:
        return [one.body for one in self.requests if one.body["code"] != FIRST]

    @property
    def keys(self) -> set[str | None]:
        return {one.request.headers.get("Authorization") for one in self.requests}


def finished(stdout: str = "", stderr: str = "", code: int = 0, status: str = "Finished") -> dict[str, Any]:
    printed = {"stdout": stdout, "stderr": stderr}
    run = {"status": status, "execution_time": 0.25, "return_code": code, **printed}
    whole = "Success" if status == "Finished" and code == 0 else "Failed"
    return {"status": whole, "message": "", "compile_result": None, "run_result": run, "files": {}}


def using(work: Callable[[Toolbox, list[Server]], Awaitable[Any]], servers: int = 1, **given: Any) -> Any:
    async def run() -> Any:
        made = [Server() for _ in range(servers)]
        async with contextlib.AsyncExitStack() as stack:
            urls = [f"{await stack.enter_async_context(one.running())}/" for one in made]
            remote = {"urls": urls, **given.pop("remote", {})}
            config = PythonConfig(target="python", backend="remote", remote=remote, backoff_s=0.0, **given)
            secrets = read_all_secrets({"python": config})
            box = Toolbox.from_settings({"python": config}, seed=1, secrets=secrets)
            stack.push_async_callback(box.close)
            await box.start()
            return await work(box, made)

    return asyncio.run(run())


def one_call(code: str, *script: Callable[[dict[str, Any]], Any], **given: Any) -> tuple[ToolResult, Server]:
    async def work(box: Toolbox, servers: list[Server]) -> tuple[ToolResult, Server]:
        servers[0].script = list(script)
        return await box.call(ToolCall("python", {"code": code}, "g#0/0")), servers[0]

    return using(work, **given)


def test_a_program_is_run_and_read():
    code = "print('a')\nimport sys; print('b', file=sys.stderr)"
    result, server = one_call(code, timeout_s=7.0, memory_mb=300)
    assert (result.text, result.outcome, result.attempts) == ("a\nb", ToolOutcome.OK, 1)
    assert result.info == {"ended": "Finished", "exit_code": 0, "program_seconds": 0.25}
    assert {one.request.path for one in server.requests} == {"/run_code"}
    (body,) = server.programs
    assert body["language"] == "python" and body["run_timeout"] == 7.0 and body["memory_limit_MB"] == 300


def test_a_program_that_raises_is_an_error():
    result, _ = one_call("1 / 0")
    assert result.outcome is ToolOutcome.ERROR and "ZeroDivisionError" in result.text
    assert result.info["exit_code"] == 1


async def silent(_: Any) -> Any:
    await asyncio.sleep(1.5)


def test_an_answer_of_some_megabytes_is_read_and_a_longer_one_is_none(monkeypatch):
    monkeypatch.setattr(remote, "_MAX_BYTES", 10 << 20)
    long, longer = [lambda _, n=n: finished("a" * (n << 20)) for n in (9, 11)]
    assert one_call("x", long)[0].text.startswith("aaa")
    result, _ = one_call("x", longer, retries=0)
    assert result.outcome is ToolOutcome.FAILED and "more than 10 MiB" in result.info["detail"]


def test_what_a_program_printed_before_its_time_was_up_may_come_late():
    async def late(_: Any) -> Any:
        await asyncio.sleep(0.7)
        return finished("begun", status="TimeLimitExceeded")

    result, _ = one_call("x", late, timeout_s=0.1)
    text = "begun\n[the program was ended after 0.1 s]"
    assert (result.text, result.outcome) == (text, ToolOutcome.TIMEOUT)


def test_a_server_that_says_nothing_is_a_failure(monkeypatch):
    monkeypatch.setattr(remote, "BESIDE_S", 0.1)
    result, _ = one_call("x", silent, timeout_s=0.1, retries=0)
    assert result.outcome is ToolOutcome.FAILED
    assert "gave no answer within 0.2 s" in result.info["detail"]


def test_a_call_of_a_server_that_says_nothing_goes_to_the_next(monkeypatch):
    monkeypatch.setattr(remote, "BESIDE_S", 0.2)

    async def work(box: Toolbox, servers: list[Server]) -> Any:
        servers[0].script = [silent]
        calls = [ToolCall("python", {"code": f"print({number})"}, f"g#0/{number}") for number in range(2)]
        results = await asyncio.gather(*map(box.call, calls))
        return results, [[body["code"] for body in one.programs] for one in servers]

    results, asked = using(work, servers=2, timeout_s=0.5)
    assert [(one.text, one.outcome) for one in results] == [("0", ToolOutcome.OK), ("1", ToolOutcome.OK)]
    assert [one.attempts for one in results] == [2, 1]
    # Two calls at a time: the first one's repetition is not on the server that was silent.
    assert asked == [["print(0)"], ["print(1)", "print(0)"]]


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=500, text="no place\x1b[2J"),
        web.Response(status=200, text="<html>"),
        {"status": "SandboxError", "message": "out of sandboxes", "run_result": None},
        finished(status="Error"),
        finished(stdout=[1]),
        ["no", "object"],
        {"run_result": {"status": "Finished", "return_code": None}},
        web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"}),
    ],
    ids=["500", "html", "sandbox", "error", "no text", "a list", "no code", "elsewhere"],
)
def test_what_is_no_run_is_repeated(answer):
    result, server = one_call("print('x')", lambda _: answer)
    assert (result.text, result.outcome, result.attempts) == ("x", ToolOutcome.OK, 2)
    assert len(server.programs) == 2


def test_the_key_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("FUSION_KEY", "sk-secret")
    shown = lambda _: web.Response(status=400, text="bad key sk-secret")  # noqa: E731
    result, server = one_call("x", shown, retries=0, remote={"api_key_env": "FUSION_KEY"})
    assert server.keys == {"Bearer sk-secret"}
    assert (result.outcome, result.text) == (ToolOutcome.FAILED, "python failed and gave no result.")
    assert "sk-secret" not in json.dumps(dict(result.info))
    assert "HTTP 400" in result.info["detail"] and "[api key]" in result.info["detail"]


def test_the_key_may_lie_in_a_file_that_others_cannot_read(tmp_path):
    kept = tmp_path / "key"
    kept.write_text("sk-of-a-file\n")
    kept.chmod(0o600)
    _, server = one_call("print(1)", remote={"api_key_file": str(kept)})
    assert server.keys == {"Bearer sk-of-a-file"}
    os.chmod(kept, 0o644)
    config = PythonConfig(target="python", backend="remote", remote={"api_key_file": str(kept)})
    with pytest.raises(ToolUnavailableError, match=r"remote\.api_key_file: every user of this machine can"):
        read_all_secrets({"python": config})


@pytest.mark.parametrize(("value", "told"), [(None, "is not set"), ("a b", "more than one word")])
def test_a_key_that_is_none_is_told_without_it(monkeypatch, value, told):
    if value is None:
        monkeypatch.delenv("FUSION_KEY", raising=False)
    else:
        monkeypatch.setenv("FUSION_KEY", value)
    config = PythonConfig(target="python", backend="remote", remote={"api_key_env": "FUSION_KEY"})
    with pytest.raises(ToolUnavailableError, match=told) as refused:
        read_all_secrets({"python": config})
    assert "a b" not in str(refused.value)


@pytest.mark.parametrize(
    ("urls", "told"),
    [([], "remote.urls names no server"), (["http://127.0.0.1:9"], "does not run a first program")],
)
def test_a_server_that_is_not_there_stops_the_start(urls, told):
    config = PythonConfig(target="python", backend="remote", remote={"urls": urls})
    made = PythonTool.from_settings("python", config, seed=1, secrets={})
    with pytest.raises(ToolUnavailableError, match=told):
        asyncio.run(made.start())


def test_a_url_with_a_password_is_refused():
    with pytest.raises(ValidationError, match="The URL holds a password"):
        PythonConfig(target="python", backend="remote", remote={"urls": ["http://me:secret@host:8080"]})
