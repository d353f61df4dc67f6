"""Policies that are models of their own: which are, what they begin as, what does not go, what they take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from messages import accepted, assert_checks_refuse, assert_refused
from omegaconf import OmegaConf
from small_files import make_model

from marsrl_verl.config import hf_folder
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.policies import check_models
from marsrl_verl.config.memory import GIB, estimate_memory
from marsrl_verl.config.model_shapes import PUBLISHED, ModelShape, shape_from_config
from marsrl_verl.config.models import learning_rates, model_number, models, named_models, part_of
from marsrl_verl.config.resume_rules import Rule, rule_of

ROLES = ("corrector", "solver", "verifier")
PER_ROLE = "policies=model_per_role"
VERIFIER = "marsrl.policies.verifier"
QWEN, QWEN_4B = "Qwen/Qwen3-4B-Thinking-2507", "model=qwen3_4b_thinking_2507"
FSDP = "actor_rollout_ref.actor.fsdp_config"


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """Another model with the tokenizer of the usual one."""
    return make_model(tmp_path_factory.mktemp("models") / "other")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> Path:
    """A model whose tokenizer knows another word."""
    folder = make_model(tmp_path_factory.mktemp("models") / "foreign")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["word"] = 1
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def launched(run, *words):
    done = accepted(run, *words, "cluster=cpu")
    return done.launched


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), ("shared",)),
        ((PER_ROLE,), ROLES),
        (("marsrl.policies.judge.kind=model", "marsrl.roles.verifier.policy=judge"), ("judge", "shared")),
        (("policies=lora",), ()),
        (("algo=grpo", PER_ROLE), ("solver",)),
    ],
)
def test_which_policies_are_models(run, words, names):
    config = launched(run, *words)
    path = config.actor_rollout_ref.model.path
    assert models(config.actor_rollout_ref.rollout) == dict.fromkeys(names, path)


def test_a_policy_begins_as_the_model_that_it_names(run, other):
    config = launched(run, PER_ROLE, f"{VERIFIER}.kind=model", f"{VERIFIER}.model.path={other}")
    path = config.actor_rollout_ref.model.path
    found = models(config.actor_rollout_ref.rollout)
    assert found == {"corrector": path, "solver": path, "verifier": str(other)}


def test_frozen_roles_have_no_model():
    marsrl = {
        "default_policy": "model_per_role",
        "roles": {"solver": {"policy": "big"}, "verifier": {"policy": None}},
        "policies": {"big": {"kind": "endpoint"}},
    }
    assert named_models(0, "m", marsrl) == {"verifier": "m"}
    assert named_models(8, "m", marsrl) == {}


def test_the_part_of_a_model_in_verls_node():
    node = OmegaConf.create(
        {
            "model": {"path": "a", "hf_config_path": "a/config", "tokenizer_path": None},
            "rollout": {
                "gpu_memory_utilization": 0.6,
                "custom": {
                    "adapters": [],
                    "models": {"judge": "b", "solver": "a"},
                    "learning_rates": {"judge": 0.5},
                },
            },
            "actor": {"optim": {"lr": 0.1}},
        }
    )
    OmegaConf.set_struct(node, True)
    judge, solver = part_of(node, "judge"), part_of(node, "solver")
    assert judge.model == {"path": "b", "hf_config_path": None, "tokenizer_path": "a"}
    assert solver.model == node.model
    assert [part.actor.optim.lr for part in (judge, solver)] == [0.5, 0.1]
    assert [part.rollout.gpu_memory_utilization for part in (judge, solver)] == [0.3, 0.3]
    assert [model_number(part.rollout) for part in (judge, solver)] == [0, 1]
    assert (models(judge.rollout), models(solver.rollout)) == ({"judge": "b"}, {"solver": "a"})
    assert model_number(node.rollout) == 0 and len(models(node.rollout)) == 2, "the whole node stays"


# --- what is rejected --------------------------------------------------------------------------------


def test_another_tokenizer_is_refused_with_a_sentence(run, foreign):
    done = run(PER_ROLE, f"{VERIFIER}.kind=model", f"{VERIFIER}.model.path={foreign}", "cluster=cpu")
    assert_refused(done, f"{VERIFIER}.model.path", "Its tokenizer differs from that of")


def test_another_template_is_said(run, other, tmp_path):
    folder = make_model(tmp_path / "templated")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    words = (PER_ROLE, f"{VERIFIER}.kind=model", "cluster=cpu", "dry_run=true")
    assert "has a chat template of its own" in run(*words, f"{VERIFIER}.model.path={folder}").text
    assert "chat template" not in run(*words, f"{VERIFIER}.model.path={other}").out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (
            ("policies=shared",),
            "trains one policy, shared, whose rate is actor_rollout_ref.actor.optim.lr. "
            "fix: Set actor_rollout_ref.actor.optim.lr=0.1, or choose "
            "policies=lora_per_role or policies=model_per_role.",
        ),
        ((PER_ROLE, "marsrl.roles.verifier.policy=solver"), "shares the policy solver with verifier"),
        (("policies=solver_endpoint",), "Its policy solver is not trained"),
        (
            ("policies=lora_per_role", "marsrl.algo.train_roles=[verifier,corrector]"),
            "Its policy solver is not trained",
        ),
    ],
)
def test_a_rate_of_a_role_belongs_to_a_policy_of_its_own(run, words, what):
    assert_refused(run(*words, "marsrl.roles.solver.lr=0.1", "cluster=cpu"), "marsrl.roles.solver.lr", what)


def test_policies_have_rates_of_their_own(run):
    rates = ("marsrl.roles.verifier.lr=0.1", "actor_rollout_ref.actor.optim.lr=0.2")
    rollout = launched(run, PER_ROLE, *rates).actor_rollout_ref.rollout
    assert learning_rates(rollout) == {"verifier": 0.1}
    assert rule_of("marsrl.roles.verifier.lr") is Rule.ACTS


def test_a_common_rate_of_0_leaves_those_without_one_of_their_own(run):
    words = (PER_ROLE, "actor_rollout_ref.actor.optim.lr=0", "cluster=cpu", "dry_run=true")
    assert "optim.lr is 0: the weights stay as they are" in run(*words).text
    one = run(*words, "marsrl.roles.verifier.lr=0.1").text
    assert "the weights of corrector, solver stay as they are" in one
    every = [f"marsrl.roles.{role}.lr=0.1" for role in ROLES]
    assert "stay as they are" not in run(*words, *every).text


def test_a_folder_that_is_none_is_refused_by_its_key(run):
    done = run(PER_ROLE, f"{VERIFIER}.kind=model", f"{VERIFIER}.model.path=nowhere", "cluster=cpu")
    assert_refused(done, f"{VERIFIER}.model.path", "There is no such folder")


def test_the_only_model_is_named_where_the_model_is(run, other):
    words = ("algo=grpo", PER_ROLE, "marsrl.policies.solver.kind=model", "cluster=cpu")
    done = run(*words, f"marsrl.policies.solver.model.path={other}")
    assert_refused(done, "marsrl.policies.solver.model.path", "It is the only model of the run")


def test_engines_on_gpus_of_their_own_serve_one_model(run):
    done = run(PER_ROLE, "pipeline=overlapped_two_pools", "cluster=cpu")
    assert_refused(done, "actor_rollout_ref.rollout.nnodes", "serve one model, and this run trains 3")


def test_data_are_prepared_with_the_model_that_answers_problems(run, other):
    solver = ("marsrl.policies.solver.kind=model", f"marsrl.policies.solver.model.path={other}")
    config = launched(run, PER_ROLE, *solver)
    training, preparing = (
        Context(config=config, raw={}, dry_run=False, prepares_data=one) for one in (False, True)
    )
    assert list(check_models(training)) == []
    (issue,) = check_models(preparing)
    assert issue.key == "marsrl.policies.solver.model.path" and str(other) in issue.fix


def test_a_path_takes_effect_with_the_kind_alone(checked):
    changes = {
        f"{VERIFIER}.kind": "lora",
        "marsrl.roles.verifier.policy": "verifier",
        "actor_rollout_ref.model.lora_rank": 8,
        f"{VERIFIER}.model.path": "x",
    }
    assert_checks_refuse(checked, changes, f"{VERIFIER}.model.path", "set kind to model")


def test_tokens_are_compared_by_what_their_numbers_mean(other, foreign, tmp_path):
    one = make_model(tmp_path / "one")
    assert hf_folder.same_tokens(one, other) and not hf_folder.same_tokens(one, foreign)
    content = json.loads((one / "tokenizer.json").read_text())
    (one / "tokenizer.json").write_text(json.dumps(content, indent=7))
    assert hf_folder.same_tokens(one, other), "the file looks different, and means the same"
    content["added_tokens"] = [{"id": 1, "content": "<think>"}]
    (one / "tokenizer.json").write_text(json.dumps(content))
    assert not hf_folder.same_tokens(one, other)
    (one / "tokenizer.json").unlink()
    assert not hf_folder.same_tokens(one, other), "nothing to compare"


def test_a_resumed_run_keeps_what_its_policies_are_made_of():
    keys = ("marsrl.default_policy", f"{VERIFIER}.kind", f"{VERIFIER}.model.path")
    assert {rule_of(key) for key in keys} == {Rule.BOUND}


# --- the plan -----------------------------------------------------------------------------------------


def test_the_plan_shows_models_by_role(run, other):
    done = accepted(
        run, PER_ROLE, f"{VERIFIER}.kind=model {VERIFIER}.model.path={other} cluster=cpu dry_run=true"
    )
    (section,) = [text for text in done.out.split("\n\n") if text.startswith("Policies\n")]
    rows = " ".join(section.split())
    assert rows.startswith("Policies policy kind roles parameters rate begins as")
    assert all(f" {name} model {name} " in rows for name in ROLES) and rows.endswith(str(other))
    assert "3 models: one at a time is computed with" in done.text


def test_the_plan_shows_adapters_by_role(run):
    done = run("policies=lora", "marsrl.policies.judge.kind=lora", "marsrl.roles.verifier.policy=judge",
               "marsrl.roles.verifier.lr=2e-4", "cluster=cpu", "dry_run=true")  # fmt: skip
    text = " ".join(done.out.split())
    assert "judge lora verifier" in text and "shared lora solver, corrector" in text
    assert " 0.0002 rank 32 on" in text
    assert "Policies" not in run("cluster=cpu", "dry_run=true").out


SMALL = ModelShape(2, 8, 2, 1, 4, 10, parameters=1000, layer_parameters=300, feed_forward=16)
LARGE = ModelShape(4, 16, 2, 2, 8, 20, parameters=5000, layer_parameters=900, feed_forward=32)


def estimate(run, *words, shapes=(SMALL, LARGE)):
    names = ("marsrl.policies.judge.kind=model", "marsrl.roles.verifier.policy=judge")
    config = run(*names, *words).launched
    return config, estimate_memory(config, *shapes)


def test_one_model_at_a_time_is_on_the_gpu_where_the_others_are_offloaded(run):
    cluster = ("cluster=8xgpu", "ray_kwargs.ray_init.address=auto")
    _, found = estimate(run, *cluster)
    assert found.parameters == 6000
    large, both = 5000 // 8, 5000 // 8 + 1000 // 8
    update = found.update
    assert (update.weights, update.gradients, update.optimizer) == (4 * large, 4 * large, 8 * large)
    assert found.host_waiting == 8 * 12 * both
    # While the second is read, the first waits.
    assert found.host_loading == max(4 * 1000, 8 * 12 * (1000 // 8) + 4 * 5000)
    offload = (f"{FSDP}.param_offload=false", f"{FSDP}.optimizer_offload=false")
    _, stays = estimate(run, *cluster, *offload)
    update = stays.update
    assert (update.weights, update.gradients, update.optimizer) == (4 * both, 4 * large, 8 * both)


def test_engines_share_the_memory_that_one_would_have(run):
    config, found = estimate(run, "cluster=8xgpu", "ray_kwargs.ray_init.address=auto")
    rollout = config.actor_rollout_ref.rollout
    tensor = int(rollout.tensor_model_parallel_size)
    weights = [shape.parameters * 2 // tensor for shape in (SMALL, LARGE)]
    part = int(float(rollout.gpu_memory_utilization) / 2 * 80 * GIB) - 2 * GIB
    assert found.engine_weights == sum(weights)
    assert found.kv_cache == 2 * part - sum(weights)
    # The larger model's tokens are the larger ones: 4 layers, 2 heads of 8 numbers, keys and values.
    assert found.kv_bytes_per_token == 2 * 4 * -(-2 // tensor) * 8 * 2
    assert found.longest_sequences == pytest.approx(
        (part - weights[1]) / found.kv_bytes_per_token / int(rollout.max_model_len)
    )


def test_policies_that_begin_as_one_model_share_its_reference(run, other):
    kl = ("actor_rollout_ref.actor.use_kl_loss=true", "cluster=8xgpu", "ray_kwargs.ray_init.address=auto")
    _, without = estimate(run, *kl[1:], shapes=(SMALL, SMALL))
    _, shared = estimate(run, *kl, shapes=(SMALL, SMALL))
    _, both = estimate(run, *kl, f"marsrl.policies.judge.model.path={other}", shapes=(SMALL, SMALL))
    each = 8 * (1000 // 8) * 2
    assert shared.host_waiting - without.host_waiting == each
    assert both.host_waiting - without.host_waiting == 2 * each


def test_a_published_size_in_three_models_on_eight_gpus(run):
    words = (QWEN_4B, f"actor_rollout_ref.model.path={QWEN}", PER_ROLE, "cluster=8xgpu", "dry_run=true")
    done = accepted(run, *words, "data.train_files=null", "data.val_files=null", "data=parquet")
    assert shape_from_config(PUBLISHED[QWEN]).parameters == 4_022_468_096
    text = " ".join(done.out.split())
    assert "of 3 models: 12.07 billion parameters" in text
    assert "3 models: one at a time is computed with, the others wait in main memory" in text
    assert "verifier model verifier 4,022,468,096 1e-06 Qwen/Qwen3-4B-Thinking-2507" in text
    assert "the engine of each model takes 1/3 of gpu_memory_utilization" in text


def test_several_models_that_do_not_fit_are_refused_with_a_way_out(run):
    words = (QWEN_4B, f"actor_rollout_ref.model.path={QWEN}", PER_ROLE, "cluster=1xgpu", "dry_run=true")
    done = run(*words, "marsrl.hardware.gpu_gib=40", "data.train_files=null", "data=parquet")
    assert_refused(done, "gpu_memory_utilization", "the engine of one of 3 models holds")
