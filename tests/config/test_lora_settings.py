"""LoRA adapters in the configuration: which policies have one, what they need, what does not go."""

from __future__ import annotations

import pytest
from messages import accepted, assert_checks_refuse, assert_refused, refusals

from marsrl_verl.config.models import adapters
from marsrl_verl.demo.assets import model_path

MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
VLLM, SAVED = f"{ROLLOUT}.engine_kwargs.vllm", "actor_rollout_ref.actor.checkpoint.save_contents"
RANK = {f"{MODEL}.lora_rank": 8}
ROLES = ["corrector", "solver", "verifier"]

REFUSED = refusals(
    f"""
    no rank | {MODEL}.lora_rank=-1 | from 0 to 512
    too high a rank | {MODEL}.lora_rank=1024 | from 0 to 512
    adapters without a rank | marsrl.default_policy=lora_per_role | {MODEL}.lora_rank = 0
        | Adapters have no rank
    one adapter without a rank | marsrl.policies.judge.kind=lora marsrl.roles.verifier.policy=judge
        | {MODEL}.lora_rank = 0 | policies=lora_per_role
    a scale without a rank | {MODEL}.lora_alpha=8 | no effect with {MODEL}.lora_rank = 0
    modules without a rank | {MODEL}.target_modules=[q_proj] | {MODEL}.target_modules | no effect
    a model beside adapters | RANK marsrl.policies.judge.kind=model marsrl.roles.verifier.policy=judge
        | marsrl.policies.judge.kind = model | every trained policy is an adapter on one model
    models beside adapters | RANK marsrl.default_policy=model_per_role
        | every trained policy is an adapter on one model
    an engine without the model | RANK {ROLLOUT}.load_format=dummy | read the model themselves
    a merged model | RANK {SAVED}=[model,optimizer,extra,hf_model] | {SAVED} =  | PEFT folder
    parameters | RANK {MODEL}.target_parameters=[gate] | {MODEL}.target_parameters | modules alone
    embeddings | RANK {MODEL}.target_modules=[q_proj,lm_head] | {MODEL}.target_modules | linear
    the engine's own number | RANK {VLLM}.max_loras=4 | follows from the adapters
    quantised weights | RANK actor_rollout_ref.actor.fsdp_config.qat.enable=true | Quantised
    """,
    RANK=RANK,
)


@pytest.mark.parametrize(
    ("named", "missing"),
    [
        (["q_proj", "q_projj"], "no layer q_projj"),
        (["proj"], "no layer proj"),
        (".*self_attn.q_projj", "no layer .*self_attn.q_projj"),
        ("q_proj", "no layer q_proj"),  # a pattern of the whole name
        (["q_proj", "mlp.up_proj"], None),
        (".*self_attn.q_proj", None),
        ("all-linear", None),
    ],
)
def test_layers_that_get_adapters_are_there(checked, named, missing):
    changes = {**RANK, f"{MODEL}.target_modules": named, f"{MODEL}.path": model_path()}
    if missing is None:
        checked(changes)
    else:
        assert_checks_refuse(checked, changes, f"{MODEL}.target_modules", f"The model has {missing}.")


@pytest.mark.parametrize("case", REFUSED)
def test_refused(checked, case):
    assert_checks_refuse(checked, *REFUSED[case])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), []),
        (("policies=lora",), ["shared"]),
        ((f"{MODEL}.lora_rank=4",), ["shared"]),
        (("policies=lora_per_role",), ROLES),
        (
            ("policies=lora", "marsrl.policies.judge.kind=lora", "marsrl.roles.verifier.policy=judge"),
            ["judge", "shared"],
        ),
    ],
)
def test_which_policies_are_adapters(run, words, expected):
    done = accepted(run, *words, "cluster=cpu")
    rollout, actor = done.launched.actor_rollout_ref.rollout, done.launched.actor_rollout_ref.actor
    assert list(adapters(rollout)) == expected
    assert rollout.load_format == ("auto" if expected else "dummy")
    assert actor.checkpoint.save_lora_only is bool(expected)


def test_a_frozen_role_has_no_adapter(run):
    endpoint = "marsrl.policies.solver.endpoint"
    frozen = (
        "policies=solver_endpoint",
        f"{endpoint}.base_urls=[http://host:8000/v1]",
        f"{endpoint}.model=big",
    )
    done = accepted(
        run, *frozen, f"{MODEL}.lora_rank=4", "marsrl.default_policy=lora_per_role", "cluster=cpu"
    )
    assert list(adapters(done.launched.actor_rollout_ref.rollout)) == ["corrector", "verifier"]


def test_the_plan_counts_what_adapters_train(run):
    model = ("model=qwen3_4b_thinking_2507", f"{MODEL}.path=Qwen/Qwen3-4B-Thinking-2507", "cluster=1xgpu")
    whole = run(*model, "dry_run=true").out
    done = accepted(run, *model, "policies=lora_per_role", "dry_run=true")
    assert "two AdamW moments of the adapters alone" in done.text

    def gib(text: str, part: str) -> float:
        number, unit = text.split(f"{part} ")[1].split()[:2]
        return float(number) / {"GiB": 1, "MiB": 1024}[unit]

    # 36 layers x 32 x (inputs and outputs of seven maps) x 3 adapters x 4 bytes.
    ends = 4 * 2560 + 2 * 128 * (32 + 8) + 3 * (2560 + 9728)
    assert gib(done.out, "gradients") == pytest.approx(36 * 32 * ends * 3 * 4 / 2**30, abs=0.05)
    assert gib(whole, "gradients") > 20 * gib(done.out, "gradients")


def test_a_method_with_one_role_takes_an_adapter_too(run):
    accepted(run, "algo=grpo", "policies=lora", "cluster=cpu")
    refused = run("algo=grpo", "policies=lora", f"{MODEL}.lora_adapter_path=x", "cluster=cpu")
    assert_refused(refused, f"{MODEL}.lora_adapter_path", "begin at nothing")
