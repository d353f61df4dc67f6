"""The tool task without Ray and vLLM: its model as an agent with the real tools, in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.core.trajectory import RewardResult, Trajectory
from marsrl_verl.rollout.agent_loop import Agent, AgentLimits, AtLimit, Step
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.context import RolloutContext
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.rollout.tool_protocol.base import ToolProtocol
from marsrl_verl.rollout.tool_protocol.chat import ChatProtocol, ParsedCall
from marsrl_verl.rollout.tool_protocol.tags import TagProtocol
from marsrl_verl.tools.base import ToolConfig
from marsrl_verl.tools.registry import tool_config
from marsrl_verl.tools.toolbox import Toolbox
from studies.tiny.sampler import TorchClient
from studies.toy_tasks.tool_task.files import tool_task_corpus
from studies.toy_tasks.tool_task.problems import DATA_SOURCE, PYTHON, SEARCH, ToolProblem
from studies.toy_tasks.tool_task.tokenizer import CALL_TAGS, END, ROLE_MARKERS, build_tokenizer
from studies.toy_tasks.tool_task.transcripts import Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROLE = "solver"
SAMPLING = Sampling(max_new_tokens=256, max_prompt_tokens=48)
"""Room for every question, and for all calls with their results."""
CALLS = 6
"""Most calls of a trajectory."""
RESULT_TOKENS = 64
_CALL = re.compile(f"{CALL_TAGS[0]}(.*?){CALL_TAGS[1]}", re.DOTALL)


def build_toolbox() -> Toolbox:
    """Sandboxed Python, and a search over the task's facts."""
    entries: dict[str, dict[str, Any]] = {
        PYTHON: {"target": "python", "timeout_s": 5},
        SEARCH: {"target": "search", "results": 1, "bm25": {"corpus": tool_task_corpus()}},
    }
    settings: dict[str, ToolConfig] = {
        name: tool_config(name, entry).model_validate(entry) for name, entry in entries.items()
    }
    return Toolbox.from_settings(settings, seed=0, secrets={})


class TinyTemplate:
    """What the tool task's chat template writes when a chat grows. Implements `TemplateBuilder`."""

    def __init__(self, chat: ChatTokenizer) -> None:
        self._chat = chat

    def merge(
        self,
        previous: list[dict[str, Any]],
        updated: list[dict[str, Any]],
        tail: list[int],
        tools: list[dict[str, Any]],
    ) -> list[int]:
        """See `TemplateBuilder`."""
        added = "".join(
            f"{ROLE_MARKERS[one['role']]}{one['content']}{END}" for one in updated[len(previous) :]
        )
        text = added + ROLE_MARKERS["assistant"]
        return [*tail, *self._chat.tokenizer.encode(text, add_special_tokens=False)]


class HermesCalls:
    """The calls that the warm start's transcripts make: JSON between two tags. Implements `TurnParser`; runs
    with an engine read them by verl's parser."""

    stop: tuple[str, ...] = ()
    opening: tuple[str, ...] = ("<tool_call>",)

    def __init__(self, chat: ChatTokenizer) -> None:
        self._chat = chat

    async def calls(self, turn: TokenIds, schemas: Sequence[Mapping[str, Any]]) -> list[ParsedCall]:
        """See `TurnParser`."""
        found = []
        for body in _CALL.findall(self._chat.decode(turn)):
            try:
                call = json.loads(body)
                found.append(ParsedCall(str(call["name"]), json.dumps(call["arguments"])))
            except (ValueError, TypeError, KeyError):
                continue
        return found


class Environment:
    """The model with its tools.

    Args:
        model: of the tool task.
        tools: started.
        seed: of the sampling.
        temperature: of the sampling.
    """

    def __init__(self, model: PreTrainedModel, tools: Toolbox, seed: int, temperature: float = 1.0) -> None:
        self.chat = ChatTokenizer(build_tokenizer())
        client = TorchClient(model, seed, self.chat.tokenizer)
        self.runner = RolloutRunner(
            client,
            self.chat,
            _unscored,
            template_builder=lambda: TinyTemplate(self.chat),
            tools=tools,
            turn_parser=lambda name: HermesCalls(self.chat),
        )
        self.tools = tools
        # Calls take their time, so what is decoded together is not the same each time.
        self.sampling = replace(SAMPLING, temperature=temperature, seed=seed)

    def agents(self, name: str, problem: ToolProblem, protocol: Protocol, count: int) -> list[Agent]:
        """Agents that are asked a problem; they have written nothing yet."""
        question = problem.question
        messages = ({"role": "user", "content": question},)
        row = Problem(name, question, str(problem.answer), DATA_SOURCE, messages)
        request = RolloutRequest(name, row, ROLE, ROLE, messages, count)
        context = RolloutContext(self.runner, request, {ROLE: self.sampling})
        found: ToolProtocol
        if protocol is Protocol.TAGS:
            found = TagProtocol(self.tools.schemas)
        else:
            found = ChatProtocol(context.turn_parser("hermes"), self.tools.schemas)
        limits = AgentLimits(CALLS, RESULT_TOKENS, AtLimit.END)
        return [
            Agent(
                context.conversation(k, ROLE, messages, tools=found.template_tools), found, self.tools, limits
            )
            for k in range(count)
        ]


async def follow(agent: Agent) -> None:
    """Lets an agent write and call until its end."""
    while True:
        step, _ = await agent.write()
        if step is not Step.CALLS or not await agent.call():
            return


async def _unscored(request: RolloutRequest, trajectories: Sequence[Trajectory]) -> list[RewardResult]:
    return [RewardResult(0.0) for _ in trajectories]
