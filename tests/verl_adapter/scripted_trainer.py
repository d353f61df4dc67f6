"""The trainer's own loop, batches, scheduler, data and checkpoints; a scripted engine, scripted workers, and
numbers for weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from marsrl_script import ScriptedEngine, SkillModel
from omegaconf import OmegaConf
from scheduler_tools import build
from scripted_engine import Script
from tensordict import TensorDict
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler
from verl.utils import tensordict_utils as tu

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import MathPrompts
from marsrl_verl.config.node import read_settings
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method
from marsrl_verl.core.policy import Policy, PolicySet
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.rows import ADVANTAGES, token_advantages
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.evaluation.watch import Watch
from marsrl_verl.settings.declaration import RoleSampling
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.checkpoint.files import describe_shards
from marsrl_verl.verl_adapter.components import build_scheduler
from marsrl_verl.verl_adapter.engine.batch import jagged
from marsrl_verl.verl_adapter.engine.policy_loss import COLUMN, MEAN_KEY, SPEC_KEY
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineGuard, EngineWatch
from marsrl_verl.verl_adapter.rollout_server.generation import Generation, Round
from marsrl_verl.verl_adapter.trainer.problem_stream import ProblemStream, SkippedProblems
from marsrl_verl.verl_adapter.trainer.trainer import RayMarsRLTrainer

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
        outputs = self.future.result()
        stop_signals.check()  # as what waits for real workers does
        return Round(outputs, 0.0)


class Weights:
    """Weights and optimizers of all policies: of each, the steps whose updates it has seen."""

    def __init__(self, policies: tuple[str, ...]) -> None:
        self.steps_of: dict[str, list[int]] = {name: [] for name in policies}
        self.saved_paths: list[str] = []

    @property
    def steps(self) -> list[int]:
        """Those of the only policy."""
        (steps,) = self.steps_of.values()
        return steps

    def updates(self) -> dict[str, int]:
        return {name: len(steps) for name, steps in self.steps_of.items()}

    def save_checkpoint(self, path, *_args, max_ckpt_to_keep=None) -> None:
        """As verl's manager: older weights go as soon as the new ones are there."""
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / WEIGHTS).write_text(json.dumps(self.steps_of))
        self.saved_paths.append(path)
        while max_ckpt_to_keep and len(self.saved_paths) > max_ckpt_to_keep:
            shutil.rmtree(self.saved_paths.pop(0))

    def load_checkpoint(self, path, **_kwargs) -> None:
        self.steps_of = json.loads((Path(path) / WEIGHTS).read_text())

    def describe_shards(self, folder):
        return [describe_shards(Path(folder), 0)]


class Workers:
    """A policy's worker group: every token has probability 1/2, and an update is noted."""

    def __init__(self, trainer: ScriptedTrainer, policy: str) -> None:
        self._trainer, self._policy = trainer, policy
        self._lengths: list[int] = []
        self._held: dict[str, int] = {}

    def hold_rows(self, data: TensorDict) -> TensorDict:
        self._lengths = data["response_mask"].offsets().diff().tolist()
        filled = data["response_mask"].unbind()
        self._held = {
            "rows": int(data["n_rows"][0]), "turns": int(data["n_turns"][0]),
            "padding": sum(not row.any() for row in filled),
        }  # fmt: skip
        return data.select("row_id")

    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        lengths = np.array([self._lengths[row] for row in data["row_id"].tolist()])
        values = np.full(lengths.sum(), np.log(0.5), dtype=np.float32)
        found = {"log_probs": jagged(values, lengths), "entropy": jagged(-values, lengths)}
        return TensorDict(found, batch_size=[len(lengths)])

    def update_actor(self, data: TensorDict) -> TensorDict:
        assert data["row_id"].tolist() == list(range(len(self._lengths))), "an update is of all rows held"
        self._trainer.updated.append(
            {
                "step": self._trainer.global_steps,
                "policy": self._policy,
                "advantages": data["advantages"].values().tolist(),
                "spec": tu.get(data, SPEC_KEY),
                "mean": tu.get(data, MEAN_KEY),
                "columns": {name: data[name] for name in data.keys() if name.startswith(COLUMN)},  # noqa: SIM118
                **self._held,
            }
        )
        self._trainer.weights.steps_of[self._policy].append(self._trainer.global_steps)
        return tu.get_tensordict({}, {"metrics": {"mfu": 0.0, "pg_loss": [0.5]}})


class BackgroundEngine(ScriptedEngine):
    """Answers in a thread, refuses weights while a round is at work, and notes which weights it got.

    Args:
        weights: the trainer's, which every sync copies.
        policies: which policy answers for a role.
        script: what is answered; None: MarsRL's roles.
    """

    def __init__(self, weights: Weights, policies: PolicySet, script: Script | None = None, **kwargs) -> None:
        super().__init__(script or SkillModel(seed=5), policies=policies, **kwargs)
        self.weights = weights
        self.received: list[tuple[str, int, int]] = []
        """Of every sync: the policy and version that the trainer names, and the updates in the weights."""
        self.version_of: dict[str, int] = {}
        self.pool = ThreadPoolExecutor(1)
        self.at_work = 0
        self.versions: list[int] = []
        self.generated = 0
        self.asleep = False
        self.naps = 0
        self.told_to_drop = 0

    def start(self, requests, sampling) -> StartedInThread:
        assert not self.asleep, "a round was started on an engine that sleeps"
        self.at_work += 1
        return StartedInThread(self.pool.submit(self._answer, requests, sampling))

    def _answer(self, requests, sampling):
        outputs = self.generate(requests, sampling)
        self.generated += sum(one.new_tokens for output in outputs for one in output.trajectories)
        self.at_work -= 1
        return outputs

    def _version(self, policy: str) -> int:
        return self.version_of[policy]

    def update_weights(self, policy: str, version: int) -> None:
        assert self.at_work == 0, "weights arrived while a round was at work"
        self.versions.append(version)
        self.received.append((policy, version, self.weights.updates()[policy]))
        self.version_of[policy] = version
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


CONFIG = """
trainer: {logger: [], default_hdfs_dir: null, resume_mode: auto, del_local_ckpt_after_load: false,
  project_name: test, experiment_name: test}
data: {}
actor_rollout_ref:
  rollout: {nnodes: 0, temperature: 1.0}
  actor: {use_dynamic_bsz: true, ppo_epochs: 1, calculate_entropy: false, entropy_coeff: 0.0,
    data_loader_seed: 1, shuffle: false, checkpoint: {async_save: false}}
"""


def _trained_row(group: Group, one: Trajectory) -> list:
    """What of a response could change what is trained."""
    sequence = one.sequence
    named = [one.trajectory_id, one.text, sequence.versions, one.trajectory_id in group.trained_before]
    of_tokens = (sequence.prompt_ids, sequence.response_ids, sequence.rollout_log_probs)
    return [*named, *(part.tolist() for part in of_tokens), one.value, one.finish.value, sequence.policy]


class ScriptedTrainer(RayMarsRLTrainer):
    """Writes what every step trains to `folder/batches`.

    Args:
        folder: of the run; a checkpoint in it is continued.
        steps: how many.
        settings: changes to the default pipeline settings.
        keep: as trainer.max_actor_ckpt_to_keep.
        resume_from: as trainer.resume_from_path; None: the newest checkpoint.
        engine_seed: the order in which outputs come back; None: that of the requests.
        policies: whose weights answer for a role; None: one for all.
        method: its class, or what makes it.
        script: of the engine; None: MarsRL's roles.
        roles: who is asked.
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
        policies: PolicySet | None = None,
        method: Callable[..., Method] = MarsRL,
        script: Script | None = None,
        roles: tuple[str, ...] = ("solver", "verifier", "corrector"),
        **settings,
    ) -> None:
        self.folder = folder
        self.config = OmegaConf.create(CONFIG)
        self.config.data.train_batch_size = BATCH_SIZE
        self.config.trainer.default_local_dir = str(folder / "checkpoints")
        self.config.trainer.save_freq = save_freq
        self.config.trainer.max_actor_ckpt_to_keep = keep
        self.config.actor_rollout_ref.rollout.free_cache_engine = sleeps
        if resume_from is not None:
            self.config.trainer.resume_mode = "resume_path"
            self.config.trainer.resume_from_path = str(resume_from)
        self.settings = read_settings({"algo": {"name": "marsrl"}})
        others = {role: RoleSampling() for role in roles if role not in self.settings.roles}
        self.settings.roles = {**self.settings.roles, **others}
        for name, value in settings.items():
            setattr(self.settings.pipeline, name, value)
        self.settings.evaluation.every = every
        self.settings.evaluation.before = self.settings.evaluation.after = False
        self.settings.run.max_generated_tokens = limit
        self.overlaps = self.settings.pipeline.overlap == "one_step"
        size = SEGMENT_TOKENS if segments else None
        self.sampling = {role: Sampling(200, 10_000, segment_tokens=size) for role in roles}
        self.policies = policies or PolicySet((Policy(),))
        named = {role: self.policies.of(role).name for role in roles}
        made = isinstance(method, type)
        self.method = build(method, MathPrompts(), group_size=4, policies=named) if made else method()
        self.settings.algo = self.method.config
        self.scheduler = build_scheduler(self.settings, self.method)
        generator = torch.Generator().manual_seed(3)
        self.train_dataloader = StatefulDataLoader(
            ROWS,
            batch_size=BATCH_SIZE,
            drop_last=True,
            collate_fn=collate,
            sampler=RandomSampler(ROWS, generator=generator),
        )
        self.problems = ProblemStream(self.train_dataloader)
        self.skipped = SkippedProblems(len(self.train_dataloader.dataset), {"solver": 0})
        self.weights = self.actor_rollout_wg = Weights(self.policies.trained)
        self.workers = {name: Workers(self, name) for name in self.policies.trained}
        self.updated: list[dict] = []
        """What the workers were sent to train."""
        self.async_rollout_manager = BackgroundEngine(self.weights, self.policies, script, seed=engine_seed)
        self.checkpoint_manager = self.async_rollout_manager
        self.engines = EngineGuard(EngineWatch((), 60.0), 60.0)
        self.use_critic = self.use_reference_policy = False
        self.total_training_steps = steps
        self.observer = SimpleNamespace(
            begin=lambda step: None,
            flush=lambda: None,
            recorded=lambda step: True,
            evaluated=lambda tag: False,
            phase=lambda name: None,
            rollouts=lambda step, result, trained, record: self.recorded.update(
                {step: {} if trained is None else token_advantages(trained, trained.columns[ADVANTAGES])}
            ),
            describe=lambda result, trains: self.described.update({self.global_steps: trains}) or {},
            record=lambda step, metrics, timing: None,
            finish=lambda steps, extra, warnings: self.finished.append((steps, extra, warnings)),
            say=lambda lines: self.said.extend(lines),
            folder=SimpleNamespace(path=folder, restore=lambda: None),
            finish_evaluation=lambda step: self.evaluated.append(("finished", step)),
        )
        self.generation = Generation(self.scheduler, self.async_rollout_manager, self.sampling)
        self.global_steps, self.generated_tokens, self.engine_versions = 0, 0, {}
        self.samples = self.tool_calls = 0
        self.watch, self.changed_in = Watch(self.settings.watch), {}
        self.said: list[str] = []
        self.described: dict[int, bool] = {}
        """By step, whether its metrics are those of a pass that trains."""
        self.finished: list[tuple] = []
        self.recorded: dict[int, dict] = {}
        """What the observer was told that a step trained."""
        self.metrics, self.timing = {}, {}
        self.evaluated: list[tuple[str, int]] = []
        self.told_last: list[bool] = []
        self.saved: list[int] = []
        self.tokens_by_step: dict[int, int] = {}

    def _fit_build_batch(self, result):
        """The step's line: trajectories with their tokens and versions, the weights."""
        self.told_last.append(self._is_last_step())
        self.tokens_by_step[self.global_steps] = self.generated_tokens
        rows = [_trained_row(group, one) for group in result.trained for one in group.trajectories]
        line = {"step": result.step, "updates": self.weights.updates(), "rows": rows}
        _append_batch(self.folder / "batches", line)
        return super()._fit_build_batch(result)

    def fit(self) -> None:
        """As the trainer's; then the weights that the engine got must be those that it was told of."""
        super().fit()
        for policy, version, updates in self.async_rollout_manager.received:
            steps = self.weights.steps_of[policy]
            assert updates == sum(step <= version for step in steps), (
                f"weights of {policy}, version {version}"
            )

    def _workers(self, policy):
        return self.workers[policy]

    def _get_dp_size(self, worker_group, role):
        return 2

    def _send_weights(self, policy, version):
        self.engines.run(
            "the weight sync", lambda: self.async_rollout_manager.update_weights(policy, version)
        )

    def _save_checkpoint(self, state=None):
        super()._save_checkpoint(state)
        self.saved.append(self.global_steps)

    def _evaluate(self, tag):
        self._fit_collect_round()
        self._fit_update_weights()
        self.evaluated.append((tag, max(self.async_rollout_manager.version_of.values())))
        return {}


def _append_batch(folder: Path, line: dict) -> None:
    """Writes one line as a file of its own, moved into place, so that a kill leaves all of it or nothing.

    Lines at the end of one file do not do: a kill may end a `write` between two pages of the file.
    """
    folder.mkdir(exist_ok=True)
    unfinished = folder / "unfinished"
    unfinished.write_text(json.dumps(line))
    unfinished.rename(folder / f"{len(list(folder.glob('*.json'))):06d}.json")


def batches(folder: Path) -> list[dict]:
    """The lines of a run in the order of writing, also those of killed attempts; none before the first."""
    return [json.loads(path.read_text()) for path in sorted((folder / "batches").glob("*.json"))]
