"""The trainer's own loop, scheduler, data and checkpoints; a scripted engine, and a number for weights."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.prompts import MathPrompts
from marsrl_verl.config.schema import read_settings
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.scripted import ScriptedEngine, SkillModel
from marsrl_verl.core.types import SamplingSettings
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.checkpoint import describe_shards
from marsrl_verl.verl_adapter.engine_watch import EngineGuard, EngineWatch, Limits
from marsrl_verl.verl_adapter.generation import Generation, Round
from marsrl_verl.verl_adapter.problem_stream import AskedProblems, ProblemStream
from marsrl_verl.verl_adapter.trainer import RayMarsRLTrainer

WEIGHTS = "model_world_size_1_rank_0.pt"
SEGMENT_TOKENS = 40
BATCH_SIZE = 3
ROWS = [
    {
        "raw_prompt": [{"role": "user", "content": f"{i} + 1 = ?"}],
        "reward_model": {"ground_truth": str(i + 1)},
        "data_source": "test",
    }
    for i in range(17)
]


def collate(rows):
    return {key: [row[key] for row in rows] for key in rows[0]}


@dataclass
class StartedInThread:
    future: Future

    def wait(self) -> Round:
        samples = self.future.result()
        stop_signals.check()  # as what waits for real workers does
        return Round(samples, 0.0)


class OneNumber:
    """Weights and optimizer in one: the steps whose updates they have seen."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.saved_paths: list[str] = []

    @property
    def updates(self) -> int:
        return len(self.steps)

    def save_checkpoint(self, path, *_args, max_ckpt_to_keep=None) -> None:
        """As verl's manager: older weights go as soon as the new ones are there."""
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / WEIGHTS).write_text(json.dumps(self.steps))
        self.saved_paths.append(path)
        while max_ckpt_to_keep and len(self.saved_paths) > max_ckpt_to_keep:
            shutil.rmtree(self.saved_paths.pop(0))

    def load_checkpoint(self, path, **_kwargs) -> None:
        self.steps = json.loads((Path(path) / WEIGHTS).read_text())

    def describe_shards(self, folder):
        return [describe_shards(Path(folder), rank) for rank in range(1)]


class BackgroundEngine(ScriptedEngine):
    """Answers in a thread, refuses weights while a round is at work, and notes which weights it got.

    Args:
        weights: the trainer's, which every sync copies.
    """

    def __init__(self, weights: OneNumber, **kwargs) -> None:
        super().__init__(SkillModel(seed=5), **kwargs)
        self.weights = weights
        self.received: list[tuple[int, int]] = []
        """Of every sync: the version that the trainer names, and the updates in the weights."""
        self.pool = ThreadPoolExecutor(1)
        self.at_work = 0
        self.versions: list[int] = []
        self.generated = 0
        self.asleep = False
        self.naps = 0
        self.told_to_drop = 0

    def start(self, inputs, sampling) -> StartedInThread:
        assert not self.asleep, "a round was started on an engine that sleeps"
        self.at_work += 1
        return StartedInThread(self.pool.submit(self._answer, inputs, sampling))

    def _answer(self, inputs, sampling):
        samples = self.generate(inputs, sampling)
        self.generated += sum(sample.new_tokens for sample in samples)
        self.at_work -= 1
        return samples

    def update_weights(self, version: int) -> None:
        assert self.at_work == 0, "weights arrived while a round was at work"
        self.versions.append(version)
        self.received.append((version, self.weights.updates))
        self.policy_version = version
        self.asleep = False

    def abort_replicas(self, reject_request: bool) -> None:
        assert reject_request, "late requests would wait for ever"
        self.told_to_drop += 1
        self.pool.shutdown()

    def forget_routes(self) -> None:
        assert self.at_work == 0, "routes were forgotten while a round was at work"

    def sleep_replicas(self) -> None:
        assert self.at_work == 0, "the engine was put to sleep while a round was at work"
        self.asleep = True
        self.naps += 1


def trainer_config(folder: Path, *, save_freq: int, sleeps: bool):
    return OmegaConf.create(
        {
            "trainer": {
                "save_freq": save_freq,
                "logger": [],
                "default_local_dir": str(folder / "checkpoints"),
                "default_hdfs_dir": None,
                "resume_mode": "auto",
                "del_local_ckpt_after_load": False,
                "project_name": "test",
                "experiment_name": "test",
            },
            "data": {"train_batch_size": BATCH_SIZE},
            "actor_rollout_ref": {
                "rollout": {"free_cache_engine": sleeps, "nnodes": 0},
                "actor": {"checkpoint": {"async_save": False}},
            },
        }
    )


class ScriptedTrainer(RayMarsRLTrainer):
    """Writes what every step trains to `folder/batches`.

    Args:
        folder: of the run; a checkpoint in it is continued.
        steps: how many.
        settings: changes to the default pipeline settings.
        keep: as trainer.max_actor_ckpt_to_keep.
        resume_from: as trainer.resume_from_path; None: the newest checkpoint.
        engine_seed: the order in which samples come back; None: that of the inputs.
        segments: whether responses take several rounds.
        sleeps: whether the engine gives up its memory and weights between rounds.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        *,
        save_freq: int = 2,
        every: int = 0,
        limit: int | None = None,
        keep: int | None = None,
        resume_from: Path | None = None,
        engine_seed: int | None = 0,
        segments: bool = False,
        sleeps: bool = False,
        **settings,
    ) -> None:
        self.folder = folder
        self.config = trainer_config(folder, save_freq=save_freq, sleeps=sleeps)
        self.config.trainer.max_actor_ckpt_to_keep = keep
        if resume_from is not None:
            self.config.trainer.resume_mode = "resume_path"
            self.config.trainer.resume_from_path = str(resume_from)
        self.settings = read_settings({"algo": {"name": "marsrl"}})
        for name, value in settings.items():
            setattr(self.settings.pipeline, name, value)
        self.settings.evaluation.every = every
        self.settings.evaluation.before = self.settings.evaluation.after = False
        self.settings.run.max_generated_tokens = limit
        self.overlaps = self.settings.pipeline.overlap == "one_step"
        size = SEGMENT_TOKENS if segments else None
        self.sampling = {
            role: SamplingSettings(200, 10_000, segment_tokens=size)
            for role in ("solver", "verifier", "corrector")
        }
        self.algorithm = MarsRL(MathPrompts(), seed=1, group_size=4)
        self.scheduler = Scheduler(
            self.algorithm,
            self.settings.pipeline.mode,
            min_group=self.settings.pipeline.min_group,
            min_groups=self.settings.pipeline.min_groups,
        )
        generator = torch.Generator().manual_seed(3)
        self.train_dataloader = StatefulDataLoader(
            ROWS,
            batch_size=BATCH_SIZE,
            drop_last=True,
            collate_fn=collate,
            sampler=RandomSampler(ROWS, generator=generator),
        )
        self.problems = ProblemStream(self.train_dataloader)
        self.asked = AskedProblems(len(self.train_dataloader.dataset), limit=0)
        self.actor_rollout_wg = OneNumber()
        self.async_rollout_manager = BackgroundEngine(self.actor_rollout_wg, seed=engine_seed)
        self.checkpoint_manager = self.async_rollout_manager
        self.engines = EngineGuard(EngineWatch((), 60.0), Limits(60.0, 60.0, 60.0))
        self.use_critic = False
        self.total_training_steps = steps
        self.observer = SimpleNamespace(
            begin=lambda step: None,
            recorded=lambda step: True,
            evaluated=lambda tag: False,
            phase=lambda name: None,
            rollouts=lambda step, result, trained: None,
            describe=lambda result: {},
            record=lambda step, metrics, timing: None,
            finish=lambda steps, extra: None,
            finish_evaluation=lambda step: self.evaluated.append(("finished", step)),
        )
        self.generation = Generation(self.scheduler, self.async_rollout_manager, self.sampling)
        self.global_steps, self.generated_tokens, self.engine_version = 0, 0, None
        self.samples, self.credit = 0, {}
        self.metrics, self.timing = {}, {}
        self.evaluated: list[tuple[str, int]] = []
        self.told_last: list[bool] = []
        self.saved: list[int] = []
        self.tokens_by_step: dict[int, int] = {}

    def _fit_build_batch(self, result):
        """The step's line: samples with their tokens and versions, the data position, the weights."""
        self.told_last.append(self._is_last_step())
        self.tokens_by_step[self.global_steps] = self.generated_tokens
        rows = [
            [
                sample.sample_id,
                sample.text,
                sample.segments,
                sample.sample_id in group.trained_before,
                sample.prompt_ids,
                sample.response_ids,
                sample.rollout_log_probs,
                sample.reward,
                sample.finish_reason.value,
            ]
            for group in result.trained
            for sample in group.samples
        ]
        line = {"step": result.step, "updates": self.actor_rollout_wg.updates, "rows": rows}
        _append_batch(self.folder / "batches", line)
        self.credit = {row[0]: () for row in rows}
        if not rows:
            return None
        columns = {"sample_id": [row[0] for row in rows], "is_padding": [False] * len(rows)}
        return SimpleNamespace(non_tensor_batch=columns)

    def fit(self) -> None:
        """As the trainer's; then the weights that the engine got must be those that it was told of."""
        super().fit()
        steps = self.actor_rollout_wg.steps
        for version, updates in self.async_rollout_manager.received:
            assert updates == sum(step <= version for step in steps), f"weights of version {version}"

    def _fit_compute_log_prob(self, batch):
        pass

    def _fit_compute_ref_log_prob(self, batch):
        pass

    def _fit_update_actor(self, batch):
        self.actor_rollout_wg.steps.append(self.global_steps)

    def _save_checkpoint(self, state=None):
        super()._save_checkpoint(state)
        self.saved.append(self.global_steps)

    def _evaluate(self, tag):
        self._fit_collect_round()
        self._fit_update_weights(self.global_steps)
        self.evaluated.append((tag, self.async_rollout_manager.policy_version))
        return {}


def _append_batch(folder: Path, line: dict) -> None:
    """Write one line as a file of its own, moved into place, so that a kill leaves all of it or nothing.

    Lines at the end of one file do not do: a kill may end a `write` between two pages of the file.
    """
    folder.mkdir(exist_ok=True)
    unfinished = folder / "unfinished"
    unfinished.write_text(json.dumps(line))
    unfinished.rename(folder / f"{len(list(folder.glob('*.json'))):06d}.json")


def batches(folder: Path) -> list[dict]:
    """The lines of a run in the order of writing, also those of killed attempts; none before the first."""
    return [json.loads(path.read_text()) for path in sorted((folder / "batches").glob("*.json"))]
