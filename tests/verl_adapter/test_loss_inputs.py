"""What the loss is given, with values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="batches and correction weights are verl's")

from verl import DataProto

from marsrl_verl.config.schema import OffPolicyConfig
from marsrl_verl.settings.declaration import MasteredTokensConfig
from marsrl_verl.verl_adapter.loss_inputs import correct_off_policy, entropy_metrics, mask_mastered_tokens

# Two Solver rows, a Verifier row, and a row of padding; 9.9 marks what nobody may look at.
MASK = [[1, 1, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0]]
ENTROPIES = torch.tensor([[0.1, 0.3, 9.9], [0.1, 0.1, 0.1], [0.6, 0.4, 9.9], [9.9, 9.9, 9.9]])
PROBABILITIES = [[0.995, 0.5, 1.0], [0.992, 0.995, 0.2], [0.999, 0.999, 1.0], [1.0, 1.0, 1.0]]
ADVANTAGES = [[1.0, 1.0, 0.0], [2.0, 2.0, 2.0], [-1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]
ROLES = ["solver", "solver", "verifier", "verifier"]
STAGES = ["solver", "solver", "verifier_2", "verifier_2"]


def batch(probabilities=PROBABILITIES, sampled=PROBABILITIES, versions=None, mask=MASK) -> DataProto:
    tensors = {
        "response_mask": torch.tensor(mask),
        "advantages": torch.tensor(ADVANTAGES),
        "old_log_probs": torch.log(torch.tensor(probabilities)),
        "rollout_log_probs": torch.log(torch.tensor(sampled)),
        "token_versions": torch.tensor(versions or [[7] * 3] * 4, dtype=torch.int32),
        "recorded_log_probs": torch.tensor([[-3.0, math.nan, math.nan]] + [[math.nan] * 3] * 3),
    }
    columns = {"role": np.array(ROLES, dtype=object), "stage": np.array(STAGES, dtype=object)}
    return DataProto.from_dict(tensors=tensors, non_tensors=columns)


def test_entropy_over_all_by_role_and_by_stage():
    assert entropy_metrics(batch(), ENTROPIES) == pytest.approx(
        {
            "actor/entropy": 1.7 / 7,
            "role/solver/entropy": 0.7 / 5,
            "role/verifier/entropy": 0.5,
            "stage/solver/entropy": 0.7 / 5,
            "stage/verifier_2/entropy": 0.5,
        }
    )


def test_a_role_without_a_token_has_no_entropy():
    found = entropy_metrics(batch(mask=[*MASK[:2], [0, 0, 0], [0, 0, 0]]), ENTROPIES)
    assert set(found) == {"actor/entropy", "role/solver/entropy", "stage/solver/entropy"}
    assert entropy_metrics(batch(mask=[[0] * 3] * 4), ENTROPIES) == {}


MASTERED = {
    "actor/mastered_token_share": 3 / 7,
    "role/solver/mastered_token_share": 3 / 5,
    "role/verifier/mastered_token_share": 0.0,  # as probable, but of a wrong answer
    "stage/solver/mastered_token_share": 3 / 5,
    "stage/verifier_2/mastered_token_share": 0.0,
}


def test_mastered_tokens_of_a_sure_response_lose_their_advantage():
    one = batch()
    found = mask_mastered_tokens(one, ENTROPIES, MasteredTokensConfig(enabled=True, target_entropy=0.19))
    # The first row's mean entropy is 0.2, the second's 0.1.
    assert one.batch["advantages"].tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 2.0], *ADVANTAGES[2:]]
    assert one.batch["response_mask"].tolist() == MASK, "the loss is still divided by all tokens"
    assert found == pytest.approx(
        MASTERED
        | {
            "actor/masked_token_share": 2 / 7,
            "role/solver/masked_token_share": 2 / 5,
            "role/verifier/masked_token_share": 0.0,
            "stage/solver/masked_token_share": 2 / 5,
            "stage/verifier_2/masked_token_share": 0.0,
        }
    )


def test_the_scope_and_the_probability_are_those_of_the_settings():
    # By role: the Solver's mean entropy is 0.14, so its first row is masked too; 0.992 is not enough.
    settings = MasteredTokensConfig(enabled=True, target_entropy=0.15, scope="role", probability=0.994)
    one = batch()
    found = mask_mastered_tokens(one, ENTROPIES, settings)
    assert one.batch["advantages"].tolist() == [[0.0, 1.0, 0.0], [2.0, 0.0, 2.0], *ADVANTAGES[2:]]
    assert found["actor/mastered_token_share"] == found["actor/masked_token_share"] == pytest.approx(2 / 7)


def test_mastered_tokens_are_counted_where_they_are_not_masked():
    one = batch()
    assert mask_mastered_tokens(one, ENTROPIES, MasteredTokensConfig()) == pytest.approx(MASTERED)
    assert one.batch["advantages"].tolist() == ADVANTAGES


# Version 7 is about to be updated. Ratios: 1, 4 | 1/2, 1, 1 | 8, 1; ages: 0, 2 | 1, 0, 0 | 0, 0.
NOW = [[0.8, 0.8, 0.5], [0.2, 0.6, 0.6], [0.8, 0.3, 0.5], [0.5, 0.5, 0.5]]
THEN = [[0.8, 0.2, 0.1], [0.4, 0.6, 0.6], [0.1, 0.3, 0.1], [0.1, 0.1, 0.1]]
VERSIONS = [[7, 5, 7], [6, 7, 7], [7, 7, 7], [7, 7, 7]]


def corrected(**settings) -> tuple[DataProto, dict[str, float]]:
    one = batch(NOW, THEN, VERSIONS)
    found = correct_off_policy(one, OffPolicyConfig(**settings), version=7)
    assert "token_versions" not in one.batch and "recorded_log_probs" not in one.batch
    assert torch.equal(one.batch["rollout_log_probs"], torch.log(torch.tensor(THEN)))
    return one, found


def test_pois_compares_with_the_weights_about_to_be_updated():
    one, found = corrected(mode="pois")
    assert torch.equal(one.batch["old_log_probs"], torch.log(torch.tensor(NOW)))
    assert "rollout_is_weights" not in one.batch
    assert not any(name.startswith("off_policy/tis/") for name in found)
    assert found["off_policy/staleness_mean"] == pytest.approx(3 / 7)
    assert found["off_policy/older_than/0"] == pytest.approx(2 / 7)
    assert found["off_policy/older_than/1"] == pytest.approx(1 / 7)
    assert found["off_policy/age/2/log_ratio_mean"] == pytest.approx(math.log(4))


def test_the_gap_is_that_of_tokens_of_the_newest_weights():
    _, found = corrected(mode="pois")
    assert found["rollout/log_prob_gap_mean"] == pytest.approx(math.log(8) / 5)
    assert found["rollout/log_prob_gap_max"] == pytest.approx(math.log(8))
    stale = batch(NOW, THEN, VERSIONS)
    found = correct_off_policy(stale, OffPolicyConfig(), version=8)
    assert not any(name.startswith("rollout/") for name in found)


def test_sais_compares_with_the_weights_that_sampled():
    one, found = corrected(mode="sais")
    assert torch.equal(one.batch["old_log_probs"], one.batch["rollout_log_probs"])
    one.batch["old_log_probs"][0, 0] = 0.0
    assert one.batch["rollout_log_probs"][0, 0] != 0.0, "two tensors, not two names of one"
    assert "rollout_is_weights" not in one.batch
    assert found["rollout/log_prob_gap_max"] == pytest.approx(math.log(8)), "measured before the exchange"


def test_recorded_log_probs_go_before_the_engines_and_those_before_recomputed_ones():
    one, found = corrected(mode="recorded")
    expected = torch.log(torch.tensor(NOW))
    expected[0, 0] = -3.0  # recorded
    expected[0, 1], expected[1, 0] = math.log(0.2), math.log(0.4)  # of older weights
    torch.testing.assert_close(one.batch["old_log_probs"], expected)
    assert found["off_policy/staleness_mean"] == pytest.approx(3 / 7)


def test_ratios_by_age_are_those_of_the_loss():
    """Where the loss compares with recorded log-probabilities, so do the metrics."""
    one = batch(NOW, THEN, [[6, 5, 7], *VERSIONS[1:]])
    found = correct_off_policy(one, OffPolicyConfig(mode="recorded"), version=7)
    current = torch.log(torch.tensor(NOW))
    ratios = (current - one.batch["old_log_probs"])[0, 0].item(), math.log(0.2 / 0.4)
    assert ratios[0] == pytest.approx(math.log(0.8) + 3.0), "recorded: -3"
    assert found["off_policy/age/1/log_ratio_mean"] == pytest.approx(sum(ratios) / 2)
    assert found["off_policy/age/0/log_ratio_abs_mean"] == 0.0, "new tokens are compared with themselves"
    one = batch(NOW, THEN, [[6, 5, 7], *VERSIONS[1:]])
    found = correct_off_policy(one, OffPolicyConfig(), version=7)
    assert found["off_policy/age/1/log_ratio_mean"] == pytest.approx((math.log(8 / 8) + ratios[1]) / 2)


def test_rows_that_were_not_computed_have_a_ratio_at_their_new_tokens_only():
    one = batch(NOW, THEN, VERSIONS)
    computed = torch.tensor([False, True, True, True])
    found = correct_off_policy(one, OffPolicyConfig(mode="recorded"), 7, computed)
    assert "off_policy/age/2/log_ratio_mean" not in found
    assert found["off_policy/age/1/log_ratio_mean"] == pytest.approx(math.log(0.5))
    assert found["off_policy/older_than/1"] == pytest.approx(1 / 7), "their age is known"


def test_tis_weights_every_token_with_its_truncated_ratio():
    one, found = corrected(mode="tis", tis_threshold=3.0)
    assert torch.equal(one.batch["old_log_probs"], torch.log(torch.tensor(NOW)))
    weights = one.batch["rollout_is_weights"]
    expected = torch.tensor([[1.0, 3.0, 0.0], [0.5, 1.0, 1.0], [3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(weights, expected)
    figures = {name.removeprefix("off_policy/tis/"): v for name, v in found.items() if "/tis/" in name}
    assert set(figures) == {
        "mean", "max", "min", "std", "eff_sample_size", "ratio_fraction_high", "ratio_fraction_low",
    }  # fmt: skip
    assert figures["mean"] == pytest.approx(10.5 / 7)
    assert (figures["max"], figures["min"]) == pytest.approx((3.0, 0.5))
    assert figures["ratio_fraction_high"] == pytest.approx(2 / 7)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="ppo"):
        correct_off_policy(batch(), OffPolicyConfig(mode="ppo"), version=7)
