"""A method from outside the package: found by configuration alone, its settings checked as ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from messages import accepted, assert_refused, commands

from marsrl_verl.algos import registry
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.settings.issues import ConfigError

CODE = '''
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.config import Config as Base
from dataclasses import replace
import numpy as np
from marsrl_verl.algos.marsrl.method import MarsCredit
from marsrl_verl.core.credit import Credit, LossSpec
from marsrl_verl.core.credit.advantages import comparable_rows
from marsrl_verl.core.method import Method, Role, Traits
from marsrl_verl.core.stage import Stage
from marsrl_verl.rollout.single_call import SingleCall
from marsrl_verl.settings.declaration import MethodConfig, limits
from marsrl_verl.settings.issues import ConfigIssue

class Config(Base):
    """Somebody's own."""

    name: str = "voting"
    """The method."""
    votes: int = limits(4, ge=2, why="one vote is no majority")
    """Responses that vote."""

    def checks(self, run):
        if self.votes <= self.group_size:
            return super().checks(run)
        return [ConfigIssue("marsrl.algo.votes", "More than there are.", "Lower it.", self.votes)]

    def plan_lines(self, run):
        return [f"  votes: {self.votes}"]

class Voting(MarsRL):
    Config = Config

def spec(*columns):
    class Own(MarsCredit):
        @classmethod
        def loss(cls, config):
            return LossSpec("strange_voting.loss:of_turns", columns)
    return Own

class OwnLoss(Voting):
    Credit = spec()

class ReadsTurns(Voting):
    Credit = spec("turn", "token_versions")

class NotesTurns(ReadsTurns):
    traits = classmethod(lambda cls, config: Traits(has_turn_ids=True))

class ReadsNodes(Voting):
    Credit = spec("node")

class NotesNodes(ReadsNodes):
    traits = classmethod(lambda cls, config: Traits(annotations=frozenset({"node"})))

class ReadsReference(Voting):
    Credit = spec("ref_log_probs")

class ReadsWeights(Voting):
    Credit = spec("loss_weights")

class Even(Credit):
    """All tokens are worth the same."""
    keep = lambda self, groups: comparable_rows(groups)
    advantages = lambda self, rows: np.ones(rows.tokens, np.float32)

class Bare(Method):
    """As little as a method can be, with a role that no other has."""
    roles = {"agent": Role()}
    Config = MethodConfig
    Credit = Even

class Once:
    async def run(self, request, context):
        return await SingleCall().run(request, context)

class Growing(Once):
    pauses = grows = True

def programs(*names):
    def stages(cls, config):
        one = Stage("solver", "solver", config.group_size)
        return tuple(replace(one, name=f"solver_{k}", rollout=name) for k, name in enumerate(names))
    return classmethod(stages)

class Typo(Voting):
    stages = programs("strange_voting.method:Ones")

class TypoInTheName(Voting):
    stages = programs("singlecall")

class CannotPause(Voting):
    stages = programs("single_call", "strange_voting.method:Once")

class Trees(Voting):
    stages = programs(Growing)

class Backwards(Voting):
    """Asks the problems another role than the first that it lists."""
    roles = {name: MarsRL.roles[name] for name in ("verifier", "corrector", "solver")}

class Alone(Voting):
    roles = {"solver": MarsRL.roles["solver"]}
    active_roles = classmethod(lambda cls, config, evaluation: tuple(cls.roles))
'''
ACTOR = "actor_rollout_ref.actor"
NAME = "strange_voting.method:Voting"
SEARCH = "hydra.searchpath=[pkg://strange_voting.configs]"


@pytest.fixture
def package(quiet_machine, tmp_path, monkeypatch):
    """A package in the working folder, with a preset."""
    folder = tmp_path / "strange_voting"
    (folder / "configs" / "algo").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "method.py").write_text(CODE)
    preset = f"# @package _global_\nmarsrl:\n  algo:\n    name: {NAME}\n    votes: 3\n"
    (folder / "configs" / "algo" / "voting.yaml").write_text(preset)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    registry._load.cache_clear()
    yield folder
    for name in [name for name in sys.modules if name.startswith("strange_voting")]:
        del sys.modules[name]


def test_named_by_its_class(run, package):
    done = accepted(run, f"marsrl.algo.name={NAME}", "marsrl.algo.votes=5", "cluster=cpu", "dry_run=true")
    assert "votes: 5" in done.text


def test_its_own_group_on_the_search_path(run, package):
    done = accepted(run, SEARCH, "algo=voting", "cluster=cpu")
    assert done.launched.marsrl.algo.votes == 3
    assert done.launched.marsrl.algo.group_size == 8, "a default of its class"
    folder = run(f"hydra.searchpath=[file://{package}/configs]", "algo=voting", "cluster=cpu", "dry_run=true")
    assert "votes: 3" in folder.out


REFUSED = commands("""
    a value out of its range | marsrl.algo.votes=1 | marsrl.algo.votes = 1
        | at least 2: one vote is no majority
    a rule of its own | marsrl.algo.votes=9 | marsrl.algo.votes = 9 | More than there are.
    an unknown key | marsrl.algo.vote=5 | marsrl.algo.vote | Did you mean marsrl.algo.votes?
    a wrong kind | marsrl.algo.votes=many | marsrl.algo.votes = many | expected a whole number
""")


@pytest.mark.parametrize("case", REFUSED)
def test_its_settings_are_refused_like_ours(run, package, case):
    words, key, said = REFUSED[case]
    assert_refused(run(f"marsrl.algo.name={NAME}", *words, "cluster=cpu"), key, said)


def test_its_policy_loss_is_the_only_one(run, package):
    own, mode = (
        "marsrl.algo.name=strange_voting.method:OwnLoss",
        "actor_rollout_ref.actor.policy_loss.loss_mode",
    )
    clip = "actor_rollout_ref.actor.clip_ratio=0.1"
    assert run(own, clip, "cluster=cpu").status == 0, "its ratio need not be 1"
    assert_refused(
        run(own, f"{mode}=gspo", "cluster=cpu"), f"{mode} = gspo", "own, strange_voting.loss:of_turns"
    )


READS = {
    "ReadsTurns": ("marsrl.algo.name", "reads 'turn', which its rollouts and probes do not note (nothing)."),
    "ReadsNodes": ("marsrl.algo.name", "reads 'node'"),
    "ReadsReference": (f"{ACTOR}.use_kl_loss = False", "reads 'ref_log_probs', which the run's steps do not"),
    "ReadsWeights": ("marsrl.off_policy.mode = pois", "Set it to tis."),
}
KNOWN = {
    "NotesTurns": (),
    "NotesNodes": (),
    "ReadsReference": (f"{ACTOR}.use_kl_loss=true",),
    "ReadsWeights": ("marsrl.off_policy.mode=tis",),
}


@pytest.mark.parametrize("name", READS)
def test_what_its_policy_loss_reads_is_checked_before_anything_starts(run, package, name):
    assert_refused(run(f"marsrl.algo.name=strange_voting.method:{name}", "cluster=cpu"), *READS[name])


@pytest.mark.parametrize("name", KNOWN)
def test_what_its_policy_loss_reads_is_known(run, package, name):
    accepted(run, f"marsrl.algo.name=strange_voting.method:{name}", *KNOWN[name], "cluster=cpu")


BARE = "marsrl.algo.name=strange_voting.method:Bare"


def composed(*words: str):
    """The plugin's node of a command line."""
    return compose_config(parse_arguments([*words, "cluster=cpu"])).config.marsrl


def test_a_class_by_its_name_has_its_own_defaults(package):
    node = composed(BARE)
    assert node.algo == {"name": "strange_voting.method:Bare", "group_size": 8}
    with pytest.raises(ConfigError) as refused:
        composed(BARE, "algo=marsrl_vc")
    assert "marsrl.algo.requests_per_stage" in str(refused.value)
    assert "It is a setting of marsrl, and the method is strange_voting.method:Bare." in str(refused.value)


def test_presets_hold_for_its_roles(package):
    node = composed(BARE)
    assert set(node.roles) == set(node.reward) == {"agent"}
    assert (node.roles.agent.max_new_tokens, node.roles.agent.temperature) == (48, 1.0)
    assert node.reward.agent.target == "marsrl_verl.rewards.exact:ExactAnswerReward"
    published = composed(BARE, "model=qwen3_4b_thinking_2507")
    assert published.roles.agent.max_prompt_tokens == 12288
    assert "mastered_tokens" not in published.algo, "what several methods share, and it does not have"
    own = composed(BARE, "marsrl.roles.agent.max_new_tokens=7", "reward=math_verify")
    assert (own.roles.agent.max_new_tokens, own.roles.agent.max_prompt_tokens) == (7, 24)


REFUSED_BY_BARE = {
    "a masking that it does not do": ("marsrl.algo.mastered_tokens.enabled", "true", "grpo, marsrl"),
    "another's role": ("marsrl.roles.solver.temperature", "0.5", "Its roles: agent."),
    "all roles at once": ("marsrl.roles.default.temperature", "0.5", "Its roles: agent."),
}


@pytest.mark.parametrize("case", REFUSED_BY_BARE)
@pytest.mark.with_presets("grpo")
def test_what_it_does_not_have_is_refused_on_the_command_line(package, case):
    key, value, said = REFUSED_BY_BARE[case]
    with pytest.raises(ConfigError) as refused:
        composed(BARE, f"{key}={value}")
    text = str(refused.value)
    assert ".".join(key.split(".")[:3]) in text and said in text


SEGMENTS, MIN_GROUP = "marsrl.pipeline.max_segments", "marsrl.pipeline.min_group"
PROGRAMS = commands(f"""
    Typo | dry_run=true | marsrl.algo.name = strange_voting.method:Typo | no attribute 'Ones'
    TypoInTheName | dry_run=true | marsrl.algo.name
        | there is no workflow 'singlecall'; known: single_call
    CannotPause | {SEGMENTS}=2 | {SEGMENTS} = 2 | Once of strange_voting.method:CannotPause can't pause
    Trees | {SEGMENTS}=2 {MIN_GROUP}=2 | {MIN_GROUP} = 2 | a part says nothing about the whole.
""")


@pytest.mark.parametrize("name", PROGRAMS)
def test_its_rollout_programs_are_checked_before_anything_starts(run, package, name):
    words, *said = PROGRAMS[name]
    method = f"marsrl.algo.name=strange_voting.method:{name}"
    assert_refused(run(method, *words, "cluster=cpu"), *said)


def test_rollout_programs_that_fit(run, package):
    own = "marsrl.algo.name=strange_voting.method:"
    for words in ((f"{own}CannotPause",), (f"{own}Trees", f"{SEGMENTS}=2")):
        accepted(run, *words, "cluster=cpu")


EXAMPLES = Path(__file__).parents[2] / "examples"
PRESETS = {path.stem: path.parents[1] for path in EXAMPLES.glob("*/configs/algo/*.yaml")}


@pytest.fixture
def example(monkeypatch):
    def words(name: str) -> tuple[str, ...]:
        monkeypatch.setattr(sys, "path", [str(EXAMPLES), str(PRESETS[name].parent), *sys.path])
        return f"hydra.searchpath=[file://{PRESETS[name]}]", f"algo={name}", "cluster=cpu"

    return words


@pytest.mark.parametrize("name", PRESETS)
def test_examples_pass_with_all_their_stages(run, example, name):
    assert "not tried before the start" not in accepted(run, *example(name), "dry_run=true").text


def test_the_example_says_that_it_cannot_pause(run, example):
    done = run(*example("calculator"), f"{SEGMENTS}=2")
    assert_refused(
        done, f"{SEGMENTS} = 2", "own_method.calculator:TwoTurns of own_method.calculator:Calculator"
    )


ALONE = ("marsrl.algo.name=strange_voting.method:Alone", "marsrl.algo.correction_rounds=0")
ALONE += ("marsrl.algo.train_roles=[solver]", "cluster=cpu")


def test_roles_are_the_methods(run, package):
    """Presets for methods with other roles fit, and the command line names those of this one."""
    done = accepted(run, *ALONE, "evaluation=solver", "actor_rollout_ref.rollout.top_p=1.0")
    assert set(done.launched.marsrl.roles) == set(done.launched.marsrl.reward) == {"solver"}
    rounds = "marsrl.evaluation.correction_rounds"
    assert_refused(run(*ALONE, f"{rounds}=2"), f"{rounds} = 2", "has no verifier and no corrector")
    done = run(*ALONE, "evaluation=solver", "marsrl.roles.verifier.top_p=0.9")
    assert_refused(done, "marsrl.roles.verifier", "Its roles: solver.")


def test_verls_prompt_length_and_messages_are_of_the_role_that_is_asked_the_problems(run, package):
    name = "marsrl.algo.name=strange_voting.method:Backwards"
    key = "marsrl.roles.solver.max_prompt_tokens"
    done = run(name, "cluster=cpu", "data.max_prompt_length=2")
    assert_refused(done, f"{key} = 2", "model=custom")


def test_a_search_path_that_is_not_there(run):
    done = run("hydra.searchpath=[pkg://strange_nowhere.configs]", "cluster=cpu")
    assert_refused(done, "pkg://strange_nowhere.configs", "There is no such package or folder.")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import strange_missing_dependency\n", "No module named 'strange_missing_dependency'"),
        (CODE.replace("votes: int", "votes"), "Config(Base):` has a setting votes without a type (HERE:20)."),
        (CODE.replace("name: str", "name"), "Config(Base):` has a setting name without a type (HERE:18)."),
    ],
)
def test_a_method_that_cannot_be_imported(run, package, code, said):
    (package / "method.py").write_text(code)
    done = run(f"marsrl.algo.name={NAME}", "cluster=cpu")
    said = said.replace("HERE", str(package / "method.py"))
    assert_refused(done, f"marsrl.algo.name = {NAME}", said)
