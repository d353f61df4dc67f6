"""Rollouts as JSON lines: one line per sample.

Keys of a line, schema version 1:

    schema_version   1
    step             training step (or the step whose weights were evaluated)
    role, stage      who answered, and at which position of the chain
    group            id of the group: all lines with it answer the same prompt
    sample           id of this sample, `<group>#<k>`
    parent           id of the sample that the prompt was built from, or null
    problem          {id, question, ground_truth, data_source}
    prompt           the prompt's messages as text, each headed by its role in brackets
    response         the decoded response, thinking part included
    final            the part of the response that other roles may see
    prompt_tokens    number of prompt tokens
    tokens           number of response tokens
    token_ids        token ids of the response, as sampled
    external         whether an external Solver answered; the numbers of tokens and the policy version are
                     null then, and token ids and segments empty
    reward           the scorer's reward
    graded           false where grading failed (`error` says how): reward 0, and not trained
    answer           the extracted answer (Solver, Corrector) or null
    verdict          correct | wrong | invalid (Verifier) or null
    solution_reward  reward of the solution that was judged or repaired, or null
    finish_reason    stop | length | prompt_too_long | refused | aborted | error
    policy_version   training step whose weights sampled the last segment
    segments         [end, policy version] of every segment: tokens up to `end` came from that version
    error            why generation or grading failed, or null
    prefix_tokens    tokens of the response that are the beginning of its parent, which it continues (AttnRL),
                     else 0
    steps            ends in tokens of the response's steps, where the trainer looked at it (AttnRL), or null
    influence        Forward Context Influence of each of these steps, or null where it was not computed
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from marsrl_verl.core.types import Group, Message, Sample, StageInput
from marsrl_verl.evaluation.system import SystemEvaluation
from marsrl_verl.reporting.files import to_json, write_lines_atomic

SCHEMA_VERSION = 1
ROLLOUT_FOLDER = "rollouts"


def rollout_line(step: int, stage_input: StageInput, sample: Sample) -> dict[str, Any]:
    """One sample in the schema above; the sample must be scored."""
    problem, outcome, reward, marks = stage_input.problem, sample.outcome, sample.reward, sample.marks
    assert outcome is not None
    return {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "role": stage_input.role,
        "stage": stage_input.stage,
        "group": stage_input.group_id,
        "sample": sample.sample_id,
        "parent": stage_input.parent_id,
        "problem": {
            "id": problem.problem_id,
            "question": problem.question,
            "ground_truth": problem.ground_truth,
            "data_source": problem.data_source,
        },
        "prompt": render_messages(stage_input.messages),
        "response": sample.text,
        "final": sample.final_text,
        "prompt_tokens": None if sample.external else len(sample.prompt_ids),
        "tokens": None if sample.external else len(sample.response_ids),
        "token_ids": list(sample.response_ids),
        "external": sample.external,
        "reward": reward,
        "graded": outcome.graded,
        "answer": outcome.answer,
        "verdict": outcome.verdict.value if outcome.verdict else None,
        "solution_reward": stage_input.solution_reward,
        "finish_reason": sample.finish_reason.value,
        "policy_version": None if sample.external else sample.policy_version,
        "segments": [] if sample.external else [list(segment) for segment in sample.segments],
        "error": sample.error or outcome.error,
        "prefix_tokens": 0 if stage_input.prefix is None else len(stage_input.prefix.response_ids),
        "steps": None if marks is None else list(marks.steps.ends),
        "influence": None if marks is None or not marks.influence else list(marks.influence),
    }


def render_messages(messages: Iterable[Message]) -> str:
    """Chat messages as text: `[role]`, the content, a blank line between messages."""
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)


def write_step_rollouts(folder: Path, step: int, groups: Iterable[Group]) -> Path:
    """Write `rollouts/step_<N>.jsonl` with every sample of the step's groups."""
    path = folder / ROLLOUT_FOLDER / f"step_{step}.jsonl"
    lines = (rollout_line(step, group.input, sample) for group in groups for sample in group.samples)
    write_lines_atomic(path, (to_json(line) + "\n" for line in lines))
    return path


def evaluation_rollouts_path(folder: Path, tag: str) -> Path:
    """Where the calls of the evaluation `tag` are."""
    return folder / ROLLOUT_FOLDER / f"eval_{tag}.jsonl"


def write_evaluation_rollouts(folder: Path, step: int, evaluation: SystemEvaluation) -> Path:
    """Write `rollouts/eval_<tag>.jsonl` with every call of an evaluation, last those that were too long."""
    path = evaluation_rollouts_path(folder, evaluation.tag)
    calls = [*evaluation.calls, *(call for run in evaluation.not_asked for call in run.calls)]
    lines = (rollout_line(step, call.input, call.sample) for call in calls)
    write_lines_atomic(path, (to_json(line) + "\n" for line in lines))
    return path
