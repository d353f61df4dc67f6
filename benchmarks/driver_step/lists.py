"""The step with samples that hold lists and a batch that is padded to its longest rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from marsrl_verl.core.scheduler_state import EndReason, SchedulerState, Visit
from marsrl_verl.verl_adapter.arranged_batch import BatchPlan, arranged_batch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.protocol import BatchData
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
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
from marsrl_verl.algos.marsrl.method import MarsRL, PromptLimits
from marsrl_verl.algos.prompts import MathPrompts
from marsrl_verl.config.schema import OffPolicyConfig
from marsrl_verl.core.scheduler import STATE_VERSION, Mode, Scheduler
from marsrl_verl.core.types import (
    CORRECTOR,
    SOLVER,
    VERIFIER,
    FinishReason,
    Outcome,
    Problem,
    Sample,
    StageInput,
    Verdict,
)
from marsrl_verl.evaluation.credit_metrics import credit_metrics
from marsrl_verl.evaluation.pipeline_metrics import pipeline_metrics
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.reporting.run_folder import RunFolder
from marsrl_verl.rewards.failed_grades import GradeWatch, grade_warnings
from marsrl_verl.rollout.failed_round import RequestWatch
from marsrl_verl.settings.declaration import MasteredTokensConfig
from marsrl_verl.verl_adapter import checkpoint
from marsrl_verl.verl_adapter.batch import trained_samples, training_rows
from marsrl_verl.verl_adapter.generation import Round, RoundCounts
from marsrl_verl.verl_adapter.loss_inputs import (
    correct_off_policy,
    entropy_metrics,
    mask_mastered_tokens,
)
from marsrl_verl.verl_adapter.micro_batches import use_fast_partitions
from marsrl_verl.verl_adapter.recorded_rows import old_log_probs
from marsrl_verl.verl_adapter.trainer import RayMarsRLTrainer

_CONFIG = OmegaConf.create(
    {
        "actor_rollout_ref": {
            "actor": {
                "use_dynamic_bsz": True,
                "calculate_entropy": False,
                "entropy_coeff": 0.0,
                "ppo_epochs": 1,
                "data_loader_seed": 42,
                "shuffle": False,
            },
            "rollout": {"temperature": 1.0},
        }
    }
)
_TOKENIZER = SimpleNamespace(pad_token_id=0, eos_token_id=0)


class ListDriver(Driver):
    def set_up(self) -> None:
        place = self.place
        limits = PromptLimits(_prompt_tokens, {SOLVER: 32_768, VERIFIER: 32_768, CORRECTOR: 32_768})
        self.algorithm = MarsRL(MathPrompts(), seed=1, limits=limits)
        self.scheduler = Scheduler(self.algorithm, mode=Mode.PIPELINED)
        state = _state(place.inputs, self.scheduler, place.step - 1)
        self.scheduler.load_state_dict(state)
        self.scheduler.start_step(place.step, [])
        self.metrics: dict[str, float] = {}
        self.folder = RunFolder.create(place.folder / "run")
        self.requests, self.grades, self.counts = RequestWatch(), GradeWatch(), RoundCounts()

    def hand_out(self) -> None:
        place = self.place
        inputs = self.scheduler.next_round()
        self.counts.continued_tokens += sum(item.continued_tokens for item in inputs)
        self.roles = {one.group_id: one.role for one in inputs}
        self.sent = []
        for number in range(place.cluster.workers):
            path, size = place.store.put(inputs[number :: place.cluster.workers])
            place.meter.sent(size)
            self.sent.append(path)

    def receive(self, paths: list[str]) -> None:
        rounds: list[Round] = [self.place.store.get(path) for path in paths]
        samples = [sample for one in rounds for sample in one.samples]
        self.requests.look(samples)
        self.grades.look((self.roles[sample.group_id], sample) for sample in samples)
        self.round = Round(samples, max(one.seconds for one in rounds))

    def absorb(self) -> None:
        done = self.round
        del self.round
        self.scheduler.absorb(done.samples)
        self.counts.add(done)
        self.metrics |= self.counts.metrics()

    def finish_step(self) -> None:
        self.result = self.scheduler.finish_step()

    def keep_state(self) -> None:
        self.pools = {"scheduler": self.scheduler.state_dict()}

    def credit(self) -> None:
        result = self.result
        self.advantages = self.algorithm.credit(result.trained)
        self.rows = training_rows(result.trained, self.advantages)
        self.metrics |= self.algorithm.observe_step(
            result.trained,
            len(self.rows),
            sum(end.reason is EndReason.FINISHED for end in result.ended),
            ended_problems=len(result.ended),
            held_groups=result.held,
        )
        self.metrics |= credit_metrics(self.advantages)

    def build_batch(self) -> None:
        cluster = self.place.cluster
        plan = BatchPlan(ranks=cluster.ranks, updates=cluster.updates, seed=1, step=self.place.step)
        self.batch = arranged_batch(self.rows, plan, _CONFIG, _TOKENIZER)
        del self.rows

    def log_probs(self, rank: Call) -> None:
        ranks = _Ranks(self.place, rank)
        trainer: Any = SimpleNamespace(config=_CONFIG, actor_rollout_wg=ranks)

        self.place.meter.begin("send for log-probs")
        self.entropies, self.computed = old_log_probs(
            self.batch,
            lambda rows: RayPPOTrainer._compute_old_log_prob(trainer, rows)[0],
            ranks=self.place.cluster.ranks,
            multiple=1,
            reuse=False,
        )

    def loss_inputs(self) -> None:
        settings = MasteredTokensConfig()
        self.metrics |= entropy_metrics(self.batch, self.entropies)
        self.metrics |= mask_mastered_tokens(self.batch, self.entropies, settings)
        version = self.place.step - 1
        self.metrics |= correct_off_policy(self.batch, OffPolicyConfig(), version, self.computed)
        del self.entropies

    def update(self, rank: Call) -> None:
        trainer: Any = SimpleNamespace(config=_CONFIG, actor_rollout_wg=_Ranks(self.place, rank))
        RayMarsRLTrainer._update_actor(trainer, self.batch)

    def record(self) -> None:
        trained = {name: self.advantages[name] for name in trained_samples(self.batch)}
        path = self.folder.write_rollouts(self.place.step, self.result.completed)
        self.place.meter.sent(path.stat().st_size)
        path = self.folder.write_trained(self.place.step, trained)
        self.place.meter.sent(path.stat().st_size)

    def describe(self) -> None:
        completed = self.result.completed
        grade_warnings((group.input.role, sample) for group in completed for sample in group.samples)
        self.metrics |= training_metrics(completed) | pipeline_metrics(self.result)

    def save(self) -> None:
        state = {**self.pools, "algorithm": self.algorithm.state_dict(), "metrics": dict(self.metrics)}
        checkpoint.save_state(self.place.folder, state)
        self.place.meter.sent((self.place.folder / "marsrl.pt").stat().st_size)


class _Ranks:
    """verl's worker group: cuts data into the ranks' shares and packs them; rank after rank, since the store
    would not hold all shares on a small machine."""

    def __init__(self, place: Place, rank: Call) -> None:
        self._place, self._rank = place, rank

    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        answers = self._send(data, "rank_log_probs")
        self._place.meter.begin("merge log-probs")
        return BatchData([self._place.store.get(answer["path"]) for answer in answers]).concat()

    def update_actor(self, data: TensorDict) -> TensorDict:
        self._send(data, "rank_update")
        return tu.get_tensordict({}, non_tensor_dict={"metrics": {"mfu": 0.0}})

    def _send(self, data: TensorDict, command: str) -> list[dict[str, Any]]:
        answers = []
        for share in BatchData(data).chunk(self._place.cluster.ranks):
            path, size = self._place.store.put(share)
            self._place.meter.sent(size)
            with self._place.meter.paused():
                answers.append(self._rank(command, path=path))
        return answers


class ListWorker(Worker):
    def requests(self, path: str) -> dict[str, Any]:
        self.place.meter.begin("unpack requests")
        self.place.store.get(path)
        self.place.meter.pause()
        return {}

    def reply(self, worker: int) -> dict[str, Any]:
        inputs = self.place.inputs
        groups = range(worker, len(inputs.kind), self.place.cluster.workers)
        samples = [
            _sample(inputs, int(row), self.place.step - 1)
            for group in groups
            for row in inputs.rows_of(group)
            if inputs.fate[row] != ENDED_BEFORE
        ]
        self.place.meter.begin("pack the reply")
        path, size = self.place.store.put(Round(samples, 1.0))
        self.place.meter.sent(size)
        self.place.meter.pause()
        return {"path": path, "size": size}

    def rank_log_probs(self, path: str) -> dict[str, Any]:
        data = self._share(path)
        self.place.meter.begin("micro-batch search, log-probs")
        self._cut(data)
        self.place.meter.pause()
        ids = data["input_ids"]
        # An output is about the next token; the last one of a row is about none.
        values = torch.from_numpy(trainer_values())[ids.values().roll(-1)]
        offsets = ids.offsets().clone()  # else all of the share, a single storage, is packed with them
        columns = {
            "log_probs": torch.nested.nested_tensor_from_jagged(-values, offsets=offsets),
            "entropy": torch.nested.nested_tensor_from_jagged(values, offsets=offsets),
        }
        output = tu.get_tensordict(columns, non_tensor_dict={"metrics": {"mfu": 0.0}})
        self.place.meter.begin("pack log-probs")
        path, size = self.place.store.put(output)
        self.place.meter.sent(size)
        self.place.meter.pause()
        return {"path": path, "size": size}

    def rank_update(self, path: str) -> dict[str, Any]:
        data = self._share(path)
        self.place.meter.begin("micro-batch search, update")
        for mini_batch in tu.chunk_tensordict(data, self.place.cluster.updates):
            self._cut(mini_batch)
        self.place.meter.pause()
        return {}

    def _share(self, path: str) -> TensorDict:
        self.place.meter.begin("unpack a share")
        data = self.place.store.get(path)
        self.place.meter.pause()
        return data

    def _cut(self, data: TensorDict) -> None:
        use_fast_partitions()
        tokens = self.place.cluster.micro_batch_tokens
        tu.assign_non_tensor(data, use_dynamic_bsz=True, max_token_len_per_gpu=tokens)
        prepare_micro_batches(data)


def _prompt_tokens(messages: tuple[dict[str, str], ...]) -> int:
    """In place of a tokenizer: what counting with one takes is not measured."""
    return sum(len(message["content"]) for message in messages) // 5


def _group_id(inputs: Inputs, group: int) -> str:
    return f"p{group}/{STAGES[inputs.stage_of[group]]}/0"


def _sample(inputs: Inputs, row: int, version: int, before: bool = False) -> Sample:
    """A row as the rollout worker returns it; `before`: as it was when its first segment was full."""
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
    return Sample(
        sample_id=f"{_group_id(inputs, group)}#{inputs.number[row]}",
        group_id=_group_id(inputs, group),
        prompt_ids=inputs.prompt(group).tolist(),
        response_ids=inputs.tokens[where].tolist(),
        rollout_log_probs=inputs.log_probs[where].tolist(),
        finish_reason=FinishReason.SEGMENT if paused else FinishReason.LENGTH if cut else FinishReason.STOP,
        text=text,
        final_text=final,
        policy_version=version - old,
        segments=[(half, version - 1), (length, version)] if continued else [(length, version - old)],
        outcome=None if paused else _outcome(role, float(inputs.reward[row]), final),
    )


def _outcome(role: str, reward: float, final: str) -> Outcome:
    if role == VERIFIER:
        return Outcome(reward, verdict=Verdict.WRONG, report=final)
    return Outcome(reward, answer="42")


def _request(inputs: Inputs, group: int, step: int) -> StageInput:
    """One group's prompt as messages."""
    stage = STAGES[inputs.stage_of[group]]
    role, text = stage.partition("_")[0], inputs.prompt_text(group)
    problem = Problem(f"p{group}", text[:800], "42", "synthetic")
    solution = None if role == SOLVER else text
    messages: tuple[dict[str, str], ...] = ({"role": "user", "content": text},)
    if role == VERIFIER:
        messages = MathPrompts().verifier(problem, text)
    elif role == CORRECTOR:
        messages = MathPrompts().corrector(problem, text[: len(text) // 2], text[len(text) // 2 :])
    return StageInput(
        group_id=_group_id(inputs, group),
        problem=problem,
        stage=stage,
        stage_index=int(inputs.stage_of[group]),
        role=role,
        messages=messages,
        n=int(inputs.size[group]),
        parent_id=None if solution is None else f"p{group}/before/0#0",
        solution=solution,
        solution_reward=None if solution is None else 0.0,
        created_step=step,
    )


def _state(inputs: Inputs, scheduler: Scheduler, step: int) -> dict[str, Any]:
    """A scheduler's state after `step` in which all groups wait, some of them begun."""
    state = SchedulerState(step=step, next_order=len(inputs.kind))
    for group in range(len(inputs.kind)):
        item = _request(inputs, group, step)
        name = item.group_id
        visit = Visit(item.problem, group, item.stage_index, {name: item})
        state.visits[item.problem.problem_id] = visit
        state.owner[name] = item.problem.problem_id
        state.ready_step[name] = step + 1
        if inputs.kind[group] != CONTINUED:
            continue
        rows = [int(row) for row in inputs.rows_of(group)]
        ended = [row for row in rows if inputs.fate[row] == ENDED_BEFORE]
        state.arrived[name] = {int(inputs.number[row]): _sample(inputs, row, step) for row in ended}
        state.unfinished[name] = {
            int(inputs.number[row]): _sample(inputs, row, step - 1, before=True)
            for row in rows
            if row not in ended
        }
    stages = [[stage.name, stage.role] for stage in scheduler.algorithm.stages]
    return {
        "version": STATE_VERSION,
        "mode": scheduler.mode.value,
        "stages": stages,
        "state": state.to_plain(),
    }


driver, worker = ListDriver, ListWorker
