"""Dialogues with a frozen meta-thinking agent behind an endpoint: the other one is trained."""

from __future__ import annotations

import re

import pytest
from endpoints import endpoint
from training_runs import TrainingRun, train

from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TEACHER = "marsrl.policies.teacher"
SETTINGS = (
    "algo=rema",
    "model=tiny_rema",
    "data=rema_task",
    "data.train_batch_size=8",
    "marsrl.run.seeded_tokens=all",
    "marsrl.algo.group_size=8",
    "marsrl.algo.message_tokens=56",
    "marsrl.algo.max_turns=3",
    "marsrl.roles.meta_thinking.max_new_tokens=180",
    "marsrl.roles.reasoning.max_prompt_tokens=120",
    "marsrl.roles.reasoning.max_new_tokens=180",
    f"{TEACHER}.kind=endpoint",
    f"{TEACHER}.endpoint.model=teacher",
    "marsrl.roles.meta_thinking.policy=teacher",
)


def way_back(messages: list[dict[str, str]]) -> str:
    """The plan of a problem of the task, then the end."""
    if any(message["role"] == "assistant" for message in messages):
        return FINISH
    text = next(message["content"] for message in messages if "=" in message["content"])
    asked, below = re.search(r"([a-z]):", text).group(1), dict(re.findall(r"([a-z])=([a-z]?);", text))
    letters = [asked]
    while below.get(letters[-1]):
        letters.append(below[letters[-1]])
    return "".join(letters)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> TrainingRun:
    with endpoint(way_back) as (url, _):
        words = (*SETTINGS, f"{TEACHER}.endpoint.base_urls=[{url}]", "trainer.total_training_steps=2")
        return train(tmp_path_factory.mktemp("runs"), "teacher", *words)


def test_the_other_agent_is_trained_on_what_the_teacher_says(run):
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2]
    assert any(one["training/updated"] for one in metrics.values()), "or nothing is seen"
    for step, one in metrics.items():
        rows = run.rollouts(step)
        graded = {(row["problem"]["id"], row["reward"]) for row in rows}
        # A group of equal rewards has no signal, and a step of such groups no update.
        assert one["training/updated"] == (len(graded) > 8)
        if one["training/updated"]:
            assert one["off_policy/age/0/log_ratio_abs_mean"] < 1e-4
        assert len(rows) == 8 * 8 and {row["role"] for row in rows} == {REASONING}, "texts are no rows"
        assert {row["policy_version"] for row in rows} == {step - 1}
        for row in rows:
            plan = way_back([{"role": "user", "content": row["problem"]["question"]}])
            assert row["response"].startswith(f"[{META_THINKING}]\n{plan}\n\n[{REASONING}]\n")
            assert bool(row["masked"]) == (row["turns"] > 1), "what was heard between two messages"


def test_dialogues_end_where_the_teacher_says_so(run):
    ends = {row["finish_reason"] for step in (1, 2) for row in run.rollouts(step)}
    assert "stop" in ends and not ends & {"error", "aborted", "refused"}
