"""Ulysses: what spreads a sequence over GPUs, for the trained model and for its reference."""

from __future__ import annotations

import pytest
from messages import assert_checks_refuse

MODEL, KEY = "actor_rollout_ref.model", "fsdp_config.ulysses_sequence_parallel_size"
ACTOR, REF = f"actor_rollout_ref.actor.{KEY}", f"actor_rollout_ref.ref.{KEY}"
PACKED = {f"{MODEL}.use_remove_padding": True, "trainer.n_gpus_per_node": 2}


def attention(name: str) -> dict[str, object]:
    return {f"{MODEL}.override_config": {"attn_implementation": name}}


@pytest.mark.parametrize("key", [ACTOR, REF])
@pytest.mark.parametrize("name", ["sdpa", "flex_attention", "eager"])
def test_heads_are_exchanged_inside_flash_attention_alone(checked, key, name):
    """Training would go on, with rows cut into parts that do not see each other."""
    changes = {**PACKED, **attention(name), REF: 1, key: 2}
    what = f"with {name} a token would see only the part of its sequence that lies on its own GPU. fix: "
    fix = f"Set it to 1, or {MODEL}.override_config.attn_implementation=flash_attention_2."
    assert_checks_refuse(checked, changes, what + fix)


def test_the_reference_follows_the_trained_model_and_is_not_named_again(checked):
    with pytest.raises(Exception, match="has one problem"):
        checked({**PACKED, **attention("sdpa"), ACTOR: 2})


@pytest.mark.parametrize("key", [ACTOR, REF])
def test_it_divides_the_gpus(checked, key):
    assert_checks_refuse(
        checked, {**PACKED, **attention("flash_attention_2"), REF: 1, key: 3}, "divide 2, the number of GPUs"
    )


def test_the_references_older_place(checked):
    assert_checks_refuse(checked, {"actor_rollout_ref.ref.ulysses_sequence_parallel_size": 2}, f"Set {REF}")


@pytest.mark.parametrize(
    "changes",
    [
        {**attention("flash_attention_2"), ACTOR: 2},
        {**attention("flash_attention_3"), ACTOR: 2},
        {**attention("flash_attention_2"), REF: 2},
        attention("sdpa"),
        attention("flex_attention"),
    ],
)
def test_what_sees_whole_sequences_is_accepted(checked, changes):
    checked({**PACKED, **changes}, dry_run=True)
