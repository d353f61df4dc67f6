"""Rule 7 of the design on verl's own workers: the gradient does not depend on how an update is cut.

Groups of uneven size, some of whose members were trained before, go through the trainer's hooks, verl's
worker, its FSDP2 engine, micro-batching and `ppo_loss`, on one rank and on two, with mastered tokens
masked, tokens weighted (tis) and an entropy bonus. `rank_updates.py` is the program; here its results are
compared. `test_update_invariance.py` has the same rule in float64, with hand-made ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fresh_python import by_ranks, needs_workers, run_on_ranks
from rank_updates import ALL, CASES, FOUND, MEANS, WHOLE, WORLDS, trained_groups

from marsrl_verl.core.prefix_tree import distinct_tokens

pytestmark = [pytest.mark.slow, needs_workers]
TOLERANCE = 1e-5
"""Largest difference, as a share of the largest entry: float32 sums in another order differ by 1e-6."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, dict[str, Any]]]:
    """What each case gave, by number of ranks."""
    return by_ranks(run_on_ranks("rank_updates", tmp_path_factory.mktemp("ranks")))


def distance(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference as a share of the largest expected entry."""
    assert found.keys() == expected.keys()
    largest = max(float(one.abs().max()) for one in expected.values())
    return max(float((found[name] - expected[name]).abs().max()) for name in expected) / largest


def test_the_update_is_the_one_that_gpus_are_compared_with(results):
    metrics = results[1][WHOLE]["metrics"]
    assert {name: metrics[name] for name in FOUND} == pytest.approx(FOUND, rel=1e-4)


def uncut(name: str) -> str:
    """The case in one micro-batch. Sharing keeps families together, so its two mini-batches are others."""
    share = CASES[name].share and CASES[name].updates == 2
    case = replace(CASES[name], rows=None, tokens=ALL, attention="sdpa", share=share)
    return next(other for other, one in CASES.items() if one == case)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", CASES)
def test_an_update_is_the_same_however_it_is_cut(results, world, name):
    expected, found = results[1][uncut(name)], results[world][name]
    assert len(found["gradients"]) == CASES[name].updates
    for one, other in zip(found["gradients"], expected["gradients"], strict=True):
        assert distance(one, other) < TOLERANCE
    assert distance(found["weights"], expected["weights"]) < TOLERANCE
    for metric in ("actor/loss", "actor/pg_loss", "actor/grad_norm", "actor/entropy"):
        assert found["metrics"][metric] == pytest.approx(expected["metrics"][metric], rel=1e-5), metric


@pytest.mark.parametrize("name", ["complete groups", *(f"{mean}, all tokens" for mean in MEANS)])
def test_other_rows_and_other_means_have_another_gradient(results, name):
    """Controls: these cases would hide nothing."""
    whole, found = results[1][WHOLE]["gradients"][0], results[1][name]["gradients"][0]
    assert distance(found, whole) > 0.01


def test_a_loss_divided_by_each_micro_batchs_own_tokens_is_found_out(results):
    """Control: with such a loss, neither the cut nor the ranks would leave the gradient alone."""
    expected = results[1][WHOLE]["gradients"][0]
    assert distance(results[1]["own mean, all tokens"]["gradients"][0], expected) < TOLERANCE, "not cut"
    assert distance(results[1]["own mean, two rows"]["gradients"][0], expected) > 0.01
    assert distance(results[2]["own mean, all tokens"]["gradients"][0], expected) > 0.01


def test_the_batch_is_as_mixed_as_it_is_meant_to_be(results):
    metrics = results[1][WHOLE]["metrics"]
    assert metrics["batch/rows"] == 13, "17 responses, 4 of them trained before"
    assert results[1]["complete groups"]["metrics"]["batch/rows"] == 17
    assert 0 < metrics["actor/masked_token_frac"] < metrics["actor/mastered_token_frac"] < 1
    assert 0 < metrics["off_policy/older_than/0"] < 1
    assert metrics["off_policy/tis/max"] == 2.0, "truncated"
    names = ("one row", "two rows", "all rows")
    assert [results[2][name]["metrics"]["batch/padding_rows"] for name in names] == [1, 3, 7]


@pytest.mark.parametrize("world", WORLDS)
def test_shared_tokens_are_computed_once(results, world):
    """Rows of one prompt are on one rank and in one micro-batch where there is room."""
    for name in ("shared, all tokens", "shared, packed"):
        metrics = results[world][name]["metrics"]
        assert metrics["batch/tokens"] == results[1][WHOLE]["metrics"]["batch/tokens"], (
            "padding counts nowhere"
        )
        assert metrics["batch/computed_tokens"] < metrics["batch/tokens"]
    whole, cut = (
        results[world][f"shared, {name}"]["metrics"]["batch/computed_tokens"]
        for name in ("all tokens", "few tokens")
    )
    assert whole < cut, "a tree that is cut has its beginning in both parts"
    assert "batch/computed_tokens" not in results[world][WHOLE]["metrics"]


@pytest.mark.parametrize("world", WORLDS)
def test_of_complete_groups_no_token_that_is_shared_is_computed_twice(results, world):
    metrics = results[world]["complete groups, shared"]["metrics"]
    members = [one for group in trained_groups(partial=False) for one in group.trajectories]
    rows = [one.sequence.input_ids() for one in members]
    assert metrics["batch/tokens"] == sum(map(len, rows))
    least = distinct_tokens(rows) + 2 * (metrics["batch/padding_rows"] > 0)
    computed = metrics["batch/computed_tokens"]
    # Two ranks may cut a family, and its beginning is then on both.
    assert computed == least if world == 1 else least <= computed <= least + 60, (least, computed)
