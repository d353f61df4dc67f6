from collections import Counter
from dataclasses import dataclass, field

import pytest
from evaluation_tools import evaluate_system
from marsrl_script import ScriptedEngine, SkillModel
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.evaluation.loop_rules import RunEnd
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.trajectory import FinishReason

RIGHT = Reply("<think>hm</think>It is \\boxed{42}.")
FALSE = Reply("It is \\boxed{41}.")
CUT = Reply("It is \\boxed{42}. And", FinishReason.LENGTH)
EMPTY = Reply("<think>\\boxed{42}</think>")
PASS = Reply("Fine.\n\n**Correctness**: Correct")
FAIL = Reply("The sum is off.\n\n**Correctness**: Wrong")
MUMBLE = Reply("Who knows.")
CUT_VERDICT = Reply("Fine.\n\n**Correctness**: Correct", FinishReason.LENGTH)

SAMPLING = {role: Sampling(500, 5000) for role in (SOLVER, VERIFIER, CORRECTOR)}


@dataclass
class PlainPrompts:
    """Words prompts plainly and notes what the Corrector was told."""

    reports: list[str] = field(default_factory=list)

    def solver(self, problem):
        return ({"role": "user", "content": problem.question},)

    problem = solver

    def verifier(self, problem, solution):
        return ({"role": "user", "content": f"{problem.question} / {solution}"},)

    def corrector(self, problem, solution, report):
        self.reports.append(report)
        return ({"role": "user", "content": f"{problem.question} / {solution} / {report}"},)


def problem(name: str = "p") -> Problem:
    return Problem(name, f"question {name}", "42")


def chain(*replies: Reply, rounds: int = 2, prompts: PlainPrompts | None = None, again: Reply | None = None):
    """The single run in which the stages give these replies in turn; `again` answers a repeated question
    to the first Verifier."""
    stages = ["solver", "verifier_1", "corrector_1", "verifier_2", "corrector_2"]
    script = dict(zip(stages, replies, strict=False))
    if again is not None:
        script["verifier_1_again"] = again
    engine = ScriptedEngine(lambda item, k: script[item.stage])
    evaluation = evaluate_system(
        engine,
        [problem()],
        prompts or PlainPrompts(),
        SAMPLING,
        correction_rounds=rounds,
        samples_per_problem=1,
        tag="t",
    )
    (run,) = evaluation.runs
    assert len(run.calls) == len(replies) + (again is not None)
    return run


def test_accepted_solution_stops():
    run = chain(RIGHT, PASS)
    assert (run.end, run.solver_reward, run.final_reward) == (RunEnd.ACCEPTED, 1.0, 1.0)
    assert run.verdicts == [Verdict.CORRECT]


def test_wrong_solution_is_repaired_and_accepted():
    run = chain(FALSE, FAIL, RIGHT, PASS)
    assert (run.end, run.solver_reward, run.final_reward) == (RunEnd.ACCEPTED, 0.0, 1.0)
    assert [call.request.stage for call in run.calls] == ["solver", "verifier_1", "corrector_1", "verifier_2"]
    assert run.calls[3].request.inputs["solution"] == "It is \\boxed{42}."
    assert [call.request.inputs.get("solution_reward") for call in run.calls] == [None, 0.0, 0.0, 1.0]


def test_each_call_names_its_parent_and_a_unique_group():
    run = chain(FALSE, FAIL, FALSE, FAIL, RIGHT)
    samples = [call.trajectory.trajectory_id for call in run.calls]
    assert [call.request.parent_id for call in run.calls] == [None, *samples[:-1]]
    assert [call.request.group_id for call in run.calls] == [
        f"eval-t/p/0/{stage}"
        for stage in ("solver", "verifier_1", "corrector_1", "verifier_2", "corrector_2")
    ]
    assert (run.end, run.final_reward) == (RunEnd.ROUNDS_USED, 1.0)


def test_a_right_solution_can_be_broken():
    run = chain(RIGHT, FAIL, FALSE, PASS)
    assert (run.solver_reward, run.final_reward) == (1.0, 0.0)
    assert not run.solved


def test_an_unreadable_verdict_is_asked_for_again():
    run = chain(RIGHT, MUMBLE, again=PASS)
    assert run.verdicts == [Verdict.INVALID, Verdict.CORRECT]
    assert (run.end, run.final_reward) == (RunEnd.ACCEPTED, 1.0)
    assert {call.request.parent_id for call in run.calls[1:]} == {run.calls[0].trajectory.trajectory_id}
    assert len({call.request.group_id for call in run.calls}) == 3


@pytest.mark.parametrize("judgement", [MUMBLE, CUT_VERDICT])
def test_unreadable_twice_counts_as_wrong_and_what_was_written_is_the_report(judgement):
    prompts = PlainPrompts()
    run = chain(FALSE, judgement, RIGHT, PASS, again=judgement, prompts=prompts)
    assert run.verdicts == [Verdict.INVALID, Verdict.INVALID, Verdict.CORRECT]
    assert (run.end, run.final_reward) == (RunEnd.ACCEPTED, 1.0)
    assert len(prompts.reports) == 1
    assert judgement.text.startswith(prompts.reports[0])
    assert prompts.reports[0]


def test_no_word_of_a_verifier_keeps_the_solution_and_ends():
    run = chain(RIGHT, EMPTY, again=EMPTY)
    assert (run.end, run.final_reward) == (RunEnd.NO_VERDICT, 1.0)


@pytest.mark.parametrize("solution", [CUT, EMPTY])
def test_unusable_solver_text_scores_nothing_and_is_not_judged(solution):
    run = chain(solution)
    assert (run.end, run.solver_reward, run.final_reward) == (RunEnd.NO_SOLUTION, 0.0, 0.0)
    assert run.solution is None


@pytest.mark.parametrize("correction", [CUT, EMPTY])
def test_unusable_corrector_text_does_not_replace(correction):
    run = chain(FALSE, FAIL, correction, FAIL, RIGHT)
    assert run.calls[3].request.inputs["solution"] == "It is \\boxed{41}."
    assert run.calls[3].request.parent_id == run.calls[0].trajectory.trajectory_id
    assert run.final_reward == 1.0


def test_report_reaches_the_corrector():
    prompts = PlainPrompts()
    chain(FALSE, FAIL, RIGHT, PASS, prompts=prompts)
    assert len(prompts.reports) == 1
    assert "The sum is off." in prompts.reports[0]


def test_no_rounds_is_the_solver_alone():
    run = chain(RIGHT, rounds=0)
    assert (run.answer, run.final_reward) == (run.calls[0].trajectory, 1.0)


def test_runs_are_ordered_and_what_waits_is_asked_together():
    def script(item: RolloutRequest, k: int) -> Reply:
        if item.role == VERIFIER:
            return PASS if item.inputs["solution_reward"] else FAIL
        return RIGHT if item.role == CORRECTOR or item.problem.problem_id == "a" else FALSE

    engine = ScriptedEngine(script, seed=3)
    evaluation = evaluate_system(
        engine,
        [problem("a"), problem("b")],
        PlainPrompts(),
        SAMPLING,
        correction_rounds=3,
        samples_per_problem=3,
        tag="t",
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


def test_order_of_completion_does_not_matter():
    def outcome(seed):
        engine = ScriptedEngine(SkillModel(seed=5), seed=seed)
        problems = [problem(str(i)) for i in range(20)]
        evaluation = evaluate_system(
            engine, problems, PlainPrompts(), SAMPLING, correction_rounds=2, samples_per_problem=2, tag="t"
        )
        return [(run.end, run.solver_reward, run.final_reward) for run in evaluation.runs]

    assert outcome(1) == outcome(2) == outcome(None)


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
            engine, [problem(str(i)) for i in range(20)], PlainPrompts(), SAMPLING, samples_per_problem=2
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
        ({"correction_rounds": -1}, "correction_rounds must be 0 or more, found -1"),
        ({"samples_per_problem": 0}, "repeats must be 1 or more, found 0"),
        ({"sampling": {SOLVER: SAMPLING[SOLVER]}}, "missing for verifier, corrector"),
    ],
)
def test_wrong_arguments(change, message):
    arguments = {
        "problems": [problem()],
        "sampling": SAMPLING,
        "correction_rounds": 1,
        "samples_per_problem": 1,
        **change,
    }
    with pytest.raises(ValueError, match=message):
        evaluate_system(ScriptedEngine(lambda i, k: RIGHT), prompts=PlainPrompts(), tag="t", **arguments)


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
        evaluate_system(TamperingEngine(tamper), [problem()], PlainPrompts(), SAMPLING, correction_rounds=0)
