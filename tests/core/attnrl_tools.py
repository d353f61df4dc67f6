"""AttnRL on the scheduler with scripted answers, for the tests of trees and of steps."""

from __future__ import annotations

from scheduler_tools import ShortPrompts, problems

from marsrl_verl.algos.attnrl.adaptive_sampling import (
    ExpansionRounding,
    FilterRule,
)
from marsrl_verl.algos.attnrl.branch_points import BranchRule
from marsrl_verl.algos.attnrl.method import (
    INITIAL,
    AttnRL,
    Expansion,
)
from marsrl_verl.algos.attnrl.step_cutter import StepCutter
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.scripted import Reply, ScriptedEngine
from marsrl_verl.core.steps import TokenTexts
from marsrl_verl.core.types import Marks, SamplingSettings, StageInput

SAMPLING = {"solver": SamplingSettings(200, 200)}
CUTTER = StepCutter(TokenTexts(lambda token: bytes([token]).decode(errors="replace")))
LINES = "first line\nsecond line\nthird line\nfourth line\n"


def script(item: StageInput, k: int) -> Reply:
    """Four lines and an answer. The first responses 0 and 1 are right, of continuations the even ones."""
    right = k < 2 if item.stage == INITIAL else k % 2 == 0
    answer = item.problem.ground_truth if right else "wrong"
    lines = LINES if item.prefix is None else "again\n"
    return Reply(f"{lines}\\boxed{{{answer}}}")


def method(**settings) -> AttnRL:
    usual = {
        "seed": 1,
        "group_size": 4,
        "branching": BranchRule(count=2),
        "expansion": Expansion(filter=FilterRule.NONE, rounding=ExpansionRounding.ALL),
    }
    return AttnRL(ShortPrompts(), CUTTER, **{**usual, **settings})


def mark(algorithm: AttnRL, scheduler: Scheduler, influence=None) -> None:
    """What the trainer does between two rounds, with an influence that the test chooses."""
    for group in scheduler.unsettled():
        if group.input.stage in algorithm.marked_stages():
            for sample in group.samples:
                steps = algorithm.cut(sample.response_ids)
                values = influence or [0.0, 0.1, 0.9, 0.2, 0.3]
                sample.trainer_log_probs = [-0.5] * len(sample.response_ids)
                # Entropy grows towards the end.
                entropies = tuple(0.01 * at for at in range(len(sample.response_ids)))
                sample.marks = Marks(
                    steps, tuple(sample.trainer_log_probs), tuple(values[: len(steps)]), entropies
                )


def run(algorithm: AttnRL, mode="pipelined", steps=3, answers=script, count=2, influence=None):
    """Results by step."""
    scheduler = Scheduler(algorithm, mode)
    engine = ScriptedEngine(answers, seed=3)
    results = []
    for step in range(1, steps + 1):
        engine.policy_version = step - 1
        scheduler.start_step(step, problems(count, first=10 * step))
        while inputs := scheduler.next_round():
            scheduler.absorb(engine.generate(inputs, SAMPLING))
            mark(algorithm, scheduler, influence)
        # What a checkpoint holds is enough to go on.
        state = scheduler.state_dict()
        scheduler = Scheduler(algorithm, mode)
        scheduler.load_state_dict(state)
        results.append(scheduler.finish_step())
    return results, engine


def always(right: bool):
    def answers(item, k):
        return Reply(f"{LINES}\\boxed{{{item.problem.ground_truth if right else 'no'}}}")

    return answers
