"""Drives the project's classes for the golden traces, and reads what a step did into plain data.

This module alone knows the classes: where they change, it is ported, and the traces stay. The names in a
trace are those of the tables here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scripted_answers as scripted
from omegaconf import OmegaConf
from scenarios import RANKS, SEED, Scenario
from trace_files import ENDINGS, digest, spans

from marsrl_verl.algos.prompts import RolePrompts
from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.batching import optimizer_updates
from marsrl_verl.config.schema import MarsRLConfig, read_settings
from marsrl_verl.core.algorithm import Algorithm
from marsrl_verl.core.method import MethodTools
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.scheduler_state import EndReason
from marsrl_verl.core.scripted import Reply, ScriptedEngine, score_by_box
from marsrl_verl.core.step_result import StepResult
from marsrl_verl.core.types import (
    SOLVER,
    FinishReason,
    Group,
    Marks,
    Outcome,
    Problem,
    Sample,
    SamplingSettings,
    StageInput,
    is_correct,
)
from marsrl_verl.evaluation.credit_metrics import credit_metrics
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.verl_adapter.arranged_batch import BatchPlan, arranged_batch
from marsrl_verl.verl_adapter.batch import training_rows
from marsrl_verl.verl_adapter.components import sampling_settings
from marsrl_verl.verl_adapter.generation import Generation, Round

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
    EndReason.NO_INPUTS: "no_inputs",
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
    for role in ("solver", "verifier", "corrector"):
        limits = {"max_new_tokens": scenario.new_tokens, "max_prompt_tokens": 10_000}
        OmegaConf.update(node, f"roles.{role}", limits)
        OmegaConf.update(node, f"reward.{role}.target", "unused")  # the scripted engine scores
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


class ByteTokenizer:
    """A token is a byte."""

    def decode(self, ids: list[int], **_options: Any) -> str:
        return bytes(ids).decode(errors="replace")


def prompt_tokens(messages: tuple[dict[str, str], ...]) -> int:
    """As long as the scripted engine's prompt is."""
    return len("\n".join(f"{one['role']}: {one['content']}" for one in messages).encode())


def build_method(scenario: Scenario, settings: MarsRLConfig) -> Algorithm:
    """The method of the settings, as the trainer builds it."""
    limited = settings.model_copy(deep=True)
    limited.run.seed = SEED
    limited.roles["solver"].max_prompt_tokens = scenario.prompt_limit
    limited.roles["corrector"].max_prompt_tokens = 2 * scenario.prompt_limit
    tools = MethodTools(ShortPrompts(), ByteTokenizer(), prompt_tokens, scenario.problems)
    return method_class(settings.algo.name).from_settings(limited, tools)


def build_scheduler(method: Algorithm, settings: MarsRLConfig) -> Scheduler:
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


def make_problem(number: int) -> Problem:
    return Problem(f"p{number}", scripted.problem_question(number), scripted.problem_truth(number))


# --- the engine -------------------------------------------------------------------------------


class GoldenEngine(ScriptedEngine):
    """The scripted engine with log-probabilities, graders that fail and, if wanted, an external Solver."""

    def __init__(self, scenario: Scenario, order_seed: int | None) -> None:
        super().__init__(self._reply, seed=order_seed, scorer=self._score)
        self.scenario = scenario

    def start(self, inputs: list[StageInput], sampling: dict[str, SamplingSettings]) -> SimpleNamespace:
        """A round, answered by the weights that the engine has now."""
        samples = [self._completed(sample, inputs) for sample in self.generate(inputs, sampling)]
        return SimpleNamespace(wait=lambda: Round(samples, 0.0))

    def _reply(self, item: StageInput, k: int) -> Reply:
        text, ending = scripted.answer(
            self.scenario.world,
            scripted.Question(
                group=item.group_id,
                problem=item.problem.problem_id,
                role=item.role,
                number=k,
                truth=item.problem.ground_truth,
                solution_right=None if item.solution_reward is None else is_correct(item.solution_reward),
                beginning="" if item.prefix is None else bytes(item.prefix.response_ids).decode(),
            ),
        )
        return Reply(text, FINISH[ending])

    def _score(self, item: StageInput, sample: Sample) -> Outcome:
        outcome = score_by_box(item, sample)
        if scripted.is_graded(self.scenario.world, sample.sample_id):
            return outcome
        return replace(outcome, reward=0.0, graded=False, error="the scripted grader failed")

    def _completed(self, sample: Sample, inputs: list[StageInput]) -> Sample:
        role = next(item.role for item in inputs if item.group_id == sample.group_id)
        if self.scenario.external_solver and role == SOLVER:
            return Sample(
                sample.sample_id,
                sample.group_id,
                [],
                [],
                [],
                sample.finish_reason,
                sample.text,
                sample.final_text,
                outcome=sample.outcome,
                external=True,
            )
        sample.rollout_log_probs = [
            scripted.log_prob(token, at, version)
            for at, (token, version) in enumerate(
                zip(sample.response_ids, sample.token_versions, strict=True)
            )
        ]
        return sample


# --- the trainer's loop -----------------------------------------------------------------------


class GoldenRun:
    """A run of a scenario, step by step, in the order of the trainer's loop.

    Args:
        scenario: what is run.
        order_seed: of the order in which samples come back; None: that of the inputs.
    """

    def __init__(self, scenario: Scenario, order_seed: int | None) -> None:
        self.scenario, self.order_seed = scenario, order_seed
        self.settings = settings_of(scenario)
        self.step, self.next_problem = 0, 0
        self.rounds: dict[int, list[list[str]]] = {}
        """By step, what the engine was asked."""
        self._build()

    def _build(self) -> None:
        self.method = build_method(self.scenario, self.settings)
        self.scheduler = build_scheduler(self.method, self.settings)
        self.engine = GoldenEngine(self.scenario, self.order_seed)
        self.generation = Generation(
            self.scheduler,
            SimpleNamespace(start=self._start_round),
            sampling_settings(self.settings),
            before_round=self._sync,
            after_round=self._mark,
        )

    def take_step(self, *, last: bool = False) -> dict[str, Any]:
        """One training step; what it did as a step of the trace."""
        self.step += 1
        self._open(self.step)
        counts = self.generation.finish()
        result = self.scheduler.finish_step(last=last)
        if self.settings.pipeline.overlap == "one_step" and not last:
            self._open(self.step + 1)
            self.generation.start_round()
        credit = self.method.credit(result.trained)
        rows = training_rows(result.trained, credit)
        metrics = self.method.observe_step(
            result.trained,
            len(rows),
            sum(end.reason is EndReason.FINISHED for end in result.ended),
            ended_problems=sum(end.reason is not EndReason.DROPPED for end in result.ended),
            held_groups=result.held,
        )
        return {
            "step": self.step,
            "rounds": self.rounds.pop(self.step, []),
            "completed": [read_completed(group) for group in result.completed],
            "trained": [read_trained(group) for group in result.trained],
            **self._read_batch(rows, result),
            "ended": [[end.problem_id, end.stage, ENDED[end.reason]] for end in result.ended],
            "counts": {
                "rounds": counts.rounds,
                "samples": counts.samples,
                "tokens": counts.tokens,
                "continued_tokens": counts.continued_tokens,
                **read_pools(result),
            },
            "metrics": {
                **metrics,
                **({**credit_metrics(credit), **training_metrics(result.completed)} if last else {}),
            },
        }

    def drop_rest(self) -> dict[str, Any]:
        """What the end of a run makes of everything that waits."""
        dropped = self.scheduler.drop_waiting()
        self.scheduler.start_step(self.step + 1, [])
        ended = self.scheduler.finish_step(last=True).ended
        return {
            "dropped": [item.group_id for item in dropped],
            "ended": [[end.problem_id, end.stage, ENDED[end.reason]] for end in ended],
        }

    def reload(self) -> None:
        """Save everything as a checkpoint does, and go on with fresh objects."""
        self.generation.collect()
        saved = json.dumps(
            {
                "scheduler": self.scheduler.state_dict(),
                "method": self.method.state_dict(),
                "generation": self.generation.state_dict(),
            }
        )
        self._build()
        state = json.loads(saved)
        self.scheduler.load_state_dict(state["scheduler"])
        self.method.load_state_dict(state["method"])
        self.generation.load_state_dict(state["generation"])

    def _open(self, step: int) -> None:
        if self.scheduler.open_step == step:
            return
        wanted = self.method.problems_per_step(self.scenario.problems)
        if self.scheduler.waiting_problems() >= wanted:
            wanted = 0
        problems = [make_problem(self.next_problem + at) for at in range(wanted)]
        self.next_problem += wanted
        self.scheduler.start_step(step, problems)

    def _sync(self) -> None:
        self.engine.policy_version = self.step - 1

    def _start_round(self, inputs: list[StageInput], sampling: dict[str, SamplingSettings]) -> Any:
        step = self.scheduler.open_step
        assert step is not None
        self.rounds.setdefault(step, []).append([read_request(item) for item in inputs])
        return self.engine.start(inputs, sampling)

    def _mark(self) -> None:
        """What the trainer's forward pass finds between two rounds."""
        for group in self.scheduler.unsettled():
            if group.input.stage in self.method.marked_stages():
                for sample in group.samples:
                    if sample.marks is None and sample.response_ids:
                        mark(self.method, sample, self.step - 1)

    def _read_batch(self, rows: list[Any], result: StepResult) -> dict[str, Any]:
        if not rows:
            return {"updates": 0, "padding rows": 0, "roles": {}, "rows": []}
        updates = optimizer_updates(self.settings.pipeline, len(rows))
        plan = BatchPlan(RANKS, updates, SEED, self.step, self.settings.training.share_prefixes)
        batch = arranged_batch(rows, plan, _verl_config(), SimpleNamespace(pad_token_id=0))
        samples = {one.sample_id: one for group in result.trained for one in group.samples}
        padding = batch.non_tensor_batch["is_padding"]
        return {
            "updates": updates,
            "padding rows": int(padding.sum()),
            "roles": read_roles(batch),
            "rows": [
                read_row(batch, at, _part(at, len(batch), updates), samples)
                for at in range(len(batch))
                if not padding[at]
            ],
        }


def mark(method: Algorithm, sample: Sample, version: int) -> None:
    """Set what the trainer under these weights would find in a response."""
    ids, versions = sample.response_ids, sample.token_versions
    steps = method.cut(ids)
    found = tuple(scripted.trainer_log_prob(token, at, version) for at, token in enumerate(ids))
    entropies = tuple(scripted.entropy(token, at) for at, token in enumerate(ids))
    parts = [ids[steps.start(step) : steps.ends[step]] for step in range(len(steps))]
    sample.trainer_log_probs = [
        value if sampled_by == version else math.nan
        for value, sampled_by in zip(found, versions, strict=True)
    ]
    sample.marks = Marks(
        steps,
        found,
        scripted.influence(parts, steps.thinking) if method.influence_delta() else (),
        entropies if method.marks_entropies() else (),
    )


def _verl_config() -> Any:
    actor = {"use_dynamic_bsz": True, "ppo_micro_batch_size_per_gpu": 1}
    return OmegaConf.create({"actor_rollout_ref": {"actor": actor, "rollout": {"temperature": 1.0}}})


def _part(at: int, rows: int, updates: int) -> str:
    """The rank and the mini-batch to which verl gives a row of a batch."""
    share = rows // RANKS
    return f"{at // share}/{at % share // (share // updates)}"


# --- reading ----------------------------------------------------------------------------------


def read_request(item: StageInput) -> str:
    """A decoded request: with the sample from which it was made or the numbers of the samples that go on."""
    if item.unfinished:
        numbers = " ".join(sample.sample_id.rpartition("#")[2] for sample in item.unfinished)
        return f"{item.group_id} continues {numbers}"
    return f"{item.group_id} from {item.parent_id}" if item.parent_id else item.group_id


def read_completed(group: Group) -> list[Any]:
    """A row of the completed groups by the columns `COLUMNS["completed"]`."""
    endings = "".join(FINISH_LETTERS[sample.finish_reason] for sample in group.samples)
    rewards = " ".join(
        f"{sample.reward:g}" if sample.outcome and sample.outcome.graded else "?" for sample in group.samples
    )
    tokens = [[*sample.prompt_ids, -1, *sample.response_ids] for sample in group.samples]
    texts = "\0".join(sample.final_text for sample in group.samples)
    return [
        group.input.group_id,
        endings,
        rewards,
        digest(np.array([token for one in tokens for token in (*one, -1)], np.int32)),
        digest(texts.encode()),
    ]


def read_trained(group: Group) -> list[Any]:
    """A row of the trained groups by the columns `COLUMNS["trained"]`."""
    numbers = [sample.sample_id.rpartition("#")[2] for sample in group.samples]
    before = sorted(int(name.rpartition("#")[2]) for name in group.trained_before)
    return [group.input.group_id, " ".join(numbers), " ".join(map(str, before))]


def read_pools(result: StepResult) -> dict[str, Any]:
    """What waits after the step; nothing is said of a pool that is empty."""
    pools = {
        **{f"waiting {stage}": count for stage, count in result.waiting.items()},
        **{f"oldest waiting {stage}": age for stage, age in result.oldest_waiting.items()},
        **{f"input age {stage}": age for stage, age in sorted(result.input_ages.items())},
        "in flight": result.in_flight,
        "unfinished": result.unfinished,
        "held": result.held,
        "stale": result.stale,
    }
    return {name: number for name, number in pools.items() if number}


def read_roles(batch: Any) -> dict[str, str]:
    """The roles of the batch's stages, which the samples' ids name."""
    names = batch.non_tensor_batch
    for sample_id, stage in zip(names["sample_id"], names["stage"], strict=True):
        assert sample_id.split("/")[1] == stage, f"sample {sample_id} is of stage {stage}"
    pairs = sorted(set(zip(names["stage"], names["role"], strict=True)))
    assert len(dict(pairs)) == len(pairs), f"a stage has two roles: {pairs}"
    return {str(stage): str(role) for stage, role in pairs}


def read_row(batch: Any, at: int, part: str, samples: Mapping[str, Sample]) -> list[Any]:
    """A row of the training batch by the columns `COLUMNS["rows"]`."""
    tensors, names = batch.batch, batch.non_tensor_batch
    width = tensors["prompts"].shape[1]
    attended = tensors["attention_mask"][at].bool()
    prompt = tensors["prompts"][at][attended[:width]].numpy().astype(np.int32)
    length = int(attended[width:].sum())
    sample_id = str(names["sample_id"][at])

    def column(name: str, kind: Any) -> Any:
        return tensors[name][at, :length].numpy().astype(kind)

    return [
        sample_id,
        part,
        length,
        digest(prompt),
        digest(column("responses", np.int32)),
        _runs(column("response_mask", np.int64)),
        digest(column("rollout_log_probs", np.float32)),
        _recorded(column("recorded_log_probs", np.float32)),
        _recorded(column("recorded_entropies", np.float32)),
        _runs(column("token_versions", np.int64)),
        float(samples[sample_id].reward),
        _runs(column("advantages", np.float64)),
    ]


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
