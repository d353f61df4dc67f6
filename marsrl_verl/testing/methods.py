"""Builds and runs methods on scripted answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, observe_step, trained_rows
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.prompts import target_of
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.rows import ADVANTAGES, ENTROPIES, OLD_LOG_PROBS, REF_LOG_PROBS, ROLLOUT_LOG_PROBS, Rows
from marsrl_verl.core.schedule import EpochMode, StepView
from marsrl_verl.core.scheduler import Mode, Scheduler, StepResult
from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput, Trajectory
from marsrl_verl.evaluation.advantages import set_advantages
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.context import RolloutContext
from marsrl_verl.rollout.engine import LocalEngine
from marsrl_verl.rollout.generation import Completion, Decoding
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.testing import bounds
from marsrl_verl.testing.bounds import GroupCounts
from marsrl_verl.testing.client import CharacterBuilder, CharacterTokenizer, ScriptedClient, asked_messages


@dataclass(frozen=True, slots=True)
class Turn:
    """A message that is requested."""

    role: str
    k: int
    """Number of the trajectory in its group."""
    number: int
    """Number of messages that the role has written in it before."""
    prompt: str
    """The chat so far, as text; without the part of the message that was said before a pause."""
    request: RolloutRequest
    """Request that began the trajectory: its `problem`, `stage`, `inputs`."""


Script = Callable[[Turn], str]
"""The whole message. A pure function: the same turn gives the same message."""
Score = Callable[[RolloutRequest, Trajectory], float]
"""The reward of a text for the role of the request."""

_BOX = re.compile(r"\\boxed\{([^{}]*)\}")
_SPOKEN = "<assistant>"


def answer_of(text: str) -> str:
    """The text in the last box, else the last word."""
    return (_BOX.findall(text) or text.split() or [""])[-1]


def right_answer(request: RolloutRequest, one: Trajectory) -> float:
    """1 where the answer is the reference."""
    return float(answer_of(one.final_text) == request.problem.ground_truth)


def additions(count: int) -> list[Problem]:
    """Small problems."""
    return [Problem(f"p{k}", f"{k}+1=?", str(k + 1), row=f"row{k}") for k in range(count)]


def build_method(
    cls: type[Method],
    prompts: Any = None,
    config: Any = None,
    *,
    seed: int = 1,
    limits: Mapping[str, int | None] | None = None,
    tokens: Callable[[Any], int] = len,
    policies: Mapping[str, str] | None = None,
    tokenizer: Any = None,
    **settings: Any,
) -> Any:
    """A method with some settings, the others at their defaults.

    Args:
        cls: its class.
        prompts: its wordings; None: those of its class.
        config: all settings; None: `settings`.
        seed: of its random choices.
        limits: longest prompts by role, as `tokens` counts them; None: prompts have any length.
        tokens: length of a chat.
        policies: by role.
        tokenizer: of the responses; None: the method has none.
        settings: by name.
    """
    config = _config(cls, config, settings)
    prompts = cls.Prompts() if prompts is None else prompts
    tools = MethodTools(
        prompts, tokens, limits or {}, tokenizer=tokenizer, seed=seed, policies=policies or {}
    )
    return cls(config, tools)


def _config(cls: type[Method], config: Any, settings: Mapping[str, Any]) -> Any:
    if config is not None and settings:
        raise TypeError(f"config has all settings already: set {', '.join(settings)} in it")
    return cls.Config(**{"name": cls.__name__, **settings}) if config is None else config


@dataclass(frozen=True, slots=True)
class StepRun:
    """Result of a step, and what it trained."""

    result: StepResult
    rows: Rows
    advantages: NDArray[np.float32]
    """(N,) as they are trained: 0 where a token is masked."""
    metrics: Mapping[str, float]
    """Metrics of the advantages by role and by stage, and the method's own."""

    @property
    def groups(self) -> list[Group]:
        """The groups that completed in it."""
        return self.result.completed

    def advantages_of(self, role: str) -> list[float]:
        """The first token's advantage in each row of a role."""
        return [
            float(self.advantages[self.rows.slice(row)][0])
            for row in range(len(self.rows))
            if self.rows.sequence(row).role == role
        ]


@dataclass
class TurnClient:
    """Implements `GenerationClient`: answers turn by turn."""

    script: Script
    tokenizer: CharacterTokenizer
    asked: dict[str, RolloutRequest] = field(default_factory=dict)
    """By group id, whose turns are answered."""
    error: Exception | None = None
    """The script's first."""

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        """See `GenerationClient`."""
        completions: list[Completion] = []
        for item, role, k in asked_messages(name, self.asked, n):
            one = ScriptedClient(self._rest_of(item, role, k), self.tokenizer)
            completions += await one.generate(policy, prompt_ids, decoding, session=session, name=name)
        return completions

    def _rest_of(self, item: RolloutRequest, role: str, k: int) -> Callable[[str], str]:
        def rest(prompt: str) -> str:
            chat, _, begun = prompt.rpartition(_SPOKEN)
            try:
                said = self.script(Turn(role, k, chat.count(_SPOKEN), chat + _SPOKEN, item)) + "</s>"
                if not said.startswith(begun):
                    what = f"the script says {said!r} where {begun!r} was said before: it is not pure"
                    raise ValueError(what)
            except Exception as error:  # which ends the message, as an engine's does
                self.error = self.error or error
                raise
            return said[len(begun) :]

        return rest


def run_method(
    cls: type[Method],
    script: Script,
    *,
    steps: int = 1,
    problems: Sequence[Problem] | int = 2,
    score: Score = right_answer,
    prompts: Any = None,
    mode: Mode | str = Mode.SEQUENTIAL,
    max_new_tokens: int = 10_000,
    segment_tokens: int | None = None,
    raises: bool = True,
    time_limit: float = 60.0,
    config: Any = None,
    **settings: Any,
) -> list[StepRun]:
    """Runs a method for some steps: its requests, workflows, rewards, schedule and credit.

    Args:
        cls: the method.
        script: what each role says. A token is a character.
        steps: of training.
        problems: of each step, or how many.
        score: the reward of a text; its request has the role that is scored.
        prompts: the method's wordings; None: those of its class.
        mode: of the pipeline.
        max_new_tokens: of a response, or of all an agent hears and says.
        segment_tokens: of a generation round; None: responses are not cut. With it a step may complete fewer
            groups; what is trained in all is the same.
        raises: whether what a workflow or the script raises is raised here. Training goes on without
            that request instead: its trajectories end with finish reason `error`; so do they here without
            `raises`.
        time_limit: seconds in all.
        config: all settings of the method (`cls.Config(name=…)`); None: `settings`.
        settings: of the method, by name; one that is called as an argument above only by `config`.

    Raises:
        TimeoutError: it takes longer than `time_limit`; at the line that is executed then.
        ValueError: a problem has more groups at a stage than `Stage.groups_per_problem` says, or advantages
            or masks have no value for each token (`set_advantages`).
    """
    tokenizer = CharacterTokenizer()
    method = build_method(cls, prompts, _config(cls, config, settings), tokenizer=tokenizer)
    client = TurnClient(script, tokenizer)

    async def scored(item: RolloutRequest, members: Sequence[Trajectory]) -> list[RewardResult]:
        return [RewardResult(score(item, one), {"answer": answer_of(one.final_text)}) for one in members]

    roles = dict.fromkeys(cls.roles)
    wording = SimpleNamespace(target=target_of(type(method.prompts)), kwargs={})
    runner = (_RaisingRunner if raises else RolloutRunner)(
        client,
        ChatTokenizer(tokenizer, {}),
        scored,
        template_builder=lambda: CharacterBuilder(tokenizer),
        settings=SimpleNamespace(algo=method.config, prompts=wording, roles=roles),
    )
    engine = LocalEngine(runner)
    sampling = {role: Sampling(max_new_tokens, 100_000, segment_tokens=segment_tokens) for role in roles}
    scheduler = Scheduler(method, mode)
    count = problems if isinstance(problems, int) else len(problems)
    pool = additions(count * steps) if isinstance(problems, int) else None

    barrier = method.schedule.epoch_mode is EpochMode.BARRIER  # the problems of a step are an epoch
    found, counts = [], GroupCounts(method, count)
    with bounds.time_limit(time_limit, "run_method"):
        for step in range(1, steps + 1):
            fresh = list(problems) if pool is None else pool[count * (step - 1) : count * step]  # type: ignore[arg-type]
            if step > 1 and barrier and scheduler.idle():
                method.schedule.epoch_ended(step)
            scheduler.start_step(step, [] if barrier and not scheduler.idle() else fresh)
            while requests := scheduler.next_round():
                if too_many := counts.add(requests):
                    raise ValueError(f"{cls.__name__}: {too_many}")
                client.asked |= {item.group_id: item for item in requests}
                outputs = engine.generate(requests, sampling)
                if raises and client.error is not None:
                    raise client.error
                scheduler.absorb(outputs)
            result = scheduler.finish_step(last=step == steps, epoch_over=barrier)
            found.append(_step(method, result, step))
    return found


class _RaisingRunner(RolloutRunner):
    async def failed(
        self, request: RolloutRequest, error: Exception, context: RolloutContext
    ) -> RolloutOutput:
        raise error


def _step(method: Method, result: StepResult, step: int) -> StepRun:
    rows = Rows.of(result.trained, trained_rows(method, result.trained, step))
    metrics = training_metrics(result.completed, type(method))
    metrics |= observe_step(method, StepView(rows, result.ended, result.deferred))
    if not len(rows):
        return StepRun(result, rows, np.zeros(0, np.float32), metrics)
    sampled = rows.columns[ROLLOUT_LOG_PROBS]  # the weights stay as they are
    rows.columns |= {OLD_LOG_PROBS: sampled, REF_LOG_PROBS: sampled, ENTROPIES: -sampled}
    metrics |= set_advantages(rows, method.credit)
    return StepRun(result, rows, rows.columns[ADVANTAGES], metrics)
