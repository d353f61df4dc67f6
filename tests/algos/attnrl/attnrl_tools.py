"""AttnRL on the scheduler with scripted answers, for the tests of trees and of steps."""

from __future__ import annotations

import numpy as np
from marsrl_script import ScriptedEngine
from scheduler_tools import ShortPrompts, build, problems, saved
from scripted_engine import Reply

from marsrl_verl.algos.attnrl.adaptive_sampling import BatchController, ExpansionRounding, FilterRule
from marsrl_verl.algos.attnrl.method import CONTINUATION, INITIAL, AttnRL
from marsrl_verl.algos.attnrl.responses import INFLUENCE
from marsrl_verl.algos.attnrl.step_cutter import StepCutter
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import trained_rows
from marsrl_verl.core.reasoning_steps import TokenTexts
from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.schedule import StepView
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, RECORDED_LOG_PROBS, TRAINER_LOG_PROBS
from marsrl_verl.core.stage import Ended, EndReason
from marsrl_verl.core.trajectory import Trajectory

SAMPLING = {"solver": Sampling(200, 200)}
CUTTER = StepCutter(TokenTexts(lambda token: bytes([token]).decode(errors="replace")))
LINES = "first line\nsecond line\nthird line\nfourth line\n"


def script(item: RolloutRequest, k: int) -> Reply:
    """Four lines and an answer. The first responses 0 and 1 are right, of continuations the even ones."""
    right = k < 2 if item.stage == INITIAL else k % 2 == 0
    answer = item.problem.ground_truth if right else "wrong"
    lines = LINES if item.prefix is None else "again\n"
    return Reply(f"{lines}\\boxed{{{answer}}}")


def method(
    controller: BatchController | None = None, stores_trainer_log_probs: bool = True, **settings
) -> AttnRL:
    defaults = {"group_size": 4, "filter": FilterRule.NONE, "expansion": ExpansionRounding.ALL}
    one = build(AttnRL, ShortPrompts(), **{**defaults, **settings})
    one.responses.cutter = CUTTER
    one.schedule.controller, one.stores_trainer_log_probs = controller, stores_trainer_log_probs
    return one


def annotate(method: AttnRL, one: Trajectory, influence) -> None:
    """What a probe writes of a response, with an influence by step."""
    sequence, steps = one.sequence, method.responses.steps(one)
    by_step = np.array(influence[: len(steps)], dtype=np.float32)
    log_probs = np.full(len(sequence), -0.5, dtype=np.float32)
    sequence.annotations |= {
        TRAINER_LOG_PROBS: log_probs,
        RECORDED_LOG_PROBS: log_probs,
        # Entropy grows towards the end.
        RECORDED_ENTROPIES: np.arange(len(sequence), dtype=np.float32) * np.float32(0.01),
        INFLUENCE: by_step[steps.step_ids()],
    }


def probe(method: AttnRL, scheduler: Scheduler, influence=None) -> None:
    """What the trainer does between two rounds, with an influence that the test chooses."""
    for group in scheduler.completed_stages():
        if method.probes(group.request.stage):
            for one in group.trajectories:
                annotate(method, one, influence or [0.0, 0.1, 0.9, 0.2, 0.3])


def run(method: AttnRL, mode="pipelined", steps=3, answers=script, count=2, influence=None):
    """Results by step."""
    scheduler = Scheduler(method, mode)
    engine = ScriptedEngine(answers, seed=3)
    results = []
    for step in range(1, steps + 1):
        engine.policy_version = step - 1
        scheduler.start_step(step, problems(count, first=10 * step))
        while requests := scheduler.next_round():
            scheduler.absorb(engine.generate(requests, SAMPLING))
            probe(method, scheduler, influence)
        # What a checkpoint holds is enough to go on.
        state = saved(scheduler.state_dict())
        scheduler = Scheduler(method, mode)
        scheduler.load_state_dict(state)
        results.append(scheduler.finish_step())
    return results, engine


def selected(method: AttnRL, groups: list[Group]) -> Rows:
    """The rows of a step with these groups."""
    return Rows.of(groups, trained_rows(method, groups, 0))


def segments(method: AttnRL, groups: list[Group]) -> dict[str, list[tuple[int, float]]]:
    """(end, advantage) of each run of tokens with one advantage, by trajectory."""
    rows = selected(method, groups)
    advantages = method.credit.advantages(rows)
    found = {}
    for row in range(len(rows)):
        values = advantages[rows.slice(row)]
        ends = [*(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
        found[rows.trajectory(row).trajectory_id] = [(end, float(values[end - 1])) for end in ends]
    return found


def step_metrics(method: AttnRL, trained: int = 0, finished: int = 0, unfinished: int = 0, deferred: int = 0):
    """What the method says of a step that trains so many rows of other problems, and in which so many
    problems ended at the last stage, or before."""
    ended = [Ended(f"f{k}", CONTINUATION, EndReason.FINISHED) for k in range(finished)]
    ended += [Ended(f"u{k}", INITIAL, EndReason.REJECTED) for k in range(unfinished)]
    rows = Rows([], [RowRef(0, k) for k in range(trained)], np.zeros(trained + 1, dtype=np.int64))
    view = StepView(rows, ended, deferred)
    return method.observe_step(view) | method.schedule.observe_step(view)


def always(right: bool):
    def answers(item, k):
        return Reply(f"{LINES}\\boxed{{{item.problem.ground_truth if right else 'no'}}}")

    return answers
