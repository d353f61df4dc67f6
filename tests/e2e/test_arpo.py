"""An agent with real tools, with real Ray, FSDP2 on gloo and vLLM, on CPU with the tool world's model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from training_runs import REPOSITORY, START_TIMEOUT_S, TrainingRun, command, train, wait_for_step

from marsrl_verl.verl_adapter.checkpoint.sealed import load_state

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

STEPS = 3
SETTINGS = (
    "algo=arpo",
    "data=tool_world",
    "model=tiny_tools",
    "data.train_batch_size=4",
    "marsrl.algo.group_size=8",
    "marsrl.algo.branching.roots=4",
    "marsrl.algo.branching.entropy_tokens=4",
    "marsrl.pipeline.max_segments=2",
    "marsrl.run.seeded_tokens=all",
    "marsrl.run.worker_logs=false",
    f"trainer.total_training_steps={STEPS}",
)


@pytest.fixture(scope="module")
def killed_and_resumed(tmp_path_factory) -> TrainingRun:
    """Tags; killed in the middle of a round with tool calls, then continued."""
    root = tmp_path_factory.mktemp("agents")
    log = root / "tags.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command(root, "tags", *SETTINGS), cwd=REPOSITORY, stdout=stream, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            wait_for_step(root / "tags", 1, process, log)
            time.sleep(0.2)  # into the next round
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return train(root, "tags", *SETTINGS, "marsrl.run.existing=resume")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> TrainingRun:
    """The same, not interrupted."""
    return train(tmp_path_factory.mktemp("whole"), "tags", *SETTINGS)


@pytest.fixture(scope="module")
def chats(tmp_path_factory) -> TrainingRun:
    """The chat template's tool calls, and shared prefixes computed once."""
    words = ("marsrl.algo.protocol=chat", "training=shared_prefixes", "marsrl.algo.attribution=hard")
    settings = [one for one in SETTINGS if "total_training_steps" not in one]
    return train(
        tmp_path_factory.mktemp("chats"), "chats", *settings, *words, "trainer.total_training_steps=1"
    )


def rows_of(run: TrainingRun, steps: int = STEPS) -> list[dict]:
    return [row for step in range(1, steps + 1) for row in run.rollouts(step)]


def inserted(row: dict, tokenizer) -> list[str]:
    return [tokenizer.decode(row["token_ids"][begin:end]) for begin, end in row["masked"]]


def tokenizer():
    from marsrl_verl.demo.tool_world.tokenizer import build_tokenizer

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


def test_nothing_is_trained_twice_and_nothing_lost(killed_and_resumed, whole):
    """With a generator for each response the killed run trains what the other one does."""
    for run in (killed_and_resumed, whole):
        assert sorted(run.metrics()) == list(range(1, STEPS + 1))
        names = [name for step in range(1, STEPS + 1) for name in _trained(run.folder, step)]
        assert len(set(names)) == len(names)
    for step in range(1, STEPS + 1):
        one, other = (
            {row["trajectory"]: row for row in run.rollouts(step)} for run in (killed_and_resumed, whole)
        )
        assert one.keys() == other.keys()
    first, second = (
        {row["trajectory"]: row["token_ids"] for row in run.rollouts(1)}
        for run in (killed_and_resumed, whole)
    )
    assert first == second, "the first step is of the same weights"


def _trained(folder: Path, step: int) -> dict:
    return json.loads((folder / f"trained/step_{step}.json").read_text())


def test_engine_and_trainer_agree_on_what_was_sampled(killed_and_resumed, chats):
    for run in (killed_and_resumed, chats):
        gaps = [
            one["rollout/log_prob_gap_max"]
            for one in run.metrics().values()
            if "rollout/log_prob_gap_max" in one
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


def test_what_a_checkpoint_holds_of_trees(killed_and_resumed):
    state = load_state(killed_and_resumed.folder / "checkpoints/global_step_1")
    pending = state["scheduler"]["state"]["pending"]
    assert pending is not None


def wait_until(condition, seconds: float = START_TIMEOUT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
