"""Drives the project's classes for the golden traces, and reads what a step did into plain data.

The trainer's own steps, on scripted tokens and scripted workers: requests go through the rollout runner, its
programs and conversations, the scheduler, the method, and the trainer's batches, masks, advantages and
off-policy correction. What the workers are sent to train is what a trace says was trained.

This module alone knows the classes: where they change, it is ported, and the traces stay. The names in a
trace are those of the tables here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scripted_answers as scripted
import torch
from omegaconf import OmegaConf
from scenarios import RANKS, SEED, STEPS, Scenario
from scripted_engine import Reply, ScriptedClient, ScriptedEngine, ScriptedSource, score_by_box
from tensordict import TensorDict
from trace_files import ENDINGS, digest, spans
from verl.utils import tensordict_utils as tu

from marsrl_verl.algos.marsrl.prompts import VERIFIER, RolePrompts
from marsrl_verl.algos.marsrl.verdict import VerdictReward
from marsrl_verl.algos.registry import method_class
from marsrl_verl.attention.measure import STEP_IDS, STEP_MEASURED
from marsrl_verl.config.schema import MarsRLConfig, read_settings
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import EndReason
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import (
    RESPONSE_MASK,
    ROLLOUT_LOG_PROBS,
    TOKEN_VERSIONS,
    Rows,
)
from marsrl_verl.core.scheduler import Scheduler, StepResult
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, RECORDED_LOG_PROBS
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory, is_correct
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.verl_adapter.components import build_method, policy_set, sampling_settings
from marsrl_verl.verl_adapter.engine.batch import PolicyBatch, StepBatch, jagged
from marsrl_verl.verl_adapter.engine.probe_engine import MEASURE_KEY, SETTINGS_KEY
from marsrl_verl.verl_adapter.engine.shared_prefix_engine import COMPUTED_TOKENS
from marsrl_verl.verl_adapter.rollout_server.generation import Generation, Round
from marsrl_verl.verl_adapter.rollout_server.worker import describe
from marsrl_verl.verl_adapter.trainer.trainer import RayMarsRLTrainer

PRESETS = Path(__file__).resolve().parents[2] / "configs" / "algo"
FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "prompt_too_long": FinishReason.PROMPT_TOO_LONG,
    "aborted": FinishReason.ABORTED,
    "refused": FinishReason.REFUSED,
    "error": FinishReason.ERROR,
}
"""How a response ends, by the traces' names. One that goes on is never shown."""
ENDED = {
    EndReason.FINISHED: "finished",
    EndReason.NO_REQUESTS: "no_inputs",
    EndReason.NOT_ASKED: "not_asked",
    EndReason.REJECTED: "rejected",
    EndReason.DROPPED: "dropped",
    EndReason.STALE: "stale",
}
FINISH_LETTERS = {FINISH[name]: letter for letter, name in ENDINGS.items()}


# --- settings ---------------------------------------------------------------------------------


def settings_of(scenario: Scenario) -> MarsRLConfig:
    """The `marsrl` node: the preset's, then the scenario's keys."""
    node = OmegaConf.merge(*_preset_parts(scenario.preset))
    for key, value in scenario.settings.items():
        OmegaConf.update(node, key, value)
    limits = {"solver": scenario.prompt_limit, "corrector": 2 * scenario.prompt_limit}
    for role in method_class(node.algo.name).roles:
        most = {"max_new_tokens": scenario.new_tokens, "max_prompt_tokens": limits.get(role, 10_000)}
        OmegaConf.update(node, f"roles.{role}", most)
        OmegaConf.update(node, f"reward.{role}.target", "unused")  # the scripted engine scores
    OmegaConf.update(node, "run.seed", SEED)
    if scenario.external_solver:
        OmegaConf.update(node, "external_solver.source", "jsonl")
    return read_settings(OmegaConf.to_container(node))


def _preset_parts(name: str) -> Iterable[Any]:
    """The `marsrl` nodes of a preset's file and of those it is built on, the deepest first."""
    loaded = OmegaConf.load(PRESETS / f"{name}.yaml")
    for other in loaded.get("defaults", ()):
        if other != "_self_":
            yield from _preset_parts(other)
    yield loaded.marsrl


class ShortPrompts(RolePrompts):
    """A line for each role."""

    def solver(self, problem):
        return ({"role": "user", "content": problem.question},)

    def verifier(self, problem, solution):
        return ({"role": "user", "content": f"{problem.question} Check: {solution}"},)

    def corrector(self, problem, solution, report):
        return ({"role": "user", "content": f"{problem.question} Repair: {solution} Report: {report}"},)


# --- the engine -------------------------------------------------------------------------------


class GoldenClient(ScriptedClient):
    """A client whose log-probabilities are functions of token, position and version."""

    def log_prob(self, position: int, token: int, version: int) -> float:
        return scripted.log_prob(token, position, version)


@dataclass(frozen=True)
class Done:
    """A round that was over when it began."""

    outputs: list[RolloutOutput]

    def wait(self) -> Round:
        return Round(self.outputs, 0.0)


class GoldenEngine(ScriptedEngine):
    """Answers as the scenario says, with graders that fail, and notes what it is asked."""

    client_class = GoldenClient

    def __init__(self, trainer: GoldenTrainer, seed: int | None) -> None:
        world, limit = trainer.scenario, trainer.scenario.new_tokens
        super().__init__(
            self._reply,
            seed=seed,
            scorer=self._grade,
            policies=trainer.policies,
            sources={"external_solver": ScriptedSource(self._reply, limit)} if world.external_solver else {},
            settings=trainer.settings,
        )
        self.trainer, self.world = trainer, trainer.scenario.world

    def start(self, requests: list[RolloutRequest], sampling: Any) -> Done:
        """Ask for a round, with the weights that the engine has now."""
        step = self.trainer.scheduler.open_step
        self.trainer.rounds.setdefault(step, []).append([read_request(item) for item in requests])
        outputs = self.generate(requests, sampling)
        for output in outputs:
            describe(output, self.chat)  # as the rollout workers do
        return Done(outputs)

    def update_weights(self, version: int) -> None:
        self.policy_version = version

    def forget_routes(self) -> None:
        pass

    def _reply(self, item: RolloutRequest, k: int) -> Reply:
        solution_reward = item.inputs.get("solution_reward")
        text, ending = scripted.answer(
            self.world,
            scripted.Question(
                group=item.group_id,
                problem=item.problem.problem_id,
                role=item.role,
                number=k,
                truth=item.problem.ground_truth,
                solution_right=None if solution_reward is None else is_correct(solution_reward),
                beginning="" if item.prefix is None else bytes(item.prefix.response_ids.tolist()).decode(),
            ),
        )
        return Reply(text, FINISH[ending])

    def _grade(self, item: RolloutRequest, one: Trajectory) -> RewardResult:
        if item.role == VERIFIER:
            result = VerdictReward().score(ScoreRequest.of(item, one))
        else:
            result = score_by_box(item, one)
        if scripted.is_graded(self.world, one.trajectory_id):
            return result
        return replace(result, value=0.0, graded=False, error="the scripted grader failed")


class GoldenWorkers:
    """Implements what the trainer asks of a policy's worker group; values are functions of token, position
    and version."""

    def __init__(self, trainer: GoldenTrainer) -> None:
        self._trainer = trainer
        self._held: list[list[int]] = []
        """The responses of all slots."""

    def hold_rows(self, data: TensorDict) -> TensorDict:
        self._held = _responses(data)
        return data.select("row_id")

    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        whole = "input_ids" in data
        responses = _responses(data) if whole else [self._held[slot] for slot in data["row_id"].tolist()]
        version = self._trainer.policies.version(data["policy"])
        found = {
            "log_probs": [
                [scripted.trainer_log_prob(token, at, version) for at, token in enumerate(ids)]
                for ids in responses
            ],
            "entropy": [[scripted.entropy(token, at) for at, token in enumerate(ids)] for ids in responses],
        }
        if tu.get_non_tensor_data(data=data, key=MEASURE_KEY, default=None):
            delta = tu.get_non_tensor_data(data=data, key=SETTINGS_KEY, default={})["delta"]
            assert delta == scripted.DELTA
            columns = zip(responses, data[STEP_IDS].unbind(), data[STEP_MEASURED].unbind(), strict=True)
            found["influence"] = [_influence(*one) for one in columns]
        lengths = np.array([len(ids) for ids in responses])
        nested = {
            name: jagged(np.concatenate(values, dtype=np.float32), lengths) for name, values in found.items()
        }
        return TensorDict(nested, batch_size=[len(responses)])

    def update_actor(self, data: TensorDict) -> TensorDict:
        self._trainer.sent = data
        return tu.get_tensordict({}, {"metrics": {"mfu": 0.0, COMPUTED_TOKENS: [0.0]}})


def _responses(data: TensorDict) -> list[list[int]]:
    rows = zip(data["input_ids"].unbind(), data["prompt_len"].tolist(), strict=True)
    return [ids[prompt:].tolist() for ids, prompt in rows]


def _influence(ids: list[int], step_ids: torch.Tensor, measured: torch.Tensor) -> list[float]:
    """The influence of every token's step."""
    steps = step_ids.tolist()
    parts = [
        [token for token, _ in some] for _, some in groupby(zip(ids, steps, strict=True), lambda p: p[1])
    ]
    last = max((step for step, one in zip(steps, measured.tolist(), strict=True) if one), default=-1)
    by_step = scripted.influence(parts, last + 1)
    return [by_step[step] for step in steps]


# --- the trainer ------------------------------------------------------------------------------


@dataclass
class NumberedProblems:
    """The problems of `scripted_answers` without end; as `ProblemStream`."""

    taken: int = 0
    epoch: int = 0

    def take(self, count: int, admits: Any) -> list[Problem]:
        numbers = range(self.taken, self.taken + count)
        self.taken += count
        return [
            Problem(f"p{at}", scripted.problem_question(at), scripted.problem_truth(at)) for at in numbers
        ]

    def state_dict(self) -> int:
        return self.taken

    def load_state_dict(self, state: int) -> None:
        self.taken = state


def trainer_config(scenario: Scenario) -> Any:
    """What the trainer reads of verl's configuration."""
    actor = {
        "use_dynamic_bsz": True, "ppo_epochs": 1, "calculate_entropy": False, "entropy_coeff": 0.0,
        "data_loader_seed": 1, "shuffle": False,
    }  # fmt: skip
    return OmegaConf.create(
        {
            "trainer": {"save_freq": -1, "logger": []},
            "data": {"train_batch_size": scenario.problems},
            "actor_rollout_ref": {
                "rollout": {"free_cache_engine": False, "temperature": 1.0},
                "actor": actor,
            },
        }
    )


class GoldenTrainer(RayMarsRLTrainer):
    """The trainer without verl's workers, data and files.

    Args:
        scenario: what is run.
        order_seed: of the order in which groups come back; None: that of the requests.
        rounds: by step, what the engine was asked already.
    """

    def __init__(
        self, scenario: Scenario, order_seed: int | None, rounds: dict[int, list[list[str]]]
    ) -> None:
        self.scenario, self.rounds = scenario, rounds
        self.config, self.settings = trainer_config(scenario), settings_of(scenario)
        self.policies = policy_set(self.settings)
        self.async_rollout_manager = GoldenEngine(self, order_seed)
        chat = self.async_rollout_manager.chat
        self.method = build_method(self.settings, ShortPrompts(), chat, scenario.problems)
        self.scheduler = build_scheduler(self.method, self.settings)
        self.generation = Generation(
            self.scheduler,
            self.async_rollout_manager,
            sampling_settings(self.settings),
            before_round=self._fit_update_weights,
            after_round=self._fit_run_probes,
        )
        self.problems = NumberedProblems()
        self.asked = SimpleNamespace(look=lambda result: None)
        self.workers = GoldenWorkers(self)
        self.observer = SimpleNamespace(
            rollouts=self._note, describe=lambda result: {}, record=lambda step, metrics, timing: None
        )
        self.overlaps = self.settings.pipeline.overlap == "one_step"
        self.use_reference_policy = False
        self.total_training_steps = STEPS
        self.global_steps, self.generated_tokens, self.samples = 0, 0, 0
        self.engine_versions = {}
        self.metrics, self.timing = {}, {}
        self.result: StepResult | None = None
        """Of the step, and"""
        self.batch: Any = None
        """its rows; None without an update."""
        self.sent: TensorDict | None = None
        """What the workers were sent to train."""
        self.method_metrics: dict[str, float] = {}

    def _note(self, step: int, result: StepResult, trained: Any, record: Any) -> None:
        self.result = result

    def _fit_build_batch(self, result: StepResult, due: Any) -> Any:
        before = set(self.metrics)
        self.batch, self.sent = super()._fit_build_batch(result, due), None
        self.method_metrics = {
            name: value
            for name, value in self.metrics.items()
            if name not in before and name not in BATCH_METRICS
        }
        return self.batch

    def _workers(self, policy: str) -> GoldenWorkers:
        return self.workers

    def _get_dp_size(self, worker_group: Any, role: str) -> int:
        return RANKS

    def _send_weights(self, policy: str, version: int) -> None:
        self.async_rollout_manager.update_weights(version)


BATCH_METRICS = ("batch/rows", "batch/updates", "batch/padding_rows", "batch/tokens")
ADVANTAGE_METRICS = (
    "batch/advantage_mean",
    "batch/advantage_min",
    "batch/advantage_max",
    "batch/samples_with_advantage_share",
    "batch/tokens_with_advantage_share",
)


def build_scheduler(method: Any, settings: MarsRLConfig) -> Scheduler:
    """As the trainer builds it."""
    pipeline = settings.pipeline
    return Scheduler(
        method,
        pipeline.mode,
        step_prompt_budget=pipeline.step_prompt_budget,
        min_group=pipeline.min_group,
        min_groups=pipeline.min_groups,
        max_input_staleness=pipeline.max_input_staleness,
    )


class GoldenRun:
    """A run of a scenario, step by step.

    Args:
        scenario: what is run.
        order_seed: of the order in which groups come back; None: that of the requests.
    """

    def __init__(self, scenario: Scenario, order_seed: int | None) -> None:
        self.scenario, self.order_seed = scenario, order_seed
        self.trainer = GoldenTrainer(scenario, order_seed, {})

    def take_step(self, *, last: bool = False) -> dict[str, Any]:
        """One training step; what it did as a step of the trace."""
        trainer = self.trainer
        trainer.global_steps += 1
        trainer.fit_step()
        result, batch, metrics = trainer.result, trainer.batch, trainer.metrics
        assert result is not None
        return {
            "step": trainer.global_steps,
            "rounds": trainer.rounds.pop(trainer.global_steps, []),
            "completed": [read_completed(group) for group in result.completed],
            "trained": [read_trained(group) for group in result.trained],
            **read_batch([] if batch is None else batch.parts, trainer.sent),
            **(read_loss(batch, trainer.sent) if self.scenario.loss else {}),
            "ended": [[end.problem_id, end.stage, ENDED[end.reason]] for end in result.ended],
            "counts": {
                "rounds": metrics["rollout/rounds"],
                "samples": metrics["rollout/samples"],
                "tokens": metrics["rollout/generated_tokens"],
                "continued_tokens": metrics["rollout/continued_tokens"],
                **read_pools(result),
            },
            "metrics": {
                **trainer.method_metrics,
                **(
                    {
                        **{name: metrics[name] for name in ADVANTAGE_METRICS if name in metrics},
                        **training_metrics(result.completed, type(trainer.method)),
                    }
                    if last
                    else {}
                ),
            },
        }

    def drop_rest(self) -> dict[str, Any]:
        """What the end of a run makes of everything that waits."""
        scheduler = self.trainer.scheduler
        dropped = scheduler.drop_waiting()
        scheduler.start_step(self.trainer.global_steps + 1, [])
        ended = scheduler.finish_step(last=True).ended
        return {
            "dropped": [item.group_id for item in dropped],
            "ended": [[end.problem_id, end.stage, ENDED[end.reason]] for end in ended],
        }

    def reload(self) -> None:
        """Save everything as a checkpoint does, and go on with fresh objects."""
        self.trainer._fit_collect_round()
        state = pickle.loads(pickle.dumps(self.trainer.plugin_state()))
        self.trainer = GoldenTrainer(self.scenario, self.order_seed, self.trainer.rounds)
        self.trainer.global_steps = state["step"]
        self.trainer.load_plugin_state(state)


# --- reading ----------------------------------------------------------------------------------


def read_request(item: RolloutRequest) -> str:
    """A decoded request: with the trajectory from which it was made or the numbers of those that go on."""
    if item.resume is not None:
        numbers = " ".join(str(one.number) for one in item.resume.trajectories if one.paused)
        return f"{item.group_id} continues {numbers}"
    return f"{item.group_id} from {item.parent_id}" if item.parent_id else item.group_id


def read_completed(group: Group) -> list[Any]:
    """A row of the completed groups by the columns `COLUMNS["completed"]`."""
    members = group.trajectories
    rewards = [one.reward for one in members]
    return [
        group.group_id,
        "".join(FINISH_LETTERS[one.finish] for one in members),
        " ".join(f"{reward.value:g}" if reward and reward.graded else "?" for reward in rewards),
        digest(np.array([token for one in members for token in (*_tokens(one), -1)], np.int32)),
        digest("\0".join(one.final_text for one in members).encode()),
    ]


def _tokens(one: Trajectory) -> list[int]:
    """Prompt and response with -1 between them."""
    if one.external:
        return [-1]
    return [*one.sequence.prompt_ids.tolist(), -1, *one.sequence.response_ids.tolist()]


def read_trained(group: Group) -> list[Any]:
    """A row of the trained groups by the columns `COLUMNS["trained"]`."""
    numbers = [str(one.number) for one in group.trajectories]
    before = sorted(int(name.rpartition("#")[2]) for name in group.trained_before)
    return [group.group_id, " ".join(numbers), " ".join(map(str, before))]


def read_pools(result: StepResult) -> dict[str, Any]:
    """What waits after the step; nothing is said of a pool that is empty."""
    pools = {
        **{f"waiting {stage}": count for stage, count in result.waiting.items()},
        **{f"oldest waiting {stage}": age for stage, age in result.oldest_waiting.items()},
        **{f"input age {stage}": age for stage, age in sorted(result.request_ages.items())},
        "in flight": result.in_flight,
        "unfinished": result.paused,
        "held": result.deferred,
        "stale": result.stale,
    }
    return {name: number for name, number in pools.items() if number}


def read_batch(parts: Sequence[PolicyBatch], sent: TensorDict | None) -> dict[str, Any]:
    """The batch of the only policy, with the advantages that the workers were sent."""
    if not parts:
        assert sent is None
        return {"updates": 0, "padding rows": 0, "roles": {}, "rows": []}
    (batch,) = parts
    assert sent is not None
    advantages = sent["advantages"].unbind()
    return {
        "updates": batch.updates,
        "padding rows": batch.padding,
        "roles": read_roles(batch.rows),
        "rows": [
            read_row(batch.rows, row, _part(slot, len(batch), batch.updates), advantages[slot].numpy())
            for slot, row in enumerate(batch.slots.tolist())
            if row >= 0
        ],
    }


def read_roles(rows: Rows) -> dict[str, str]:
    """The roles of the batch's stages, which the trajectories' ids name."""
    pairs = set()
    for row in range(len(rows)):
        stage, name = rows.group(row).request.stage, rows.trajectory(row).trajectory_id
        assert name.split("/")[1] == stage, f"trajectory {name} is of stage {stage}"
        pairs.add((stage, rows.sequence(row).role))
    assert len(dict(pairs)) == len(pairs), f"a stage has two roles: {sorted(pairs)}"
    return dict(sorted(pairs))


def _part(at: int, rows: int, updates: int) -> str:
    """The rank and the mini-batch to which verl gives a row of a batch."""
    share = rows // RANKS
    return f"{at // share}/{at % share // (share // updates)}"


def read_row(rows: Rows, row: int, part: str, advantages: np.ndarray) -> list[Any]:
    """A row of the training batch by the columns `COLUMNS["rows"]`."""
    one, sequence = rows.trajectory(row), rows.sequence(row)

    def column(name: str) -> np.ndarray:
        return rows.columns[name][rows.slice(row)]

    def recorded(name: str) -> str:
        return _recorded(sequence.annotations[name]) if name in sequence.annotations else ""

    return [
        one.trajectory_id,
        part,
        len(sequence),
        digest(sequence.prompt_ids),
        digest(sequence.response_ids),
        _runs(column(RESPONSE_MASK)),
        digest(column(ROLLOUT_LOG_PROBS)),
        recorded(RECORDED_LOG_PROBS),
        recorded(RECORDED_ENTROPIES),
        _runs(column(TOKEN_VERSIONS)),
        float(one.value),
        _runs(advantages.astype(np.float64)),
    ]


def read_loss(batch: StepBatch | None, sent: TensorDict | None) -> dict[str, Any]:
    """What else the loss compares, by the columns `COLUMNS["loss"]`."""
    if batch is None or sent is None:
        return {"loss": []}
    (part,) = batch.parts
    weights = sent.get("rollout_is_weights", None)
    old = sent["old_log_probs"].unbind()
    return {
        "loss": [
            [
                batch.rows.trajectory(row).trajectory_id,
                digest(old[slot].numpy()),
                "" if weights is None else _runs(weights.unbind()[slot].numpy().astype(np.float64)),
            ]
            for slot, row in enumerate(part.slots.tolist())
            if row >= 0
        ]
    }


def _runs(values: Any) -> str:
    """Equal neighbours as spans."""
    runs, end = [], 0
    for value, members in groupby(values.tolist()):
        end += len(list(members))
        runs.append((end, value))
    return spans(runs)


def _recorded(values: Any) -> str:
    """What the trainer recorded: how many tokens have a value, and these."""
    known = ~np.isnan(values)
    positions = np.flatnonzero(known).astype(np.int32)
    if not len(positions):
        return ""
    return f"{len(positions)} {digest(positions.tobytes() + values[known].tobytes())}"
