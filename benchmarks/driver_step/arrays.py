"""The step with sequences of numpy arrays, which are read where they were received, and jagged batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.protocol import BatchData
from verl.utils import tensordict_utils as tu
from verl.workers.engine.utils import prepare_micro_batches

from benchmarks.driver_step.inputs import (
    CONTINUED,
    ENDED_BEFORE,
    PAUSES,
    STAGES,
    Inputs,
    trainer_values,
)
from benchmarks.driver_step.interface import Call, Driver, Place, Worker
from marsrl_verl.algos.marsrl.config import Config
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER, MathPrompts
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.config.node import read_settings
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.policy import PolicySet
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.scheduler import Mode, Scheduler
from marsrl_verl.core.scheduler.state import PendingGroup, ProblemState, SchedulerState
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.evaluation.watch import Watch
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.verl_adapter.checkpoint import files as checkpoint
from marsrl_verl.verl_adapter.engine.micro_batches import use_fast_micro_batches
from marsrl_verl.verl_adapter.engine.rank_rows import HeldRows, responses_only
from marsrl_verl.verl_adapter.rollout_server.generation import Generation, Round
from marsrl_verl.verl_adapter.rollout_server.rollout_manager import MarsRLAgentLoopManager
from marsrl_verl.verl_adapter.rollout_server.worker import RequestResult, describe
from marsrl_verl.verl_adapter.trainer.observer import TrainingObserver
from marsrl_verl.verl_adapter.trainer.trainer import RayMarsRLTrainer

_CHAT = ChatTokenizer(None)
"""Nothing is decoded: policies sampled all of these tokens."""
_ACTOR = {
    "use_dynamic_bsz": True,
    "calculate_entropy": False,
    "entropy_coeff": 0.0,
    "ppo_epochs": 1,
    "data_loader_seed": 42,
    "shuffle": False,
}
_CONFIG = OmegaConf.create({"actor_rollout_ref": {"actor": _ACTOR, "rollout": {"temperature": 1.0}}})
_LONGEST = 32_768
_SAMPLING = {role: Sampling(_LONGEST, _LONGEST) for role in (SOLVER, VERIFIER, CORRECTOR)}


class _Manager(MarsRLAgentLoopManager):
    """The rollout manager, with the store in place of workers' Ray handles."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.agent_loop_workers = [SimpleNamespace(run_requests=self)] * place.cluster.workers
        self.received: Round

    def options(self, num_returns: int) -> Any:
        """A call of a worker, with so many answers."""
        return SimpleNamespace(remote=lambda *arguments: self._call(num_returns, arguments))

    def _call(self, answers: int, arguments: Any) -> Any:
        path, size = self._place.store.put(arguments)
        self._place.meter.sent(size)
        return path if answers == 1 else [path] * answers

    def start(self, requests: list[RolloutRequest], sampling: Any) -> Any:
        """As the manager's; the answers are given by `receive`."""
        self.sent = list(dict.fromkeys(self._send_round(requests, sampling)))
        self._check_round = self._checker(requests)
        return SimpleNamespace(wait=self._wait)

    def receive(self, answers: list[RequestResult]) -> None:
        """What `_WorkersRound.wait` does with the workers' answers."""
        outputs = [one.output for one in answers]
        self._check_round(outputs)
        self.received = Round(outputs, max(one.seconds for one in answers))

    def _wait(self) -> Round:
        received = self.received
        del self.received
        return received


class _Trainer(RayMarsRLTrainer):
    """The trainer's own step, between its pools and its ranks, without verl's workers and engines."""

    def __init__(self, place: Place, settings: MarsRLConfig, method: MarsRL, scheduler: Scheduler) -> None:
        self._ranks = place.cluster.ranks
        self.config, self.settings, self.method, self.scheduler = _CONFIG, settings, method, scheduler
        self.sampling = _SAMPLING
        self.policies = PolicySet()
        self.policies.updated(self.policies.trained, place.step - 1)
        self.problems: Any = SimpleNamespace(epoch=0, state_dict=dict)
        self.observer = TrainingObserver(OmegaConf.create({}), settings, 10)
        self.use_reference_policy = False
        self.actor_rollout_wg: Any = None
        self.global_steps, self.generated_tokens, self.samples = place.step, 0, 0
        self.tool_calls = 0
        self.watch, self.changed_in = Watch(settings.watch), {}
        self.metrics, self.timing = {}, {}

    def _get_dp_size(self, worker_group: Any, role: str) -> int:
        return self._ranks


class ArrayDriver(Driver):
    def set_up(self) -> None:
        place = self.place
        limits = dict.fromkeys(_SAMPLING, _LONGEST)
        self.method = MarsRL(Config(), MethodTools(MathPrompts(), _prompt_tokens, limits, seed=1))
        self.scheduler = Scheduler(self.method, mode=Mode.PIPELINED)
        self.scheduler.load_state_dict(_state(place.inputs, self.scheduler, place.step - 1))
        self.scheduler.start_step(place.step, [])
        settings = read_settings(
            {
                "algo": {"name": "marsrl"},
                "pipeline": {"updates_per_step": place.cluster.updates},
                "run": {"output_dir": str(place.folder / "run"), "progress": False},
            }
        )
        self.trainer = _Trainer(place, settings, self.method, self.scheduler)
        self.manager = _Manager(place)
        self.trainer.generation = Generation(self.scheduler, self.manager, _SAMPLING)
        self.metrics = self.trainer.metrics

    def hand_out(self) -> None:
        self.trainer.generation.start_round()
        self.sent = self.manager.sent

    def receive(self, paths: list[str]) -> None:
        store = self.place.store
        self.manager.receive([store.get(path) for one in paths for path in store.get(one)])

    def absorb(self) -> None:
        self.metrics |= self.trainer.generation.finish().metrics()

    def finish_step(self) -> None:
        self.result = self.scheduler.finish_step()

    def keep_state(self) -> None:
        self.pools = self.trainer._pools_state()

    def build_batch(self) -> None:
        built = self.trainer._fit_build_batch(self.result)
        assert built is not None, "the step trains"
        self.batch = built

    def log_probs(self, rank: Call) -> None:
        self.trainer.actor_rollout_wg = _Ranks(self.place, rank)
        self.place.meter.begin("send for log-probs")
        self.trainer._fit_compute_log_prob(self.batch)

    def loss_inputs(self) -> None:
        self.trainer._fit_compute_advantages(self.batch)

    def update(self, rank: Call) -> None:
        self.trainer._fit_update_actor(self.batch)

    def record(self) -> None:
        self.trainer.observer.rollouts(self.place.step, self.result, self.batch.rows, self.method.record)

    def describe(self) -> None:
        self.trainer._fit_describe(self.result, self.batch, trains=True)

    def save(self) -> None:
        checkpoint.save_state(self.place.folder, {**self.pools, **self.trainer._step_state()})
        self.place.meter.sent((self.place.folder / "marsrl.pt").stat().st_size)

    def finish_background(self) -> None:
        self.place.meter.begin("write records, the rest", side="background")
        self.trainer.observer.flush()
        for file in ("rollouts", "trained"):
            for path in (self.place.folder / "run" / file).iterdir():
                self.place.meter.sent(path.stat().st_size)
        self.place.meter.pause()
        self.trainer.observer.close()


class _Ranks:
    """verl's worker group: cuts data into the ranks' shares and packs them; rank after rank, since the store
    would not hold all shares on a small machine."""

    def __init__(self, place: Place, rank: Call) -> None:
        self._place, self._rank = place, rank

    def hold_rows(self, data: TensorDict) -> None:
        self._send(data, "rank_rows")

    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        answers = self._send(data, "rank_log_probs")
        self._place.meter.begin("merge log-probs")
        return BatchData([self._place.store.get(answer["path"]) for answer in answers]).concat()

    def update_actor(self, data: TensorDict) -> TensorDict:
        self._send(data, "rank_update")
        return tu.get_tensordict({}, non_tensor_dict={"metrics": {"mfu": 0.0}})

    def _send(self, data: TensorDict, command: str) -> list[dict[str, Any]]:
        answers = []
        for number, share in enumerate(BatchData(data).chunk(self._place.cluster.ranks)):
            path, size = self._place.store.put(share)
            self._place.meter.sent(size)
            with self._place.meter.paused():
                answers.append(self._rank(command, path=path, rank=number))
        return answers


class ArrayWorker(Worker):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._held = [HeldRows() for _ in range(place.cluster.ranks)]
        use_fast_micro_batches()

    def requests(self, path: str) -> dict[str, Any]:
        self.place.meter.begin("unpack requests")
        self.place.store.get(path)
        self.place.meter.pause()
        return {}

    def reply(self, worker: int) -> dict[str, Any]:
        inputs, place = self.place.inputs, self.place
        paths = []
        for group in range(worker, len(inputs.kind), place.cluster.workers):
            prompt = np.array(inputs.prompt(group))
            rows = [int(row) for row in inputs.rows_of(group) if inputs.fate[row] != ENDED_BEFORE]
            members = [_trajectory(inputs, row, place.step - 1, prompt) for row in rows]
            output = RolloutOutput(_group_id(inputs, group), members)
            place.meter.begin("text figures")
            describe(output, _CHAT)
            place.meter.begin("pack the reply")
            path, size = place.store.put(RequestResult(output, 1.0))
            place.meter.sent(size)
            place.meter.pause()
            paths.append(path)
        path, size = place.store.put(paths)
        return {"path": path, "size": size}

    def rank_rows(self, path: str, rank: int) -> dict[str, Any]:
        """Unpacks a rank's rows and keeps them."""
        data = self._share(path)
        self.place.meter.begin("hold rows")
        self._held[rank].hold(data)
        self.place.meter.pause()
        return {}

    def rank_log_probs(self, path: str, rank: int) -> dict[str, Any]:
        data = self._share(path)
        self.place.meter.begin("micro-batch search, log-probs")
        rows = self._held[rank].complete(data)
        self._cut(rows)
        self.place.meter.pause()
        ids = rows["input_ids"]
        # An output is about the next token; the last one of a row is about none.
        values = torch.from_numpy(trainer_values())[ids.values().roll(-1)]
        columns = {
            "log_probs": torch.nested.nested_tensor_from_jagged(-values, offsets=ids.offsets()),
            "entropy": torch.nested.nested_tensor_from_jagged(values, offsets=ids.offsets()),
        }
        output = tu.get_tensordict(columns, non_tensor_dict={"metrics": {"mfu": 0.0}})
        self.place.meter.begin("pack log-probs")
        path, size = self.place.store.put(responses_only(output, rows))
        self.place.meter.sent(size)
        self.place.meter.pause()
        return {"path": path, "size": size}

    def rank_update(self, path: str, rank: int) -> dict[str, Any]:
        data = self._share(path)
        self.place.meter.begin("micro-batch search, update")
        rows = self._held[rank].complete(data)
        self._held[rank].release(data)
        for mini_batch in tu.chunk_tensordict(rows, self.place.cluster.updates):
            self._cut(mini_batch)
        self.place.meter.pause()
        return {}

    def _share(self, path: str) -> TensorDict:
        self.place.meter.begin("unpack a share")
        data = self.place.store.get(path)
        self.place.meter.pause()
        return data

    def _cut(self, data: TensorDict) -> None:
        tokens = self.place.cluster.micro_batch_tokens
        tu.assign_non_tensor(data, use_dynamic_bsz=True, max_token_len_per_gpu=tokens)
        prepare_micro_batches(data)


def _prompt_tokens(messages: tuple[dict[str, str], ...]) -> int:
    """In place of a tokenizer: what counting with one takes is not measured."""
    return sum(len(message["content"]) for message in messages) // 5


def _group_id(inputs: Inputs, group: int) -> str:
    return f"p{group}/{STAGES[inputs.stage_of[group]]}/0"


def _trajectory(
    inputs: Inputs, row: int, version: int, prompt: np.ndarray, before: bool = False
) -> Trajectory:
    """A row as the rollout worker returns it; `before`: as it was when its first segment was full.

    Args:
        prompt: the array that all sequences of its group have.
    """
    group = int(inputs.group_of[row])
    where = inputs.row(row)
    paused = before or inputs.fate[row] == PAUSES
    half = int(inputs.paused_at[row])
    if paused:
        where = slice(where.start, where.start + half)
    length = where.stop - where.start
    continued = inputs.kind[group] == CONTINUED and inputs.fate[row] != ENDED_BEFORE and not paused
    old = before or inputs.fate[row] == ENDED_BEFORE
    role = STAGES[inputs.stage_of[group]].partition("_")[0]
    text = "" if paused else inputs.text(row)
    final = text[-len(text) // 10 :].strip()
    cut = length >= inputs.sizes.longest
    sequence = Sequence(
        role,
        prompt,
        np.array(inputs.tokens[where]),
        np.array(inputs.log_probs[where]),
        versions=((half, version - 1), (length, version)) if continued else ((length, version - old),),
    )
    return Trajectory(
        f"{_group_id(inputs, group)}#{inputs.number[row]}",
        [sequence],
        FinishReason.PAUSED if paused else FinishReason.LENGTH if cut else FinishReason.STOP,
        text=text,
        final_text=final,
        reward=None if paused else _reward(role, float(inputs.reward[row]), final),
    )


def _reward(role: str, reward: float, final: str) -> RewardResult:
    if role == VERIFIER:
        return RewardResult(reward, {"verdict": Verdict.WRONG.value, "report": final})
    return RewardResult(reward, {"answer": "42"})


def _request(inputs: Inputs, group: int, step: int) -> RolloutRequest:
    """One group's prompt as messages."""
    stage = STAGES[inputs.stage_of[group]]
    role, text = stage.partition("_")[0], inputs.prompt_text(group)
    problem = Problem(f"p{group}", text[:800], "42", "synthetic")
    messages: tuple[dict[str, str], ...] = ({"role": "user", "content": text},)
    if role == VERIFIER:
        messages = MathPrompts().verifier(problem, text)
    elif role == CORRECTOR:
        messages = MathPrompts().corrector(problem, text[: len(text) // 2], text[len(text) // 2 :])
    first = role == SOLVER
    return RolloutRequest(
        group_id=_group_id(inputs, group),
        problem=problem,
        stage=stage,
        role=role,
        messages=messages,
        n=int(inputs.size[group]),
        inputs={} if first else {"solution": text, "solution_reward": 0.0},
        parent_id=None if first else f"p{group}/before/0#0",
        created_step=step,
    )


def _state(inputs: Inputs, scheduler: Scheduler, step: int) -> dict[str, Any]:
    """A scheduler's state after `step` in which all groups wait, some of them begun."""
    state = SchedulerState(step=step, next_order=len(inputs.kind))
    for group in range(len(inputs.kind)):
        item = _request(inputs, group, step)
        name, problem = item.group_id, item.problem
        begins = item.role == SOLVER
        state.problems[problem.problem_id] = ProblemState(
            problem, group, item.stage, {name: item}, begins=begins
        )
        state.problem_of[name] = problem.problem_id
        state.ready_step[name] = step + 1
        if inputs.kind[group] != CONTINUED:
            continue
        prompt = np.array(inputs.prompt(group))
        members = {}
        for row in map(int, inputs.rows_of(group)):
            before = inputs.fate[row] != ENDED_BEFORE
            members[int(inputs.number[row])] = _trajectory(inputs, row, step, prompt, before=before)
        describe(RolloutOutput(name, list(members.values())), _CHAT)  # as the worker of the round did
        state.pending[name] = PendingGroup(members, in_flight=False)
    stages = [[stage.name, stage.role] for stage in scheduler.method.stages(scheduler.method.config)]
    return {
        "mode": scheduler.mode.value,
        "stages": stages,
        "state": state.to_plain(),
    }


driver, worker = ArrayDriver, ArrayWorker
