"""Failed requests are data; so many without one answer say that nobody answers any more."""

from __future__ import annotations

from itertools import chain

import pytest

from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.rollout.failed_round import LEAST_REQUESTS, RequestWatch, WorkflowFailedError
from marsrl_verl.rollout.generation import EngineUnavailableError

STOP, ERROR = FinishReason.STOP, FinishReason.ERROR


def of_engine(finish: FinishReason, group: str = "g0", **fields) -> list[Trajectory]:
    """A group's answers: one request of the engine."""
    sequence = Sequence("verifier", [1], [], [])
    return [Trajectory(f"{group}#{k}", [sequence], finish, detail="gone", **fields) for k in range(2)]


def of_policy(finish: FinishReason, group: str = "f0", n: int = 2) -> list[Trajectory]:
    """A frozen policy is asked for each answer."""
    return [Trajectory(f"{group}#{k}", [], finish, detail=f"HTTP 503 {group}") for k in range(n)]


def failing(count: int, **fields) -> list[Trajectory]:
    return list(chain(*[of_engine(ERROR, f"g{k}", **fields) for k in range(count)]))


def test_a_frozen_policy_that_never_answers_stops_the_run():
    members = of_policy(ERROR, n=LEAST_REQUESTS)
    message = r"last 8 requests of the frozen policy big \(marsrl\.policies\.big\) failed.*HTTP 503"
    with pytest.raises(EngineUnavailableError, match=message):
        RequestWatch().look([*members, *of_engine(STOP)], policies={"f0": "big"})
    RequestWatch().look([*members, *of_policy(STOP, "f1")], policies={"f0": "big", "f1": "big"})


def test_the_engine_is_judged_by_its_own_requests():
    message = r"last 8 requests of the engine failed, the first of.*: gone"
    with pytest.raises(EngineUnavailableError, match=message):
        RequestWatch().look([*of_policy(STOP), *failing(LEAST_REQUESTS)])


def test_failed_requests_add_up_over_small_rounds_until_one_is_answered():
    watch = RequestWatch()
    for _ in range(2):
        for one in range(LEAST_REQUESTS - 1):
            watch.look(of_engine(ERROR, f"g{one}"))
            watch.look([])
        watch.look([*of_engine(STOP), *of_engine(ERROR, "g1")])
    watch.look(failing(LEAST_REQUESTS - 1))
    with pytest.raises(EngineUnavailableError):
        watch.look(of_engine(FinishReason.ABORTED))


@pytest.mark.parametrize(
    "members",
    [
        failing(2 * LEAST_REQUESTS, failed_by="chat template"),
        of_policy(FinishReason.REFUSED, n=2 * LEAST_REQUESTS),
        of_engine(FinishReason.PROMPT_TOO_LONG) * LEAST_REQUESTS,
    ],
    ids=["messages that the template refuses", "content that the endpoint refuses", "prompts never sent"],
)
def test_some_failures_say_nothing_about_who_answers(members):
    watch = RequestWatch()
    for one in range(LEAST_REQUESTS - 1):
        watch.look([*of_engine(ERROR, f"g{one}"), *members], policies={"f0": "big"})
    with pytest.raises(EngineUnavailableError, match="of the engine"):
        watch.look(of_engine(ERROR))


def test_a_program_that_fails_on_everything_ends_the_run_by_name():
    failed = failing(LEAST_REQUESTS, failed_by="Brittle")
    programs = {**{one.group_id: "Brittle" for one in failed}, "f": "Forgetful", "s": "single_call"}
    others = [*of_engine(ERROR, "f", failed_by="Forgetful"), *of_engine(STOP, "s")]
    watch = RequestWatch()
    watch.look([*failed[:-2], *others], programs)
    message = r"last 8 requests of the workflow Brittle failed.*gone"
    with pytest.raises(WorkflowFailedError, match=message):
        watch.look(failed[-2:], programs)
    RequestWatch().look([*failed, *of_engine(STOP, "good")], {**programs, "good": "Brittle"})


def test_a_policy_that_fails_often_in_round_after_round_ends_the_run_with_the_first_error():
    def round_of(count: int) -> list[Trajectory]:
        """Eight groups, of which so many fail."""
        return list(chain(*[of_policy(ERROR if k < count else STOP, f"f{k}") for k in range(8)]))

    policies = {f"f{k}": "big" for k in range(8)}
    watch = RequestWatch({"big": 0.5}.__getitem__)
    for count in (5, 4, 5, 3, 5):  # never in two rounds running
        watch.look(round_of(count), policies=policies)
    parts = round_of(5)[::-1]
    watch.look(parts[:9], policies=policies, round_ended=False)  # a part is no round
    message = (
        r"20 of 32 requests of the frozen policy big .*2 rounds.*marsrl\.policies\.big\.endpoint\."
        r"max_failed_frac = 0\.5.*first error: HTTP 503 f0"
    )
    with pytest.raises(EngineUnavailableError, match=message):
        watch.look(parts[9:], policies=policies)
