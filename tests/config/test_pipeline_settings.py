"""Segments, partial groups, off-policy correction, mastered tokens: what is rejected and what acts."""

from __future__ import annotations

import pytest
from messages import assert_checks_refuse, refusals

PIPELINE, MASTERED, OFF_POLICY = "marsrl.pipeline", "marsrl.algo.mastered_tokens", "marsrl.off_policy"
SEGMENTS = {f"{PIPELINE}.max_segments": 4}

REFUSED = refusals(
    f"""
    no segment | {PIPELINE}.max_segments=0 | at least 1
    segments in sequence | SEGMENTS {PIPELINE}.mode=sequential | {PIPELINE}.max_segments = 4
        | pipeline=pipelined
    parts without segments | {PIPELINE}.min_group=2 | no group trains
    parts of one | SEGMENTS {PIPELINE}.min_group=1 | at least 2
    parts beyond the group | SEGMENTS {PIPELINE}.min_group=9 | at most 8
    no group | {PIPELINE}.min_groups=0 | at least 1
    unknown correction | {OFF_POLICY}.mode=pios | Did you mean pois?
    threshold without effect | {OFF_POLICY}.tis_threshold=3.0 | no effect
    threshold below one | {OFF_POLICY}.mode=tis {OFF_POLICY}.tis_threshold=0.5 | at least 1
    ratios of a cut distribution | {OFF_POLICY}.mode=tis marsrl.roles.verifier.top_p=0.95
        | {OFF_POLICY}.mode=pois
    ratios of a cut vocabulary | {OFF_POLICY}.mode=sais marsrl.roles.solver.top_k=20 | Set it to -1
    log-probabilities at another temperature | actor_rollout_ref.rollout.logprobs_mode=raw_logprobs
        | processed_logprobs
    unknown scope | {MASTERED}.scope=token | sequence, batch, role
    no probability | {MASTERED}.enabled=true {MASTERED}.probability=0.0 | above 0
    no entropy | {MASTERED}.enabled=true {MASTERED}.target_entropy=0.0 | above 0
    masking off | {MASTERED}.probability=0.9 | enabled=true
    """,
    SEGMENTS=SEGMENTS,
)

ACCEPTED = {
    "segments and parts": {**SEGMENTS, f"{PIPELINE}.min_group": 4, f"{PIPELINE}.min_groups": 8},
    "a cut distribution whose ratios are not used": {
        f"marsrl.roles.{role}.top_p": 0.95 for role in ("solver", "verifier", "corrector")
    },
    "truncated ratios": {f"{OFF_POLICY}.mode": "tis", f"{OFF_POLICY}.tis_threshold": 3.0},
    "clipping of true ratios": {
        f"{OFF_POLICY}.mode": "sais",
        "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    },
    "masking": {f"{MASTERED}.enabled": True, f"{MASTERED}.scope": "role"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(checked, case):
    assert_checks_refuse(checked, *REFUSED[case])


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(checked, case):
    checked(ACCEPTED[case])  # raises where a check refuses it
