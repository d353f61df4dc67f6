"""`evaluations/samples.jsonl` of an evaluation alone: one line for each problem and sample.

problem          id of the problem, of this evaluation
row              checksum of its row's question and reference, the same in every evaluation
data_source, question, ground_truth
sample           number of the run of this problem, from 0
greedy           whether it is of the pass at temperature 0
answer           the extracted final answer, or null
correct          whether the run's answer is right; null where nothing was generated
score            its reward, 0 without a usable answer; of questions graded by words the F1
graded           false where grading failed, so that score 0 says nothing
finish_reason    of the trajectory that is the answer, without one of the last; `prompt_too_long`: nothing
                 was generated
end              why the run ended, as its evaluation names it
tokens, calls    of all roles together
trajectory       where the text is: an id of `rollouts/eval_alone.jsonl`, of greedy ones of
                 `rollouts/eval_alone_greedy.jsonl`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX
from marsrl_verl.evaluation.runs import Run, Runs, calls_of, final_answer, tokens_of
from marsrl_verl.reporting.files import to_json, write_lines_atomic

SAMPLES_FILE = "evaluations/samples.jsonl"
"""File in the run's folder."""


def write_samples(folder: Path, passes: list[Runs]) -> None:
    """Writes the file in a run's folder."""
    lines = (
        _sample(run, runs.tag.endswith(GREEDY_SUFFIX))
        for runs in passes
        for run in (*runs.runs, *runs.skipped)
    )
    write_lines_atomic(folder / SAMPLES_FILE, (to_json(line) + "\n" for line in lines))


def read_samples(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's folder; FileNotFoundError where it has none."""
    with (folder / SAMPLES_FILE).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _sample(run: Run, greedy: bool) -> dict[str, Any]:
    problem, shown = run.problem, run.answer or run.calls[-1].trajectory
    return {
        "problem": problem.problem_id,
        "row": problem.row,
        "data_source": problem.data_source,
        "question": problem.question,
        "ground_truth": problem.ground_truth,
        "sample": run.repeat,
        "greedy": greedy,
        "answer": None if run.answer is None else final_answer(run.answer),
        "correct": None if run.skipped else run.solved,
        "score": run.final_reward,
        "graded": shown.reward is None or shown.reward.graded,
        "finish_reason": shown.finish.value,
        "end": str(getattr(run.end, "value", run.end)),
        "tokens": tokens_of(run),
        "calls": calls_of(run),
        "trajectory": shown.trajectory_id,
    }
