"""Engines that die, hang or take too long: what the trainer sees of them, when, and what it says of them."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray's errors")

from fake_ray import Answer, FakeRay, Method, actor, through_ray
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, RayTaskError

from marsrl_verl.reporting.progress import RoundState
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.rollout_server import dead_process, engine_watch
from marsrl_verl.verl_adapter.rollout_server import round_watch as round_watch_module
from marsrl_verl.verl_adapter.rollout_server.engine_watch import (
    EngineGuard,
    EngineWatch,
    Stopwatch,
    reason,
    results,
)
from marsrl_verl.verl_adapter.rollout_server.round_watch import GroupCounts, RoundStalledError, RoundWatch

LIMIT = 30.0


@pytest.fixture
def ray(monkeypatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(engine_watch, "ray", fake)
    for module in (engine_watch, round_watch_module):
        monkeypatch.setattr(module, "running_process", lambda actor: f" (process {id(actor)})")
    return fake


class Server:
    """A server whose engine can be made to die or to hang; each pulse adds a token."""

    def __init__(self, *, error=None, hangs: bool = False, core_hangs: bool = False) -> None:
        self.tokens, self.error, self.hangs, self.core_hangs = 0, error, hangs, core_hangs
        self.pulse = Method(self._pulse)

    def _pulse(self, through_core: bool):
        if self.hangs or (through_core and self.core_hangs):
            return Answer(silent=True)
        if self.error is not None:
            raise self.error
        self.tokens += 1
        return (1, self.tokens)


def look_for(ray: FakeRay, seconds: float, look) -> None:
    end = ray.now + seconds
    while ray.now < end:
        look()
        ray.now += 1.0


# --- engines ------------------------------------------------------------------------------------------


def test_engines_that_answer_are_asked_now_and_then(ray):
    server = Server()
    watch = EngineWatch([server], LIMIT, ray.clock)
    look_for(ray, 100, watch.look)
    assert 10 <= server.tokens <= 25


@pytest.mark.parametrize("error", [ActorDiedError(), through_ray(EngineUnavailableError("its core is dead"))])
def test_a_dead_engine_is_seen_at_once(ray, error):
    server = Server()
    watch = EngineWatch([Server(), server], LIMIT, ray.clock)
    watch.check()
    server.error = error
    with pytest.raises(EngineUnavailableError, match=r"vLLM server 1 is gone: .*(died|dead)"):
        look_for(ray, 10, watch.look)


@pytest.mark.parametrize("fault", ["hangs", "core_hangs"])
def test_an_engine_that_stops_answering_is_given_up_at_the_limit(ray, fault):
    server = Server()
    watch = EngineWatch([Server(), server], LIMIT, ray.clock)
    look_for(ray, 20, watch.look)
    setattr(server, fault, True)
    start = ray.now
    named = rf"vLLM server 1 .*engine_timeout_s = 30.*stopped \(process {id(server)}\)"
    with pytest.raises(EngineUnavailableError, match=named):
        look_for(ray, 100, watch.look)
    assert LIMIT <= ray.now - start <= LIMIT + engine_watch.PULSE_EVERY_S + 2


def test_a_core_that_receives_weights_need_not_answer(ray):
    watch = EngineWatch([Server(core_hangs=True)], LIMIT, ray.clock)
    look_for(ray, 100, lambda: watch.look(through_core=False))


def test_a_check_waits_for_every_engine(ray):
    answering, silent = Server(), Server(hangs=True)
    with pytest.raises(EngineUnavailableError, match="no sign of life"):
        EngineWatch([answering, silent], LIMIT, ray.clock).check()
    assert ray.now == pytest.approx(LIMIT, abs=2)
    EngineWatch([answering], LIMIT, ray.clock).check()
    EngineWatch([], LIMIT, ray.clock).check()


def test_time_in_which_the_trainer_itself_was_stopped_does_not_count():
    now = 0.0
    watch = Stopwatch(lambda: now)
    now = 2.0
    assert watch.look() == 2.0
    now = 10_000.0
    assert watch.look() < 10.0


# --- work that waits for engines --------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr(engine_watch, "POLL_S", 0.01)
    monkeypatch.setattr(engine_watch, "_MAX_COUNTED_S", 0.05)


def guard(ray: FakeRay, *servers: Server, sync_s: float = 0.1) -> EngineGuard:
    return EngineGuard(EngineWatch(servers, LIMIT, ray.clock), sync_s)


def test_guarded_work_gives_its_result_and_its_error(ray):
    def fails():
        raise ValueError("a worker says no")

    engines = guard(ray, Server())
    assert engines.run("the weight sync", lambda: 5) == 5
    with pytest.raises(ValueError, match="says no"):
        engines.run("the weight sync", fails)
    assert not engines.left_behind, "nobody is at it any more"


def test_no_sync_begins_with_a_dead_engine(ray):
    dead, synced = Server(error=through_ray(EngineUnavailableError("its core is dead"))), []
    engines = guard(ray, dead)
    with pytest.raises(EngineUnavailableError, match="its core is dead"):
        engines.run("the weight sync", lambda: synced.append(1))
    assert (synced, engines.left_behind) == ([], False)


def test_a_sync_that_does_not_end_is_left_behind(ray, quick):
    release = threading.Event()
    engines = guard(ray, Server())
    with pytest.raises(EngineUnavailableError, match=r"the weight sync .*sync_timeout_s = 0.1"):
        engines.run("the weight sync", release.wait)
    release.set()
    assert engines.left_behind


def test_an_engine_that_dies_in_a_sync_ends_it_before_its_limit(ray, quick):
    server, release = Server(), threading.Event()

    def sync():
        server.error = ActorDiedError()
        ray.now += engine_watch.PULSE_EVERY_S + 1
        release.wait()

    engines = guard(ray, server, sync_s=600.0)
    with pytest.raises(EngineUnavailableError, match="vLLM server 0 is gone"):
        engines.run("the weight sync", sync)
    release.set()
    assert engines.left_behind


def test_engines_of_no_use_are_killed(ray):
    servers = [Server(), Server()]
    EngineWatch(servers, LIMIT, ray.clock).kill()
    assert ray.killed == servers


# --- results ---------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_references_and_the_first_error_at_once(ray):
    assert results([Answer(2), Answer(1)], lambda: None) == [2, 1]
    assert results([], lambda: None) == []
    with pytest.raises(ActorDiedError):
        results([Answer(silent=True), Answer(error=ActorDiedError())], lambda: None)


def test_a_signal_ends_the_wait(ray, monkeypatch):
    monkeypatch.setattr(stop_signals, "_requested", 15)
    with pytest.raises(stop_signals.StopRequested):
        results([Answer(silent=True)], lambda: None)


def test_an_error_is_told_in_one_line_as_it_was_raised():
    inner = through_ray(ValueError("first\nsecond"))
    assert reason(through_ray(inner)) == "ValueError: first"
    assert reason(through_ray(EngineUnavailableError("server 0 is gone"))) == "server 0 is gone"
    assert reason(KeyError()) == "KeyError"


# --- rounds ------------------------------------------------------------------------------------------------


class Worker:
    """Blocked or stopped once it has said something."""

    def __init__(self, *, blocked: bool = False, stopped: bool = False) -> None:
        self.count = GroupCounts(submitted=4, answered=3, scored=1)
        silent = blocked or stopped
        first = iter([replace(self.count)])
        self.counts = Method(lambda: next(first, Answer(silent=True)) if silent else replace(self.count))
        self.running = Method(lambda: Answer(silent=True) if stopped else "own:Talk, at own.py, line 9")


def round_watch(ray: FakeRay, server: SimpleNamespace, worker: Worker, limit: float = 60.0) -> RoundWatch:
    return RoundWatch(EngineWatch([server], LIMIT, ray.clock), [worker], limit, ray.clock, number=0)


IDLE = actor(pulse=lambda through_core: (0, 0))


def test_a_round_may_take_long_as_long_as_tokens_come(ray):
    look_for(ray, 1000, round_watch(ray, Server(), Worker()).look)


@pytest.mark.parametrize("what", ["scored", "graded"])
def test_a_round_may_take_long_as_long_as_scores_come(ray, what):
    worker = Worker()
    watch = round_watch(ray, IDLE, worker)

    def look():
        setattr(worker.count, what, getattr(worker.count, what) + (ray.now % 50 == 0))
        watch.look()

    look_for(ray, 1000, look)


def test_a_round_in_which_nothing_happens_is_given_up_and_says_what_it_waits_for(ray):
    watch = round_watch(ray, IDLE, Worker())
    with pytest.raises(RoundStalledError, match="answers: 1, for their scores: 2") as stalled:
        look_for(ray, 1000, watch.look)
    assert "progress_timeout_s = 60 s" in str(stalled.value) and "rollout worker" not in str(stalled.value)
    assert 60 <= ray.now <= 75


def test_what_is_waited_for_longest_is_named(ray):
    worker = Worker()
    worker.count.round, worker.count.oldest = 0, ("p7/verifier", 61.0)
    with pytest.raises(RoundStalledError, match="scores: 2; for longest, 61 s, p7/verifier"):
        look_for(ray, 1000, round_watch(ray, IDLE, worker).look)


def test_a_round_is_shown_with_what_all_workers_and_engines_are_at(ray):
    """A worker that has nothing of the round yet still counts the one before."""
    shown: list[RoundState] = []
    at_it, idle = Worker(), Worker()
    at_it.count.begin_round(3)
    at_it.count.submitted, at_it.count.scored, at_it.count.tokens = 14, 6, 500
    at_it.count.stages, at_it.count.oldest = {"solver": 4, "verifier": 1}, ("p1/solver", 9.0)
    idle.count.begin_round(2)
    engines = EngineWatch([actor(pulse=lambda through_core: (5, 70))] * 2, LIMIT, ray.clock)
    look_for(ray, 20, RoundWatch(engines, [at_it, idle], 60.0, ray.clock, shown.append, number=4).look)
    assert (shown[-1].groups, shown[-1].stages, shown[-1].oldest) == (0, {}, None)
    watch = RoundWatch(engines, [at_it, idle], 60.0, ray.clock, shown.append, number=3)
    look_for(ray, 20, watch.look)
    last = shown[-1]
    assert (last.groups, last.scored, last.tokens, last.requests) == (10, 5, 640, 10)
    assert (last.stages, last.oldest) == ({"solver": 4, "verifier": 1}, ("p1/solver", 9.0))
    assert last.seconds_left == pytest.approx(last.seconds)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("blocked", "its event loop is blocked by own:Talk, at own.py, line 9"),
        ("stopped", "it hangs, or was"),
    ],
)
def test_a_worker_that_does_not_answer_is_named_with_its_program(ray, fault, said):
    worker = Worker(**{fault: True})
    with pytest.raises(RoundStalledError, match=f"; rollout worker 0 does not answer, {said}.*{id(worker)}"):
        look_for(ray, 1000, round_watch(ray, IDLE, worker).look)


def test_a_round_whose_engine_hangs_does_not_wait_for_progress(ray):
    with pytest.raises(EngineUnavailableError, match="no sign of life"):
        look_for(ray, 1000, round_watch(ray, Server(core_hangs=True), Worker(), limit=900.0).look)
    assert ray.now <= LIMIT + 10


# --- what is said of a process that has died ------------------------------------------------------

KILLED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit "
    "detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes "
    "include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force "
    "was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error. If the "
    "process was killed by the kernel OOM killer (verifiable by checking for OOM in dmesg of the OOMing "
    "node), consider enabling resource isolation via --enable-resource-isolation to prevent node deaths by "
    "resource contention and significant loss of progress by uninformed kernel OOM killing."
)
"""What Ray 2.60 says of a process that was sent SIGKILL."""


@pytest.fixture
def logs(tmp_path, monkeypatch):
    monkeypatch.setattr(dead_process, "logs_folder", lambda: tmp_path)
    return tmp_path


def died(class_name: str, message: str = KILLED, name: str = "") -> ActorDiedError:
    place = {"actor_id": b"0" * 16, "pid": 123, "node_ip_address": "10.0.0.1"}
    return ActorDiedError(
        ActorDiedErrorContext(class_name=class_name, name=name, error_message=message, **place)
    )


@pytest.mark.parametrize(
    ("kind", "whose"),
    [
        ("WorkerDict", "a rank of the trainer"),
        ("create_colocated_worker_cls.<locals>.WorkerDict", "a rank of the trainer"),
        ("MarsRLvLLMServer", "a vLLM server"),
        ("RewardLoopWorker", "a reward worker"),
        ("Other", "a process of the run"),
    ],
)
def test_a_dead_process_is_named_with_its_log(logs, kind, whose):
    log = logs / "worker-abc-01000000-123.err"
    log.write_text(":job_id:01\nloading\nCUDA error: device-side assert\n:actor_name:WorkerDict\n")
    assert reason(died(kind)) == (
        f"{whose} ({kind}, process 123, on 10.0.0.1) has died: it crashed or was killed, often by the system "
        f"for want of memory; its log is {log}, which ends: CUDA error: device-side assert"
    )


def test_its_name_says_which_of_several_it_was(logs):
    said = reason(died("MarsRLvLLMServer", name="vllm_server_3_0"))
    assert said.startswith("a vLLM server (vllm_server_3_0, process 123, on 10.0.0.1) has died")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (
            "Task was killed due to the node running low on memory: memory usage above the threshold",
            "memory was",
        ),
        ("The actor died because its node has died. Node Id: 12", "its node is gone"),
        ("The actor is dead because it was killed by `ray.kill`.", "ended on purpose"),
        ("something new", "something new"),
    ],
)
def test_the_cause_is_told_as_far_as_ray_knows_it(logs, message, why):
    said = reason(died("WorkerDict", message))
    assert why in said and f"its log is on its node, in {logs}" in said


def test_one_that_nothing_is_known_of(monkeypatch):
    monkeypatch.setattr(dead_process, "logs_folder", lambda: None)
    assert reason(ActorDiedError()).startswith("a process of the run has died: The actor died unexpectedly")


def test_one_that_could_not_start(logs):
    task = RayTaskError("__init__", "Traceback\nValueError: no model", ValueError("no model"))
    assert "it could not start" in reason(ActorDiedError(task))


def test_one_that_hangs_is_named_with_its_log(logs, monkeypatch):
    log = logs / "worker-abc-01000000-123.err"
    log.write_text("a warning\n")
    known = {"ab": {"Name": "xyWorkerDict_0:1", "Pid": 123, "Address": {"IPAddress": "10.0.0.1"}}}
    monkeypatch.setattr("ray._private.state.actors", lambda actor_id: known.get(actor_id, {}))

    told = f" (xyWorkerDict_0:1, process 123, on 10.0.0.1); its log is {log}"
    for actor_id, said in (("ab", told), ("cd", "")):
        handle = SimpleNamespace(_ray_actor_id=SimpleNamespace(hex=lambda name=actor_id: name))
        assert dead_process.running_process(handle) == said
