"""Barriers between epochs: a method changes its phase when everything of an epoch was trained."""

from __future__ import annotations

import json

import pytest
from scripted_trainer import BATCH_SIZE, ROWS, ScriptedTrainer, batches

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.policy import Policy, PolicySet
from marsrl_verl.core.schedule import EpochMode, Schedule, Trained
from marsrl_verl.verl_adapter.trainer.problem_stream import NothingToTrainError

pytestmark = pytest.mark.slow

STEPS = 24
PER_EPOCH = len(ROWS) // BATCH_SIZE * BATCH_SIZE


class Phases(Schedule):
    """As ReMA with two policies (arXiv 2503.09501, alg. 1): one epoch finds problems that are neither
    too easy nor too hard, the next ones train on these, the Solver first, then the others."""

    epoch_mode = EpochMode.BARRIER

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.phase, self.kept, self.seen, self.ends = 0, [], [], []

    @property
    def filters(self) -> bool:
        return self.phase % 3 == 0

    def admits(self, problem):
        return self.filters or problem.row in self.kept

    def epoch_ended(self, step):
        self.phase += 1
        self.ends.append([step, len(self.seen)])
        self.seen = []
        if self.filters:
            self.kept = []

    def trained(self, step):
        due = frozenset() if self.filters else frozenset({("solver", "others")[self.phase % 3 - 1]})
        return Trained(policies=due)

    def state_dict(self):
        return {name: getattr(self, name) for name in ("phase", "kept", "seen", "ends")}

    def load_state_dict(self, state):
        vars(self).update(json.loads(json.dumps(state)))


class Phased(MarsRL):
    Schedule = Phases

    def next_requests(self, problem, stage, groups, step):
        if stage == "solver":
            self.schedule.seen.append(problem.row)
            if self.schedule.filters and len(set(groups[0].rewards)) > 1:
                self.schedule.kept.append(problem.row)
        return [] if self.schedule.filters else super().next_requests(problem, stage, groups, step)


def policies() -> PolicySet:
    roles = {"solver": "solver", "verifier": "others", "corrector": "others"}
    return PolicySet((Policy("solver"), Policy("others")), roles)


def run(folder, steps=STEPS, method=Phased, **changes) -> ScriptedTrainer:
    folder.mkdir(exist_ok=True)
    trainer = ScriptedTrainer(folder, steps, method=method, policies=policies(), **changes)
    trainer.fit()
    return trainer


MODES = [
    {"mode": "sequential", "overlap": "none", "segments": True, "min_groups": 3},
    {"mode": "sequential", "overlap": "one_step", "segments": False, "min_groups": 1},
    {"mode": "pipelined", "overlap": "none", "segments": False, "min_groups": 1},
    {"mode": "pipelined", "overlap": "one_step", "segments": True, "min_groups": 3},
]


@pytest.mark.parametrize("changes", MODES)
def test_a_phase_begins_when_all_of_the_last_pass_was_trained(tmp_path, changes):
    trainer = run(tmp_path, save_freq=-1, **changes)
    method = trainer.method
    begins = [step for step, _ in method.schedule.ends]
    assert len(begins) >= 2 and begins == sorted(set(begins))
    seen = [count for _, count in method.schedule.ends]
    assert seen[0] == PER_EPOCH and all(0 < count < PER_EPOCH for count in seen[1:3])
    phase_of = {step: sum(step >= begin for begin in begins) % 3 for step in range(1, STEPS + 1)}
    assert trainer.described == {step: phase != 0 for step, phase in phase_of.items()}
    for policy, phase in (("solver", 1), ("others", 2)):
        assert {phase_of[step] for step in trainer.weights.steps_of[policy]} <= {phase}
        assert trainer.weights.steps_of[policy] or phase == 2
    for line in batches(tmp_path):
        ids = {row[0].partition("/")[0] for row in line["rows"]}
        passes = {int(name.removeprefix("p")) // PER_EPOCH for name in ids}
        assert passes <= {sum(line["step"] >= begin for begin in begins)}, "no group is left for later"


@pytest.mark.parametrize(("stop", "mode"), [(8, MODES[0]), (11, MODES[2])])
def test_a_resumed_run_is_in_the_same_phase_of_the_same_pass(tmp_path, stop, mode):
    """It stops in the second phase, and the next one begins before its end."""
    # A run's last step defers nothing, so where steps may, one that stops there trains other groups.
    changes = {**mode, "min_groups": 1, "save_freq": 1}
    whole = run(tmp_path / "whole", steps=16, **changes)
    run(tmp_path / "a", steps=stop, **changes)
    resumed = run(tmp_path / "a", steps=16, **changes)
    assert batches(tmp_path / "a") == batches(tmp_path / "whole")
    assert resumed.method.schedule.state_dict() == whole.method.schedule.state_dict()
    assert resumed.weights.steps_of == whole.weights.steps_of


@pytest.mark.parametrize(
    ("schedule", "said"),
    [(Phases, r"Closed\.admits let no problem"), (Schedule, "admits no problem")],
    ids=["barrier", "continuous"],
)
def test_a_method_that_admits_nothing_is_told(tmp_path, schedule, said):
    class Closed(schedule):
        def admits(self, problem):
            return False

    class Shut(Phased if schedule is Phases else MarsRL):
        Schedule = Closed

    with pytest.raises(NothingToTrainError, match=said):
        run(tmp_path, method=Shut)
