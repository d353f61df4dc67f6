"""A small method, short prompts and a driver for scheduler tests."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.prompts import RolePrompts
from marsrl_verl.core.algorithm import Algorithm, Stage
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.scripted import ScriptedEngine, SkillModel
from marsrl_verl.core.step_result import StepResult
from marsrl_verl.core.types import (
    FinishReason,
    Group,
    Outcome,
    Problem,
    Sample,
    SamplingSettings,
    StageInput,
)

SAMPLING = {role: SamplingSettings(10_000, 10_000) for role in ("solver", "verifier", "corrector", "a", "b")}


def problems(count: int, first: int = 0) -> list[Problem]:
    return [Problem(f"p{i}", f"{i} + 1 = ?", str(i + 1)) for i in range(first, first + count)]


class ShortPrompts(RolePrompts):
    def solver(self, problem):
        return ({"role": "user", "content": problem.question},)

    def verifier(self, problem, solution):
        return ({"role": "user", "content": f"{problem.question} Check: {solution}"},)

    def corrector(self, problem, solution, report):
        return ({"role": "user", "content": f"{problem.question} Repair: {solution} Report: {report}"},)


class TwoStages(Algorithm):
    """Every problem has `fan[0]` groups at stage a and, if any reward is 1, `fan[1]` groups at stage b."""

    stages = (Stage("a", "a"), Stage("b", "b"))

    def __init__(self, fan: tuple[int, int] = (1, 2), n: int = 2) -> None:
        self.fan = fan
        self.n = n

    def _inputs(self, problem: Problem, index: int, step: int, parent: str | None) -> list[StageInput]:
        stage = self.stages[index]
        prototype = StageInput(
            "", problem, stage.name, index, stage.role, (), self.n, parent, created_step=step
        )
        names = [f"{problem.problem_id}/{stage.name}/{slot}" for slot in range(self.fan[index])]
        return [replace(prototype, group_id=name) for name in names]

    def first_inputs(self, problem: Problem, step: int) -> list[StageInput]:
        return self._inputs(problem, 0, step, None)

    def next_inputs(self, problem, stage_index, groups: list[Group], step) -> list[StageInput]:
        good = [sample for group in groups for sample in group.samples if sample.reward == 1.0]
        return self._inputs(problem, stage_index + 1, step, good[0].sample_id) if good else []

    def trains(self, group: Group) -> bool:
        return len(set(group.rewards)) > 1

    def credit(self, groups):
        return {
            sample.sample_id: ((len(sample.response_ids), sample.reward),)
            for group in groups
            for sample in group.samples
        }


def answers(item: StageInput, rewards: Iterable[float] = (1.0, 0.0)) -> list[Sample]:
    """Scored samples of an input without any text."""
    return [
        Sample(
            f"{item.group_id}#{k}",
            item.group_id,
            [1],
            [k],
            [0.0],
            FinishReason.STOP,
            "",
            "",
            outcome=Outcome(reward),
        )
        for k, reward in enumerate(rewards)
    ]


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
        assert group.input.group_id not in found, f"{group.input.group_id} came twice"
        found[group.input.group_id] = [
            (sample.sample_id, sample.text, sample.reward, group.input.parent_id, group.input.messages)
            for sample in group.samples
        ]
    return found


Deliver = Callable[[list[Sample]], list[list[Sample]]]
"""Cuts the samples of a round into portions; what is in no portion comes with a later round, at the
latest when the data have ended. Holding back is for the pipelined mode."""


def drive(
    algorithm,
    mode: str,
    batches: list[list[Problem]],
    *,
    budget: int | None = None,
    segment: int | None = None,
    min_group: int | None = None,
    min_groups: int = 1,
    staleness: int | None = None,
    skill: SkillModel | None = None,
    deliver: Deliver = lambda samples: [samples],
    checkpoint: bool = False,
    engine_seed: int | None = 0,
    limit: int = 500,
) -> Run:
    """Run to the end of the data and of all pools, with `batches[i]` entering at step i."""

    def new_scheduler() -> Scheduler:
        return Scheduler(
            algorithm,
            mode,
            step_prompt_budget=budget,
            min_group=min_group,
            min_groups=min_groups,
            max_input_staleness=staleness,
        )

    scheduler = new_scheduler()
    sampling = {role: replace(item, segment_tokens=segment) for role, item in SAMPLING.items()}
    engine = ScriptedEngine(skill or SkillModel(), seed=engine_seed)
    run = Run()
    held: list[Sample] = []

    def reload() -> None:
        nonlocal scheduler
        if checkpoint:
            saved = json.dumps(scheduler.state_dict())
            scheduler = new_scheduler()
            scheduler.load_state_dict(json.loads(saved))
            assert json.dumps(scheduler.state_dict()) == saved

    for step in range(limit):
        engine.policy_version = step
        scheduler.start_step(step, batches[step] if step < len(batches) else [])
        reload()
        run.rounds.append([])
        while inputs := scheduler.next_round():
            reload()
            run.rounds[-1].append([item.group_id for item in inputs])
            samples = held + engine.generate(inputs, sampling)
            portions = deliver(samples)
            given = {sample.sample_id for portion in portions for sample in portion}
            held = [sample for sample in samples if sample.sample_id not in given]
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
    return MarsRL(ShortPrompts(), **{"seed": 1, "group_size": 3, **settings})
