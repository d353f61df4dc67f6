"""Which keys exist, and that the reference is what verl composes."""

from __future__ import annotations

import pytest

from marsrl_verl.algos.registry import installed_methods, method_class
from marsrl_verl.config.checks.refused import PLACEHOLDER, RULES
from marsrl_verl.config.checks.upstream import _DECLARED, _OURS
from marsrl_verl.config.node import BY_ROLE, method_nodes
from marsrl_verl.config.reference import (
    OWN_ROOT_KEYS,
    all_keys,
    annotation_of,
    dataclass_fields,
    default_of,
    find_unknown,
    is_free_entry,
)
from marsrl_verl.config.verl_keys import FIXED_KEYS, INERT_KEYS
from marsrl_verl.settings.reading import defaults


@pytest.mark.parametrize(
    "key",
    [
        "trainer.save_freq",
        "marsrl.algo.group_size",
        "marsrl.reward.solver.kwargs.anything.at.all",
        "actor_rollout_ref.rollout.enable_sleep_mode",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space",
        "actor_rollout_ref.model.override_config.attn_implementation",
        "ray_kwargs.ray_init.runtime_env.env_vars.ANY",
        "data.apply_chat_template_kwargs.enable_thinking",
        "name",
    ],
)
def test_known_keys(key):
    assert find_unknown(key) is None


@pytest.mark.parametrize(
    ("key", "first_unknown"),
    [
        ("trainer.save_frequency", "trainer.save_frequency"),
        ("trainr.save_freq", "trainr"),
        ("marsrl.algo.group.size", "marsrl.algo.group"),
        ("actor_rollout_ref.rollout.enable_sleep", "actor_rollout_ref.rollout.enable_sleep"),
        ("trainer.save_freq.more", "trainer.save_freq.more"),
    ],
)
def test_unknown_keys(key, first_unknown):
    assert find_unknown(key).key == first_unknown


def test_free_entries():
    assert is_free_entry("marsrl.reward.solver.kwargs.limit")
    assert is_free_entry("ray_kwargs.ray_init.address")
    assert not is_free_entry("marsrl.algo.group_sise")
    assert not is_free_entry("trainer.save_freq")


def test_fields_come_from_the_source_of_verl_with_base_classes():
    fields = dataclass_fields("verl.workers.config.FSDPActorConfig")
    assert {"fsdp_config", "ppo_mini_batch_size", "clip_ratio"} <= set(fields)
    assert dataclass_fields("somewhere.else.Config") == {}


def test_annotations():
    assert annotation_of("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu") == "Optional[int]"
    assert annotation_of("actor_rollout_ref.actor.fsdp_config.param_offload") == "bool"
    assert annotation_of("trainer.save_freq") is None
    assert annotation_of("no.such.key") is None


def test_reference_has_the_keys_that_hydra_composes(composed):
    def leaves(node: dict, prefix: str = "") -> set[str]:
        found: set[str] = set()
        for name, value in node.items():
            found.add(f"{prefix}{name}")
            if isinstance(value, dict):
                found |= leaves(value, f"{prefix}{name}.")
        return found

    found = leaves(composed.raw)
    methods = [method_class(name) for name in installed_methods()]
    settings = {
        f"marsrl.{node}.{name}"
        for method in methods
        for node, kind in method_nodes(method).items()
        for name in defaults(kind)
    }
    by_role = {f"marsrl.{node}.{role}" for node in BY_ROLE for method in methods for role in method.roles}
    of_other_methods = (settings | by_role) - found
    assert of_other_methods <= set(all_keys()), "those of all installed methods are known"
    assert {key for key in all_keys() if not key.startswith(tuple(of_other_methods))} <= found
    assert set(OWN_ROOT_KEYS) <= found


TESTS = {"not", "above", "below", "differs", "set", "has", "changed", "beyond_presets"}


def _nested_tests(values: object) -> list[tuple[str, object]]:
    """Names and operands of a rule's tests, those inside of others too."""
    if isinstance(values, list):
        return [found for one in values for found in _nested_tests(one)]
    if not isinstance(values, dict):
        return []
    return [found for name, one in values.items() for found in ((name, one), *_nested_tests(one))]


@pytest.mark.parametrize("part", RULES)
def test_the_table_of_refused_settings_names_keys_that_exist(part):
    for rule in RULES[part]:
        assert {"refuse", "what", "fix"} <= rule.keys() <= {"refuse", "if", "what", "fix"}
        tests = _nested_tests([*rule["refuse"].values(), *rule.get("if", {}).values()])
        assert {name for name, _ in tests} <= TESTS
        others = [operand for name, operand in tests if name in ("above", "below", "differs")]
        named = PLACEHOLDER.findall(rule["what"] + rule["fix"])
        for key in (*rule["refuse"], *rule.get("if", {}), *named, *others):
            if isinstance(key, str) and key != "key" and not key.startswith("run."):
                assert find_unknown(key) is None, key


def test_declared_keys_of_verl_exist():
    assert [key for key in _DECLARED if find_unknown(key) is not None] == []


def test_inert_keys_exist():
    for inert in (*INERT_KEYS, *FIXED_KEYS):
        assert find_unknown(inert.key) is None, inert.key
    covered = tuple(inert.key for inert in INERT_KEYS)
    for key in _OURS:
        assert key.startswith(covered), key
    assert default_of("trainer.use_v1") is True
