"""What a step's generation rounds are counted to have done."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from marsrl_script import ScriptedEngine
from scheduler_tools import build
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import MathPrompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput, Trajectory
from marsrl_verl.verl_adapter.rollout_server.generation import Generation, Round, RoundCounts, executed_calls

COUNTED = ("rounds", "trajectories", "tokens", "continued_tokens", "seconds")


@dataclass
class Done:
    outputs: list

    def wait(self) -> Round:
        return Round(self.outputs, 0.25)


class Engine(ScriptedEngine):
    def start(self, requests, sampling) -> Done:
        return Done(self.generate(requests, sampling))


def test_a_long_answer_is_counted_segment_by_segment():
    # The prompt is `user: 1 + 1`, 11 bytes; the answers have 50 and 30 bytes, a segment 20.
    problem = Problem("p0", "1 + 1", "2", messages=({"role": "user", "content": "1 + 1"},))
    engine = Engine(lambda item, k: Reply("x" * (50 if k == 0 else 30)))
    method = build(MarsRL, MathPrompts(), group_size=2, train_roles=["solver"])
    scheduler = Scheduler(method, "pipelined")
    generation = Generation(scheduler, engine, {"solver": Sampling(100, 100, segment_tokens=20)})
    counts = []
    for step in (1, 2, 3):
        scheduler.start_step(step, [problem] if step == 1 else [])
        found = asdict(generation.finish())
        counts.append({name: found[name] for name in COUNTED})
        assert not any(found[name] for name in found if name not in COUNTED), "no engine told what it read"
        scheduler.finish_step()
    assert counts == [
        {"rounds": 1, "trajectories": 2, "tokens": 40, "continued_tokens": 0, "seconds": 0.25},
        {"rounds": 1, "trajectories": 2, "tokens": 30, "continued_tokens": 2 * (11 + 20), "seconds": 0.25},
        {"rounds": 1, "trajectories": 1, "tokens": 10, "continued_tokens": 11 + 40, "seconds": 0.25},
    ]


def called(number: int, *calls: tuple[str, bool]) -> Trajectory:
    events = [{"kind": "tool", "call_id": name, "executed": ran} for name, ran in calls]
    return Trajectory(f"g#{number}", [], FinishReason.STOP, events=[*events, {"kind": "other"}])


def test_tool_calls_count_once_however_many_trajectories_share_them():
    counts = RoundCounts()
    shared = ("g#0/0", True)
    forks = [called(0, shared, ("g#0/1", True)), called(1, shared, ("g#1/1", True), ("g#1/2", False))]
    counts.add(Round([RolloutOutput("g", forks)], 0.25))
    assert counts.tool_calls == 3
    # A later round of trajectories that were paused.
    counts.add(
        Round([RolloutOutput("g", [called(0, shared, ("g#0/1", True), ("g#0/2", True))])], 0.25),
        executed_calls(forks),
    )
    assert counts.tool_calls == 4
    assert counts.metrics()["rollout/executed_tool_calls"] == 4


def test_without_tools_there_is_no_figure_of_them():
    counts = RoundCounts()
    counts.add(Round([RolloutOutput("g", [called(0)])], 0.25))
    assert "rollout/executed_tool_calls" not in counts.metrics()
