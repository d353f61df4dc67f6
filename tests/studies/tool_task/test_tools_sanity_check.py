"""The shipped model of the tool task: it can do nothing without tools, and uses them carelessly. The tools
are real."""

from __future__ import annotations

import asyncio

import pytest

from marsrl_verl.demo.files import DATA_SEED
from marsrl_verl.demo.problems import Split
from marsrl_verl.rollout.agent_loop import Agent
from studies.assets import model_path
from studies.toy_tasks.tool_task.agent import Environment, build_toolbox, follow
from studies.toy_tasks.tool_task.problems import Fact, Kind, ToolProblem, generate
from studies.toy_tasks.tool_task.sanity_check import (
    Case,
    Place,
    called,
    entropy_figures,
    figures,
    is_right,
    look,
    rank_correlation,
)
from studies.toy_tasks.tool_task.tokenizer import vocabulary
from studies.toy_tasks.tool_task.transcripts import Protocol

pytestmark = pytest.mark.slow
PROBLEMS = 48


@pytest.fixture(scope="module")
def shipped():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_path("tiny_tools"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("protocol", Protocol)
def test_it_is_mediocre_with_tools_and_helpless_without(shipped, cache, protocol):
    problems = generate(Split.HELD_OUT, PROBLEMS, DATA_SEED)
    found = figures(asyncio.run(look(shipped, problems, protocol, continuations=0, seed=1)))
    assert found["solved_without_calls"] <= 0.05
    assert 0.2 <= found["solved"] <= 0.65
    assert 0.1 <= found["calls_nothing"] <= 0.45
    assert 0.3 <= found["right_calls"] <= 0.9
    assert found["ended"] >= 0.9


def test_it_is_small_and_has_the_tokenizer_of_its_world():
    from pathlib import Path

    from transformers import AutoTokenizer

    assert sum(path.stat().st_size for path in Path(model_path("tiny_tools")).iterdir()) <= 2_000_000
    assert AutoTokenizer.from_pretrained(model_path("tiny_tools")).get_vocab() == vocabulary()


def test_results_go_into_what_is_read_as_the_tools_gave_them(shipped, cache):
    """A whole trajectory with real tools: its ids are what was sampled and inserted."""

    async def run():
        tools = build_toolbox()
        await tools.start()
        try:
            environment = Environment(shipped, tools, seed=3)
            agents = environment.agents("p", ToolProblem(Kind.PRODUCT, (34, 56)), Protocol.TAGS, 12)
            await asyncio.gather(*[follow(one) for one in agents])
            return environment, agents
        finally:
            await tools.close()

    environment, agents = asyncio.run(run())
    caller = next(one for one in agents if one.events)
    sequence = caller.chat.sequence()
    inserted = environment.chat.decode(sequence.response_ids[sequence.response_mask == 0])
    assert inserted.startswith(" <result>\n") and inserted.endswith("</result>")
    assert any(is_right(one, ToolProblem(Kind.PRODUCT, (34, 56))) for one in agents)


def event(tool: str, argument: str) -> dict:
    return {"tool": tool, "arguments": {"x": argument}, "executed": True}


def test_a_call_is_right_where_the_problem_needs_it_next():
    problem = ToolProblem(Kind.FACT_PRODUCT, (Fact("Kalo", "price", 17), 20))

    class Agent:
        events = (
            event("python", "print(17*20)"),
            event("search", "price Kalo"),
            event("search", "price Kalo"),
            event("python", "print(17*20)"),
        )

    assert called(Agent, problem) == [False, True, False, True]


def test_figures_by_hand():
    cases = [
        Case(Kind.FACT, True, False, True, True, [False, True], 2, False),
        Case(Kind.FACT, False, True, False, True, [], 0, False),
        Case(Kind.PRODUCT, False, False, False, False, [True], 1, True),
    ]
    found = figures(cases)
    assert found["solved"] == found["calls_nothing"] == found["solved_without_calls"] == pytest.approx(1 / 3)
    assert (found["solved/fact"], found["solved/product"]) == (0.5, 0.0)
    assert found["solved/referred"] == 1.0
    assert (found["right_calls"], found["ignores_results"], found["executed_calls"]) == (2 / 3, 0.5, 1.0)
    assert "rank_correlation" not in found


def test_entropy_tells_where_continuations_part():
    places = [Place(0.3, 0.5), Place(0.1, 0.25), Place(-0.1, 1.0), Place(-0.2, 0.0)]
    found = entropy_figures(places)
    assert found["spread_where_it_rises"] == pytest.approx((0.25 + 0.1875) / 2)
    assert (found["spread_where_it_falls"], found["entropy_rises"]) == (0.0, 0.5)
    # Ranks 4 3 2 1 against 4 3 1.5 1.5.
    assert found["rank_correlation"] == pytest.approx(4.5 / (5 * 4.5) ** 0.5)
    assert rank_correlation([1.0, 1.0], [1.0, 2.0]) == 0.0


def test_no_continuation_is_drawn_twice(shipped, cache, monkeypatch):
    """A request's draws depend on the continuation's number: two with one number could be the same."""
    numbers: dict[str, list[int]] = {}
    fork = Agent.fork

    def noted(agent, number, place):
        numbers.setdefault(agent.chat.trajectory_id.rpartition("#")[0], []).append(number)
        return fork(agent, number, place)

    monkeypatch.setattr(Agent, "fork", noted)
    problems = generate(Split.HELD_OUT, 8, DATA_SEED, [Kind.FACT_PRODUCT])
    cases = asyncio.run(look(shipped, problems, Protocol.CHAT, continuations=2, seed=1))
    assert any(len(one.places) > 1 for one in cases)
    assert numbers and all(len(set(one)) == len(one) for one in numbers.values())
