"""The vLLM server that answers rollout requests, with fakes for the engine."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl's servers")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

from vllm.outputs import CompletionOutput
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.exceptions import EngineDeadError
from vllm_answers import DECODING, PROMPT, answer

from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import Completion, Decoding, EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server import server as server_module
from marsrl_verl.verl_adapter.rollout_server.client import packed
from marsrl_verl.verl_adapter.rollout_server.engine_requests import sampling_params
from marsrl_verl.verl_adapter.rollout_server.server import MarsRLvLLMServer


class Engine:
    """vLLM's engine: hands out prepared outputs of a request."""

    def __init__(self, *outputs: Any, refusal=None, max_logprobs: int = 20, lora: bool = True) -> None:
        self.outputs, self.refusal, self.aborted, self.added = list(outputs), refusal, [], []
        self.dead, self.core_answered = False, 0
        self.output_processor = SimpleNamespace(request_states={})
        self.model_config = SimpleNamespace(max_logprobs=max_logprobs, get_vocab_size=lambda: 30)
        self.vllm_config = SimpleNamespace(lora_config=object() if lora else None)
        self.adapters: dict[int, Any] = {}

    async def add_request(self, request_id, prompt, params, *, lora_request):
        if self.refusal is not None:
            raise self.refusal
        self.added.append((request_id, prompt["prompt_token_ids"], params, lora_request))
        return SimpleNamespace(get=self._next)

    async def _next(self):
        output = self.outputs.pop(0)
        if isinstance(output, BaseException):
            raise output
        return output

    async def abort(self, request_id):
        self.aborted.append(request_id)

    async def check_health(self):
        if self.dead:
            raise EngineDeadError()

    async def is_sleeping(self):
        self.core_answered += 1
        return False

    async def add_lora(self, lora_request):
        if self.refusal is not None:
            raise self.refusal
        self.adapters[lora_request.lora_int_id] = lora_request

    async def remove_lora(self, lora_id):
        del self.adapters[lora_id]


class Server(MarsRLvLLMServer):
    """The server on an engine that is there; admission is verl's own."""

    def __init__(self, engine: Engine, admitted: bool = True) -> None:
        self.engine, self.global_steps = engine, 6
        self._admitting, self._submission_paused, self._rejecting = 0, not admitted, not admitted
        self._adapters, self._next_adapter = {}, 1
        self._answered = frozenset({"shared"})


def done(*answers: CompletionOutput) -> SimpleNamespace:
    return SimpleNamespace(finished=True, outputs=list(answers))


ONE = done(answer([1], "stop"))


def generate(
    server: Server, n: int = 2, decoding: Decoding = DECODING, policy: str = "shared"
) -> list[Completion]:
    return asyncio.run(server.generate_group(policy, PROMPT, decoding, "r", n))


def test_the_server_samples_a_group_with_one_engine_request():
    unfinished = SimpleNamespace(finished=False)
    engine = Engine(unfinished, done(answer([1, 2], "stop"), answer([3], None)))
    server = Server(engine)
    found = generate(server)
    assert [one.token_ids.tolist() for one in found] == [[1, 2], [3]]
    assert [(one.finish, one.version) for one in found] == [(FinishReason.STOP, 6), (FinishReason.ABORTED, 6)]
    ((_, prompt, params, adapter),) = engine.added
    assert prompt == [5, 6] and all(type(token) is int for token in prompt)
    assert params == sampling_params(DECODING, 2)
    assert adapter is None
    assert server._admitting == 0


def test_a_packed_request_has_a_packed_answer():
    engine = Engine(done(answer([1, 2], "stop")))
    asked = packed(("shared", PROMPT, DECODING, "r", 1))
    (found,) = pickle.loads(asyncio.run(Server(engine).generate_packed(asked)))
    assert (found.token_ids.tolist(), found.token_ids.dtype) == ([1, 2], np.int32)
    assert engine.added[0][:2] == ("r", [5, 6])


def test_tokens_that_a_structure_forces_are_told():
    engine = Engine(done(answer([1, 2], "stop"), answer([2], "stop")))
    server = Server(engine)
    reader = {"ab": lambda ids: ids == 2}
    server._forced_tokens = SimpleNamespace(reader=lambda structured: reader[structured["regex"]])
    found = generate(server, decoding=Decoding(4, structured={"regex": "ab"}))
    assert [one.forced.tolist() for one in found] == [[False, True], [True]]
    engine.outputs = [done(answer([1, 2], "stop"))]
    assert generate(server, n=1)[0].forced is None


def test_a_version_is_that_of_the_admission():
    engine = Engine()
    server = Server(engine)

    async def synced_meanwhile():
        server.global_steps = 7
        return ONE

    engine._next = synced_meanwhile
    assert generate(server, n=1)[0].version == 6


def test_a_request_behind_a_closed_gate_reaches_no_engine():
    engine = Engine()
    found = generate(Server(engine, admitted=False), n=3, decoding=Decoding(4, top_log_probs=2))
    shapes = [(len(one.token_ids), one.finish, one.top.ids.shape) for one in found]
    assert shapes == [(0, FinishReason.ABORTED, (0, 2))] * 3
    assert engine.added == []


def test_an_engine_that_refuses_a_request_does_not_hold_up_the_next_weight_sync():
    server = Server(Engine(refusal=ValueError("prompt too long")))
    with pytest.raises(ValueError, match="prompt too long"):
        generate(server)
    assert server._admitting == 0, "verl pauses the server only when nobody is being admitted"


def test_a_cancelled_call_ends_its_request_in_the_engine():
    engine = Engine(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        generate(Server(engine))
    assert engine.aborted == ["r"]


@pytest.mark.parametrize("engine", [Engine(refusal=EngineDeadError()), Engine(EngineDeadError())])
def test_a_dead_engine_is_told_from_a_refused_request(engine):
    with pytest.raises(EngineUnavailableError, match="has ended"):
        generate(Server(engine))


@pytest.mark.parametrize(("max_logprobs", "asked", "most"), [(20, 21, 20), (-1, 31, 30), (100, 31, 30)])
def test_more_likeliest_tokens_than_the_engine_tells_are_refused_before_it_sees_them(
    max_logprobs, asked, most
):
    """vLLM's process ends where more are asked for than the vocabulary has."""
    engine = Engine(done(answer([1], "stop", top=most)), max_logprobs=max_logprobs)
    server = Server(engine)
    with pytest.raises(
        ValueError, match=rf"top_log_probs={asked}: .*at most {most} .*engine_kwargs.vllm.max_logprobs"
    ):
        generate(server, decoding=Decoding(4, top_log_probs=asked))
    assert (engine.added, server._admitting) == ([], 0)
    assert generate(server, decoding=Decoding(4, top_log_probs=most))[0].top.ids.shape == (1, most)


def decoded(tokens: int) -> SimpleNamespace:
    detokenizer = IncrementalDetokenizer()
    detokenizer.update(list(range(tokens)), stop_terminated=False)
    return SimpleNamespace(detokenizer=detokenizer)


def test_a_pulse_tells_requests_and_tokens_so_far():
    engine = Engine()
    engine.output_processor.request_states = {"a": decoded(3), "b": decoded(4)}
    assert asyncio.run(Server(engine).pulse(True)) == (2, 7)
    assert engine.core_answered == 1
    assert asyncio.run(Server(engine).pulse(False)) == (2, 7)
    assert engine.core_answered == 1, "the core is at something else"
    engine.dead = True
    with pytest.raises(EngineUnavailableError, match="has ended"):
        asyncio.run(Server(engine).pulse(False))


def test_a_core_that_dies_while_it_is_asked_is_noticed_at_once(monkeypatch):
    monkeypatch.setattr(server_module, "_LOOK_S", 0.01)
    engine = Engine()

    async def never_answered():
        engine.dead = True  # which vLLM notices later than the question is asked
        await asyncio.Event().wait()

    engine.is_sleeping = never_answered
    with pytest.raises(EngineUnavailableError, match="has ended"):
        asyncio.run(asyncio.wait_for(Server(engine).pulse(True), 5.0))


# --- adapters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answered", "policy", "known"),
    [(["shared"], "planner", "shared"), ([], "shared", "none"), (["planner"], "solver", "planner")],
    ids=["an adapter", "all policies have adapters", "one of several models"],
)
def test_a_policy_without_weights_in_the_engine_is_not_answered_with_others(answered, policy, known):
    engine = Engine(ONE, ONE)
    server = Server(engine)
    server._answered = frozenset(answered)
    with pytest.raises(EngineUnavailableError, match=rf"policy '{policy}' has no weights .*have: {known}"):
        generate(server, policy=policy)
    assert engine.added == []
    asyncio.run(server.set_adapter(policy, "/adapters/4", 4))
    assert generate(server, policy=policy)[0].version == 4
    assert [generate(server, policy=own)[0].version for own in answered] == [6] * len(answered)
    assert [adapter is None for *_, adapter in engine.added] == [False, *[True] * len(answered)]


def test_an_adapter_travels_as_files_and_takes_the_place_of_the_former(tmp_path, monkeypatch):
    monkeypatch.setenv("MARSRL_SOCKET_FOLDER", str(tmp_path / "run"))
    engine = Engine(ONE)
    server = Server(engine)
    server.replica_rank = 3

    async def send(version: int) -> None:
        await server.store_adapter("judge", {"adapter_config.json": b"%d" % version}, version)
        await server.use_adapter("judge", version)
        await server.drop_old_adapters("judge", version)

    asyncio.run(send(1))
    asyncio.run(send(2))
    ((folder,),) = ([Path(one.lora_path)] for one in engine.adapters.values())
    assert [path.read_bytes() for path in folder.iterdir()] == [b"2"]
    assert list(folder.parent.iterdir()) == [folder], "the former one's files are gone"


def test_new_weights_of_an_adapter_are_a_new_one_for_vllm():
    """Its caches go by the adapter's name, its store of adapters by the number."""
    engine = Engine(ONE, ONE)
    server = Server(engine)
    for version in (4, 5):
        asyncio.run(server.set_adapter("planner", f"/adapters/{version}", version))
        assert generate(server, policy="planner")[0].version == version
    (*_, former), (*_, latter) = engine.added
    assert latter.lora_path == "/adapters/5"
    assert former.lora_name != latter.lora_name
    assert former.lora_int_id != latter.lora_int_id
    assert engine.adapters == {latter.lora_int_id: latter}


def test_an_adapter_that_cannot_be_read_leaves_the_former_one():
    engine = Engine(ONE)
    server = Server(engine)
    asyncio.run(server.set_adapter("planner", "/adapters/4", 4))
    engine.refusal = RuntimeError("no such file")
    with pytest.raises(RuntimeError, match="no such file"):
        asyncio.run(server.set_adapter("planner", "/adapters/5", 5))
    engine.refusal = None
    assert generate(server, policy="planner")[0].version == 4


def test_an_engine_without_adapters_says_how_it_gets_them():
    with pytest.raises(ValueError, match=r"policy 'planner': .*model\.lora_rank lets it"):
        asyncio.run(Server(Engine(lora=False)).set_adapter("planner", "/adapters/4", 4))
