"""Drives the project's classes for the golden traces, and reads what a step did into plain data.

This module alone knows the classes: where they change, it is ported, and the traces stay. The names in a
trace are those of the tables here.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import scripted_answers as scripted
from omegaconf import OmegaConf
from scenarios import RANKS, SEED, Scenario
from trace_files import ENDINGS, digest, spans

from marsrl_verl.algos.marsrl.prompts import SOLVER, VERIFIER, RolePrompts
from marsrl_verl.algos.marsrl.verdict import VerdictReward
from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.batching import optimizer_updates
from marsrl_verl.config.schema import MarsRLConfig, read_settings
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import EndReason, Method, MethodTools, Probe, StepView
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling, segment_length
from marsrl_verl.core.rows import RESPONSE_MASK, ROLLOUT_LOG_PROBS, TOKEN_VERSIONS, Rows
from marsrl_verl.core.scheduler import Scheduler, StepResult
from marsrl_verl.core.scripted import Reply, ScriptedEngine, score_by_box
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, RECORDED_LOG_PROBS, TRAINER_LOG_PROBS
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory, is_correct
from marsrl_verl.evaluation.credit_metrics import credit_metrics
from marsrl_verl.evaluation.text_metrics import text_figures
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.verl_adapter.engine.batch import BatchPlan, PolicyBatch, arrange

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
    for role in method_class(node.algo.name).roles:
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


def build_method(scenario: Scenario, settings: MarsRLConfig) -> Method:
    """The method of the settings, as the trainer builds it."""
    limited = settings.model_copy(deep=True)
    limited.run.seed = SEED
    limited.roles["solver"].max_prompt_tokens = scenario.prompt_limit
    if "corrector" in limited.roles:
        limited.roles["corrector"].max_prompt_tokens = 2 * scenario.prompt_limit
    tools = MethodTools(ShortPrompts(), ByteTokenizer(), prompt_tokens, scenario.problems)
    return method_class(settings.algo.name).from_settings(limited, tools)


def build_scheduler(method: Method, settings: MarsRLConfig) -> Scheduler:
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

    def generate(self, requests: list[RolloutRequest], sampling: dict[str, Sampling]) -> list[RolloutOutput]:
        """A round, answered by the weights that the engine has now."""
        outputs = super().generate(requests, sampling)
        for output in outputs:
            for one in output.trajectories:
                self._complete(one)
        return outputs

    def _reply(self, item: RolloutRequest, k: int) -> Reply:
        solution_reward = item.inputs.get("solution_reward")
        text, ending = scripted.answer(
            self.scenario.world,
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

    def _score(self, item: RolloutRequest, one: Trajectory) -> RewardResult:
        if item.role == VERIFIER:
            result = VerdictReward().score(ScoreRequest.of(item, one))
        else:
            result = score_by_box(item, one)
        if scripted.is_graded(self.scenario.world, one.trajectory_id):
            return result
        return replace(result, value=0.0, graded=False, error="the scripted grader failed")

    def _complete(self, one: Trajectory) -> None:
        sequence = one.sequence
        external = self.scenario.external_solver and sequence.role == SOLVER
        figures = asdict(text_figures([] if external else sequence.response_ids, one.text))
        one.figures = {name: value for name, value in figures.items() if value is not None}
        if external:
            one.sequences = []
            return
        pairs = zip(sequence.response_ids.tolist(), sequence.token_versions().tolist(), strict=True)
        found = [scripted.log_prob(token, at, version) for at, (token, version) in enumerate(pairs)]
        sequence.rollout_log_probs = np.array(found, dtype=np.float32)


# --- the trainer's loop -----------------------------------------------------------------------


class GoldenRun:
    """A run of a scenario, step by step, in the order of the trainer's loop.

    Args:
        scenario: what is run.
        order_seed: of the order in which groups come back; None: that of the requests.
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
        self.sampling = sampling_of(self.settings)
        self.counts: Counter[str] = Counter()
        """Of the step's rounds."""
        self.outputs: list[RolloutOutput] | None = None
        """Of a round that was started and not collected."""

    def take_step(self, *, last: bool = False) -> dict[str, Any]:
        """One training step; what it did as a step of the trace."""
        self.step += 1
        self._open(self.step)
        self._collect()
        while self._start_round():
            self._collect()
        counts, self.counts = self.counts, Counter()
        result = self.scheduler.finish_step(last=last)
        if self.settings.pipeline.overlap == "one_step" and not last:
            self._open(self.step + 1)
            self._start_round()
        batch = arrange(
            result.trained,
            self.method.select(result.trained, self.step),
            lambda policy: BatchPlan(
                RANKS, SEED, self.step, share_prefixes=self.settings.training.share_prefixes
            ),
            lambda rows: optimizer_updates(self.settings.pipeline, rows),
            (RECORDED_LOG_PROBS, RECORDED_ENTROPIES),
        )
        advantages = self.method.advantages(batch.rows)
        metrics = self.method.observe_step(StepView(batch.rows, result.ended, result.deferred))
        return {
            "step": self.step,
            "rounds": self.rounds.pop(self.step, []),
            "completed": [read_completed(group) for group in result.completed],
            "trained": [read_trained(group) for group in result.trained],
            **read_batch(batch.parts, advantages),
            "ended": [[end.problem_id, end.stage, ENDED[end.reason]] for end in result.ended],
            "counts": {
                **{name: counts[name] for name in ("rounds", "samples", "tokens", "continued_tokens")},
                **read_pools(result),
            },
            "metrics": {
                **metrics,
                **(
                    {
                        **credit_metrics(batch.rows, advantages),
                        **training_metrics(result.completed, type(self.method)),
                    }
                    if last
                    else {}
                ),
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
        self._collect()
        saved = pickle.dumps((self.scheduler.state_dict(), self.method.state_dict(), self.counts))
        self._build()
        scheduler, method, self.counts = pickle.loads(saved)
        self.scheduler.load_state_dict(scheduler)
        self.method.load_state_dict(method)

    def _open(self, step: int) -> None:
        if self.scheduler.open_step == step:
            return
        wanted = self.method.problems_per_step(self.scenario.problems)
        if self.scheduler.waiting_problems() >= wanted:
            wanted = 0
        problems = [make_problem(self.next_problem + at) for at in range(wanted)]
        self.next_problem += wanted
        self.scheduler.start_step(step, problems)

    def _start_round(self) -> bool:
        """Ask the engine for the step's next round; False when the step needs none."""
        requests = self.scheduler.next_round()
        if not requests:
            return False
        step = self.scheduler.open_step
        assert step is not None and self.outputs is None
        self.rounds.setdefault(step, []).append([read_request(item) for item in requests])
        self.counts["continued_tokens"] += sum(item.continued_tokens for item in requests)
        self.engine.policy_version = self.step - 1
        self.outputs = self.engine.generate(requests, self.sampling)
        return True

    def _collect(self) -> None:
        """Give the scheduler what the started round brought, and probe what is complete."""
        if self.outputs is None:
            return
        outputs, self.outputs = self.outputs, None
        members = [one for output in outputs for one in output.trajectories]
        self.scheduler.absorb(outputs)
        self.counts.update(rounds=1, samples=len(members), tokens=sum(one.new_tokens for one in members))
        for group in self.scheduler.completed_stages():
            for probe in self.method.probes(group.request.stage):
                for one in group.trajectories:
                    if one.tokens and TRAINER_LOG_PROBS not in one.sequence.annotations:
                        annotate(self.method, probe, one, self.step - 1)


def sampling_of(settings: MarsRLConfig) -> dict[str, Sampling]:
    """Token limits by role."""
    rounds = settings.pipeline.max_segments
    by_role = {}
    for role in method_class(settings.algo.name).roles:
        one = settings.roles[role]
        segment = None if rounds == 1 else segment_length(one.max_new_tokens, rounds)
        by_role[role] = Sampling(one.max_new_tokens, one.max_prompt_tokens, segment_tokens=segment)
    return by_role


def annotate(method: Any, probe: Probe, one: Trajectory, version: int) -> None:
    """Set what the trainer under these weights would find in a response: log-probs, entropies, and what the
    method measures, which is the influence of steps."""
    sequence = one.sequence
    ids = sequence.response_ids.tolist()
    found = np.array(
        [scripted.trainer_log_prob(token, at, version) for at, token in enumerate(ids)], np.float32
    )
    own = sequence.token_versions() == version
    sequence.annotations[TRAINER_LOG_PROBS] = found
    sequence.annotations[RECORDED_LOG_PROBS] = np.where(own, found, np.float32(math.nan))
    if probe.entropies:
        entropies = [scripted.entropy(token, at) for at, token in enumerate(ids)]
        sequence.annotations[RECORDED_ENTROPIES] = np.array(entropies, np.float32)
    for name in probe.outputs:
        steps = method.responses.steps(one)
        parts = [ids[steps.start(step) : steps.ends[step]] for step in range(len(steps))]
        by_step = np.array(scripted.influence(parts, steps.thinking), np.float32)
        sequence.annotations[name] = by_step[steps.step_ids()]


def _part(at: int, rows: int, updates: int) -> str:
    """The rank and the mini-batch to which verl gives a row of a batch."""
    share = rows // RANKS
    return f"{at // share}/{at % share // (share // updates)}"


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


def read_batch(parts: Iterable[PolicyBatch], advantages: np.ndarray) -> dict[str, Any]:
    """The batch of the only policy."""
    batches = list(parts)
    if not batches:
        return {"updates": 0, "padding rows": 0, "roles": {}, "rows": []}
    (batch,) = batches
    return {
        "updates": batch.updates,
        "padding rows": batch.padding,
        "roles": read_roles(batch.rows),
        "rows": [
            read_row(batch.rows, row, _part(slot, len(batch), batch.updates), advantages)
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


def read_row(rows: Rows, row: int, part: str, advantages: np.ndarray) -> list[Any]:
    """A row of the training batch by the columns `COLUMNS["rows"]`."""
    one, sequence = rows.trajectory(row), rows.sequence(row)

    def column(name: str) -> np.ndarray:
        return rows.columns[name][rows.slice(row)]

    return [
        one.trajectory_id,
        part,
        len(sequence),
        digest(sequence.prompt_ids),
        digest(sequence.response_ids),
        _runs(column(RESPONSE_MASK)),
        digest(column(ROLLOUT_LOG_PROBS)),
        _recorded(column(RECORDED_LOG_PROBS)),
        _recorded(column(RECORDED_ENTROPIES)),
        _runs(column(TOKEN_VERSIONS)),
        float(one.value),
        _runs(advantages[rows.slice(row)].astype(np.float64) * column(RESPONSE_MASK)),
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
