"""The preset evaluation=marsrl_released against the loop of MarsRL's published evaluation script, written
down once more from its description: all sequences of verdicts that it can read."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from evaluation_tools import evaluate_system
from marsrl_script import ScriptedEngine
from scheduler_tools import ShortPrompts
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.evaluation.loop_rules import RunEnd, SystemRun, candidates
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.request import Problem, Sampling

pytestmark = pytest.mark.slow

VERDICTS = 11
SAMPLING = {role: Sampling(500, 5000) for role in (SOLVER, VERIFIER, CORRECTOR)}


@dataclass(frozen=True)
class Played:
    """What became of one sequence of verdicts."""

    answer: int
    """Number of the solution that is the answer; 0 is the Solver's."""
    accepted: bool
    verdicts: int
    corrections: int


def published(passes: tuple[bool, ...]) -> Played:
    """The script: one verdict, then up to ten times a correction where the last verdict was a failure, and a
    verdict. Four passes of one solution accept, ten failures in a row end it. Each solution counts the
    verdicts about it, whatever they said; the first of those with the most is the answer."""
    counts = [1]
    read, corrections = 1, 0
    good, in_a_row, errors = passes[0], 1, 0
    accepted = False
    for _ in range(10):
        if not good:
            in_a_row, errors = 0, errors + 1
            corrections += 1
            counts.append(0)
        good = passes[read]
        read += 1
        counts[-1] += 1
        if good:
            in_a_row, errors = in_a_row + 1, 0
        if in_a_row >= 4:
            accepted = True
            break
        if errors >= 10:
            break
    return Played(counts.index(max(counts)), accepted, read, corrections)


def preset() -> dict[str, object]:
    """The loop's settings as `evaluation=marsrl_released` composes them."""
    arguments = parse_arguments(["evaluation=marsrl_released", "cluster=cpu"])
    settings = typed_settings(compose_config(arguments).config).evaluation
    names = ("correction_rounds", "accept_passes", "reject_fails", "fallback")
    return {name: getattr(settings, name) for name in names}


def played(run: SystemRun) -> Played:
    found = [one.solution.trajectory_id for one in candidates(run.calls)]
    roles = [call.request.role for call in run.calls]
    return Played(
        found.index(run.answer.trajectory_id),
        run.end is RunEnd.ACCEPTED,
        roles.count(VERIFIER),
        roles.count(CORRECTOR),
    )


def test_every_sequence_of_verdicts_is_answered_as_by_the_published_script():
    sequences = {
        "".join("+" if one else "-" for one in passes): passes
        for passes in itertools.product((True, False), repeat=VERDICTS)
    }

    def script(item, k):
        if item.role != VERIFIER:
            return Reply(f"by {item.stage}: \\boxed{{1}}")
        passes = sequences[item.problem.problem_id][int(item.stage.rpartition("_")[2]) - 1]
        return Reply(f"Read.\n\n**Correctness**: {'Correct' if passes else 'Wrong'}")

    problems = [Problem(name, "question", "1") for name in sequences]
    runs = evaluate_system(
        ScriptedEngine(script, seed=None), problems, ShortPrompts(), SAMPLING, **preset()
    ).runs
    assert len(runs) == 2048
    pairs = {
        run.problem.problem_id: (played(run), published(sequences[run.problem.problem_id])) for run in runs
    }
    assert {name: pair for name, pair in pairs.items() if pair[0] != pair[1]} == {}
