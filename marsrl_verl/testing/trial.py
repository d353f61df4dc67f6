"""The start-up trial: one problem goes through a method on scripted answers, before anything starts.

Prompts, chat template, requests, workflows, schedule and credit are real; no model, tool, judge or
endpoint is called. The results are compared with what the method declares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, observe_step, trained_rows
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.policy import PolicySet
from marsrl_verl.core.request import Message, Problem, RolloutRequest, Sampling
from marsrl_verl.core.rows import ENTROPIES, OLD_LOG_PROBS, REF_LOG_PROBS, STEP_COLUMNS, Rows
from marsrl_verl.core.schedule import StepView
from marsrl_verl.core.scheduler import Mode, Scheduler, StepResult
from marsrl_verl.core.sequence import (
    RECORDED_ENTROPIES,
    RECORDED_LOG_PROBS,
    TRAINER_LOG_PROBS,
    TokenIds,
    token_ids,
)
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.evaluation.advantages import set_advantages
from marsrl_verl.evaluation.runs import Call, Evaluation, Runs
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.evaluation.watch import step_facts
from marsrl_verl.reporting.files import to_json
from marsrl_verl.reporting.rollout_log import evaluation_lines, step_lines
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.engine import LocalEngine
from marsrl_verl.rollout.generation import Completion, Decoding
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.testing.bounds import GroupCounts, time_limit
from marsrl_verl.testing.client import asked_messages

GROUP_SIZE = 2
"""Responses of each group: one is rewarded, the other is not."""
TIME_LIMIT = 60.0
"""Seconds; a trial takes one or two."""
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """Everything that a trial is run with."""

    cls: type[Method]
    config: Any
    """The method's settings."""
    prompts: Any
    """The object of `marsrl.prompts`."""
    chat: ChatTokenizer
    sampling: Mapping[str, Sampling]
    """Sampling settings by role."""
    policies: PolicySet
    settings: Any
    """The `marsrl` node."""
    problem: Problem
    problems: int
    """Number in a step, as configured."""

    @property
    def frozen(self) -> dict[str, str]:
        """The policies that are not trained, by role."""
        found = {role: self.policies.of(role) for role in self.cls.roles}
        return {role: policy.name for role, policy in found.items() if not policy.trained}


@dataclass(slots=True)
class Trial:
    """Results of a trial."""

    groups: list[Group] = field(default_factory=list)
    """All that were completed; empty where there were too many."""
    too_many: str | None = None
    """Message about a stage with more groups than it declares."""
    max_rows: dict[str, int] = field(default_factory=dict)
    """Most trained sequences of a response, by stage."""
    error: BaseException | None = None
    """Error that the method, its prompts, schedule or credit raised."""

    @property
    def reached(self) -> set[str]:
        """Stages with a completed group."""
        return {group.request.stage for group in self.groups}

    def members(self) -> Iterator[tuple[Group, Trajectory]]:
        """Every trajectory, with its group."""
        for group in self.groups:
            for one in group.trajectories:
                yield group, one


@dataclass
class _Script:
    """Implements `GenerationClient` and `AnswerSource`: a method's scripted answers, or messages of full
    length."""

    trial: TrialSettings
    full: bool
    asked: dict[str, RolloutRequest] = field(default_factory=dict)
    said: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Messages by trajectory and role."""

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        return [self._completion(*one, decoding) for one in asked_messages(name, self.asked, n)]

    def _completion(self, item: RolloutRequest, role: str, k: int, decoding: Decoding) -> Completion:
        text = self._text(item, role, k)
        chat, finish = self.trial.chat, FinishReason.STOP
        end = [chat.tokenizer.eos_token_id] if chat.tokenizer.eos_token_id is not None else []
        ids, most = chat.tokenizer.encode(text, add_special_tokens=False), decoding.max_tokens - len(end)
        if self.full and ids:
            ids = (ids * (most // len(ids) + 1))[:most]
        ids = [*ids, *end]
        stop = next((one for one in decoding.stop if one in text), None)
        if len(ids) > decoding.max_tokens:
            ids, finish, stop = ids[: decoding.max_tokens], FinishReason.LENGTH, None
        return Completion(token_ids(ids), np.full(len(ids), -1.0, np.float32), finish, stop, 0)

    def _text(self, item: RolloutRequest, role: str, k: int) -> str:
        whose = f"{item.group_id}#{k}", role
        self.said[whose] += 1
        return self.trial.cls.trial(role, k, self.said[whose] - 1)[0]

    async def answer(
        self,
        request: RolloutRequest,
        k: int,
        messages: Sequence[Message],
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
    ) -> ChatAnswer:
        return ChatAnswer(self._text(request, request.role, k))


class _NoCalls:
    """Implements `TurnParser`: nothing is called."""

    stop: tuple[str, ...] = ()
    opening: tuple[str, ...] = ()

    async def calls(self, turn: TokenIds, schemas: Sequence[Mapping[str, Any]]) -> list[Any]:
        return []


@dataclass(frozen=True, slots=True)
class _Rendered:
    """Implements `TemplateBuilder` by rendering the whole chat: right in length, if not to the token."""

    chat: ChatTokenizer

    def merge(
        self,
        previous: list[dict[str, Any]],
        updated: list[dict[str, Any]],
        tail: list[int],
        tools: list[dict[str, Any]],
    ) -> list[int]:
        return [*tail, *self.chat.prompt_ids(updated[len(previous) :], tools)]


def run_trial(trial: TrialSettings, *, full: bool = False) -> Trial:
    """One problem through all stages that the scripted answers reach.

    Args:
        trial: what is run.
        full: messages have the full length that is left for them.
    """
    found, script = Trial(), _Script(trial, full)
    try:
        with time_limit(TIME_LIMIT, "the trial"):
            _run(trial, script, found)
    except Exception as error:  # the user's: told with its line
        found.error = error
    return found


def _run(trial: TrialSettings, script: _Script, found: Trial) -> None:
    method = trial.cls(trial.config, _tools(trial))
    scheduler = Scheduler(method, Mode.SEQUENTIAL)
    engine = _engine(trial, script)
    counts = GroupCounts(method, trial.problems)
    scheduler.start_step(1, [trial.problem])
    while requests := scheduler.next_round():
        found.too_many = counts.add(requests)
        if found.too_many is not None:
            return
        script.asked |= {item.group_id: item for item in requests}
        scheduler.absorb(engine.generate(requests, trial.sampling))
        _probe(method, scheduler.completed_stages())
    result = scheduler.finish_step(last=True)
    found.groups = result.completed
    columns = [name for name in method.credit.loss(trial.config).columns if name not in STEP_COLUMNS]
    rows = Rows.of(result.trained, trained_rows(method, result.trained, 1), columns)
    for (group, _), count in Counter((one.group, one.trajectory) for one in rows.refs).items():
        stage = rows.groups[group].request.stage
        found.max_rows[stage] = max(count, found.max_rows.get(stage, 0))
    observe_step(method, StepView(rows, result.ended, result.deferred))
    if rows.refs:
        _credit(method, rows)
    _report(trial.cls, method, result, updated=bool(rows.refs))
    continued = trial.cls(trial.config, _tools(trial))
    continued.load_state_dict(method.state_dict())
    continued.schedule.load_state_dict(method.schedule.state_dict())


def _report(cls: type[Method], method: Method, result: StepResult, *, updated: bool) -> None:
    """Produces the log lines, metrics and warnings of a step."""
    for line in step_lines(result.step, result.completed, method.record):
        to_json(line)
    training_metrics(result.completed, cls)
    step_facts(result, cls, frozenset(), due=True, updated=updated)


def run_evaluation_trial(trial: TrialSettings, evaluation: Evaluation) -> Counter[str]:
    """Sequences by role that one run of an evaluation takes."""
    with time_limit(TIME_LIMIT, "the trial of the evaluation"):
        return _run_evaluation(trial, evaluation)


def _run_evaluation(trial: TrialSettings, evaluation: Evaluation) -> Counter[str]:
    run = evaluation.begin(trial.problem, 0, "trial-evaluation", 0)
    script = _Script(trial, False)
    engine = _engine(trial, script)
    counts: Counter[str] = Counter()
    course = evaluation.program(run)
    item: RolloutRequest | None = next(course, None)
    while item is not None:
        script.asked[item.group_id] = item
        (output,) = engine.generate([item], trial.sampling)
        (one,) = output.trajectories
        run.calls.append(Call(item, one))
        counts.update([sequence.role for sequence in one.sequences] or [item.role])
        try:
            item = course.send(one)
        except StopIteration:
            item = None
    if not run.skipped:
        runs = Runs("trial", [run])
        for line in evaluation_lines(0, runs, evaluation.record):
            to_json(line)
        evaluation.derived(evaluation.observations(runs), _CONFIDENCE)
        evaluation.effort(runs, _CONFIDENCE)
    return counts


def _credit(method: Method, rows: Rows) -> None:
    """Advantages and masks, with made-up numbers of the trainer's passes."""
    names = (OLD_LOG_PROBS, REF_LOG_PROBS, ENTROPIES)
    rows.columns |= {name: np.zeros(rows.tokens, dtype=np.float32) for name in names}
    set_advantages(rows, method.credit)


def _tools(trial: TrialSettings) -> MethodTools:
    return MethodTools(
        prompts=trial.prompts,
        tokenizer=trial.chat.tokenizer,
        problems=trial.problems,
        policies={role: trial.policies.of(role).name for role in trial.cls.roles},
        frozen_roles=frozenset(trial.frozen),
        settings=trial.settings,
    )


def _engine(trial: TrialSettings, script: _Script) -> LocalEngine:
    async def score(item: RolloutRequest, members: Sequence[Trajectory]) -> list[RewardResult]:
        found = []
        for one in members:
            number = script.said[one.trajectory_id, item.role] - 1
            _, info = trial.cls.trial(item.role, one.number, max(0, number))
            found.append(RewardResult(float(one.number % 2 == 0), info))
        return found

    runner = RolloutRunner(
        script,
        trial.chat,
        score,
        policies=trial.policies,
        sources=dict.fromkeys(trial.frozen.values(), script),
        template_builder=lambda: _Rendered(trial.chat),
        turn_parser=lambda name: _NoCalls(),
        settings=trial.settings,
    )
    return LocalEngine(runner)


def _probe(method: Method, groups: Sequence[Group]) -> None:
    """Annotates made-up numbers in place of those of the trainer's pass."""
    for group in groups:
        for probe in method.probes(group.request.stage):
            names = [TRAINER_LOG_PROBS, RECORDED_LOG_PROBS, *probe.outputs]
            names += [RECORDED_ENTROPIES] if probe.entropies else []
            for one in (one for each in group.trajectories for one in each.sequences):
                made = np.linspace(0.0, 1.0, len(one), dtype=np.float32)
                one.annotations = {**one.annotations, **dict.fromkeys(names, made)}
