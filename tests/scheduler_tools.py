"""A small method, short prompts and a driver for scheduler tests."""

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, ClassVar

import numpy as np
from marsrl_script import ScriptedEngine, SkillModel

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import RolePrompts
from marsrl_verl.core.credit import EstimatorConfig
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.scheduler import Scheduler, StepResult
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory

ROLES = ("solver", "verifier", "corrector", "meta_thinking", "reasoning", "a", "b")
SAMPLING = {role: Sampling(10_000, 10_000) for role in ROLES}


def problems(count: int, first: int = 0) -> list[Problem]:
    return [Problem(f"p{i}", f"{i} + 1 = ?", str(i + 1)) for i in range(first, first + count)]


class ShortPrompts(RolePrompts):
    def solver(self, problem):
        return ({"role": "user", "content": problem.question},)

    def verifier(self, problem, solution):
        return ({"role": "user", "content": f"{problem.question} Check: {solution}"},)

    def corrector(self, problem, solution, report):
        return ({"role": "user", "content": f"{problem.question} Repair: {solution} Report: {report}"},)


def build(
    cls: type[Method],
    prompts: Any,
    config: Any = None,
    *,
    seed: int = 1,
    limits: Mapping[str, int | None] | None = None,
    tokens: Callable[[Any], int] = len,
    policies: Mapping[str, str] | None = None,
    **settings: Any,
) -> Any:
    """A method with settings of its own, the others at their defaults.

    Args:
        limits: longest prompts by role, as `tokens` counts them; None: prompts of every length are asked.
        policies: by role.
    """
    config = cls.Config(**{"name": cls.__name__, **settings}) if config is None else config
    return cls(config, MethodTools(prompts, tokens, limits or {}, seed=seed, policies=policies or {}))


class TwoStages(Method):
    """Every problem has `fan[0]` groups at stage a and, if any reward is 1, `fan[1]` groups at stage b."""

    roles: ClassVar[Mapping[str, Role]] = {"a": Role(), "b": Role()}

    def __init__(self, fan: tuple[int, int] = (1, 2), n: int = 2) -> None:
        super().__init__(EstimatorConfig(name="two_stages", group_size=max(n, 2)), MethodTools(None))
        self.fan = fan
        self.n = n

    @classmethod
    def stages(cls, config) -> tuple[Stage, ...]:
        return (Stage("a", "a", 2, next=("b",)), Stage("b", "b", 2, 2))

    def requests(self, problem: Problem, name: str, count: int, step: int, parent: str | None = None):
        stage = next(one for one in self.stages(self.config) if one.name == name)
        return [stage.request(problem, (), step, slot, n=self.n, parent_id=parent) for slot in range(count)]

    def first_requests(self, problem: Problem, step: int) -> list[RolloutRequest]:
        return self.requests(problem, "a", self.fan[0], step)

    def next_requests(self, problem, stage, groups: list[Group], step) -> list[RolloutRequest] | None:
        good = [one for group in groups for one in group.trajectories if one.value == 1.0]
        return self.requests(problem, "b", self.fan[1], step, good[0].trajectory_id) if good else []


def single_call(
    name: str, tokens: Iterable[int] = (0,), reward: float | None = 1.0, role: str = "a", **fields
) -> Trajectory:
    """A trajectory of one call without any text; a reward of None leaves it unscored."""
    ids = list(tokens)
    sequence = Sequence(role, [1], ids, [0.0] * len(ids))
    result = None if reward is None else RewardResult(reward)
    return Trajectory(name, [sequence], **{"finish": FinishReason.STOP, "reward": result, **fields})


def paused(name: str, tokens: Iterable[int], **fields) -> Trajectory:
    """A trajectory with so much of a response, to be continued."""
    return single_call(name, tokens, None, finish=FinishReason.PAUSED, **fields)


def answers(item: RolloutRequest, rewards: Iterable[float] = (1.0, 0.0)) -> RolloutOutput:
    """Scored trajectories of a request without any text."""
    members = [single_call(f"{item.group_id}#{k}", [k], one, item.role) for k, one in enumerate(rewards)]
    return RolloutOutput(item.group_id, members)


def step_result(**fields: Any) -> StepResult:
    """A step in which nothing happened but this."""
    empty = {"trained": [], "completed": [], "ended": [], "waiting": {}, "oldest_waiting": {}}
    none = dict.fromkeys(("in_flight", "paused", "deferred", "stale"), 0)
    return StepResult(**{"step": 1, **empty, **none, "request_ages": {}, **fields})


def back(*members: Trajectory, state: Any = None, group: str = "p0/a/0") -> RolloutOutput:
    """What a round brings of a group."""
    return RolloutOutput(group, list(members), state)


def ids(found: Iterable[RolloutRequest | Group]) -> list[str]:
    return [one.group_id for one in found]


def started(
    method: Method | None = None, mode: str = "pipelined", count: int = 1, **settings: Any
) -> Scheduler:
    """A scheduler at step 0, with so many problems."""
    scheduler = Scheduler(method or TwoStages(), mode, **settings)
    scheduler.start_step(0, problems(count))
    return scheduler


def absorb_round(scheduler: Scheduler, rewards: Iterable[float] = (1.0, 0.0)) -> list[str]:
    """Answer a round; who was asked."""
    requests = scheduler.next_round()
    for item in requests:
        scheduler.absorb([answers(item, rewards)])
    return ids(requests)


def next_step(scheduler: Scheduler) -> StepResult:
    """Ends a step, and begins the next one without a new problem."""
    result = scheduler.finish_step()
    scheduler.start_step(result.step + 1, [])
    return result


def restarted(scheduler: Scheduler, **settings: Any) -> Scheduler:
    """Its state in a new process."""
    again = Scheduler(scheduler.method, scheduler.mode, **settings)
    again.load_state_dict(saved(scheduler.state_dict()))
    return again


def frozen(item: Any) -> Any:
    """As values that can be compared: arrays become their bytes, NaN is equal to itself."""
    if is_dataclass(item) and not isinstance(item, type):
        return type(item).__name__, {one.name: frozen(getattr(item, one.name)) for one in fields(item)}
    if isinstance(item, dict):
        return {name: frozen(value) for name, value in item.items()}
    if isinstance(item, list | tuple):
        return [frozen(value) for value in item]
    if isinstance(item, np.ndarray):
        return str(item.dtype), item.shape, item.tobytes()
    return repr(item) if isinstance(item, float) else item


def assert_plain(item: Any, where: str = "state") -> None:
    """Only what a checkpoint can hold: dictionaries, lists, strings, numbers, None and arrays."""
    if isinstance(item, dict):
        for name, value in item.items():
            assert type(name) in (str, int), f"{where}: key {name!r}"
            assert_plain(value, f"{where}.{name}")
    elif isinstance(item, list | tuple):
        assert type(item) in (list, tuple), f"{where}: {type(item)}"
        for at, value in enumerate(item):
            assert_plain(value, f"{where}[{at}]")
    else:
        plain = item is None or isinstance(item, str | int | float | bool | np.ndarray)
        assert plain and not isinstance(item, Enum), f"{where}: {type(item)}"


def saved(state: Any) -> Any:
    """A state as a checkpoint gives it back."""
    assert_plain(state)
    return pickle.loads(pickle.dumps(state))


@dataclass
class Run:
    """What a driven run showed."""

    results: list[StepResult] = field(default_factory=list)
    rounds: list[list[list[str]]] = field(default_factory=list)
    """Group ids by step and round."""

    @property
    def trained(self) -> dict[str, list[tuple]]:
        """Content of the trained groups; fails when one was trained twice."""
        return contents(group for result in self.results for group in result.trained)

    @property
    def completed(self) -> dict[str, list[tuple]]:
        return contents(group for result in self.results for group in result.completed)

    @property
    def ended(self) -> dict[str, tuple]:
        ends = [end for result in self.results for end in result.ended]
        assert len({end.problem_id for end in ends}) == len(ends), "a problem ended twice"
        return {end.problem_id: (end.stage, end.reason) for end in ends}

    @property
    def decoded(self) -> list[str]:
        return [name for step in self.rounds for one_round in step for name in one_round]


def contents(groups: Iterable[Group]) -> dict[str, list[tuple]]:
    found: dict[str, list[tuple]] = {}
    for group in groups:
        assert group.group_id not in found, f"{group.group_id} came twice"
        found[group.group_id] = [
            (one.trajectory_id, one.text, one.value, group.request.parent_id, group.request.messages)
            for one in group.trajectories
        ]
    return found


Deliver = Callable[[list[RolloutOutput]], list[list[RolloutOutput]]]
"""Cuts the outputs of a round into portions; what is in no portion comes with a later round, at the
latest when the data have ended. Holding back is for the pipelined mode."""


def drive(
    method: Method,
    mode: str,
    batches: list[list[Problem]],
    *,
    budget: int | None = None,
    segment: int | None = None,
    min_group: int | None = None,
    min_groups: int = 1,
    staleness: int | None = None,
    skill: SkillModel | None = None,
    engine: Any = None,
    deliver: Deliver = lambda outputs: [outputs],
    checkpoint: bool = False,
    engine_seed: int | None = 0,
    limit: int = 1000,
) -> Run:
    """Runs to the end of the data and of all pools, with `batches[i]` entering at step i."""

    def new_scheduler() -> Scheduler:
        return Scheduler(
            method,
            mode,
            step_prompt_budget=budget,
            min_group=min_group,
            min_groups=min_groups,
            max_request_staleness=staleness,
        )

    scheduler = new_scheduler()
    sampling = {role: replace(item, segment_tokens=segment) for role, item in SAMPLING.items()}
    engine = engine or ScriptedEngine(skill or SkillModel(), seed=engine_seed)
    run = Run()
    held: list[RolloutOutput] = []

    def reload() -> None:
        nonlocal scheduler
        if checkpoint:
            before = scheduler.state_dict()
            scheduler = new_scheduler()
            scheduler.load_state_dict(saved(before))
            assert frozen(scheduler.state_dict()) == frozen(before)

    for step in range(limit):
        engine.policy_version = step
        scheduler.start_step(step, batches[step] if step < len(batches) else [])
        reload()
        run.rounds.append([])
        while requests := scheduler.next_round():
            reload()
            run.rounds[-1].append([item.group_id for item in requests])
            outputs = held + engine.generate(requests, sampling)
            portions = deliver(outputs)
            given = {output.group_id for portion in portions for output in portion}
            held = [output for output in outputs if output.group_id not in given]
            for portion in portions:
                scheduler.absorb(portion)
                reload()
        if held and step >= len(batches):
            scheduler.absorb(held)
            held = []
        last = step >= len(batches) - 1 and scheduler.idle()
        run.results.append(scheduler.finish_step(last=last))
        reload()
        if last:
            return run
    raise AssertionError(f"not idle after {limit} steps")


def marsrl(**settings) -> MarsRL:
    return build(MarsRL, ShortPrompts(), **{"group_size": 3, **settings})


def rewarded_group(name: str, role: str, rewards: list[float], lengths: list[int]) -> Group:
    """A complete group, a trajectory of one sequence for each reward and length."""
    item = RolloutRequest(name, problems(1)[0], role, role, (), len(rewards))
    pairs = enumerate(zip(rewards, lengths, strict=True))
    return Group(item, [single_call(f"{name}#{k}", range(n), reward, role) for k, (reward, n) in pairs])
