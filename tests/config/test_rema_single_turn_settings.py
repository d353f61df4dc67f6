"""Settings of the single-turn method that contradict each other, and its presets."""

from __future__ import annotations

import json

import pytest

from marsrl_verl.algos.rema.single_turn.config import Process
from marsrl_verl.algos.rema.single_turn.method import ReMASingleTurn
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config

pytestmark = pytest.mark.slow

TINY = ("cluster=cpu", "model=tiny_rema", "data=rema_world")
ALGO = "marsrl.algo"


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ((f"{ALGO}.filter.lowest=0.9",), f"{ALGO}.filter.lowest", "No success rate is at least this"),
        ((f"{ALGO}.solution_values.correct=-1",), f"{ALGO}.solution_values.correct", "has to earn more"),
        ((f"{ALGO}.train_roles=[]",), f"{ALGO}.train_roles", "No role is trained"),
        ((f"{ALGO}.train_roles=[planner]",), f"{ALGO}.train_roles", "meta_thinking"),
        ((f"{ALGO}.train_roles=[reasoning,reasoning]",), f"{ALGO}.train_roles", "named twice"),
        (
            (f"{ALGO}.train_roles=[reasoning]", f"{ALGO}.penalty=-2"),
            f"{ALGO}.penalty",
            "has no meta_thinking",
        ),
        (
            (f"{ALGO}.train_roles=[meta_thinking]", f"{ALGO}.plans_per_problem=2"),
            f"{ALGO}.plans_per_problem",
            "has no reasoning",
        ),
        ((f"{ALGO}.plan_reward=consistency",), f"{ALGO}.solutions_per_plan", "several solutions"),
        ((f"{ALGO}.leak_rule=none", f"{ALGO}.penalty=-2"), f"{ALGO}.penalty", "no plan is punished"),
        (("data.train_batch_size=2",), f"{ALGO}.plans_per_problem", "no room for the plans"),
        (("marsrl.evaluation.both_orders=true",), "marsrl.evaluation.both_orders", "algo=rema_judge"),
        ((f"{ALGO}.process=vrp", f"{ALGO}.solutions_per_plan=2"), f"{ALGO}.solutions_per_plan", "no effect"),
        ((f"{ALGO}.process=vrp", "policies=model_per_role"), "marsrl.default_policy", "nobody asks"),
        (
            (f"{ALGO}.process=vrp", "policies=lora_per_role", "actor_rollout_ref.model.lora_rank=8"),
            "marsrl.default_policy",
            "policies=lora",
        ),
        (
            (f"{ALGO}.process=mrp", f"{ALGO}.train_roles=[reasoning]"),
            f"{ALGO}.train_roles",
            "reasoning alone",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_by_key(run, changes, key, said):
    done = run(*TINY, "algo=rema_single_turn", *changes, "dry_run=true")
    assert done.status == 2
    text = " ".join(done.err.split())
    assert key in text and said in text


def test_actions_need_an_engine_and_whole_responses(run):
    endpoint = (
        "+marsrl.policies.planner.kind=endpoint",
        "+marsrl.policies.planner.endpoint.base_urls=[http://localhost:1]",
        "+marsrl.policies.planner.endpoint.model=m",
        "marsrl.roles.meta_thinking.policy=planner",
        f"{ALGO}.train_roles=[reasoning]",
    )
    done = run(*TINY, "algo=rema_json", *endpoint, "dry_run=true")
    assert f"{ALGO}.plan_form" in done.err and "frozen" in done.err
    done = run(*TINY, "algo=rema_json", "marsrl.pipeline.max_segments=2", "dry_run=true")
    assert "marsrl.pipeline.max_segments" in done.err


def test_ratios_to_the_engine_are_no_plans_of_a_grammar(run):
    done = run(*TINY, "algo=rema_json", "pipeline=overlapped", "dry_run=true")
    assert done.status == 2
    assert "marsrl.off_policy.mode" in done.err and "grammar allows" in " ".join(done.err.split())
    for more in (("marsrl.off_policy.mode=pois",), (f"{ALGO}.train_roles=[reasoning]",)):
        done = run(*TINY, "algo=rema_json", "pipeline=overlapped", *more, "dry_run=true")
        assert (done.status, done.err) == (0, "")


def test_a_frozen_agent_is_not_trained(run):
    endpoint = (
        "+marsrl.policies.planner.kind=endpoint",
        "+marsrl.policies.planner.endpoint.base_urls=[http://localhost:1]",
        "+marsrl.policies.planner.endpoint.model=m",
        "marsrl.roles.meta_thinking.policy=planner",
    )
    done = run(*TINY, "algo=rema_single_turn", *endpoint, "dry_run=true")
    assert f"{ALGO}.train_roles" in done.err and "[reasoning]" in done.err
    done = run(*TINY, "algo=rema_single_turn", *endpoint, f"{ALGO}.train_roles=[reasoning]", "dry_run=true")
    assert (done.status, done.err) == (0, "")


PRESETS = {
    "rema_single_turn": {"process": Process.MAMRP, "estimator": "reinforce_pp"},
    "rema_json": {"plan_form": "json"},
    "rema_consistency": {"plan_reward": "consistency", "solutions_per_plan": 8},
    "rema_judge": {"leak_rule": "format", "iterations": 1},
    "vrp_rl": {"process": Process.VRP},
    "mrp_rl": {"process": Process.MRP},
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_says_what_it_promises(run, preset):
    done = run("algo=" + preset, *TINY, "dry_run=true")
    assert (done.status, done.err) == (0, "")
    algo = compose_config(parse_arguments(["algo=" + preset, *TINY])).config.marsrl.algo
    assert algo.name == "rema_single_turn"
    for name, value in PRESETS[preset].items():
        assert algo[name] == value
    assert algo.filter.enabled == (algo.process == "mamrp")


def composed(*words):
    return compose_config(parse_arguments([*words, "cluster=8xgpu", "data=parquet"])).config


@pytest.mark.parametrize(
    ("words", "iterations", "episodes"),
    [
        (("algo=rema_single_turn", "training=rema_single_turn_published"), 3, 4),
        (("algo=vrp_rl", "training=vrp_rl_published"), 1, 6),
        (("algo=mrp_rl", "training=mrp_rl_published"), 1, 6),
        (("algo=rema_judge", "training=rema_judge_published"), 1, 2),
    ],
)
@pytest.mark.parametrize("model", ["llama3_8b_instruct", "llama3_1_8b_instruct", "qwen2_5_7b_instruct"])
def test_the_published_numbers(words, iterations, episodes, model):
    config = composed(*words, f"model={model}")
    algo, actor = config.marsrl.algo, config.actor_rollout_ref.actor
    assert (algo.iterations, algo.episodes, algo.group_size) == (iterations, episodes, 4)
    assert (config.data.train_batch_size, config.marsrl.pipeline.samples_per_update) == (1000, 500)
    assert (actor.optim.lr, actor.clip_ratio, actor.use_kl_loss) == (5e-7, 0.2, False)
    assert (config.algorithm.use_kl_in_reward, config.algorithm.kl_ctrl.kl_coef) == (True, 0.01)
    role = config.marsrl.roles.reasoning
    assert (role.temperature, role.top_p, role.top_k, role.max_new_tokens) == (1.0, 1.0, -1, 2048)


@pytest.mark.parametrize(
    "words",
    [
        ("algo=rema_single_turn", "training=rema_single_turn_published", f"{ALGO}.iterations=10"),
        ("algo=vrp_rl", "training=vrp_rl_published", f"{ALGO}.episodes=12"),
        ("algo=mrp_rl", "training=mrp_rl_published", f"{ALGO}.episodes=10"),
        ("algo=rema_judge", "training=rema_judge_published"),
    ],
)
def test_the_published_phases_end_before_the_limit_of_steps(words):
    """However many problems a phase keeps: also all of them."""
    config = composed(*words, "model=qwen2_5_7b_instruct")
    algo = config.marsrl.algo
    a_pass = 7  # of MATH's 7,500 problems
    own = a_pass * algo.plans_per_problem + 1 if algo.process == "mamrp" else a_pass + 1
    phase = 1 + a_pass + algo.episodes * own
    assert config.trainer.total_training_steps is None
    assert 2 * algo.iterations * phase < a_pass * config.trainer.total_epochs


def test_the_judge_s_prompts_and_rewards():
    settings = typed_settings(composed("algo=rema_judge", "model=qwen2_5_7b_instruct"))
    assert settings.prompts.target.endswith(":JudgePrompts")
    assert settings.reward["reasoning"].target.endswith(":JudgeReward")
    assert settings.reward["meta_thinking"].kwargs == {"look": False}


def test_pairs_to_judge_are_read_where_the_tokenizer_is_at_hand(run, tmp_path):
    """The prompts have the answers of `extra_info` in them, and so are measured with it."""
    extra = {"answer_a": "two", "answer_b": "word " * 60}
    row = {"data_source": "pairs", "reward_model": {"ground_truth": "A"}, "extra_info": extra}
    files = []
    for split in ("train", "val"):
        rows = [{**row, "prompt": [{"role": "user", "content": f"1 + 1, {split} {n}"}]} for n in range(8)]
        path = tmp_path / f"{split}.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        files.append(f"data.{split}_files={path}")
    prompts = "marsrl_verl.algos.rema.single_turn.judge:JudgePrompts"
    words = (
        "algo=rema_judge",
        f"marsrl.prompts.target={prompts}",
        *files,
        "data.train_batch_size=8",
        "dry_run=true",
    )
    done = run(*TINY, *words)
    assert "All 8 problems of data.train_files have prompts over" in done.err, "with both answers"


def test_it_says_which_passes_there_are(run):
    done = run(*TINY, "algo=rema_single_turn", f"{ALGO}.iterations=2", "dry_run=true")
    assert "phases: reasoning, then meta_thinking; each a pass that counts successes" in done.out
    assert "2 time(s)" in done.out
    assert ReMASingleTurn.roles == ("meta_thinking", "reasoning")
