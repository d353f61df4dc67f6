"""Plans and judgements of pairs of answers with real trainer and engine, an adapter for each agent."""

from __future__ import annotations

import json
import os
import string
import subprocess
import sys
from pathlib import Path

import pytest
from training_runs import REPOSITORY, TrainingRun, train

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PAIRS = 8


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    """Rows of RewardBench's layout, made into data by the command."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = [
        {"prompt": f"Name {n}.", "chosen": f"good {n}", "rejected": f"bad {n}", "subset": "chat", "id": n}
        for n in range(2 * PAIRS)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["pairs.jsonl", "--train", "train.parquet", "--test", "test.parquet", "--test-rows", str(PAIRS)]
    command = [sys.executable, "-m", "studies.rema_data.judge_data", *words]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Reads the full prompts, letter by letter, and writes letters: after each the response ends with
    probability one half, so that greedy ones end as well, and few are empty."""
    import torch

    from studies.tiny.model import build_model
    from studies.tiny.tokenizer import END, ROLE_MARKERS, build_tokenizer, vocabulary

    network, ids = build_model(1, hidden=32, layers=2), vocabulary()
    letters = torch.tensor([ids[letter] for letter in string.ascii_letters])
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(200):
        tokens = torch.randint(len(ids), (16, 64))
        tokens[:, ::8] = ids[ROLE_MARKERS["assistant"]]
        ends = torch.isin(tokens, letters) & (torch.rand(tokens.shape) < 0.5)
        following = letters[torch.randint(len(letters), tokens.shape)].where(~ends, ids[END])
        loss = torch.nn.functional.cross_entropy(network(tokens).logits.flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("model")
    network.config.max_position_embeddings = 4096
    network.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(pairs, model, tmp_path_factory) -> TrainingRun:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{REPOSITORY}{os.pathsep}{Path(__file__).parent}")
        return train(
            tmp_path_factory.mktemp("judge"),
            "judge",
            "algo=rema_judge",
            "model=custom",
            f"actor_rollout_ref.model.path={model}",
            "data=parquet",
            f"data.train_files={pairs / 'train.parquet'}",
            f"data.val_files={pairs / 'test.parquet'}",
            "pipeline=sequential",
            "policies=lora_per_role",
            "actor_rollout_ref.model.lora_rank=4",
            "actor_rollout_ref.actor.optim.lr=0.001",
            "marsrl.roles.meta_thinking.max_prompt_tokens=1536",
            "marsrl.roles.meta_thinking.max_new_tokens=16",
            "marsrl.roles.reasoning.max_prompt_tokens=1536",
            "marsrl.roles.reasoning.max_new_tokens=16",
            "marsrl.algo.estimator=group",
            "algorithm.use_kl_in_reward=false",
            "marsrl.algo.filter.enabled=false",
            "marsrl.algo.plans_per_problem=2",
            "marsrl.algo.episodes=1",
            "marsrl.evaluation.both_orders=true",
            "marsrl.evaluation.after=true",
            "marsrl.reward.reasoning.target=rema_chance_judge:ChanceJudge",
            "trainer.total_training_steps=60",
            "trainer.save_freq=-1",
        )


def test_each_adapter_is_trained_in_its_phase(run):
    metrics = run.metrics()
    trained = {"reasoning": set(), "meta_thinking": set()}
    for one in metrics.values():
        for policy, phases in trained.items():
            if f"{policy}/actor/grad_norm" in one:
                phases.add(one["phase/trains_plans"])
    assert trained == {"reasoning": {0.0}, "meta_thinking": {1.0}}
    assert max(metrics) < 60, "the phases end the run"


def test_the_judge_reads_both_answers_and_the_planner_none(run):
    rows = [row for step in run.metrics() for row in run.rollouts(step)]
    assert {row["stage"] for row in rows} == {"plan", "solution"}
    for row in rows:
        name = row["problem"]["question"].removeprefix("Name ").removesuffix(".")
        answers = [f"good {name}" in row["prompt"], f"bad {name}" in row["prompt"]]
        assert answers == [row["stage"] == "solution"] * 2


def test_pairs_are_evaluated_in_both_orders(run):
    summary = json.loads((run.folder / "summary.json").read_text())["after"]
    first, both = summary["first_order_accuracy"], summary["consistent_accuracy"]
    assert 0 <= both["mean"] <= first["mean"] <= 1 and both["n"] == first["n"] == summary["accuracy"]["n"]
    assert "order_agreement" in summary
