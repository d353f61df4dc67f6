"""Start real training runs as a user would: one process, Hydra overrides, an output folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = (
    "cluster=cpu",
    "trainer.logger=[]",
    "trainer.max_actor_ckpt_to_keep=null",
    "data.train_batch_size=4",
    "marsrl.algo.group_size=4",
    "marsrl.evaluation.before=false",
    "marsrl.evaluation.after=false",
    "trainer.save_freq=1",
    # The whole rate from the first update on, so that few steps change enough.
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
)
START_TIMEOUT_S = 420.0
STEPS = 8
EVALUATED = (
    "marsrl.evaluation.after=true",
    "marsrl.evaluation.problems=24",
    "marsrl.evaluation.samples_per_problem=0",
)
"""Greedily, and soon done."""
REPEATABLE = (
    "pipeline=pipelined",
    "marsrl.run.seeded_tokens=all",
    f"trainer.total_training_steps={STEPS}",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_penalty=low_var_kl",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.horizon=100",
)
"""Every step's tokens follow from the seed, whatever happened before."""


@dataclass(frozen=True)
class TrainingRun:
    """What a run left behind."""

    folder: Path
    output: str

    def metrics(self) -> dict[int, dict[str, float]]:
        """Metrics by step."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return {line["step"]: line["metrics"] for line in map(json.loads, lines)}

    def rollouts(self, step: int) -> list[dict]:
        """The samples of one step."""
        return [json.loads(line) for line in (self.folder / f"rollouts/step_{step}.jsonl").open()]


def checkpoint_weights(folder: Path, step: int, policy: str = "") -> dict[str, torch.Tensor]:
    """The weights of a one-rank checkpoint, of several models those of a policy."""
    path = folder / f"checkpoints/global_step_{step}/actor/{policy}/model_world_size_1_rank_0.pt"
    shards = torch.load(path, weights_only=False)
    return {name: getattr(shard, "_local_tensor", shard) for name, shard in shards.items()}


def checkpoint_log_probs(folder: Path, step: int, rows: list[dict], policy: str = "") -> list[torch.Tensor]:
    """Log-probabilities of the rows' sampled tokens under the weights of a one-rank checkpoint, of several
    models under those of a policy."""
    from transformers import AutoModelForCausalLM

    from marsrl_verl.demo.assets import model_path
    from studies.tiny.tokenizer import ROLE_MARKERS, build_tokenizer

    model = AutoModelForCausalLM.from_pretrained(model_path())
    model.load_state_dict(checkpoint_weights(folder, step, policy))
    tokenizer = build_tokenizer()
    found = []
    for row in rows:
        assert row["role"] == "solver"
        prompt = f"{ROLE_MARKERS['user']}{row['problem']['question']}<|end|>{ROLE_MARKERS['assistant']}"
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
        assert len(prompt_ids) == row["prompt_tokens"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt_ids + row["token_ids"]])).logits[0, len(prompt_ids) - 1 : -1]
        chosen = torch.tensor(row["token_ids"])[:, None]
        found.append(torch.log_softmax(logits, dim=-1).gather(1, chosen)[:, 0])
    return found


TRAIN, EVALUATE = "recipe.marsrl.main_marsrl", "recipe.marsrl.main_eval"


def command(root: Path, name: str, *overrides: str, program: str = TRAIN) -> list[str]:
    return [
        sys.executable,
        "-m",
        program,
        *SMALL,
        f"name={name}",
        f"marsrl.run.output_root={root}",
        *overrides,
    ]


def ended(root: Path, name: str, *overrides: str, program: str = TRAIN) -> tuple[int, str]:
    """Status and output of a run that is left alone."""
    done = subprocess.run(
        command(root, name, *overrides, program=program),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S + 300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def train(root: Path, name: str, *overrides: str) -> TrainingRun:
    """Runs to the end; a failing run shows its output."""
    status, output = ended(root, name, *overrides)
    assert status == 0, output[-6000:]
    return TrainingRun(root / name, output)


def evaluate(root: Path, name: str, *overrides: str) -> TrainingRun:
    """An evaluation alone, to its end."""
    status, output = ended(root, name, *overrides, program=EVALUATE)
    assert status == 0, output[-6000:]
    return TrainingRun(root / name, output)


def export(checkpoint: Path, target: Path, *words: str) -> Path:
    """The folder that the command makes."""
    named = (f"checkpoint={checkpoint}", f"target={target}", *words)
    done = subprocess.run(
        [sys.executable, "-m", "recipe.marsrl.export", *named],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def assert_rewards_are_found_again(folder: Path) -> None:
    """All rollouts of a run, graded again by the run's own rewards."""
    done = subprocess.run(
        [sys.executable, "-m", "recipe.marsrl.rescore", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{Path(__file__).parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\n0 changed: " in done.stdout and "not graded" not in done.stdout, done.stdout


def assert_says_greedily(model: torch.nn.Module, folder: Path, rows: list[dict]) -> None:
    """A model of an exported folder generates, from an evaluation's greedy chats, the tokens of the run."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert rows
    for row in rows:
        parts = re.split(r"(?:^|\n\n)\[(system|user|assistant)\]\n", row["prompt"])[1:]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        chat = [{"role": role, "content": content} for role, content in pairs]
        asked = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        length = asked["input_ids"].shape[1]
        assert length == row["prompt_tokens"]
        found = model.generate(**asked, do_sample=False, max_new_tokens=row["tokens"])[0, length:]
        assert found.tolist() == row["token_ids"]


def greedy_calls(folder: Path) -> list[dict]:
    """The calls of a run's greedy evaluation after training."""
    return [json.loads(line) for line in (folder / "rollouts/eval_after_greedy.jsonl").open()]


def greedy_outcomes(folder: Path, tag: str) -> dict[str, dict]:
    """The observations of an evaluation's greedy pass, by metric; problems by their place, since those of an
    evaluation alone have other ids than a training run's."""
    found = json.loads((folder / f"evaluations/{tag}.json").read_text())["observations"]
    place: dict[str, int] = {}
    for problem in found["solver_accuracy_greedy"]["problems"]:
        place.setdefault(problem, len(place))
    return {
        name: {**one, "problems": [place[problem] for problem in one["problems"]]}
        for name, one in found.items()
        if name.endswith("_greedy")
    }


@contextmanager
def started(
    root: Path, name: str, *overrides: str, program: str = TRAIN
) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A run with a process group of its own, and the file of its output. At the end the group is killed (-9),
    unless the run has ended."""
    log = root / f"{name}.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command(root, name, *overrides, program=program),
            cwd=REPOSITORY,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process, log
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def train_and_kill(root: Path, name: str, after_step: int, *overrides: str) -> TrainingRun:
    """Starts a run and kills it once `after_step` is checkpointed and logged."""
    with started(root, name, *overrides) as (process, log):
        wait_for_step(root / name, after_step, process, log)
    return TrainingRun(root / name, log.read_text())


def wait_for_step(folder: Path, step: int, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    metrics = folder / "metrics.jsonl"
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the run ended by itself:\n{log.read_text()[-6000:]}"
        if metrics.exists() and any(
            json.loads(line)["step"] >= step
            for line in metrics.read_text().splitlines()
            if line.endswith("}")
        ):
            return
        time.sleep(0.05)  # polling a file that another process writes
    raise AssertionError(f"step {step} was not reached in {START_TIMEOUT_S} s:\n{log.read_text()[-6000:]}")
