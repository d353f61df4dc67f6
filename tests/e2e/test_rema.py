"""Dialogues of two agents with real Ray, FSDP2 and vLLM on CPU: shared weights under a chat template that
rewrites history, and an adapter for each agent, trained in turn, with a kill."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from training_runs import TrainingRun, assert_rewards_are_found_again, train, train_and_kill
from transformers import AutoTokenizer

from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING, ROLES
from studies.assets import model_path

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

SETTINGS = (
    "algo=rema",
    "model=tiny_rema",
    "data=rema_task",
    "marsrl.algo.group_size=8",
    "marsrl.algo.message_tokens=56",
    "marsrl.algo.max_turns=3",
    "marsrl.roles.meta_thinking.max_new_tokens=180",
    "marsrl.roles.reasoning.max_prompt_tokens=120",
    "marsrl.roles.reasoning.max_new_tokens=180",
    "data.train_batch_size=8",
)
REWRITES = (
    "{%- set last = namespace(user=-1) -%}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}"
    "{%- endfor -%}"
    "{%- for message in messages -%}"
    "{%- set content = message['content'] -%}"
    "{%- if message['role'] == 'assistant' and loop.index0 < last.user -%}"
    "{%- set content = content.split('</think>')[-1].strip() -%}"
    "{%- endif -%}"
    "{{- '<|' + message['role'] + '|>' + content + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"
)
"""As Qwen3's: what an assistant's turn begins with is there where it is written and not in the history, where
its thinking is missing, too."""


def rewriting_model(folder: Path) -> Path:
    """The task's model with that template."""
    shutil.copytree(model_path("rema_task"), folder)
    (folder / "chat_template.jinja").write_text(REWRITES)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": REWRITES}))
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> tuple[TrainingRun, Path]:
    """Two steps, and the record of all that the engine was asked."""
    root = tmp_path_factory.mktemp("dialogues")
    record, model = root / "engine.jsonl", rewriting_model(root / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
        patch.setenv("ENGINE_RECORD", str(record))
        run = train(
            root,
            "shared",
            *SETTINGS,
            f"actor_rollout_ref.model.path={model}",
            "marsrl.prompts.target=rema_recording:RecordingPrompts",
            "marsrl.algo.mask_unfinished=false",
            "marsrl.algo.stop_when_truncated=false",
            "marsrl.algo.estimator=reinforce_pp",
            "trainer.total_training_steps=2",
        )
    return run, record


def test_rollouts_graded_again_are_worth_what_they_were(shared):
    assert_rewards_are_found_again(shared[0].folder)


def sampled_parts(row: dict) -> list[int]:
    """The ids of a row that its policy sampled."""
    masked = {at for begin, end in row["masked"] for at in range(begin, end)}
    return [one for at, one in enumerate(row["token_ids"]) if at not in masked]


def test_the_ids_that_are_trained_are_those_that_were_sampled(shared):
    """On every row, and each request of the engine has what was read and written before."""
    run, record = shared
    answers = defaultdict(list)
    for line in map(json.loads, record.read_text().splitlines()):
        answers[line["name"]].append(line)
    rows = [row for step in (1, 2) for row in run.rollouts(step)]
    trained = {
        name for step in (1, 2) for name in json.loads((run.folder / f"trained/step_{step}.json").read_text())
    }
    assert len(rows) == 2 * 2 * 64 and trained == {row["trajectory"] for row in rows}
    turns = 0
    for row in rows:
        name = row["trajectory"] + ("" if row["role"] == META_THINKING else f"/{REASONING}")
        asked = sorted(answers[name], key=lambda line: len(line["prompt"]))
        assert [one for line in asked for one in line["ids"]] == sampled_parts(row), name
        whole = asked[0]["prompt"] + row["token_ids"]
        for line in asked:
            assert whole[: len(line["prompt"]) + len(line["ids"])] == line["prompt"] + line["ids"]
        turns += len(asked) > 1
    assert turns > 20, "most have a history"


def test_the_template_would_have_rewritten_them(shared):
    """Or the test before would say nothing of it."""
    _, record = shared
    tokenizer = AutoTokenizer.from_pretrained(record.parent / "model")
    turn = "<|end|><|assistant|>"  # after the end of a message: a policy may sample the word itself
    prompts = [tokenizer.decode(json.loads(line)["prompt"]) for line in record.read_text().splitlines()]
    later = [text for text in prompts if text.count(turn) > 1]
    assert later
    for text in later:
        assert text.count(turn + "\n") == text.count(turn), "as it was when it was written"
    chat = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    rendered = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert (rendered.count("<|assistant|>\n"), rendered.count("<|assistant|>")) == (1, 2)


def test_engine_and_trainer_agree_on_every_trained_token(shared):
    for metrics in shared[0].metrics().values():
        assert metrics["training/updated"] and metrics["batch/updates"] == 4
        assert metrics["off_policy/ratio_min"] > 0.99 and metrics["off_policy/ratio_max"] < 1.01
        assert {f"actor/clip_frac/{role}" for role in ROLES} <= set(metrics)


STEPS = 5
IN_TURN = (
    *SETTINGS,
    "algo=rema_separate",
    "marsrl.pipeline.updates_per_step=1",
    "marsrl.run.seeded_tokens=all",
    "marsrl.algo.alternate.interval=2",
    "marsrl.algo.alternate.first=reasoning",
    "marsrl.algo.mask_unfinished=false",
    "marsrl.algo.estimator=reinforce_pp",
    "marsrl.evaluation.problems=8",
)
ADAPTERS = (
    *IN_TURN,
    "policies=lora_per_role",
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.actor.optim.lr=0.005",
)
DUE = {1: REASONING, 2: REASONING, 3: META_THINKING, 4: META_THINKING, 5: REASONING}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> TrainingRun:
    """Killed after the second step, in which the first turn ends, and resumed to the end."""
    root = tmp_path_factory.mktemp("adapters")
    train_and_kill(root, "adapters", 2, *ADAPTERS, "trainer.total_training_steps=9")
    resume = ("marsrl.run.if_exists=resume", f"trainer.total_training_steps={STEPS}")
    return train(
        root, "adapters", *ADAPTERS, *resume, "marsrl.evaluation.after=true", "marsrl.evaluation.problems=8"
    )


def check_turns(run: TrainingRun, steps: int) -> None:
    """One agent is updated in each step; both sample with their newest weights, as the trainer has them."""
    metrics = run.metrics()
    assert sorted(metrics) == list(range(1, steps + 1))
    for step in metrics:
        updated = {name.split("/")[0] for name in metrics[step] if name.endswith("/actor/grad_norm")}
        assert updated == {DUE[step]}, f"step {step}"
        versions = {(row["policy"], row["policy_version"]) for row in run.rollouts(step)}
        last = {one: max((at for at in range(1, step) if DUE[at] == one), default=0) for one in ROLES}
        assert versions == set(last.items())
        assert metrics[step]["off_policy/age/0/log_ratio_abs_mean"] < 1e-4


def test_each_agents_adapter_is_trained_in_its_turn_also_after_a_kill(adapters):
    check_turns(adapters, STEPS)


def test_no_end_token_stands_behind_finish_that_nobody_sampled(adapters):
    """The last token that is trained is the one that spells it."""
    tokenizer = AutoTokenizer.from_pretrained(model_path("rema_task"))
    (finish,) = tokenizer.encode(FINISH, add_special_tokens=False)
    said = [
        row
        for step in range(1, STEPS + 1)
        for row in adapters.rollouts(step)
        if row["role"] == META_THINKING and row["finish_reason"] == "stop"
    ]
    assert len(said) > 100 and {row["token_ids"][-1] for row in said} == {finish}


def test_the_pair_is_evaluated_by_dialogues(adapters):
    found = json.loads((adapters.folder / "evaluations/after.json").read_text())
    assert set(found["observations"]) >= {"accuracy", "accuracy_and_finished", "finished_frac"}
    assert found["effort"]["turns"]["mean"] >= 1 and found["estimates"]["finished_frac"]["mean"] > 0
    assert "The meta-thinking agent instructs" in (adapters.folder / "report.md").read_text()
