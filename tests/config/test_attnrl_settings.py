"""AttnRL's settings: what is rejected, what the presets say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from messages import accepted, assert_checks_refuse, assert_refused, refusals
from small_files import SHAPE, make_model, sums, write_problems

from marsrl_verl.algos.attnrl.config import Config
from marsrl_verl.settings.reading import defaults

ALGO = "marsrl.algo"
KEY = ALGO
BATCH = f"{KEY}.adaptive_batch"
OVERRIDES = "actor_rollout_ref.model.override_config"
TREE = {ALGO: {**defaults(Config), "name": "attnrl"}}

REFUSED = refusals(
    f"""
    another method | {ALGO}.delta=2 | {ALGO}.delta | a setting of attnrl
    unknown filter | TREE {ALGO}.filter=hard | released
    no distance | TREE {ALGO}.delta=0 | at least 1
    a distance that the tiny task's responses do not have | TREE {ALGO}.delta=4 | at most 5 steps
    one response | TREE {ALGO}.group_size=1 | at least 2
    no branch | TREE {ALGO}.num_branch_points=0 | at least 1
    no continuation | TREE {ALGO}.num_continuations=0 | least 1
    no share | TREE {ALGO}.top_frac=0.0 | above 0
    share without FCI | TREE {ALGO}.criterion=earliest {ALGO}.top_frac=0.5 | criterion=fci
    delta without FCI | TREE {ALGO}.criterion=earliest {ALGO}.filter=none {ALGO}.delta=2 | criterion=fci
    aggregation without FCI | TREE {ALGO}.criterion=earliest {ALGO}.filter=none {ALGO}.fci_aggregation=mean
        | criterion=fci
    unknown cut | TREE {ALGO}.step_delimiter=lines | breaks, tokens
    on_too_few of tokens | TREE {ALGO}.criterion=entropy {ALGO}.on_too_few=spread | chooses steps
    decay without a moving mean | TREE {ALGO}.filter_decay=0.5 | ema
    a mean that never moves | TREE {ALGO}.filter_mean=ema {ALGO}.filter_decay=1.0 | nothing ever changes
    a batch that never moves | TREE {BATCH}.enabled=true {BATCH}.smoothing=1.0 | nothing ever changes
    a distance that no response has | TREE {ALGO}.min_token_distance=100000 | at most
    choice among all | TREE {ALGO}.expansion=all {ALGO}.tree_choice=minority | expansion
    batch that does not adapt | TREE {BATCH}.max_problems=9 | {BATCH}.enabled=true
    limits that cross | TREE {BATCH}.enabled=true {BATCH}.min_problems=9 {BATCH}.max_problems=8 | min_problems
    other roles | TREE {ALGO}.correction_rounds=1 | {ALGO}.correction_rounds
        | a setting of marsrl, and the method is attnrl
    overlap | TREE marsrl.pipeline.overlap=one_step | none
    parts of a tree | TREE marsrl.pipeline.max_segments=2 marsrl.pipeline.min_group=2 | null
    a kernel on the processor | TREE {ALGO}.fci_backend=triton | Use auto or chunked
    FCI of eager attention | TREE '{OVERRIDES}={{attn_implementation: eager}}'
        | {OVERRIDES}.attn_implementation = eager | Use sdpa or flash_attention_2
    a filter by FCI of eager attention
        | TREE {ALGO}.criterion=surprisal '{OVERRIDES}={{attn_implementation: eager}}'
        | {OVERRIDES}.attn_implementation = eager | not in it
    recorded without trees | marsrl.off_policy.mode=recorded | pois
    """,
    TREE=TREE,
)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(checked, case):
    assert_checks_refuse(checked, *REFUSED[case])


def test_a_frozen_solver_is_refused(run):
    done = run(
        "algo=attnrl policies=solver_endpoint",
        "marsrl.policies.solver.endpoint.base_urls=[http://host:8000/v1]",
        "marsrl.policies.solver.endpoint.model=m",
    )
    assert_refused(done, "marsrl.roles.solver.policy = solver", "attnrl needs the tokens")


@pytest.mark.parametrize(
    "changes",
    [
        {**TREE, f"{KEY}.fci_backend": "chunked"},
        {**TREE, OVERRIDES: {}},
        # Without FCI nothing reads the attention.
        {
            **TREE,
            f"{KEY}.criterion": "entropy",
            f"{KEY}.filter": "none",
            OVERRIDES: {"attn_implementation": "eager"},
        },
        {OVERRIDES: {"attn_implementation": "eager"}},
    ],
    ids=["chunked", "verl's default", "trees without FCI", "another method"],
)
def test_accepted(checked, changes):
    checked(changes)


def test_a_kernel_is_accepted_on_gpus(run):
    accepted(run, "algo=attnrl", "cluster=1xgpu", f"{KEY}.fci_backend=triton", "dry_run=true")


LAYERS = {
    "named": ({"layer_types": ["chunked_attention", "full_attention"]}, "layers of chunked_attention"),
    "a hybrid": ({"layer_types": ["linear_attention", "full_attention"]}, "layers of linear_attention"),
    "in the text part": (
        {"model_type": "llama4", "text_config": {"attention_chunk_size": 8192, "num_hidden_layers": 2}},
        "(type llama4) has layers of chunked_attention",
    ),
}


def model_with(folder: Path, layers: dict[str, object]) -> Path:
    make_model(folder)
    (folder / "config.json").write_text(json.dumps({**SHAPE, **layers}))
    return folder


@pytest.mark.parametrize(("layers", "said"), LAYERS.values(), ids=LAYERS)
def test_a_model_whose_layers_have_no_fci_is_refused(run, tmp_path, layers, said):
    path = f"actor_rollout_ref.model.path={model_with(tmp_path / 'model', layers)}"
    for more in ((), ("dry_run=true",)):
        assert_refused(run("algo=attnrl", "cluster=cpu", path, *more), "actor_rollout_ref.model.path", said)
    assert run("algo=treerl", "cluster=cpu", path, "dry_run=true").status == 0, "it branches without FCI"
    assert run("cluster=cpu", path, "dry_run=true").status == 0


def test_a_model_with_a_sliding_window_has_fci(run, tmp_path):
    folder = model_with(tmp_path / "model", {"layer_types": ["sliding_attention", "full_attention"]})
    accepted(run, "algo=attnrl", "cluster=cpu", f"actor_rollout_ref.model.path={folder}", "dry_run=true")


def test_overridden_layers_count(checked):
    changes = {**TREE, OVERRIDES: {"layer_types": ["conv", "full_attention"]}}
    assert_checks_refuse(checked, changes, "actor_rollout_ref.model.path", "layers of conv")


def test_the_plan_of_a_step(run):
    done = run("algo=attnrl", "cluster=cpu", "data.train_batch_size=64", "dry_run=true")
    assert done.status == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert ["initial", "solver", "1", "256", "1,536", "yes"] in lines, "four times 64 problems at most"
    assert ["continuation", "solver", "12", "3,072", "6,144", "yes"] in lines


@pytest.mark.parametrize(
    ("more", "distance"),
    [
        ((), "1 step later"),
        (("marsrl.algo.delta=3",), "3 steps later"),
        (("marsrl.prompts.target=marsrl_verl.algos.marsrl.prompts:MathPrompts",), "4 steps later"),
    ],
    ids=["tiny task", "named", "other prompts"],
)
def test_the_plan_names_the_distance_from_which_attention_counts(run, more, distance):
    prompts = ["marsrl.roles.solver.max_prompt_tokens=200"] if "target" in str(more) else []
    done = accepted(run, "algo=attnrl", "cluster=cpu", "dry_run=true", *more, *prompts)
    assert f"attention to a step counts from {distance} on" in done.text
    assert "influence:" not in run("algo=treerl", "cluster=cpu", "dry_run=true").out


@pytest.mark.parametrize(("adapts", "said"), [(False, []), (True, ["up to 128 problems", "data has 96"])])
def test_steps_that_may_take_more_than_a_pass_are_warned_of(checked, tmp_path, adapts, said):
    """`ProblemStream.take` goes on with the next pass."""
    algo = {**defaults(Config), "name": "attnrl"}
    algo["adaptive_batch"] = {**algo["adaptive_batch"], "enabled": adapts}
    files = {
        "data.train_files": write_problems(tmp_path / "train.jsonl", sums(0, 100)),
        "data.val_files": write_problems(tmp_path / "val.jsonl", sums(900, 4)),
    }
    found = checked({**files, ALGO: algo, "data.train_batch_size": 32}).warnings
    assert len(found) == adapts and all(word in found[0] for word in said)
