"""What the loss is given, with values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("verl", reason="correction weights are verl's")

from marsrl_verl.config.schema import OffPolicyConfig
from marsrl_verl.core.credit.mastered_tokens import EntropyScope, MasteredTokens, MasteredTokensConfig
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import (
    ADVANTAGES,
    ENTROPIES,
    LOSS_WEIGHTS,
    OLD_LOG_PROBS,
    RESPONSE_MASK,
    ROLLOUT_LOG_PROBS,
    RowRef,
    Rows,
)
from marsrl_verl.core.sequence import RECORDED_LOG_PROBS, Sequence
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.evaluation.advantages import entropy_metrics, set_advantages
from marsrl_verl.verl_adapter.trainer.loss_inputs import correct_off_policy

# Two Solver rows, then a Verifier row; 9.9 marks what nobody may look at: tokens of tools.
MASK = [[1, 1, 0], [1, 1, 1], [1, 1, 0]]
ENTROPY = [[0.1, 0.3, 9.9], [0.1, 0.1, 0.1], [0.6, 0.4, 9.9]]
PROBABILITIES = [[0.995, 0.5, 1.0], [0.992, 0.995, 0.2], [0.999, 0.999, 1.0]]
ADVANTAGE = [[1.0, 1.0, 9.9], [2.0, 2.0, 2.0], [-1.0, -1.0, 9.9]]
ROLES = ["solver", "solver", "verifier"]
STAGES = ["solver", "solver", "verifier_2"]
VERSION_7 = np.full(3, 7, dtype=np.int32)
ALL = np.ones(3, dtype=bool)


def flat(values) -> np.ndarray:
    return np.array(values, dtype=np.float32).reshape(-1)


def logs(probabilities) -> list[float]:
    """As a column of a batch has them."""
    return np.log(np.array(probabilities)).astype(np.float32).reshape(-1).tolist()


def rows(probabilities=PROBABILITIES, sampled=PROBABILITIES, versions=None, mask=MASK) -> Rows:
    groups = []
    for at, (role, stage) in enumerate(zip(ROLES, STAGES, strict=True)):
        parts = (versions or [[7] * 3] * 3)[at]
        spans = tuple((end + 1, v) for end, v in enumerate(parts))
        recorded = np.array([-3.0 if at == 0 else np.nan, np.nan, np.nan], np.float32)
        columns = {RECORDED_LOG_PROBS: recorded}
        one = Sequence(role, [5], [1, 2, 3], np.log(sampled[at]), mask[at], spans, annotations=columns)
        request = RolloutRequest(f"g{at}", Problem("p", "?", "1"), stage, role, (), n=1)
        groups.append(Group(request, [Trajectory(f"g{at}#0", [one], FinishReason.STOP)]))
    found = Rows.of(groups, [RowRef(at, 0) for at in range(3)], (RECORDED_LOG_PROBS,))
    found.columns[OLD_LOG_PROBS] = flat(logs(probabilities))
    found.columns[ENTROPIES] = flat(ENTROPY)
    return found


def mastered(**settings) -> MasteredTokens:
    return MasteredTokens(MasteredTokensConfig(enabled=True, **settings))


class Credit:
    """A method with these advantages and its own masks."""

    def __init__(self, advantages=ADVANTAGE, mastered: MasteredTokens | None = None) -> None:
        self._advantages = flat(advantages)
        self._mastered = mastered or MasteredTokens()

    def advantages(self, rows):
        return self._advantages

    def masks(self, rows, advantages):
        return self._mastered.masks(rows, advantages)

    def token_shares(self, rows, advantages):
        return {"mastered_token_frac": self._mastered.mastered(rows, advantages)}


def everywhere(name: str, actor: float, solver: float, verifier: float) -> dict[str, float]:
    """A metric over all, by role and by stage."""
    of_solver = {f"{place}/solver/{name}": solver for place in ("role", "stage")}
    of_verifier = {f"{place}/{name}": verifier for place in ("role/verifier", "stage/verifier_2")}
    return {f"actor/{name}": actor, **of_solver, **of_verifier}


def test_entropy_over_all_by_role_and_by_stage():
    assert entropy_metrics(rows()) == pytest.approx(everywhere("entropy", 1.7 / 7, 0.7 / 5, 0.5))
    found = entropy_metrics(rows(mask=[*MASK[:2], [0, 0, 0]]))
    assert set(found) == {"actor/entropy", "role/solver/entropy", "stage/solver/entropy"}, "of no token"
    assert entropy_metrics(rows(mask=[[0] * 3] * 3)) == {}


MASTERED = everywhere("mastered_token_frac", 3 / 7, 3 / 5, 0.0)
"""The Verifier's are as probable, but of a wrong answer."""


def shares(found: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in found.items() if name.endswith("token_frac")}


def test_mastered_tokens_of_a_sure_response_lose_their_advantage():
    one, settings = rows(), mastered(target_entropy=0.19)
    found = set_advantages(one, Credit(mastered=settings))
    # The first row's mean entropy is 0.2, the second's 0.1.
    expected = [1.0, 1.0, 0.0, 0.0, 0.0, 2.0, -1.0, -1.0, 0.0]
    assert one.columns[ADVANTAGES].tolist() == expected
    assert one.columns[RESPONSE_MASK].tolist() == flat(MASK).tolist(), (
        "the loss is still divided by all tokens"
    )
    masked = everywhere("masked_token_frac", 2 / 7, 2 / 5, 0.0)
    assert shares(found) == pytest.approx(MASTERED | masked)
    assert found["batch/advantage_mean"] == pytest.approx(6 / 7), "before any token is masked"


def test_the_scope_and_the_probability_are_those_of_the_settings():
    # By role: the Solver's mean entropy is 0.14, so its first row is masked too; 0.992 is not enough.
    settings = mastered(probability=0.994, target_entropy=0.15, scope=EntropyScope.ROLE)
    one = rows()
    found = set_advantages(one, Credit(mastered=settings))
    assert one.columns[ADVANTAGES].tolist() == [0.0, 1.0, 0.0, 2.0, 0.0, 2.0, -1.0, -1.0, 0.0]
    assert found["actor/mastered_token_frac"] == found["actor/masked_token_frac"] == pytest.approx(2 / 7)


def test_mastered_tokens_are_counted_where_they_are_not_masked():
    one = rows()
    assert shares(set_advantages(one, Credit())) == pytest.approx(MASTERED)
    assert one.columns[ADVANTAGES].tolist() == [1.0, 1.0, 0.0, 2.0, 2.0, 2.0, -1.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("advantages", "message"),
    [
        ([1.0, 2.0, 3.0], r"gave shape \(3,\), expected .* 9 response tokens"),
        ([[1, 1, np.nan], [1, np.inf, 1], [1, 1, 1]], "trajectory g1#0 .* not a finite number"),
    ],
)
def test_a_method_with_wrong_columns_is_named(advantages, message):
    with pytest.raises(ValueError, match=f"Credit.advantages:? {message}"):
        set_advantages(rows(), Credit(advantages))


# Version 7 is about to be updated. Ratios: 1, 4 | 1/2, 1, 1 | 8, 1; ages: 0, 2 | 1, 0, 0 | 0, 0.
NOW = [[0.8, 0.8, 0.5], [0.2, 0.6, 0.6], [0.8, 0.3, 0.5]]
THEN = [[0.8, 0.2, 0.1], [0.4, 0.6, 0.6], [0.1, 0.3, 0.1]]
VERSIONS = [[7, 5, 7], [6, 7, 7], [7, 7, 7]]


def corrected(versions=VERSION_7, computed=ALL, token_versions=VERSIONS, **settings) -> tuple[Rows, dict]:
    one = rows(NOW, THEN, token_versions)
    found = correct_off_policy(one, OffPolicyConfig(**settings), versions, computed)
    assert one.columns[ROLLOUT_LOG_PROBS].tolist() == logs(THEN)
    return one, found


def test_pois_compares_with_the_weights_about_to_be_updated():
    one, found = corrected(mode="pois")
    assert one.columns[OLD_LOG_PROBS].tolist() == logs(NOW)
    assert LOSS_WEIGHTS not in one.columns
    assert not any(name.startswith("off_policy/tis/") for name in found)
    assert found["off_policy/staleness_mean"] == pytest.approx(3 / 7)
    assert found["off_policy/older_than/0"] == pytest.approx(2 / 7)
    assert found["off_policy/older_than/1"] == pytest.approx(1 / 7)
    assert found["off_policy/age/2/log_ratio_mean"] == pytest.approx(math.log(4))


def test_the_gap_is_that_of_tokens_of_the_newest_weights():
    _, found = corrected(mode="pois")
    assert found["rollout/log_probs_diff_mean"] == pytest.approx(math.log(8) / 5)
    assert found["rollout/log_probs_diff_max"] == pytest.approx(math.log(8))
    _, found = corrected(versions=VERSION_7 + 1)
    assert not any(name.startswith("rollout/") for name in found)


def test_the_gap_leaves_out_what_was_sampled_from_a_part_of_the_vocabulary():
    one, role = rows(NOW, THEN, VERSIONS), ROLES[2]
    found = correct_off_policy(one, OffPolicyConfig(), VERSION_7, ALL, frozenset({role}))
    assert found["rollout/log_probs_diff_max"] == pytest.approx(0.0), "the third row alone differs"
    found = correct_off_policy(rows(NOW, THEN, VERSIONS), OffPolicyConfig(), VERSION_7, ALL, frozenset(ROLES))
    assert not any(name.startswith("rollout/") for name in found)


def test_each_row_is_compared_with_its_own_policys_version():
    _, found = corrected(versions=np.array([7, 7, 9], dtype=np.int32), mode="pois")
    assert found["off_policy/staleness_mean"] == pytest.approx((2 + 1 + 2 + 2) / 7)
    assert found["rollout/log_probs_diff_max"] == pytest.approx(0.0), (
        "the third row has no new token any more"
    )


def test_sais_compares_with_the_weights_that_sampled():
    one, found = corrected(mode="sais")
    assert one.columns[OLD_LOG_PROBS].tolist() == one.columns[ROLLOUT_LOG_PROBS].tolist()
    assert LOSS_WEIGHTS not in one.columns
    assert found["rollout/log_probs_diff_max"] == pytest.approx(math.log(8)), "measured before the exchange"


def test_recorded_log_probs_go_before_the_engines_and_those_before_recomputed_ones():
    one, found = corrected(mode="recorded")
    expected = flat(logs(NOW))
    expected[0] = -3.0  # recorded
    expected[1], expected[3] = math.log(0.2), math.log(0.4)  # of older weights
    np.testing.assert_allclose(one.columns[OLD_LOG_PROBS], expected, rtol=1e-6)
    assert found["off_policy/staleness_mean"] == pytest.approx(3 / 7)


def test_ratios_by_age_are_those_of_the_loss():
    """Where the loss compares with recorded log-probabilities, so do the metrics."""
    older = [[6, 5, 7], *VERSIONS[1:]]
    one, found = corrected(token_versions=older, mode="recorded")
    ratios = float((flat(logs(NOW)) - one.columns[OLD_LOG_PROBS])[0]), math.log(0.2 / 0.4)
    assert ratios[0] == pytest.approx(math.log(0.8) + 3.0), "recorded: -3"
    assert found["off_policy/age/1/log_ratio_mean"] == pytest.approx(sum(ratios) / 2)
    assert found["off_policy/age/0/log_ratio_abs_mean"] == 0.0, "new tokens are compared with themselves"
    _, found = corrected(token_versions=older)
    assert found["off_policy/age/1/log_ratio_mean"] == pytest.approx((math.log(8 / 8) + ratios[1]) / 2)


def test_rows_that_were_not_computed_have_a_ratio_at_their_new_tokens_only():
    _, found = corrected(computed=np.array([False, True, True]), mode="recorded")
    assert "off_policy/age/2/log_ratio_mean" not in found
    assert found["off_policy/age/1/log_ratio_mean"] == pytest.approx(math.log(0.5))
    assert found["off_policy/older_than/1"] == pytest.approx(1 / 7), "their age is known"


def test_tis_weights_every_token_with_its_truncated_ratio():
    one, found = corrected(mode="tis", tis_threshold=3.0)
    assert one.columns[OLD_LOG_PROBS].tolist() == logs(NOW)
    expected = [1.0, 3.0, 0.0, 0.5, 1.0, 1.0, 3.0, 1.0, 0.0]
    np.testing.assert_allclose(one.columns[LOSS_WEIGHTS], expected, rtol=1e-6)
    figures = {name.removeprefix("off_policy/tis/"): v for name, v in found.items() if "/tis/" in name}
    others = {"std", "eff_sample_size", "ratio_fraction_low"}
    assert {name: value for name, value in figures.items() if name not in others} == pytest.approx(
        {"mean": 10.5 / 7, "max": 3.0, "min": 0.5, "ratio_fraction_high": 2 / 7}
    )
    assert others < set(figures)
