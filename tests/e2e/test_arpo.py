"""An agent with real tools, with real Ray, FSDP2 on gloo and vLLM, on CPU with the tool task's model."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from training_runs import (
    REPOSITORY,
    START_TIMEOUT_S,
    TrainingRun,
    assert_rewards_are_found_again,
    started,
    train,
    wait_for_step,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

STEPS = 3
SETTINGS = (
    "algo=arpo",
    "data=tool_task",
    "model=tiny_tools",
    "data.train_batch_size=4",
    "marsrl.algo.group_size=8",
    "marsrl.algo.branching.entropy_tokens=4",
    "marsrl.pipeline.max_segments=2",
    "marsrl.run.seeded_tokens=all",
    f"trainer.total_training_steps={STEPS}",
)
CHATS = ("marsrl.algo.protocol=chat", "training=shared_prefixes", "marsrl.algo.attribution=hard")


def noted(folder: Path) -> tuple[str, ...]:
    """A Python tool that takes a while and notes its calls."""
    return (
        "marsrl.tools.python.target=noted_tool:NotedPython",
        f"+marsrl.tools.python.notes={folder / 'calls'}",
    )


def calls_of(folder: Path) -> dict[str, Counter[str]]:
    """How often each call has begun, and ended."""
    found: dict[str, Counter[str]] = {"begin": Counter(), "end": Counter()}
    if (folder / "calls").exists():
        for line in (folder / "calls").read_text().splitlines():
            kind, name = line.split()
            found[kind][name] += 1
    return found


@pytest.fixture(scope="module")
def tools_path():
    """Workers find the noted tool."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{REPOSITORY}{os.pathsep}{Path(__file__).parent}")
        yield


@pytest.fixture(scope="module")
def killed_and_resumed(tmp_path_factory, tools_path) -> TrainingRun:
    """Tags; killed with kill -9 while calls run that belong to no checkpoint yet, then continued."""
    root = tmp_path_factory.mktemp("agents")
    words = (*SETTINGS, *noted(root))
    with started(root, "tags", *words) as (process, log):
        wait_for_step(root / "tags", 1, process, log)
        before = len(calls_of(root)["begin"])
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(calls_of(root)["begin"]) == before:
            assert time.monotonic() < deadline and process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.02)
    cut = calls_of(root)
    assert cut["begin"] - cut["end"], "a call was running"
    (root / "cut.json").write_text(json.dumps(sorted((cut["begin"] - cut["end"]).elements())))
    return train(root, "tags", *words, "marsrl.run.if_exists=resume")


@pytest.fixture(scope="module")
def chats(tmp_path_factory) -> TrainingRun:
    """The chat template's tool calls, and shared prefixes computed once."""
    words = (*SETTINGS[:-1], "trainer.total_training_steps=1", *CHATS)
    return train(tmp_path_factory.mktemp("chats"), "chats", *words)


def rows_of(run: TrainingRun, steps: int = STEPS) -> list[dict]:
    return [row for step in range(1, steps + 1) for row in run.rollouts(step)]


def test_rollouts_graded_again_are_worth_what_they_were(killed_and_resumed, chats):
    for run in (killed_and_resumed, chats):
        assert_rewards_are_found_again(run.folder)


def inserted(row: dict, tokenizer) -> list[str]:
    return [tokenizer.decode(row["token_ids"][begin:end]) for begin, end in row["masked"]]


def tokenizer():
    from studies.toy_tasks.tool_task.tokenizer import build_tokenizer

    return build_tokenizer()


def test_trained_ids_are_sampled_or_inserted(killed_and_resumed):
    words, rows = tokenizer(), rows_of(killed_and_resumed)
    calls = 0
    for row in rows:
        parts = inserted(row, words)
        assert len(parts) == len(row["events"]), "one inserted part for each call"
        for part, event in zip(parts, row["events"], strict=True):
            assert part.startswith(" <result>\n") and part.endswith("\n</result>")
            assert event["tool"] in ("python", "search") and event["outcome"] in ("ok", "error", "refused")
        text = words.decode(row["token_ids"], skip_special_tokens=False)
        own = text
        for part in parts:
            own = own.replace(part, "", 1)
        assert "<result>" not in own or row["reward"] == -1.0
        assert len(re.findall(r"</(?:python|search)>", own)) >= len(parts)
        calls += len(parts)
    assert calls > 20, "tools are really called"


def test_python_says_what_python_says(killed_and_resumed):
    words = tokenizer()
    checked = 0
    for row in rows_of(killed_and_resumed):
        for part, event in zip(inserted(row, words), row["events"], strict=True):
            code = event["arguments"].get("code", "")
            if event["outcome"] == "ok" and (found := re.fullmatch(r"print\((\d+)\*(\d+)\)", code)):
                assert str(int(found[1]) * int(found[2])) in part
                checked += 1
    assert checked > 5


def test_groups_are_full_and_forks_share_their_beginning(killed_and_resumed):
    groups: dict[str, list[dict]] = {}
    for row in rows_of(killed_and_resumed):
        groups.setdefault(row["group"], []).append(row)
    assert groups
    forks = 0
    for members in groups.values():
        by_name = {row["trajectory"]: row for row in members}
        assert len(by_name) == len(members) == 8
        for row in members:
            if row["fork"]:
                forks += 1
                at, parent = row["fork"]["token"], by_name[row["fork"]["trajectory"]]
                assert row["token_ids"][:at] == parent["token_ids"][:at]
    assert forks > 0


def test_nothing_is_lost_or_trained_twice(killed_and_resumed):
    run = killed_and_resumed
    assert sorted(run.metrics()) == list(range(1, STEPS + 1))
    names = [name for step in range(1, STEPS + 1) for name in _trained(run.folder, step)]
    assert names and len(set(names)) == len(names)
    rows = rows_of(run)
    assert len({row["trajectory"] for row in rows}) == len(rows)


def test_calls_that_were_cut_off_are_made_again(killed_and_resumed):
    root = killed_and_resumed.folder.parent
    cut, calls = json.loads((root / "cut.json").read_text()), calls_of(root)
    done = {event["call_id"] for row in rows_of(killed_and_resumed) for event in row["events"]}
    again = set(cut) & done
    assert again
    for name in again:  # workers outlive the killed process by a moment, in which a call may end
        assert calls["begin"][name] == 2 and calls["end"][name] >= 1


def _trained(folder: Path, step: int) -> dict:
    return json.loads((folder / f"trained/step_{step}.json").read_text())


def test_engine_and_trainer_agree_on_what_was_sampled(killed_and_resumed, chats):
    for run in (killed_and_resumed, chats):
        gaps = [
            one["rollout/log_probs_diff_max"]
            for one in run.metrics().values()
            if "rollout/log_probs_diff_max" in one
        ]
        assert gaps and max(gaps) < 1e-3


def test_the_chat_templates_tool_calls(chats):
    words, rows = tokenizer(), rows_of(chats, 1)
    called = [row for row in rows if row["events"]]
    assert called
    for row in called:
        parts = inserted(row, words)
        shown = [part for part in parts if "<|tool|>" in part]
        assert len(shown) == len({event["turn"] for event in row["events"]})
        assert all(part.endswith("<|assistant|>") for part in shown)
        assert all("<tool_call>" not in part for part in parts)
    metrics = chats.metrics()[1]
    assert metrics["batch/computed_tokens"] < metrics["batch/tokens"], "shared beginnings once"
