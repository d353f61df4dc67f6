"""Prompts of an agent with tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marsrl_verl.core.prompts import Example, ProblemPrompts
from marsrl_verl.core.request import Message, Problem

_TAGS = (
    "Solve the problem step by step. Put your reasoning between <think> and </think>, as often as you like. "
    "{tools}A call ends your turn: what the tool says comes between <result> and </result>, and "
    "you go on after it. When you know the answer, write it once between <answer> and </answer>, the final "
    "result itself in \\boxed{{}}, and stop."
)
_CHAT = (
    "Solve the problem step by step. Call a tool whenever it knows better than you do. Put the final answer "
    "in \\boxed{}."
)
_TOOL = {
    "search": "To look facts up, write a query between <search> and </search>. ",
    "python": "To compute, write a program between <python> and </python>; what it prints is its result. ",
    "browser": "To read a page, write its address between <browser> and </browser>, or "
    '{"url": address, "query": what you look for}. ',
}
_OTHER = "To use the tool {name}, write its input between <{name}> and </{name}>. "


class AgentPrompts(ProblemPrompts):
    """The problem under a system message that says how tools are called.

    A chat of the dataset that has a system message of its own stays as it is.

    Args:
        tools: names of the tools to be explained, if calls are tags; none if the model's chat template shows
            them itself.
        system: another system message; empty: none.
        solver_instruction, examples: see `ProblemPrompts`. An example's calls and results stand in its
            answer, in tags as the model is to write them.
    """

    def __init__(
        self,
        tools: tuple[str, ...] = (),
        system: str | None = None,
        solver_instruction: str = "",
        examples: Mapping[str, Sequence[Example]] | None = None,
    ) -> None:
        self.explained = None if system is not None else frozenset(tools)
        """Tools that the system message explains; None: the message is another one."""
        known = "".join(_TOOL.get(name, _OTHER.format(name=name)) for name in tools)
        own = _TAGS.format(tools=known) if tools else _CHAT
        self.system = own if system is None else system
        super().__init__(solver_instruction, examples)

    def _problem(self, problem: Problem) -> tuple[Message, ...]:
        chat = super()._problem(problem)
        if not self.system or any(message["role"] == "system" for message in chat):
            return chat
        return ({"role": "system", "content": self.system}, *chat)
