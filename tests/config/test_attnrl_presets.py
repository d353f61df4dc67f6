"""AttnRL's and TreeRL's presets compose, pass the checks and say what they promise."""

from __future__ import annotations

import pytest
from messages import accepted

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.config.locations import config_folder, group_options
from marsrl_verl.config.settings_page import page
from marsrl_verl.settings.evaluation import EvaluationConfig

TREES = [name for name in group_options([config_folder()])["algo"] if name.startswith(("attnrl", "treerl"))]
HUB_IDS = {
    "r1_distill_qwen_1_5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "r1_distill_qwen_7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "qwen3_30b_a3b_thinking_2507": "Qwen/Qwen3-30B-A3B-Thinking-2507",
}
SEQUENCE_PARALLEL = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"


def test_the_presets_are_there():
    assert TREES == ["attnrl", "attnrl_released", "treerl", "treerl_baseline"]


@pytest.mark.parametrize("cluster", ["cpu", "1xgpu", "8xgpu", "4x8xgpu"])
@pytest.mark.parametrize("algo", TREES)
def test_trees_of_the_tiny_model_pass_the_checks(run, algo, cluster):
    # Its branch points are farther apart than the tiny model's responses are long.
    near = ["marsrl.algo.min_token_distance=8"] if algo == "attnrl_released" else []
    for pipeline in ("pipelined", "sequential") if cluster == "cpu" else ("pipelined",):
        accepted(
            run,
            f"{SEQUENCE_PARALLEL}=1",
            *near,
            f"cluster={cluster} algo={algo} pipeline={pipeline} dry_run=true",
        )


@pytest.mark.parametrize("algo", TREES)
@pytest.mark.parametrize("name", HUB_IDS)
def test_trees_of_real_models_fit_where_nobody_checks_a_solution(run, algo, name):
    """Sequences are short enough for that; the large model's whole ones are too long for one GPU."""
    done = run(
        f"{SEQUENCE_PARALLEL}=1 model={name} actor_rollout_ref.model.path={HUB_IDS[name]} cluster=4x8xgpu",
        f"algo={algo} dry_run=true",
    )
    if name.startswith("qwen3"):
        assert done.status == 2 and "marsrl.hardware.gpu_gib" in done.err
    else:
        assert (done.status, done.err) == (0, "")


@pytest.mark.parametrize(
    ("name", "nodes"), [("r1_distill_qwen_1_5b", 1), ("r1_distill_qwen_7b", 3)], ids=["1.5B", "7B"]
)
def test_published_setting_of_attnrl(run, name, nodes):
    """arXiv 2509.26628 and its launch script."""
    done = accepted(
        run,
        f"algo=attnrl model={name} actor_rollout_ref.model.path={HUB_IDS[name]} data=parquet reward=hybrid",
        f"cluster=8xgpu trainer.nnodes={nodes} training=attnrl_published ray_kwargs.ray_init.address=auto",
    )
    config = done.launched
    actor, rollout, algo = (
        config.actor_rollout_ref.actor,
        config.actor_rollout_ref.rollout,
        config.marsrl.algo,
    )
    assert (config.data.train_batch_size, algo.group_size) == (64, 6)
    assert (algo.num_branch_points, algo.num_continuations, algo.delta, algo.top_frac) == (2, 2, None, 0.2)
    assert (algo.filter, algo.expansion, algo.adaptive_batch.smoothing) == ("released", "round", 0.9)
    solver = config.marsrl.roles.solver
    assert (solver.max_prompt_tokens, solver.max_new_tokens) == (1024, 8192)
    assert (solver.temperature, solver.top_p, solver.top_k) == (1.0, 1.0, -1)
    assert (rollout.max_model_len, config.data.max_response_length) == (9216, 8192), "no other role is asked"
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.001, "low_var_kl")
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.loss_agg_mode) == (0.2, 0.28, "token-mean")
    assert (actor.optim.lr, actor.optim.lr_scheduler_type, actor.optim.weight_decay) == (
        1e-6,
        "constant",
        0.01,
    )
    assert (actor.optim.clip_grad, actor.entropy_coeff, actor.ppo_epochs) == (1.0, 0, 1)
    assert (actor.ppo_max_token_len_per_gpu, rollout.log_prob_max_token_len_per_gpu) == (36864, 36864)
    assert (rollout.max_num_seqs, rollout.max_num_batched_tokens) == (4096, 36864)
    assert (rollout.gpu_memory_utilization, rollout.tensor_model_parallel_size) == (0.85, 1)
    assert config.marsrl.pipeline.samples_per_update == 192
    assert (config.marsrl.evaluation.temperature, config.marsrl.evaluation.every) == (0.6, 20)
    assert (config.trainer.save_freq, config.trainer.total_training_steps) == (10, 500)
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node == 8 * nodes


def test_the_clip_range_of_trees_is_the_one_that_the_check_knows(run):
    for mode in ("recorded", "pois", "tis"):
        accepted(
            run, f"algo=attnrl pipeline=sequential cluster=cpu dry_run=true marsrl.off_policy.mode={mode}"
        )
    refused = run(
        "algo=attnrl pipeline=sequential cluster=cpu dry_run=true",
        "actor_rollout_ref.actor.clip_ratio_high=0.3",
    )
    assert refused.status != 0 and "nothing is ever clipped" in refused.err


def evaluated(*overrides: str) -> EvaluationConfig:
    """The evaluation's settings of a command line, as composed."""
    return typed_settings(compose_config(parse_arguments([*overrides, "cluster=cpu"])).config).evaluation


def test_methods_without_the_loop_have_none_of_its_settings():
    defaults = EvaluationConfig()
    for name in ("preset", "in_training", "solver"):
        assert evaluated("algo=attnrl", f"evaluation={name}") == defaults
    big = evaluated("model=qwen3_30b_a3b_thinking_2507", "actor_rollout_ref.model.path=x", "algo=attnrl")
    assert (big.samples_per_problem, big.every, big.in_between.problems) == (32, 20, 32)
    assert type(big) is EvaluationConfig


@pytest.mark.parametrize(
    "word",
    [
        "evaluation=marsrl",
        "marsrl.evaluation.correction_rounds=2",
        "marsrl.evaluation.correction_rounds=0",
        "marsrl.evaluation.in_between.solver_only=true",
    ],
)
def test_the_loop_is_refused_where_there_is_none(run, word):
    done = run("algo=attnrl", word, "cluster=cpu")
    assert done.status != 0
    assert "It is a setting of marsrl, and the method is attnrl." in done.err


def test_the_loss_takes_the_recorded_log_probs():
    config = compose_config(parse_arguments(["algo=attnrl", "pipeline=sequential", "cluster=cpu"])).config
    assert typed_settings(config).off_policy.mode == "recorded"


def test_trees_are_not_grpo(run):
    done = run("algo=attnrl", "cluster=cpu", "dry_run=true", "algorithm.adv_estimator=grpo")
    assert done.status == 2
    assert "algorithm.adv_estimator = grpo" in done.err


def test_trees_take_no_kl_in_the_reward(run):
    done = run("algo=attnrl", "cluster=cpu", "dry_run=true", "algorithm.use_kl_in_reward=true")
    assert done.status == 2
    assert "The advantages of attnrl do not count what a token's reward loses" in " ".join(done.err.split())


def test_the_settings_page_says_type_range_choices_and_default():
    text = page(["attnrl"])
    assert "| `top_frac` | a number above 0, at most 1 | `0.2` |" in text
    assert '| `filter_mean` | one of cumulative, ema | `"cumulative"` |' in text
