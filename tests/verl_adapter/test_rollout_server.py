"""From a rollout program's request to vLLM's and back, with fakes for Ray's actors and the engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl's servers")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, NodeDiedError, RayTaskError
from vllm import SamplingParams
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.exceptions import EngineDeadError

from marsrl_verl.core.request import Sampling
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import Completion, Decoding, EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server import client as client_module
from marsrl_verl.verl_adapter.rollout_server.client import ServerClient, packed, unpacked
from marsrl_verl.verl_adapter.rollout_server.engine_requests import completion, sampling_params
from marsrl_verl.verl_adapter.rollout_server.server import MarsRLvLLMServer

PROMPT = np.array([5, 6], dtype=np.int32)
DECODING = Decoding(max_tokens=4, temperature=0.7, top_p=0.9, top_k=5)

# --- what vLLM is asked ---------------------------------------------------------------------------


def test_a_plain_request_asks_for_nothing_but_ids_and_their_log_probs():
    assert sampling_params(DECODING, 3) == SamplingParams(
        n=3,
        max_tokens=4,
        temperature=0.7,
        top_p=0.9,
        top_k=5,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def test_stop_strings_are_looked_for_in_the_whole_text_and_kept():
    params = sampling_params(Decoding(4, stop=("</search>", "<|end|>")), 1)
    assert params.stop == ["</search>", "<|end|>"]
    assert (params.detokenize, params.include_stop_str_in_output, params.skip_special_tokens) == (
        True,
        True,
        False,
    )
    assert params.output_text_buffer_length == 0, "nothing is held back"


def test_likeliest_tokens_need_no_text():
    params = sampling_params(Decoding(4, top_log_probs=20), 1)
    assert (params.logprobs, params.detokenize) == (20, False)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("json", {"type": "object"}), ("regex", "a+"), ("choice", ("yes", "no")), ("grammar", 'root ::= "a"')],
)
def test_a_structure_is_one_of_vllms(kind, value):
    found = sampling_params(Decoding(4, structured={kind: value}), 1).structured_outputs
    assert getattr(found, kind) == (list(value) if kind == "choice" else value)


@pytest.mark.parametrize("structured", [{}, {"yaml": "a"}, {"json": {}, "regex": "a"}])
def test_other_structures_are_refused_by_name(structured):
    with pytest.raises(
        ValueError, match=r"one of json, regex, choice, grammar, found: (-|yaml|json, regex)$"
    ):
        sampling_params(Decoding(4, structured=structured), 1)


@given(seed=st.integers(0, 2**64 - 1), name=st.text(), begins_at=st.integers(0, 2**20), n=st.integers(1, 512))
def test_vllm_takes_the_seed_of_every_completion(seed, name, begins_at, n):
    """vLLM gives the k-th completion the seed plus k and holds it in a signed 64-bit number."""
    drawn = Sampling(8, 8, seed=seed).request_seed(name, begins_at)
    params = sampling_params(Decoding(8, seed=drawn), n)
    assert params.seed is not None
    assert 0 <= params.seed < 2**63 - n


# --- what it answers ------------------------------------------------------------------------------


def answer(
    tokens: list[int], reason: str | None, stop: int | str | None = None, top: int = 0
) -> CompletionOutput:
    """As vLLM makes it with flat log-probs. The sampled token has minus a tenth of its number, the k-th
    likeliest is 100 + k with -k."""
    flat = FlatLogprobs()
    for token in tokens:
        ids = [token, *range(101, 101 + top)]
        flat.append_fast(
            ids, [-token / 10, *(float(-k) for k in range(1, top + 1))], iter(ids), [None] * len(ids)
        )
    return CompletionOutput(0, "", tokens, None, flat, finish_reason=reason, stop_reason=stop)


@pytest.mark.parametrize(
    ("reason", "stop", "finish", "matched"),
    [
        ("stop", None, FinishReason.STOP, None),
        ("stop", 151643, FinishReason.STOP, None),
        ("stop", "</search>", FinishReason.STOP, "</search>"),
        ("length", None, FinishReason.LENGTH, None),
        ("abort", None, FinishReason.ABORTED, None),
        ("repetition", "repetition_detected", FinishReason.ABORTED, None),
        (None, None, FinishReason.ABORTED, None),
    ],
)
def test_ends_are_told_apart(reason, stop, finish, matched):
    found = completion(answer([1, 2], reason, stop), 3, 0)
    assert (found.finish, found.stop, found.version, found.top) == (finish, matched, 3, None)


def test_tokens_and_log_probs_are_arrays():
    found = completion(answer([1, 2, 3], "stop"), 0, 0)
    assert (found.token_ids.dtype, found.log_probs.dtype) == (np.int32, np.float32)
    assert found.token_ids.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(found.log_probs, np.float32([-0.1, -0.2, -0.3]))


def test_the_likeliest_tokens_stand_beside_the_sampled_one():
    found = completion(answer([7, 8], "length", top=3), 0, 3)
    np.testing.assert_array_equal(found.log_probs, np.float32([-0.7, -0.8]))
    assert found.top.ids.tolist() == [[101, 102, 103]] * 2
    assert found.top.log_probs.tolist() == [[-1.0, -2.0, -3.0]] * 2
    rest = 1 - math.exp(-1) - math.exp(-2) - math.exp(-3)
    np.testing.assert_allclose(found.top.tail(), math.log(rest), rtol=1e-6)


@pytest.mark.parametrize("top", [0, 3])
def test_an_answer_without_tokens_has_empty_arrays(top):
    found = completion(answer([], "abort", top=top), 0, top)
    assert (len(found.token_ids), len(found.log_probs)) == (0, 0)
    assert found.top is None if top == 0 else found.top.ids.shape == (0, top)


def test_a_completion_travels_as_eight_bytes_a_token():
    found = completion(answer(list(range(10_000)), "length"), 0, 0)
    sent = packed(found)
    assert len(sent) < 8 * 10_000 + 1000
    back = unpacked(sent)
    np.testing.assert_array_equal(back.token_ids, found.token_ids)
    np.testing.assert_array_equal(back.log_probs, found.log_probs)
    assert back.finish is found.finish


# --- the server -----------------------------------------------------------------------------------


class Engine:
    """vLLM's engine: hands out prepared outputs of a request."""

    def __init__(
        self,
        outputs: list[Any],
        refusal: Exception | None = None,
        *,
        max_logprobs: int = 20,
        lora: bool = True,
    ) -> None:
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


def done(*answers: CompletionOutput) -> SimpleNamespace:
    return SimpleNamespace(finished=True, outputs=list(answers))


def generate(
    server: Server, n: int = 2, decoding: Decoding = DECODING, policy: str = "policy"
) -> list[Completion]:
    return asyncio.run(server.generate_group(policy, PROMPT, decoding, "r", n))


def test_the_server_samples_a_group_with_one_engine_request():
    unfinished = SimpleNamespace(finished=False)
    engine = Engine([unfinished, done(answer([1, 2], "stop"), answer([3], None))])
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
    engine = Engine([done(answer([1, 2], "stop"))])
    asked = packed(("policy", PROMPT, DECODING, "r", 1))
    (found,) = unpacked(asyncio.run(Server(engine).generate_packed(asked)))
    assert (found.token_ids.tolist(), found.token_ids.dtype, found.finish) == (
        [1, 2],
        np.int32,
        FinishReason.STOP,
    )
    assert engine.added[0][:2] == ("r", [5, 6])


def test_a_version_is_that_of_the_admission():
    engine = Engine([])
    server = Server(engine)

    async def synced_meanwhile():
        server.global_steps = 7
        return done(answer([1], "stop"))

    engine._next = synced_meanwhile
    assert generate(server, n=1)[0].version == 6


def test_a_request_behind_a_closed_gate_reaches_no_engine():
    engine = Engine([])
    found = generate(Server(engine, admitted=False), n=3, decoding=Decoding(4, top_log_probs=2))
    assert [(len(one.token_ids), one.finish, one.top.ids.shape) for one in found] == [
        (0, FinishReason.ABORTED, (0, 2))
    ] * 3
    assert engine.added == []


def test_an_engine_that_refuses_a_request_does_not_hold_up_the_next_weight_sync():
    server = Server(Engine([], refusal=ValueError("prompt too long")))
    with pytest.raises(ValueError, match="prompt too long"):
        generate(server)
    assert server._admitting == 0, "verl pauses the server only when nobody is being admitted"


def test_a_cancelled_call_ends_its_request_in_the_engine():
    engine = Engine([asyncio.CancelledError()])
    with pytest.raises(asyncio.CancelledError):
        generate(Server(engine))
    assert engine.aborted == ["r"]


@pytest.mark.parametrize("engine", [Engine([], refusal=EngineDeadError()), Engine([EngineDeadError()])])
def test_a_dead_engine_is_told_from_a_refused_request(engine):
    with pytest.raises(EngineUnavailableError, match="has ended"):
        generate(Server(engine))


@pytest.mark.parametrize(("max_logprobs", "asked", "most"), [(20, 21, 20), (-1, 31, 30), (100, 31, 30)])
def test_more_likeliest_tokens_than_the_engine_tells_are_refused_before_it_sees_them(
    max_logprobs, asked, most
):
    """vLLM's process ends where more are asked for than the vocabulary has."""
    engine = Engine([done(answer([1], "stop", top=most))], max_logprobs=max_logprobs)
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
    engine = Engine([])
    engine.output_processor.request_states = {"a": decoded(3), "b": decoded(4)}
    assert asyncio.run(Server(engine).pulse(True)) == (2, 7)
    assert engine.core_answered == 1
    assert asyncio.run(Server(engine).pulse(False)) == (2, 7)
    assert engine.core_answered == 1, "the core is at something else"


def test_a_pulse_of_a_dead_engine_is_an_error():
    engine = Engine([])
    engine.dead = True
    with pytest.raises(EngineUnavailableError, match="has ended"):
        asyncio.run(Server(engine).pulse(False))


# --- adapters -------------------------------------------------------------------------------------


def test_a_policy_with_an_adapter_is_answered_with_it():
    engine = Engine([done(answer([1], "stop")), done(answer([1], "stop"))])
    server = Server(engine)
    asyncio.run(server.set_adapter("planner", "/adapters/planner", 4))
    assert generate(server, policy="planner")[0].version == 4
    assert generate(server)[0].version == 6, "the model's own weights"
    (*_, planner), (*_, none) = engine.added
    assert planner.lora_path == "/adapters/planner"
    assert none is None


def test_a_policy_whose_adapter_was_not_sent_is_not_answered_with_the_models_weights():
    engine = Engine([done(answer([1], "stop"))])
    with pytest.raises(EngineUnavailableError, match=r"policy 'planner' has no adapter .*it has: none"):
        generate(Server(engine), policy="planner")
    assert engine.added == []


def test_new_weights_of_an_adapter_are_a_new_one_for_vllm():
    """Its caches go by the adapter's name, its store of adapters by the number."""
    engine = Engine([done(answer([1], "stop")) for _ in range(2)])
    server = Server(engine)
    for version in (4, 5):
        asyncio.run(server.set_adapter("planner", f"/adapters/{version}", version))
        assert generate(server, policy="planner")[0].version == version
    (*_, former), (*_, latter) = engine.added
    assert former.lora_name != latter.lora_name
    assert former.lora_int_id != latter.lora_int_id
    assert engine.adapters == {latter.lora_int_id: latter}


def test_an_adapter_that_cannot_be_read_leaves_the_former_one():
    engine = Engine([done(answer([1], "stop"))])
    server = Server(engine)
    asyncio.run(server.set_adapter("planner", "/adapters/4", 4))
    engine.refusal = RuntimeError("no such file")
    with pytest.raises(RuntimeError, match="no such file"):
        asyncio.run(server.set_adapter("planner", "/adapters/5", 5))
    engine.refusal = None
    assert generate(server, policy="planner")[0].version == 4


def test_an_engine_without_adapters_says_how_it_gets_them():
    with pytest.raises(ValueError, match=r"policy 'planner': .*engine_kwargs\.vllm\.enable_lora=true"):
        asyncio.run(Server(Engine([], lora=False)).set_adapter("planner", "/adapters/4", 4))


# --- the client -----------------------------------------------------------------------------------


class Servers:
    """verl's `LLMServerClient` with one server behind it."""

    def __init__(self, give: Callable[[int], list]) -> None:
        self.give, self.calls, self.acquired, self.released = give, [], [], []
        self.reference: Any = None

    async def _acquire_server(self, request_id, **extra):
        self.acquired.append((request_id, extra["n"], extra["prompt_ids"].tolist()))
        return "server-0", SimpleNamespace(generate_packed=SimpleNamespace(remote=self._remote))

    def _release_server(self, server_id, request_id=None):
        self.released.append((server_id, request_id))

    def _remote(self, *arguments):
        self.reference = asyncio.ensure_future(self._generate(*arguments))
        return self.reference

    async def _generate(self, asked):
        *_, n = call = unpacked(asked)
        self.calls.append(call)
        return packed(self.give(n))


def ask(servers: Servers, n: int = 2, synced: int = 3) -> list[Completion]:
    client = ServerClient(servers, synced)
    call = client.generate("planner", PROMPT, DECODING, session="group", name="group#1", n=n)
    return asyncio.run(call)


def completed(one: Completion) -> tuple:
    return one.token_ids.tolist(), one.log_probs.tolist(), one.finish, one.version


def test_a_request_goes_whole_to_one_server():
    given = [completion(answer([1], "stop"), 3, 0), completion(answer([2], "length"), 3, 0)]
    servers = Servers(lambda n: given)
    assert [completed(one) for one in ask(servers)] == [completed(one) for one in given]
    ((policy, prompt, decoding, request_id, n),) = servers.calls
    assert (policy, decoding, n) == ("planner", DECODING, 2)
    assert (prompt.dtype, prompt.tolist()) == (np.int32, [5, 6])
    assert request_id.startswith("group#1:")
    assert servers.acquired == [("group@3", 2, [5, 6])]
    assert servers.released == [("server-0", "group@3")]


def test_a_request_that_is_asked_again_has_another_engine_id():
    servers = Servers(lambda n: [])
    ask(servers)
    ask(servers)
    first, second = (call[3] for call in servers.calls)
    assert first != second


def test_a_session_is_a_new_one_after_a_weight_sync():
    servers = Servers(lambda n: [])
    for synced in (3, 3, 4):
        ask(servers, synced=synced)
    assert [route for route, _, _ in servers.acquired] == ["group@3", "group@3", "group@4"]


def through_ray(error: Exception) -> Exception:
    """As the caller of an actor sees what a method of it raised."""
    return RayTaskError("generate_group", "Traceback: …", error).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ActorDiedError(), EngineUnavailableError),
        (NodeDiedError("the node is gone"), EngineUnavailableError),
        (through_ray(EngineUnavailableError("the engine's process has ended")), EngineUnavailableError),
        (through_ray(ValueError("no")), ValueError),
        (ValueError("no"), ValueError),
    ],
)
def test_a_server_is_released_whatever_it_raises(error, expected):
    def fails(n):
        raise error

    servers = Servers(fails)
    with pytest.raises(expected):
        ask(servers)
    assert servers.released == [("server-0", "group@3")]


def test_a_server_that_comes_too_late_is_given_back():
    """Else the router takes it for busier than it is, until the run ends."""
    servers = Servers(lambda n: [])

    async def begin_and_cancel() -> None:
        there = asyncio.Event()
        acquire = servers._acquire_server

        async def slow(*arguments, **more):
            await there.wait()
            return await acquire(*arguments, **more)

        servers._acquire_server = slow
        call = ServerClient(servers).generate("policy", PROMPT, DECODING, session="s", name="n")
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        there.set()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(begin_and_cancel())
    assert len(servers.acquired) == 1 and servers.calls == []
    assert servers.released == [("server-0", "s@0")]


def test_a_cancelled_request_is_cancelled_at_its_server(monkeypatch):
    servers, cancelled = Servers(lambda n: []), []
    monkeypatch.setattr(client_module.ray, "cancel", cancelled.append)

    async def begin_and_cancel() -> None:
        async def never(*_):
            await asyncio.sleep(3600)

        servers._generate = never
        call = ServerClient(servers).generate("policy", PROMPT, DECODING, session="s", name="n")
        task = asyncio.ensure_future(call)
        while servers.reference is None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(begin_and_cancel())
    assert cancelled == [servers.reference]
    assert servers.released == [("server-0", "s@0")]
