"""How a round's groups are spread over engines, by verl's router and by ours."""

from __future__ import annotations

import random
import statistics

import pytest

pytest.importorskip("verl", reason="the adapter's tests need verl")

from verl.workers.rollout.router import GlobalRequestLoadBalancer

from marsrl_verl.verl_adapter.rollout_server.router import GroupLoadBalancer

ENGINES, NEW_GROUPS, GROUP, ROUNDS, SEGMENTS = 8, 72, 8, 30, 4


def busiest_to_mean(router_class: type, *, synced: bool) -> float:
    """The responses of the busiest engine over those of the mean one, mean of all rounds.

    Every round has new groups, and the unfinished responses of earlier ones, which keep their session. All
    requests of a round are on their way at once.

    Args:
        synced: whether a session is another one for the router after a weight sync, as `ServerClient` has it.
    """
    random.seed(3)
    drawn = random.Random(7)
    router = router_class({f"engine {index}": None for index in range(ENGINES)})
    unfinished: dict[str, int] = {}
    longer: dict[str, float] = {}
    ratios = []
    for number in range(ROUNDS):
        new = {f"{number}-{index}": GROUP for index in range(NEW_GROUPS)}
        unfinished |= new
        longer |= {name: drawn.choice((0.2, 0.95)) for name in new}  # hard problems have long responses
        load = dict.fromkeys(router.get_all_servers(), 0)
        sizes = {"n": 0} if router.require_acquire_fields() else {}
        asked = []
        for name in drawn.sample(sorted(unfinished), len(unfinished)):
            fields = dict.fromkeys(sizes, unfinished[name])
            route = f"{name}@{number}" if synced else name
            asked.append((name, route, router.acquire_server(route, **fields)[0]))
        for name, route, server in asked:
            load[server] += unfinished[name]
            router.release_server(server, request_id=route)
        assert router.get_total_inflight() == 0
        if number >= SEGMENTS:
            ratios.append(max(load.values()) / statistics.mean(load.values()))
        left = {name: sum(drawn.random() < longer[name] for _ in range(n)) for name, n in unfinished.items()}
        unfinished = {
            name: count
            for name, count in left.items()
            if count and number - int(name.split("-")[0]) < SEGMENTS - 1
        }
    return statistics.mean(ratios)


def test_engines_get_as_much_to_do_as_each_other():
    upstream = busiest_to_mean(GlobalRequestLoadBalancer, synced=False)
    assert upstream > 1.1, "groups count as one, and their ids outlive a step"
    assert busiest_to_mean(GroupLoadBalancer, synced=False) > 1.04, "sizes alone are half of it"
    assert busiest_to_mean(GroupLoadBalancer, synced=True) < 1.03


def test_a_group_counts_as_its_responses():
    router = GroupLoadBalancer({"a": None, "b": None})
    first, _ = router.acquire_server("group", n=8)
    other = ({"a", "b"} - {first}).pop()
    assert [router.acquire_server(f"single {index}", n=1)[0] for index in range(8)] == [other] * 8
    assert router.acquire_server("group", n=2)[0] == first, "an id stays where it is"
    assert router.get_status()["servers"] == {first: 10, other: 8}
    router.release_server(first, "group")
    router.release_server(first, "group")
    assert router.get_inflight_count(first) == 0
    router.release_server(first, "unheard of")
    assert router.get_inflight_count(first) == 0


def test_an_engine_that_is_gone_gets_nothing():
    router = GroupLoadBalancer({"a": None, "b": None})
    gone, _ = router.acquire_server("group", n=8)
    router.remove_servers([gone])
    assert router.acquire_server("group", n=8)[0] != gone
    router.release_server(gone, "group")
    assert router.get_total_inflight() == 8
