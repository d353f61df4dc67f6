"""`python -m recipe.marsrl.new_method NAME`: a method of one's own that runs at once, its preset and test."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import sys
from collections.abc import Collection
from pathlib import Path

_METHOD = '''"""{title}: a solver answers, a critic comments, the solver answers again."""

from marsrl_verl.core.credit import EstimatorConfig
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.stage import Stage
from marsrl_verl.rollout.workflow import Workflow
from marsrl_verl.settings.declaration import limits


class Play(Workflow):
    async def play(self, episode):
        solver, critic = episode.agents
        answer = first = await solver.say()  # hears the problem
        for _ in range(self.config.rounds):
            comment = await critic.say(f"{{episode.problem.question}}\\n{{answer}}\\nIs it right?")
            answer = await solver.say(comment)
        before, after = await episode.grade("solver", first), await episode.grade("solver", answer)
        episode.reward(solver=after, critic=after - before)
        episode.metric("improved", after > before)
        episode.answer(answer, after)


class Config(EstimatorConfig):
    """Settings of {name}: `marsrl.algo`."""

    rounds: int = limits(1, ge=1, why="there is something to comment on")
    """Comments of the critic."""


class {title}(Method):
    """A solver and a critic."""

    Config = Config
    roles = {{"solver": Role(answers=True), "critic": Role()}}

    @classmethod
    def stages(cls, config):
        return (Stage("{name}", "solver", config.group_size, rollout=Play, writers=tuple(cls.roles)),)
'''
_PRESET = """# @package _global_
marsrl:
  algo:
    name: {name}:{title}
    group_size: 8
  roles:
    solver: &room  # what an agent hears counts in max_new_tokens
      max_prompt_tokens: 200
      max_new_tokens: 200
    critic: *room
"""
_TEST = '''"""What {name} trains, on scripted answers."""

from {name} import {title}

from marsrl_verl.testing import run_method


def says(turn):  # the critic helps in even episodes
    if turn.role == "critic":
        return "no" if turn.k % 2 == 0 else "yes"
    right = turn.number == 1 and turn.k % 2 == 0
    return f"\\\\boxed{{{{{{turn.request.problem.ground_truth if right else 0}}}}}}"


def test_the_critic_earns_what_it_improves():
    (step,) = run_method({title}, says, group_size=4)
    assert step.metrics["stage/{name}/improved"] == 0.5
    assert [value > 0 for value in step.advantages_of("critic")] == [True, False] * 4


def test_a_pause_changes_nothing():
    (whole,), (cut,) = (run_method({title}, says, group_size=4, segment_tokens=size) for size in (None, 3))
    assert cut.advantages.tolist() == whole.advantages.tolist()
'''


def main(arguments: list[str], options: Collection[str] = ()) -> int:
    """Writes the folder NAME and prints what to do with it; returns the exit status. `options` are those that
    `algo=` has already."""
    parser = argparse.ArgumentParser(prog="new_method", description=__doc__)
    parser.add_argument(
        "name", help="of the folder and the module: lower case and underscores, such as my_method"
    )
    parser.add_argument("--folder", type=Path, default=Path(), help="where it is made; the working folder")
    given = parser.parse_args(arguments)
    name, folder = str(given.name), Path(given.folder) / given.name
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        print(
            f"name = {name}: expected a module's name, lower case and underscores: my_method", file=sys.stderr
        )
        return 2
    if folder.exists():
        print(f"{folder} is there already: choose another name, or remove it", file=sys.stderr)
        return 2
    if taken := _taken(name, options):
        print(f"name = {name}: this is {taken}; choose another name, such as my_{name}", file=sys.stderr)
        return 2
    title = "".join(part.capitalize() for part in name.split("_"))
    (folder / "configs" / "algo").mkdir(parents=True)
    for file, text in (
        (f"{name}.py", _METHOD),
        (f"configs/algo/{name}.yaml", _PRESET),
        (f"test_{name}.py", _TEST),
    ):
        (folder / file).write_text(text.format(name=name, title=title), encoding="utf-8")
    print(_NEXT.format(name=name, folder=folder, absolute=folder.resolve()))
    return 0


def _taken(name: str, options: Collection[str]) -> str | None:
    """Describes what has the name already: a module of that name would hide another one, or be hidden."""
    if keyword.iskeyword(name):
        return "a word of Python"
    if name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    if name in options:
        return f"an option of this package, algo={name}"
    found = importlib.util.find_spec(name)
    return f"a module that is there already ({found.origin or 'a folder'})" if found else None


_NEXT = """{folder} has a method, its preset and its test.

    python -m pytest {folder}                 # in a second, without Ray
    PYTHONPATH={folder} python -m recipe.marsrl.main_marsrl cluster=cpu \\
        'hydra.searchpath=[file://{absolute}/configs]' algo={name} dry_run=true

Without dry_run=true it trains. What a method can override: docs/guides/new_method.md."""
