"""Runs of the system over problems: their order, what waits for what, engines that are wrong."""

from collections import Counter

import pytest
from evaluation_tools import evaluate_system
from marsrl_script import ScriptedEngine, SkillModel
from scheduler_tools import ShortPrompts
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.seeding import derive_generator

RIGHT = Reply("<think>hm</think>It is \\boxed{42}.")
FALSE = Reply("It is \\boxed{41}.")
PASS = Reply("Fine.\n\n**Correctness**: Correct")
FAIL = Reply("The sum is off.\n\n**Correctness**: Wrong")

SAMPLING = {role: Sampling(500, 5000) for role in (SOLVER, VERIFIER, CORRECTOR)}


def problem(name: str = "p") -> Problem:
    return Problem(name, f"question {name}", "42")


def test_runs_are_ordered_and_what_waits_is_asked_together():
    def script(item: RolloutRequest, k: int) -> Reply:
        if item.role == VERIFIER:
            return PASS if item.inputs["solution_reward"] else FAIL
        return RIGHT if item.role == CORRECTOR or item.problem.problem_id == "a" else FALSE

    engine = ScriptedEngine(script, seed=3)
    evaluation = evaluate_system(
        engine,
        [problem("a"), problem("b")],
        ShortPrompts(),
        SAMPLING,
        correction_rounds=3,
        samples_per_problem=3,
        step=7,
    )
    assert [(run.problem.problem_id, run.repeat) for run in evaluation.runs] == [
        (name, repeat) for name in "ab" for repeat in range(3)
    ]
    rounds = [Counter(item.stage for item in round) for round in engine.rounds]
    assert rounds == [{"solver": 6}, {"verifier_1": 6}, {"corrector_1": 3}, {"verifier_2": 3}]
    assert [run.solver_reward for run in evaluation.runs] == [1, 1, 1, 0, 0, 0]
    assert all(run.solved for run in evaluation.runs)
    assert {call.request.created_step for call in evaluation.calls} == {7}
    groups = [call.request.group_id for call in evaluation.calls]
    assert len(set(groups)) == len(groups) == 18
    assert evaluation.generated_tokens == sum(len(call.trajectory.text) for call in evaluation.calls)


class OneByOne(ScriptedEngine):
    """Answers a few of the waiting requests at a time, drawn at random."""

    def __init__(self, model, seed):
        super().__init__(model, seed=None)
        self.rng = derive_generator(seed, "answers")
        self.behind = 0
        """Most stages that a run was ahead of another one."""

    def outputs(self):
        order = self.rng.permutation(len(self._waiting))
        chosen = {self._waiting[i].group_id for i in order[:3]}
        kept = [item for item in self._waiting if item.group_id not in chosen]
        self._waiting = [item for item in self._waiting if item.group_id in chosen]
        found = super().outputs()
        self._waiting = kept
        stages = ["solver", "verifier_1", "corrector_1", "verifier_2", "corrector_2"]
        places = [stages.index(item.stage) for item in kept if item.stage in stages]
        self.behind = max(self.behind, max(places, default=0) - min(places, default=0))
        return found


def test_a_run_waits_for_its_own_answers_alone():
    def played(engine):
        runs = evaluate_system(
            engine, [problem(str(i)) for i in range(20)], ShortPrompts(), SAMPLING, samples_per_problem=2
        )
        return [
            (
                run.name,
                run.end,
                run.final_reward,
                [(call.request.group_id, call.request.parent_id, call.trajectory.text) for call in run.calls],
            )
            for run in runs.runs
        ]

    model = SkillModel(seed=5)
    engines = [OneByOne(model, seed) for seed in (1, 2)]
    assert played(ScriptedEngine(model)) == played(engines[0]) == played(engines[1])
    assert all(engine.behind >= 3 for engine in engines), "runs did not advance by themselves"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problems": []}, "no problem"),
        ({"problems": [problem("x"), problem("x")]}, "'x' occurs twice"),
        ({"samples_per_problem": 0}, "repeats must be 1 or more, found 0"),
        ({"sampling": {SOLVER: SAMPLING[SOLVER]}}, "missing for verifier, corrector"),
    ],
)
def test_wrong_arguments(change, message):
    arguments = {"problems": [problem()], "sampling": SAMPLING, "correction_rounds": 1, **change}
    with pytest.raises(ValueError, match=message):
        evaluate_system(ScriptedEngine(lambda i, k: RIGHT), prompts=ShortPrompts(), **arguments)


class TamperingEngine(ScriptedEngine):
    """Returns something else than one output per request."""

    def __init__(self, tamper):
        super().__init__(lambda item, k: RIGHT, seed=None)
        self.tamper = tamper

    def generate(self, requests, sampling):
        return self.tamper(super().generate(requests, sampling))


def foreign_output():
    """One output of another group."""
    item = RolloutRequest("other", problem(), "solver", SOLVER, (), 1)
    return ScriptedEngine(lambda item, k: RIGHT).generate([item], SAMPLING)


def without_trajectories(outputs):
    outputs[0].trajectories = []
    return outputs


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda outputs: outputs[1:], "returned nothing for 1 requests, the first: eval-t/p/0/solver"),
        (lambda outputs: [*outputs, outputs[0]], "answered eval-t/p/0/solver twice"),
        (lambda outputs: [*outputs, *foreign_output()], "nobody asked, the first: other"),
        (without_trajectories, r"eval-t/p/0/solver: found \[\], expected one trajectory that ended"),
    ],
)
def test_a_faulty_engine_is_named(tamper, message):
    with pytest.raises(ValueError, match=message):
        evaluate_system(TamperingEngine(tamper), [problem()], ShortPrompts(), SAMPLING, correction_rounds=0)
