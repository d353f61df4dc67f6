"""What a stranger's method gets wrong is said before anything starts, with file and line."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from messages import accepted, assert_refused

from marsrl_verl.algos import registry
from marsrl_verl.config.application import main
from marsrl_verl.config.light_tokenizer import open_tokenizer
from marsrl_verl.core.method import Method
from marsrl_verl.demo.assets import model_path
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.settings.imports import users_place
from marsrl_verl.testing import trial
from marsrl_verl.testing.client import END, CharacterTokenizer

CODE = """
from dataclasses import replace

from marsrl_verl.core.credit import EstimatorCredit, LossSpec
from marsrl_verl.core.credit.advantages import comparable_rows
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.prompts import ProblemPrompts
from marsrl_verl.core.schedule import Schedule
from marsrl_verl.core.stage import Stage
from marsrl_verl.evaluation.single_role import SingleRole
from marsrl_verl.rollout.workflow import Workflow
from marsrl_verl.settings.declaration import MethodConfig

class Talk(Workflow):
    async def play(self, episode):
        said = await episode.agents.alice.say()
        await episode.agents.bob.say(f"Is {said} right, and why do you think so?")
        episode.reward(1.0)

class Raising(Talk):
    async def play(self, episode):
        await episode.agents.alice.say()
        {}["mine"]

class Good(Method):
    roles = {"alice": Role(answers=True), "bob": Role()}
    rollout, writers = Talk, ("alice", "bob")

    @classmethod
    def stages(cls, config):
        one = Stage("talk", "alice", config.group_size, rollout=cls.rollout, writers=cls.writers)
        return cls.changed(one)

    @classmethod
    def changed(cls, one):
        return (one,)

class Asking(ProblemPrompts):
    def problem(self, problem):
        return ({"role": "user", "content": "{missing}".format(question=problem.question)},)

class Constructed(ProblemPrompts):
    def __init__(self):
        raise OSError("no file")

class Writers(Good):
    writers = ()

class Words(Good):
    roles = "alice"

class Strings(Good):
    roles = {"alice": "answers", "bob": Role()}

class NoRole(Good):
    changed = classmethod(lambda cls, one: (replace(one, role="carol", writers=()),))

class NoStage(Good):
    changed = classmethod(lambda cls, one: (replace(one, next=("later",)),))

class NoProgram(Good):
    rollout = "strange_talk:Silence"

class NoReward(Good):
    roles = {
        "alice": Role(answers=True),
        "bob": Role(reward="nowhere:Reward"),
    }

class NoTurns(Good):
    class Credit(EstimatorCredit):
        @classmethod
        def loss(cls, config):
            return LossSpec("strange_talk:loss",
                columns=("node",))

class Twice(Good):
    changed = classmethod(lambda cls, one: (one, one))

class NoTuple(Good):
    changed = classmethod(lambda cls, one: one)

class StagesRaise(Good):
    changed = classmethod(lambda cls, one: one.nothing)

class PlayRaises(Good):
    rollout = Raising

class WrongConfig(Good):
    Config = MethodConfig

class WrongCredit(Good):
    Credit = ProblemPrompts

class CreditRaises(Good):
    class Credit(EstimatorCredit):
        def is_trainable(self, groups):
            return groups[0].nothing

class FewGroups(Good):
    def first_requests(self, problem, step):
        (one,) = super().first_requests(problem, step)
        return [replace(one, group_id=f"{one.group_id}{k}") for k in range(3)]

class EndlessStages(Good):
    changed = classmethod(lambda cls, one: (replace(one, next=("talk",)),))

    def next_requests(self, problem, stage, groups, step):
        (one,) = self.stages(self.config)
        return [one.request(problem, groups[0].request.messages, step, groups[0].group_id)]

class EndlessTalk(Talk):
    async def play(self, episode):
        while True: pass

class EndlessPlay(Good):
    rollout = EndlessTalk

class Hearing(Talk):
    async def play(self, episode):
        await episode.agents.bob.say()
        await super().play(episode)

class Heard(Good):
    rollout = Hearing

class Records(Good):
    def record(self, request, trajectory):
        return {"answer": trajectory.nothing}

class Observes(Good):
    def observe_step(self, view):
        return {"mine": view.rows.nothing}

class Measures(Good):
    @classmethod
    def group_metrics(cls, groups):
        return {"mine": groups[0].nothing}

class Decides(Good):
    @classmethod
    def outcome(cls, request, trajectory):
        return trajectory.nothing, None

class Saves(Good):
    def state_dict(self):
        return {"mine": 1}

class Continues(Good):
    class Schedule(Schedule):
        def load_state_dict(self, state):
            self.turn = state["turn"]

class Counting(SingleRole):
    def observations(self, runs):
        return {"mine": runs.nothing}

class Evaluates(Good):
    @classmethod
    def evaluation(cls, config, evaluation, prompts):
        return Counting("alice", prompts)

class LongTalk(Talk):
    async def play(self, episode):
        said = await episode.agents.alice.say()
        if len(said) > 100:
            {}["long"]
        episode.reward(1.0)

class Long(Good):
    rollout = LongTalk

class Full(Good):
    def record(self, request, trajectory):
        if trajectory.tokens > 100:
            raise ValueError("long")
        return {}

class FewRows(Good):
    changed = classmethod(lambda cls, one: (replace(one, rows_per_response=1),))

    class Credit(EstimatorCredit):
        def keep(self, groups):
            return comparable_rows(groups, differing=False)

        def is_trainable(self, groups):
            return True

class Nothing(Talk):
    async def play(self, episode):
        await episode.agents.alice.say()

class EarnsNothing(Good):
    rollout = Nothing

    def next_requests(self, problem, stage, groups, step):
        return []

class OtherStage(Good):
    def first_requests(self, problem, step):
        return [replace(one, stage="talks") for one in super().first_requests(problem, step)]
"""
ROOM = [f"marsrl.roles.{role}.max_prompt_tokens=100" for role in ("alice", "bob")]
FILE = "strange_talk.py"
WRONG = {
    "Words": (
        "Words.roles: expected a mapping {'solver': Role(answers=True)}, found 'alice'.",
        'roles = "alice"',
    ),
    "Strings": ("Strings.roles['alice']: expected a Role, found 'answers'.", '"answers"'),
    "NoRole": ("The stage talk has the role 'carol', expected one of alice, bob.", '"carol"'),
    "NoStage": ("The stage talk leads to 'later', expected one of talk.", '"later"'),
    "NoProgram": (
        "can't be loaded: module 'strange_talk' has no attribute 'Silence'.",
        '"strange_talk:Silence"',
    ),
    "NoReward": ("no module 'nowhere'", '"nowhere:Reward"', "marsrl.reward.bob.target = nowhere:Reward"),
    "NoTurns": ("reads 'node'", '"node"'),
    "Twice": ("stages has talk twice.", '"talk"'),
    "NoTuple": ("stages: expected a tuple of Stage, found", "def stages"),
    "StagesRaise": ("AttributeError: 'Stage' object has no attribute 'nothing'.", "one.nothing"),
    "PlayRaises": (
        "In a trial the stage talk failed: workflow strange_talk:Raising: KeyError: 'mine'.",
        '{}["mine"]',
    ),
    "Writers": (
        "A response of the stage talk had 2 sequences in a trial, of alice, bob; its Stage says",
        "class Writers",
    ),
    "WrongConfig": ("Config: expected a class derived from marsrl_verl.core.credit.estimator", "Config = "),
    "WrongCredit": ("WrongCredit.Credit: expected a class derived from Credit, found", "Credit = Problem"),
    "CreditRaises": (
        "In a trial with scripted answers it raised AttributeError: 'Group' object has no attribute",
        "groups[0].nothing",
    ),
    "Records": ("it raised AttributeError: 'Trajectory' object", "trajectory.nothing}"),
    "Observes": ("it raised AttributeError: 'Rows' object has no attribute", "view.rows.nothing"),
    "Measures": ("it raised AttributeError: 'Group' object has no attribute", "groups[0].nothing}"),
    "Decides": ("it raised AttributeError: 'Trajectory' object", "trajectory.nothing, None"),
    "Saves": ("ValueError: Saves keeps no state, the checkpoint has ['mine']", "class Saves"),
    "Continues": ("it raised KeyError: 'turn'.", 'state["turn"]'),
    "Evaluates": ("In a trial its evaluation raised AttributeError: 'Runs' object", "runs.nothing"),
    "FewRows": (
        "2 sequences of a response of the stage talk were trained in a trial; its Stage says 1 at most",
        "class FewRows",
    ),
    "FewGroups": (
        "In a trial a problem had 3 groups with 6 responses at stage talk; its Stage says 1 of 2",
        "class FewGroups",
    ),
    "EndlessStages": (
        "In a trial a problem had 2 groups with 4 responses at stage talk; its Stage says 1 of 2",
        "class EndlessStages",
    ),
    "EndlessPlay": (
        "In a trial with scripted answers it raised TimeoutError: the trial did not end within 2 s.",
        "while True: pass",
    ),
    "OtherStage": ("found stage talks, expected one of: talk", "class OtherStage"),
}
"""What is said, and what stands in the line that is named."""


@pytest.fixture(autouse=True)
def module(quiet_machine, tmp_path, monkeypatch):
    (tmp_path / FILE).write_text(CODE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    registry._load.cache_clear()
    yield tmp_path
    sys.modules.pop("strange_talk", None)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_before_the_start(run, module, name, monkeypatch):
    monkeypatch.setattr(trial, "TIME_LIMIT", 2.0 if name == "EndlessPlay" else trial.TIME_LIMIT)
    method = f"marsrl.algo.name=strange_talk:{name}"
    done = run(method, *ROOM, "cluster=cpu", "dry_run=true")
    said, at, *key = WRONG[name]
    assert_refused(done, *(key or [method.replace("=", " = ")]), said)
    [line] = re.findall(rf"fix: .*{module / FILE}(?::|, line )(\d+)", " ".join(done.err.split()))
    assert at in CODE.splitlines()[int(line) - 1]
    assert done.err.count(FILE) == 1 and "report it" not in done.err


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "site-packages (copy)"])
def test_an_installed_method_is_the_users_and_other_libraries_are_not(run, module, monkeypatch, folder):
    (module / folder).mkdir()
    (module / folder / FILE).write_text(CODE)
    monkeypatch.syspath_prepend(str(module / folder))
    done = run("marsrl.algo.name=strange_talk:PlayRaises", *ROOM, "cluster=cpu", "dry_run=true")
    line = CODE.splitlines().index('        {}["mine"]') + 1
    assert f"Correct {module / folder / FILE}, line {line} (docs" in " ".join(done.err.split())
    library = compile("def f(): pass", "/usr/lib/python3/dist-packages/numpy/core.py", "exec")
    exec(library, found := {})
    assert users_place(found["f"]) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Asking", "Building a prompt failed with KeyError: 'missing'. fix: Correct FILE, line 40."),
        ("Constructed", "The constructor failed with OSError: no file (FILE, line 44), kwargs: {}."),
    ],
)
def test_prompts_that_raise_are_named_with_their_line(run, module, name, said):
    target = f"marsrl.prompts.target=strange_talk:{name}"
    done = run("marsrl.algo.name=strange_talk:Good", target, *ROOM, "cluster=cpu", "dry_run=true")
    assert_refused(done, target.replace("=", " = "), said.replace("FILE", str(module / FILE)))


@pytest.mark.parametrize(
    ("method", "name", "said"),
    [
        ("Good", "max_prompt_tokens", "tokens, bob takes 6."),
        ("Heard", "max_new_tokens", "every episode of the stage talk ended: bob had no room."),
    ],
)
def test_an_agent_without_room_is_refused_with_its_key(run, method, name, said):
    """Not even for the shortest problem, with short answers."""
    algo, key = f"marsrl.algo.name=strange_talk:{method}", f"marsrl.roles.bob.{name}"
    done = run(algo, *ROOM, f"{key}=6", "cluster=cpu", "dry_run=true")
    assert_refused(done, f"{key} = 6", said)


def test_what_ends_where_messages_are_long_is_warned_of(run):
    text = accepted(run, "marsrl.algo.name=strange_talk:Good", *ROOM, "cluster=cpu", "dry_run=true").text
    assert "method strange_talk:Good: Good" in text and "talk alice, bob" in text
    assert re.search(r"bob 100 depends on what it is shown trial with the shortest problem \d\d", text)
    long = run(
        "marsrl.algo.name=strange_talk:Good", *ROOM, "marsrl.roles.alice.max_new_tokens=200", "cluster=cpu",
        "dry_run=true",
    )  # fmt: skip
    said = " ".join(long.out.split())
    assert "where messages have their full length, episodes of the stage talk end early" in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Long", "episodes of the stage talk end early: workflow strange_talk:LongTalk: KeyError"),
        ("Full", "the trial with messages of their full length failed: ValueError: long ("),
    ],
)
def test_what_fails_where_messages_are_long_is_warned_of(run, name, said):
    algo, room = f"marsrl.algo.name=strange_talk:{name}", "marsrl.roles.alice.max_new_tokens=200"
    assert said in accepted(run, algo, *ROOM, room, "cluster=cpu", "dry_run=true").text


def test_a_message_of_full_length_ends_once():
    settings = SimpleNamespace(chat=ChatTokenizer(CharacterTokenizer(), {}), cls=Method)
    asked, decoding = SimpleNamespace(group_id="g"), SimpleNamespace(max_tokens=50, stop=())
    ids = trial._Script(settings, True)._completion(asked, "solver", 0, decoding).token_ids.tolist()
    assert (len(ids), ids.index(END)) == (50, 49)


def test_what_acts_on_nothing_is_told(run):
    name = "marsrl.algo.name=strange_talk:EarnsNothing"
    said = " ".join(accepted(run, name, *ROOM, "cluster=cpu", "dry_run=true").text.split())
    assert "no episode of the stage talk earned anything" in said
    assert "its play calls neither episode.answer(…) nor episode.metric(…)" in said
    assert "! next_requests is not called: no stage names one that may follow it (Stage.next)" in said


CHAINS = ("model=tiny_rema", "data=rema_task")
WORLDS = {"arpo": ("model=tiny_tools", "data=tool_task"), "rema": CHAINS, "rema_single_turn": CHAINS}
"""Where it is not the default one."""


@pytest.mark.parametrize("algo", registry.installed_methods())
def test_the_shipped_methods_pass_with_all_their_stages(capsys, algo):
    words = [f"algo={algo}", *WORLDS.get(algo, ()), "cluster=cpu", "dry_run=true"]
    assert main(words, lambda config: 1) == 0
    assert "not tried before the start" not in capsys.readouterr().out


def test_the_light_tokenizer_is_transformers():
    from transformers import AutoTokenizer

    folder = Path(model_path())
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = open_tokenizer(folder)
    texts = ("Compute 1+2", "3", "and 4?")
    chat = [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(texts)]
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
    expected = theirs.apply_chat_template(chat, **options)["input_ids"]
    assert ours.apply_chat_template(chat, **options)["input_ids"] == expected
    assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=False)
    assert (ours.eos_token_id, len(ours)) == (theirs.eos_token_id, len(theirs))
