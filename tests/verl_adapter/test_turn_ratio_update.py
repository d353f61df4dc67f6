"""The policy loss over turns against verl's own losses, under every cut of an update, and what it logs."""

from __future__ import annotations

import pytest
import torch
from test_update_invariance import CUTS, actor, assert_same, rows, update_gradient
from verl.trainer.ppo import core_algos

from marsrl_verl.core.credit import LossSpec
from marsrl_verl.core.sequence import TURN
from marsrl_verl.losses.inputs import LossInputs, giving, log_frac
from marsrl_verl.losses.turn_ratio import turn_ratio
from marsrl_verl.settings.choices import LossMean, TurnRatio
from marsrl_verl.verl_adapter.engine.policy_loss import _sums, divided_shares

LOSS = "marsrl_verl.losses.turn_ratio:turn_ratio"


def spec(kind: TurnRatio) -> LossSpec:
    columns = () if kind is TurnRatio.TOKEN else (TURN,)
    return LossSpec(LOSS, columns, {"ratio": str(kind), "log_ratio_clip": 3.0, "labels": []})


def batch(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (6, 9)
    lengths = torch.randint(1, 10, (6, 1), generator=generator)
    return {
        "old_log_prob": -torch.rand(shape, generator=generator, dtype=torch.float64),
        "log_prob": -torch.rand(shape, generator=generator, dtype=torch.float64),
        "advantages": torch.tensor([[1.0], [-1.0], [0.5], [-0.5], [2.0], [-2.0]]).double().expand(shape),
        "response_mask": torch.arange(9)[None] < lengths,
    }


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("kind", "mode", "changes"),
    [
        # A response of one turn is GSPO's; it has no dual clip, and a bound of its own.
        (TurnRatio.GEOMETRIC, "gspo", {"clip_ratio_c": 1e6}),
        (TurnRatio.TOKEN, "vanilla", {}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_verls_loss_where_that_is_a_case_of_it(kind, mode, changes, weighted, seed):
    columns, config = batch(seed), actor(clip_ratio_low=0.02, clip_ratio_high=0.03, **changes)
    weights = torch.linspace(0.5, 2.0, 54, dtype=torch.float64).view(6, 9) if weighted else None
    found = []
    for own in (True, False):
        log_prob = columns["log_prob"].clone().requires_grad_()
        asked = {**columns, "log_prob": log_prob, "rollout_is_weights": weights}
        if own:
            settings = {"ratio": str(kind), "log_ratio_clip": 10.0, "labels": []}
            turns = {TURN: torch.full((6, 9), 4)}
            tokens = int(columns["response_mask"].sum())
            inputs = LossInputs(turns, settings, tokens, 6, 6, 1, "seq-mean-token-mean")
            with giving(inputs):
                value, metrics = turn_ratio(**asked, loss_agg_mode="", config=config)
        else:
            value, metrics = core_algos.get_policy_loss_fn(mode)(
                **asked, loss_agg_mode="seq-mean-token-mean", config=config
            )
        value.backward()
        found.append((value.item(), log_prob.grad, metrics))
    (value, gradient, metrics), (theirs, their_gradient, their_metrics) = found
    assert value == pytest.approx(theirs, rel=1e-6)
    torch.testing.assert_close(gradient, their_gradient, rtol=1e-6, atol=1e-9)
    for name, expected in their_metrics.items():
        assert metrics[name] == pytest.approx(expected, abs=1e-6), name
    assert their_metrics["actor/pg_clipfrac"] > 0


@pytest.mark.parametrize("kind", TurnRatio)
@pytest.mark.parametrize("mean", LossMean)
def test_its_gradient_does_not_depend_on_the_cut(kind, mean):
    expected = update_gradient(rows(), spec=spec(kind), turn_mean=mean)
    for cut in CUTS:
        assert_same(update_gradient(rows(), spec=spec(kind), turn_mean=mean, **cut), expected)
    usual = update_gradient(rows(), turn_mean=mean)
    differs = (usual[0] - expected[0]).abs().max() > 1e-4
    assert differs == (kind is not TurnRatio.TOKEN), "another loss than that of tokens"


@pytest.mark.parametrize("kind", TurnRatio)
def test_at_ratio_1_it_is_the_loss_of_tokens(kind):
    """Whatever the ratio is of: the first update of a step has the gradient of A log p."""
    means = {"turn_mean": LossMean.SEQUENCE, "on_policy": True}
    assert_same(update_gradient(rows(), spec=spec(kind), **means), update_gradient(rows(), **means))


def test_shares_are_sums_over_all_parts_of_a_step():
    """3 of 4 and 0 of 12 are 3 of 16, in two micro-batches of a rank, two ranks, or two updates."""
    inputs = LossInputs({}, {}, 1, 1, 1, 1)
    sums = []
    for counted, of in ((3.0, 4.0), (0.0, 12.0)):
        with giving(inputs) as call:
            log_frac("examined/min", torch.tensor([counted]), torch.tensor([of]))
            log_frac("never", torch.zeros(2), torch.zeros(2))
            sums.append(_sums(call))
    first, second = sums
    for name, metric in first.items():
        metric.extend(second[name])
    one_rank = {name: [metric.aggregate()] for name, metric in first.items()}
    first, second = ({name: replaced(metric) for name, metric in one.items()} for one in sums)
    two_ranks = {name: [type(first[name]).aggregate_dp([first[name], second[name]])] for name in first}
    two_updates = {name: [first[name].aggregate(), second[name].aggregate()] for name in first}
    for metrics in (one_rank, two_ranks, two_updates):
        found = divided_shares({**metrics, "pg_loss": [0.5]})
        assert found == {"pg_loss": [0.5], "examined/min": pytest.approx(3 / 16)}


def replaced(metric):
    """With its first value alone, as it was before the test added another."""
    return type(metric)(metric.aggregation, metric.values[0])
