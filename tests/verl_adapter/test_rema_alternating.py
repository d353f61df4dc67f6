"""Two agents trained in turns, through the trainer's own loop: prompts and rows of each epoch, and a kill."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rema_script import TwoAgents
from scheduler_tools import build
from scripted_trainer import BATCH_SIZE, ROWS, ScriptedTrainer, batches

from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING
from marsrl_verl.algos.rema.single_turn.config import Config
from marsrl_verl.algos.rema.single_turn.filtering import PhaseSchedule
from marsrl_verl.algos.rema.single_turn.method import ReMASingleTurn
from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.policy import Policy, PolicySet
from marsrl_verl.verl_adapter.components import build_watch
from marsrl_verl.verl_adapter.trainer.policy_trainer import PolicyTrainer

pytestmark = pytest.mark.slow

PER_EPOCH = len(ROWS) // BATCH_SIZE * BATCH_SIZE
USUAL = {"episodes": 2, "group_size": 3, "filter": {"samples": 6}}
AGENTS = {META_THINKING: "meta", REASONING: "reason"}


def policies() -> PolicySet:
    return PolicySet((Policy("meta"), Policy("reason")), AGENTS)


class NotedPhases(PhaseSchedule):
    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.begins = []

    def epoch_ended(self, step):
        super().epoch_ended(step)
        self.begins.append((step, self.phases.number))


class Noted(ReMASingleTurn):
    """Notes what it was asked to train, by pass."""

    Schedule = NotedPhases

    def __init__(self, **changes) -> None:
        super().__init__(Config.model_validate(changes), MethodTools(MathPlanPrompts(), policies=AGENTS))
        self.epochs_of, self.asked = {}, {}

    def first_requests(self, problem, step):
        self.epochs_of.setdefault(self.schedule.phases.number, set()).add(problem.row)
        asked = self.asked.setdefault(self.schedule.phases.number, {})
        asked[step] = asked.get(step, 0) + 1
        return super().first_requests(problem, step)


def run(folder, steps=30, script=None, save_freq=-1, changes=None, **pipeline) -> ScriptedTrainer:
    folder.mkdir(exist_ok=True)
    trainer = ScriptedTrainer(
        folder,
        steps,
        save_freq=save_freq,
        method=lambda *_, **__: Noted(**USUAL | (changes or {})),
        script=script or TwoAgents(seed=3),
        roles=tuple(AGENTS),
        policies=policies(),
        **pipeline,
    )
    trainer.fit()
    return trainer


MODES = [
    {"mode": "sequential", "overlap": "none"},
    {"mode": "pipelined", "overlap": "none"},
    {"mode": "pipelined", "overlap": "one_step"},
]


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: "_".join(mode.values()))
def trained(request, tmp_path_factory) -> ScriptedTrainer:
    """A run with solutions of several plans each."""
    changes = {"plans_per_problem": BATCH_SIZE}
    return run(tmp_path_factory.mktemp("trained"), steps=45, changes=changes, **request.param)


def test_each_phase_trains_its_agent_on_what_it_kept(trained):
    method = trained.method
    assert method.schedule.phases.number >= 4, "both phases had their turn"
    number_of = {0: 0} | dict(method.schedule.begins)
    begins = sorted(number_of)

    def epoch_at(step: int) -> int:
        return number_of[max(begin for begin in begins if begin <= step)]

    for policy, phase in (("reason", 0), ("meta", 1)):
        steps = trained.weights.steps_of[policy]
        passes = {epoch_at(step) for step in steps}
        assert passes and all(number // 3 % 2 == phase and number % 3 for number in passes), policy
    assert len(method.epochs_of[0]) == len(method.epochs_of[3]) == PER_EPOCH, "counting asks everybody"
    for number in (1, 2):
        assert method.epochs_of[number] < method.epochs_of[0], "training asks some of them"
    for sent in trained.updated:
        assert sent["policy"] == ("reason" if epoch_at(sent["step"]) // 3 % 2 == 0 else "meta")


def test_the_first_step_of_a_pass_has_as_many_problems_as_the_others(trained):
    sizes = {number: list(steps.values()) for number, steps in trained.method.asked.items()}
    assert len(sizes) >= 5 and len(sizes[1]) > 1
    for number, found in sizes.items():
        usual = 1 if number % 6 in (1, 2) else BATCH_SIZE  # solutions of several plans each are trained there
        assert set(found[:-1]) <= {usual} and found[-1] <= usual, (number, found)
    assert sizes[0][0] == sizes[3][0] == BATCH_SIZE


def test_what_a_step_trains_is_one_agent_s(trained):
    for line in batches(trained.folder):
        sent = [one for one in trained.updated if one["step"] == line["step"]]
        assert len({one["policy"] for one in sent}) <= 1
        assert {row[0].split("/")[1] for row in line["rows"]} <= {"plan", "solution"}


def test_it_ends_with_its_iterations(tmp_path):
    trainer = run(tmp_path, steps=200, changes={"iterations": 1})
    assert trainer.global_steps < 200
    assert trainer.method.schedule.phases.left == 0 and trainer.scheduler.idle()
    last = trainer.method.schedule.begins[-1][1]
    assert last == 5, "two phases of three epochs"


def test_it_ends_where_the_last_phase_keeps_nothing(tmp_path):
    nobody = TwoAgents(good=0.0, muddles=0.0, truncated=0.0)
    trainer = run(tmp_path, steps=200, script=nobody, changes={"iterations": 1})
    assert trainer.global_steps < 40 and trainer.weights.updates() == {"meta": 0, "reason": 0}


@pytest.mark.parametrize(("stop", "mode"), [(6, MODES[0]), (15, MODES[1])])
def test_a_resumed_run_is_in_the_same_pass_with_the_same_counts(tmp_path, stop, mode):
    whole = run(tmp_path / "whole", steps=20, save_freq=1, **mode)
    run(tmp_path / "a", steps=stop, save_freq=1, **mode)
    resumed = run(tmp_path / "a", steps=20, save_freq=1, **mode)
    assert batches(tmp_path / "a") == batches(tmp_path / "whole")
    assert resumed.method.schedule.state_dict() == whole.method.schedule.state_dict()
    assert resumed.weights.steps_of == whole.weights.steps_of


def test_the_order_of_answers_changes_nothing_that_is_trained(tmp_path):
    straight = run(tmp_path / "a", steps=14, engine_seed=None)
    shuffled = run(tmp_path / "b", steps=14, engine_seed=37)
    assert batches(tmp_path / "a") == batches(tmp_path / "b")
    assert straight.method.schedule.state_dict() == shuffled.method.schedule.state_dict()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"reasoning"}),
        ({"plan_form": "json"}, {"meta_thinking", "reasoning"}),
        ({"plan_form": "json", "train_roles": ["reasoning"]}, {"reasoning"}),
    ],
)
def test_roles_with_a_cut_or_a_grammar_are_not_compared_with_the_engine(changes, expected):
    settings = SimpleNamespace(cut_roles=frozenset({"reasoning"}), algo=ReMASingleTurn.Config(**changes))
    method = build(ReMASingleTurn, MathPlanPrompts(), settings.algo)
    trainer = SimpleNamespace(settings=settings, method=method)
    assert PolicyTrainer.cut_roles.fget(trainer) == expected


@pytest.mark.parametrize(
    ("frozen", "untrained"), [((), set()), (("meta_thinking",), set()), (("reasoning",), {"reasoning"})]
)
def test_the_watch_looks_at_dialogues_whose_first_agent_is_frozen(frozen, untrained):
    """Their groups have its name, and the other agent learns from them."""
    endpoint = "marsrl.policies.far.endpoint"
    words = ["algo=rema", "cluster=cpu"]
    if frozen:
        words += ["marsrl.policies.far.kind=endpoint", f"{endpoint}.base_urls=[http://host:1/v1]"]
        words += [f"{endpoint}.model=m", *(f"marsrl.roles.{role}.policy=far" for role in frozen)]
    watch = build_watch(typed_settings(compose_config(parse_arguments(words)).config))
    assert watch.untrained == untrained
