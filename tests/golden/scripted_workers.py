"""What the golden runs ask instead of models: an engine that answers by script, and workers whose values are
functions of token, position and version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import scripted_answers as scripted
import torch
from read_steps import FINISH, read_request
from scenarios import Scenario
from scripted_engine import Reply, ReplyClient, ScriptedEngine, ScriptedSource, score_by_box
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from marsrl_verl.algos.marsrl.prompts import VERIFIER
from marsrl_verl.algos.marsrl.verdict import VerdictReward
from marsrl_verl.attention.measure import STEP_IDS, STEP_MEASURED
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput, Trajectory, is_correct
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.verl_adapter.engine.batch import jagged
from marsrl_verl.verl_adapter.engine.probe_engine import MEASURE_KEY, SETTINGS_KEY
from marsrl_verl.verl_adapter.engine.shared_prefix_engine import COMPUTED_TOKENS
from marsrl_verl.verl_adapter.rollout_server.generation import Round
from marsrl_verl.verl_adapter.rollout_server.worker import describe


class GoldenClient(ReplyClient):
    """A client whose log-probabilities are functions of token, position and version."""

    def log_probs(self, positions: np.ndarray, tokens: np.ndarray, version: int) -> np.ndarray:
        return scripted.log_prob(tokens, positions, version)


@dataclass(frozen=True)
class Done:
    """A round that was over when it began."""

    outputs: list[RolloutOutput]

    def wait(self) -> Round:
        return Round(self.outputs, 0.0)


class GoldenEngine(ScriptedEngine):
    """Answers as the scenario says, with graders that fail, and notes what it is asked.

    Args:
        scenario: what is run.
        rounds: where the requests of a round are noted, by step.
        open_step: the step for which the engine is asked.
        options: as `ScriptedEngine`.
    """

    client_class = GoldenClient

    def __init__(
        self,
        scenario: Scenario,
        rounds: dict[int, list[list[str]]],
        open_step: Callable[[], int | None],
        **options: Any,
    ) -> None:
        self.world, self.requests, self.open_step = scenario.world, rounds, open_step
        sources = {"external": ScriptedSource(self._reply, scenario.new_tokens)}
        super().__init__(self._reply, scorer=self._grade, sources=sources, **options)

    def start(self, requests: list[RolloutRequest], sampling: Any) -> Done:
        """Asks for a round, with the weights that the engine has now."""
        step = self.open_step()
        assert step is not None
        self.requests.setdefault(step, []).append([read_request(item) for item in requests])
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

    def __init__(self, version_of: Callable[[str], int]) -> None:
        self._version_of = version_of
        self._held: list[list[int]] = []
        """The responses of all slots."""
        self.sent: TensorDict | None = None
        """What an update was sent."""

    def hold_rows(self, data: TensorDict) -> TensorDict:
        self._held = _responses(data)
        return data.select("row_id")

    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        whole = "input_ids" in data
        responses = _responses(data) if whole else [self._held[slot] for slot in data["row_id"].tolist()]
        version = self._version_of(data["policy"])
        columns = [(np.array(ids, np.int64), np.arange(len(ids))) for ids in responses]
        found = {
            "log_probs": [scripted.trainer_log_prob(*one, version) for one in columns],
            "entropy": [scripted.entropy(*one) for one in columns],
        }
        if tu.get_non_tensor_data(data=data, key=MEASURE_KEY, default=None):
            delta = tu.get_non_tensor_data(data=data, key=SETTINGS_KEY, default={})["delta"]
            assert delta == scripted.DELTA
            steps = zip(responses, data[STEP_IDS].unbind(), data[STEP_MEASURED].unbind(), strict=True)
            found["influence"] = [_influence(*one) for one in steps]
        lengths = np.array([len(ids) for ids in responses])
        nested = {
            name: jagged(np.concatenate(values, dtype=np.float32), lengths) for name, values in found.items()
        }
        return TensorDict(nested, batch_size=[len(responses)])

    def update_actor(self, data: TensorDict) -> TensorDict:
        self.sent = data
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
