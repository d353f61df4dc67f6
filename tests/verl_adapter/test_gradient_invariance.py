"""Rule 7 of the design on verl's own workers: the gradient does not depend on how an update is cut.

Groups of uneven size, some of whose members were trained before, go through the trainer's hooks, verl's
worker, its FSDP2 engine, micro-batching and `ppo_loss`, on one rank and on two, with mastered tokens
masked, tokens weighted (tis) and an entropy bonus. `rank_updates.py` is the program; here its results are
compared. `test_update_invariance.py` has the same rule in float64, with hand-made ranks.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_python import run_program
from rank_updates import CASES, FOUND, SEQUENCE_MEANS, TURN_MEANS, WHOLE, WORLDS, trained_groups

from marsrl_verl.core.prefix_tree import distinct_tokens

# Looked for, not imported: the program imports them, once is enough.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("verl") is None or find_spec("vllm") is None,
        reason="the trainer and its workers are verl's",
    ),
]
PROGRAM = Path(__file__).with_name("rank_updates.py")
TOLERANCE = 1e-5
"""Largest difference, as a share of the largest entry: float32 sums in another order differ by 1e-6."""

Results = dict[int, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each case gave, by number of ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    run_program(PROGRAM, folder)
    return {world: torch.load(folder / f"ranks_{world}.pt", weights_only=False) for world in WORLDS}


def distance(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference as a share of the largest expected entry."""
    assert found.keys() == expected.keys()
    largest = max(float(one.abs().max()) for one in expected.values())
    return max(float((found[name] - expected[name]).abs().max()) for name in expected) / largest


def test_the_update_is_the_one_that_gpus_are_compared_with(results):
    metrics = results[1][WHOLE]["metrics"]
    assert {name: metrics[name] for name in FOUND} == pytest.approx(FOUND, rel=1e-4)


def one_update(name: str) -> bool:
    case, usual = CASES[name], CASES[WHOLE]
    return (case.updates, case.partial, case.masked, case.own_mean, case.mean) == (
        usual.updates, usual.partial, usual.masked, usual.own_mean, usual.mean,
    )  # fmt: skip


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", [name for name in CASES if one_update(name)])
def test_gradient_is_the_same_however_the_update_is_cut(results, world, name):
    expected, found = results[1][WHOLE], results[world][name]
    assert distance(found["gradients"][0], expected["gradients"][0]) < TOLERANCE
    assert distance(found["weights"], expected["weights"]) < TOLERANCE
    for metric in ("actor/loss", "actor/pg_loss", "actor/grad_norm", "actor/entropy"):
        assert found["metrics"][metric] == pytest.approx(expected["metrics"][metric], rel=1e-5), metric


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.updates == 2 and case.mean == CASES[WHOLE].mean]
)
def test_both_mini_batches_are_the_same_however_they_are_cut(results, world, name):
    # Sharing keeps families together, so its mini-batches are others.
    usual = "two updates, shared, all tokens" if CASES[name].share else "two updates, all tokens"
    expected, found = results[1][usual], results[world][name]
    assert len(found["gradients"]) == len(expected["gradients"]) == 2
    for one, other in zip(found["gradients"], expected["gradients"], strict=True):
        assert distance(one, other) < TOLERANCE
    assert distance(found["weights"], expected["weights"]) < TOLERANCE


def test_the_batch_is_as_mixed_as_it_is_meant_to_be(results):
    metrics = results[1][WHOLE]["metrics"]
    assert metrics["batch/rows"] == 13, "17 responses, 4 of them trained before"
    assert results[1]["complete groups"]["metrics"]["batch/rows"] == 17
    assert 0 < metrics["actor/masked_token_share"] < metrics["actor/mastered_token_share"] < 1
    assert 0 < metrics["off_policy/older_than/0"] < 1
    assert metrics["off_policy/tis/max"] == 2.0, "truncated"
    padding = {name: results[2][name]["metrics"]["batch/padding_rows"] for name in CASES if one_update(name)}
    assert {1, 3, 7} <= set(padding.values())


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
def test_shared_and_complete_groups_have_the_gradient_of_complete_groups(results, world):
    expected, found = results[1]["complete groups"], results[world]["complete groups, shared"]
    assert distance(found["gradients"][0], expected["gradients"][0]) < TOLERANCE
    members = [one for group in trained_groups(partial=False) for one in group.trajectories]
    rows = [one.sequence.input_ids() for one in members]
    assert found["metrics"]["batch/tokens"] == sum(map(len, rows))
    least = distinct_tokens(rows) + 2 * (found["metrics"]["batch/padding_rows"] > 0)
    computed = found["metrics"]["batch/computed_tokens"]
    # Two ranks may cut a family, and its beginning is then on both.
    assert computed == least if world == 1 else least <= computed <= least + 60, (least, computed)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("mean", SEQUENCE_MEANS + TURN_MEANS)
def test_means_over_sequences_and_turns_are_the_same_however_the_update_is_cut(results, world, mean):
    for updates in ("", "two updates, "):
        expected = results[1][f"{mean}, {updates}all tokens"]
        cuts = [
            name
            for name in CASES
            if name.startswith(f"{mean}, {updates}") and CASES[name].updates == len(expected["gradients"])
        ]
        assert len(cuts) > 1
        for name in cuts:
            found = results[world][name]
            for one, other in zip(found["gradients"], expected["gradients"], strict=True):
                assert distance(one, other) < TOLERANCE, name
            assert found["metrics"]["actor/pg_loss"] == pytest.approx(
                expected["metrics"]["actor/pg_loss"], rel=1e-5
            )
    whole = results[1][WHOLE]["gradients"][0]
    assert distance(results[1][f"{mean}, all tokens"]["gradients"][0], whole) > 0.01, "another mean"


@pytest.mark.parametrize("name", ["complete groups", "nothing masked"])
def test_partial_groups_and_masking_do_change_the_gradient(results, name):
    """Controls: these cases would hide nothing."""
    found, expected = results[1][name], results[1][WHOLE]
    assert distance(found["gradients"][0], expected["gradients"][0]) > 0.01


def test_a_loss_divided_by_each_micro_batchs_own_tokens_is_found_out(results):
    """Control: with such a loss, neither the cut nor the ranks would leave the gradient alone."""
    expected = results[1][WHOLE]["gradients"][0]
    assert distance(results[1]["own mean, all tokens"]["gradients"][0], expected) < TOLERANCE, "not cut"
    assert distance(results[1]["own mean, two rows"]["gradients"][0], expected) > 0.01
    assert distance(results[2]["own mean, all tokens"]["gradients"][0], expected) > 0.01
