"""Whether a comparison in the tool task can come out either way:

    python -m studies.toy_tasks.tool_task.sanity_check --problems 200

What the model solves without calls and with them, how it uses the tools, and whether the entropy after a
result tells where trajectories part. The tools are the real ones, and no engine is started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.demo.files import DATA_SEED
from marsrl_verl.demo.problems import Split
from marsrl_verl.rewards.extraction import boxed_answer
from marsrl_verl.rollout.agent_loop import Agent, ReadResult, Step
from studies.assets import model_path
from studies.toy_tasks.tool_task.agent import Environment, build_toolbox, follow
from studies.toy_tasks.tool_task.problems import Kind, ToolProblem, generate
from studies.toy_tasks.tool_task.tokenizer import GUESS
from studies.toy_tasks.tool_task.transcripts import Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENTROPY_TOKENS = 4
"""The first tokens after a result: `<think>`, the thought, and what begins the deed."""


@dataclass(slots=True)
class Place:
    """A result that was read."""

    entropy: float
    """Mean of the first tokens after it, less that of the trajectory's first tokens."""
    right: float
    """Share of continuations from here that solve the problem."""

    @property
    def spread(self) -> float:
        """How much the continuations differ: the variance of right and wrong."""
        return self.right * (1 - self.right)


@dataclass(slots=True)
class Case:
    """What became of one problem."""

    kind: Kind
    referred: bool
    """Whether the page of the thing that is asked about refers to another one."""
    guessed: bool
    """Right without a call, where it had to guess."""
    solved: bool
    ended: bool
    """Whether the model ended its response itself."""
    calls: list[bool]
    """Of each call, whether it is one that the problem needs next."""
    ran: int
    """Calls that a tool did."""
    ignored: bool
    """Wrong although every call that the problem needs was made."""
    places: list[Place] = field(default_factory=list)


async def look_at(
    environment: Environment, problem: ToolProblem, protocol: Protocol, name: str, continuations: int
) -> Case:
    """Solve a problem once without calls and once with them, and go on from every result a few times."""
    blind, agent = environment.agents(name, problem, protocol, 2)
    blind.chat.append_text(f"<think>{GUESS}</think>")
    await blind.write()
    read: list[ReadResult] = []
    while True:
        step, _ = await agent.write()
        if step is not Step.CALLS or not await agent.call():
            break
        read.append(agent.place())
    solved, calls = is_right(agent, problem), called(agent, problem)
    case = Case(
        problem.kind,
        referred=problem.referred,
        guessed=is_right(blind, problem),
        solved=solved,
        ended=agent.finish is FinishReason.STOP,
        calls=calls,
        ran=sum(bool(event["executed"]) for event in agent.events),
        ignored=not solved and sum(calls) == len(problem.calls()),
    )
    if continuations and read:
        entropies = token_entropies(environment, agent)
        first = mean_of(entropies, 0)
        for number, place in enumerate(read):
            # A number of its own each: a request's draws depend on it, so none is drawn twice.
            own = range(2 + number * continuations, 2 + (number + 1) * continuations)
            tries = [agent.fork(k, place) for k in own]
            await asyncio.gather(*[follow(one) for one in tries])
            right = fmean(is_right(one, problem) for one in tries)
            case.places.append(Place(mean_of(entropies, place.tokens) - first, right))
    return case


def is_right(agent: Agent, problem: ToolProblem) -> bool:
    """Whether it ended with the right number."""
    found = boxed_answer(agent.chat.texts()[1])
    return agent.finish is FinishReason.STOP and found is not None and found.text == str(problem.answer)


def called(agent: Agent, problem: ToolProblem) -> list[bool]:
    """Of each of its calls, whether the problem needed it next."""
    expected, found = problem.calls(), []
    for event in agent.events:
        arguments: Any = event["arguments"]
        made = (event["tool"], *arguments.values())
        right = bool(expected) and made == (expected[0].tool, expected[0].argument)
        if right:
            expected = expected[1:]
        found.append(right)
    return found


@torch.no_grad()
def token_entropies(environment: Environment, agent: Agent) -> np.ndarray:
    """(T,) entropy of the whole distribution at each token of the response, in nats."""
    sequence = agent.chat.sequence()
    ids = torch.tensor([[*sequence.prompt_ids.tolist(), *sequence.response_ids.tolist()]])
    logits = environment.runner.client.model(input_ids=ids).logits[0, len(sequence.prompt_ids) - 1 : -1]  # type: ignore[attr-defined]
    log_probs = torch.log_softmax(logits.float() / environment.sampling.temperature, dim=-1)
    return np.asarray(-(log_probs.exp() * log_probs).sum(-1))


def mean_of(entropies: np.ndarray, at: int) -> float:
    """Of the first tokens from a place on."""
    return float(entropies[at : at + ENTROPY_TOKENS].mean()) if at < len(entropies) else 0.0


async def look(
    model: PreTrainedModel, problems: Sequence[ToolProblem], protocol: Protocol, continuations: int, seed: int
) -> list[Case]:
    """The cases of all problems."""
    tools = build_toolbox()
    await tools.start()
    try:
        environment = Environment(model, tools, seed)
        cases = [
            look_at(environment, one, protocol, f"{protocol}{number}", continuations)
            for number, one in enumerate(problems)
        ]
        return list(await asyncio.gather(*cases))
    finally:
        await tools.close()


def figures(cases: Sequence[Case]) -> dict[str, float]:
    """The sanity check in numbers."""
    calls = [right for case in cases for right in case.calls]
    called = [case for case in cases if case.calls]
    referred = [case.solved for case in cases if case.referred]
    found = {
        "solved_without_calls": fmean(case.guessed for case in cases),
        "solved": fmean(case.solved for case in cases),
        **{
            f"solved/{kind}": fmean(case.solved for case in cases if case.kind is kind)
            for kind in dict.fromkeys(case.kind for case in cases)
        },
        **({"solved/referred": fmean(referred)} if referred else {}),
        "ended": fmean(case.ended for case in cases),
        "calls_nothing": fmean(not case.calls for case in cases),
        "executed_calls": fmean(case.ran for case in cases),
        "right_calls": fmean(calls) if calls else 0.0,
        "ignores_results": fmean(case.ignored for case in called) if called else 0.0,
    }
    places = [place for case in cases for place in case.places]
    if places:
        found |= entropy_figures(places)
    return found


def entropy_figures(places: Sequence[Place]) -> dict[str, float]:
    """Whether the entropy after a result tells where continuations part."""
    rises = [one.spread for one in places if one.entropy > 0]
    falls = [one.spread for one in places if one.entropy <= 0]
    found = {
        "results": float(len(places)),
        "entropy_rises": len(rises) / len(places),
        "spread_where_it_rises": fmean(rises) if rises else 0.0,
        "spread_where_it_falls": fmean(falls) if falls else 0.0,
        "rank_correlation": rank_correlation([one.entropy for one in places], [one.spread for one in places]),
    }
    return found


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, ties with their mean rank; 0 where one of them is constant."""
    first, second = _ranks(one), _ranks(other)
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, places, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def main() -> None:
    """Prints the figures of both protocols."""
    parser = argparse.ArgumentParser(description="Sanity check of comparisons in the tool task.")
    parser.add_argument("--model", default=model_path("tiny_tools"), help="folder (default: the shipped one)")
    parser.add_argument("--problems", type=int, default=200, help="held-out problems (default: 200)")
    parser.add_argument("--continuations", type=int, default=4, help="from each result (default: 4; 0: none)")
    parser.add_argument("--seed", type=int, default=1, help="of the sampling")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(arguments.model)
    problems = generate(Split.HELD_OUT, arguments.problems, DATA_SEED)
    found = {
        protocol.value: figures(
            asyncio.run(look(model, problems, protocol, arguments.continuations, arguments.seed))
        )
        for protocol in Protocol
    }
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'':24}" + "".join(f"{name:>10}" for name in found))
    for name in next(iter(found.values())):
        print(f"{name:24}" + "".join(f"{one.get(name, 0.0):10.3f}" for one in found.values()))


if __name__ == "__main__":
    main()
