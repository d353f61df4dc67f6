"""When a trajectory is forked, and what shared tokens are worth: by hand, and as gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marsrl_verl.algos.arpo.advantages import NODE, Attribution, node_column, token_advantages
from marsrl_verl.algos.arpo.branching import (
    BranchingConfig,
    BranchLaw,
    EntropyOf,
    token_entropies,
    turn_entropy,
)
from marsrl_verl.core.credit.advantages import comparable_rows, group_relative
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.sequence import Sequence, token_ids
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.rollout.generation import Completion, TopLogProbs


@pytest.mark.parametrize(
    ("change", "chance"),
    [(0.0, 0.5), (0.25, 0.55), (-0.25, 0.45), (1.0, 0.7), (-1.0, 0.3), (5.0, 1.0), (-5.0, 0.0), (None, 0.5)],
)
def test_probability_of_the_paper(change, chance):
    """P = 0.5 + 0.2 ΔH, between 0 and 1."""
    assert BranchingConfig().probability(change) == pytest.approx(chance)


@pytest.mark.parametrize(
    ("rule", "change", "draws", "forks"),
    [
        pytest.param({"law": "threshold"}, -0.01, [0.99], [False], id="falls"),
        pytest.param({"law": "threshold"}, 0.0, [0.99], [False], id="stays"),
        pytest.param({"law": "threshold"}, 0.01, [0.99], [True], id="rises"),
        pytest.param({"law": "threshold"}, None, [0.99], [False], id="unknown"),
        pytest.param({"beam": 4}, 0.3, [0.0, 0.5, 0.9], [True] * 3, id="Z - 1 forks"),
        pytest.param({"threshold": 0.6}, 0.4, [0.0], [False], id="P = 0.58"),
        pytest.param({"threshold": 0.6}, 0.6, [0.0], [True], id="P = 0.62"),
        pytest.param({"law": "bernoulli", "beam": 3}, 0.25, [0.549, 0.551], [True, False], id="P = 0.55"),
        pytest.param({"law": "bernoulli", "beam": 3}, -0.25, [0.449, 0.451], [True, False], id="P = 0.45"),
        pytest.param({"law": "random", "base_probability": 0.3}, None, [0.29], [True], id="random, unknown"),
        pytest.param({"law": "random", "base_probability": 0.3}, 9.0, [0.29], [True], id="random, rises"),
        pytest.param({"law": "random", "base_probability": 0.3}, -9.0, [0.31], [False], id="random, falls"),
        pytest.param({"law": "off"}, 1.0, [], [], id="off"),
    ],
)
def test_forks_by_hand(rule, change, draws, forks):
    """The paper forks where entropy rises, the released code throws a coin for each fork."""
    assert BranchingConfig(**rule).decide_forks(change, draws) == forks


def test_draws_are_one_for_each_fork():
    with pytest.raises(ValueError, match="2 draws, expected 1"):
        BranchingConfig().decide_forks(0.1, [0.1, 0.2])


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 2), st.floats(0, 1), st.floats(0, 0.999))
def test_more_entropy_never_forks_less(first, second, weight, base, draw):
    low, high = sorted((first, second))
    for law in (BranchLaw.THRESHOLD, BranchLaw.BERNOULLI):
        rule = BranchingConfig(law=law, base_probability=base, entropy_weight=weight)
        assert rule.decide_forks(low, [draw]) <= rule.decide_forks(high, [draw])


def completion(top_ids, top, ids, own) -> Completion:
    top_log_probs = TopLogProbs(np.array(top_ids, np.int32), np.log(np.array(top)).astype(np.float32))
    return Completion(
        token_ids(ids), np.log(np.array(own)).astype(np.float32), FinishReason.LENGTH, top=top_log_probs
    )


def test_entropy_of_the_whole_distribution():
    """p = (1/2, 1/4), and 1/4 on the other two of four tokens: between one of them with 1/4 and both with
    1/8."""
    found = token_entropies(completion([[0, 1]], [[0.5, 0.25]], [0], [0.5]), EntropyOf.RESULT, 4)
    low = 0.5 * math.log(2) + 2 * 0.25 * math.log(4)
    high = 0.5 * math.log(2) + 0.25 * math.log(4) + 2 * 0.125 * math.log(8)
    assert found.tolist() == pytest.approx([(low + high) / 2])


def test_entropy_of_the_released_code():
    """The likeliest tokens' terms, and the sampled one's where it is none of them."""
    inside = completion([[0, 1]], [[0.5, 0.25]], [1], [0.25])
    assert token_entropies(inside, EntropyOf.CALL, 4).tolist() == pytest.approx([0.5 * math.log(2) * 2])
    outside = completion([[0, 1]], [[0.5, 0.25]], [3], [0.125])
    expected = 0.5 * math.log(2) + 0.25 * math.log(4) + 0.125 * math.log(8)
    assert token_entropies(outside, EntropyOf.CALL, 4).tolist() == pytest.approx([expected])


def test_a_token_that_cannot_be_has_no_term():
    with np.errstate(divide="ignore"):
        one = completion([[0, 1]], [[1.0, 0.0]], [0], [1.0])
    assert token_entropies(one, EntropyOf.CALL, 4).tolist() == [0.0]


def test_a_turns_entropy_is_a_mean_and_in_the_released_code_a_sum():
    assert turn_entropy([1.0, 3.0], EntropyOf.RESULT, 8) == pytest.approx(2 / math.log(8))
    assert turn_entropy([1.0, 3.0], EntropyOf.CALL, 8) == pytest.approx(4 / math.log(8))
    assert turn_entropy([], EntropyOf.RESULT, 8) is None


def test_nothing_is_told_where_nothing_was_asked():
    one = Completion(token_ids([1]), np.zeros(1, np.float32), FinishReason.STOP)
    assert token_entropies(one, EntropyOf.RESULT, 4).tolist() == []


# --- what tokens are worth that trajectories share -------------------------------------------------

HARD, SIBLING = Attribution.HARD, Attribution.SIBLING
Leaf = tuple[float, list[tuple[int, int]]]
"""A reward, and (tokens, node) of the parts of a response."""


def group_of(name: str, leaves: list[Leaf]) -> Group:
    """The ids of a part are a function of its node, so that shared parts are the same."""
    members = []
    for k, (reward, parts) in enumerate(leaves):
        ids = [1000 * node + place for tokens, node in parts for place in range(tokens)]
        ends = np.cumsum([tokens for tokens, _ in parts])
        nodes = node_column([(int(end), node) for end, (_, node) in zip(ends, parts, strict=True)])
        one = Sequence("solver", [1], ids, np.zeros(len(ids)), annotations={NODE: nodes})
        members.append(Trajectory(f"{name}#{k}", [one], FinishReason.STOP, "x", reward=RewardResult(reward)))
    request = RolloutRequest(name, Problem(name, "?", "1"), "agent", "solver", (), len(leaves))
    return Group(request, members)


def rows_of(*groups: Group) -> Rows:
    return Rows.of(list(groups), comparable_rows(groups, differing=False))


TREE: list[Leaf] = [
    (1.0, [(2, 0), (3, 1), (1, 2)]),  # a root with two results
    (0.0, [(2, 0), (3, 1), (2, 9)]),  # its fork after the second one
    (0.0, [(2, 0), (4, 5)]),  # its fork after the first one
    (1.0, [(3, 7)]),  # another root
]


def advantages(attribution: Attribution, values=(1.0, -1.0, -1.0, 1.0)) -> list[list[float]]:
    rows = rows_of(group_of("g", TREE))
    found = token_advantages(rows, np.array(values), attribution)
    return [found[rows.slice(row)].tolist() for row in range(len(rows))]


def test_hard_is_the_mean_of_those_that_share_a_token():
    third = pytest.approx(-1 / 3)
    assert advantages(HARD) == [
        [third] * 2 + [0.0] * 3 + [1.0],
        [third] * 2 + [0.0] * 3 + [-1.0] * 2,
        [third] * 2 + [-1.0] * 4,
        [1.0] * 3,
    ]


def test_sibling_is_what_is_won_at_each_fork():
    """Node 0 (mean -1/3) against the group (0), nodes 1 (0) and 5 (-1) against it, 2 and 9 against node 1."""
    low, up, down = pytest.approx(-1 / 3), pytest.approx(1 / 3), pytest.approx(-2 / 3)
    assert advantages(SIBLING) == [
        [low] * 2 + [up] * 3 + [1.0],
        [low] * 2 + [up] * 3 + [-1.0] * 2,
        [low] * 2 + [down] * 4,
        [1.0] * 3,
    ]


def test_a_result_without_a_fork_is_no_fork():
    rows = rows_of(group_of("g", [(1.0, [(2, 0), (3, 1), (1, 2)]), (0.0, [(2, 5)])]))
    found = token_advantages(rows, np.array([0.5, -0.5]), SIBLING)
    assert found.tolist() == [0.5] * 6 + [-0.5] * 2


def test_what_was_left_where_it_is_forked_counts():
    """A trajectory that ends where another one goes on: the fork's tokens are compared with both."""
    rows = rows_of(group_of("g", [(0.0, [(2, 0)]), (1.0, [(2, 0), (2, 4)])]))
    found = token_advantages(rows, np.array([-1.0, 1.0]), SIBLING)
    assert found.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]


def test_groups_do_not_mix_and_failed_leaves_say_nothing():
    first, second = group_of("a", TREE), group_of("b", TREE)
    second.trajectories[1].finish = FinishReason.ERROR
    rows = rows_of(first, second)
    assert len(rows) == 7
    values = np.array([1.0, -1.0, -1.0, 1.0, 0.5, -1.0, 0.5])
    found = token_advantages(rows, values, HARD)
    assert found[rows.slice(4)].tolist() == [-0.25] * 2 + [0.5] * 4, "without the failed one"
    alone = token_advantages(rows_of(first), values[:4], HARD)
    assert found[: len(alone)].tolist() == alone.tolist()


def test_no_rows():
    rows = Rows.of([group_of("g", TREE)], [])
    assert token_advantages(rows, np.zeros(0), HARD).shape == (0,)


@st.composite
def trees(draw) -> list[Leaf]:
    """Random trees, grown as the rollout does: a leaf's parts up to one of its ends, then its own."""
    leaves: list[Leaf] = []
    for k in range(draw(st.integers(2, 6))):
        shared: list[tuple[int, int]] = []
        if leaves and draw(st.booleans()):
            _, parts = leaves[draw(st.integers(0, len(leaves) - 1))]
            shared = parts[: draw(st.integers(0, len(parts) - 1))]
        own = [(draw(st.integers(1, 3)), 10 * (k + 1) + at) for at in range(draw(st.integers(1, 3)))]
        leaves.append((float(draw(st.integers(0, 1))), [*shared, *own]))
    return leaves


def prefixes(rows: Rows) -> list[list[tuple[int, ...]]]:
    """Of each row's tokens, everything up to the token: what its log-probability is a function of."""
    ids = [rows.sequence(row).response_ids.tolist() for row in range(len(rows))]
    return [[tuple(one[: at + 1]) for at in range(len(one))] for one in ids]


def gradient(rows: Rows, found: np.ndarray, moved: float) -> dict[tuple[int, ...], float]:
    """Of PPO's clipped loss, by prefix: each is a parameter of its own, `moved` from where it was sampled."""
    names = sorted({one for row in prefixes(rows) for one in row})
    log_probs = torch.zeros(len(names), dtype=torch.float64, requires_grad=True)
    index = torch.tensor([names.index(one) for row in prefixes(rows) for one in row])
    ratio = torch.exp(log_probs[index] + moved)
    worth = torch.tensor(found, dtype=torch.float64)
    loss = -torch.minimum(ratio * worth, ratio.clamp(0.8, 1.2) * worth).mean()
    loss.backward()
    return dict(zip(names, log_probs.grad.tolist(), strict=True))


@given(trees(), st.floats(-0.15, 0.15))
@settings(max_examples=40)
def test_soft_and_hard_have_one_gradient_inside_the_clip_range(leaves, moved):
    """At ratio 1 and around it, where nothing is clipped."""
    rows = rows_of(group_of("g", leaves))
    values = group_relative(rows)
    worth = rows.to_tokens(values), token_advantages(rows, values, HARD)
    one, other = (gradient(rows, each, moved) for each in worth)
    assert one == pytest.approx(other, abs=1e-6)


def test_they_differ_where_clipping_bites():
    rows = rows_of(group_of("g", TREE))
    values = np.array([1.0, -1.0, -1.0, 1.0])
    worth = rows.to_tokens(values), token_advantages(rows, values, HARD)
    one, other = (gradient(rows, each, 0.5) for each in worth)
    assert one != pytest.approx(other, abs=1e-3)


def by_prefixes(rows: Rows, values: np.ndarray, attribution: Attribution) -> list[float]:
    """The same, token by token, by who shares the text up to it."""
    texts, found = prefixes(rows), []
    sharing = [[frozenset(at for at, row in enumerate(texts) if one in row) for one in row] for row in texts]
    for row in sharing:
        above: frozenset[int] | None = None
        for place, who in enumerate(row):
            if place and row[place - 1] != who:
                above = row[place - 1]
            mean = float(np.mean([values[at] for at in who]))
            before = 0.0 if above is None else float(np.mean([values[at] for at in above]))
            found.append(mean if attribution is HARD else mean - before)
    return found


@given(trees(), st.sampled_from([HARD, SIBLING]), st.integers(0, 100))
@settings(max_examples=60)
def test_nodes_say_who_shares_what(leaves, attribution, seed):
    rows = rows_of(group_of("g", leaves), group_of("h", leaves[::-1]))
    values = np.random.default_rng(seed).normal(size=len(rows))
    per_group = len(leaves)
    alone = [rows_of(group_of("g", leaves)), rows_of(group_of("h", leaves[::-1]))]
    expected = [
        *by_prefixes(alone[0], values[:per_group], attribution),
        *by_prefixes(alone[1], values[per_group:], attribution),
    ]
    assert token_advantages(rows, values, attribution).tolist() == pytest.approx(expected, abs=1e-6)
