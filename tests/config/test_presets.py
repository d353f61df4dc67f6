"""Every shipped option composes, passes the checks and says what it promises."""

from __future__ import annotations

from functools import reduce

import pytest
from messages import accepted
from method_removal import method_of
from omegaconf import OmegaConf

from marsrl_verl.algos.marsrl.config import Evaluation, InBetween
from marsrl_verl.algos.registry import installed_methods
from marsrl_verl.config import cpu_defaults
from marsrl_verl.config.checks import VALUES, run_checks
from marsrl_verl.config.checks.context import Context, typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config, resolve
from marsrl_verl.config.locations import config_folder, group_options
from marsrl_verl.settings.evaluation import EvaluationConfig
from marsrl_verl.settings.issues import ConfigError

pytestmark = pytest.mark.slow

OPTIONS = group_options([config_folder()])
# Another method's presets are named after it, and its own tests look at them.
OTHERS = tuple(name for name in installed_methods() if name not in ("marsrl", "grpo"))
OPTIONS["evaluation"] = [name for name in OPTIONS["evaluation"] if not name.startswith(OTHERS)]
OPTIONS["algo"] = [name for name in OPTIONS["algo"] if method_of(name) in ("marsrl", "grpo")]
MODELS, CLUSTERS = OPTIONS["model"], OPTIONS["cluster"]
# The groups whose settings meet in the same keys are crossed; the others are dealt out over these. Models
# that fit everywhere meet one cluster each beside the CPU; `auto` is the CPU here.
SMALLEST = [name for name in MODELS if name.startswith(("tiny", "smollm2"))]
GPU_CLUSTERS = [name for name in CLUSTERS if name not in ("auto", "cpu")]
CROSSED = [
    ("custom", "auto"),
    *((name, cluster) for name in MODELS if name not in SMALLEST for cluster in ("cpu", *GPU_CLUSTERS)),
    *((name, "cpu") for name in SMALLEST),
    *((name, GPU_CLUSTERS[number % len(GPU_CLUSTERS)]) for number, name in enumerate(SMALLEST)),
]
DEALT = ("algo", "data", "reward", "pipeline", "evaluation")
PAIRS = [
    (
        *pair,
        *(OPTIONS[group][(number // stride) % len(OPTIONS[group])] for stride, group in enumerate(DEALT, 1)),
    )
    for number, pair in enumerate(CROSSED)
]
HUB_IDS = {
    "custom": "our-lab/our-model",
    "llama3_8b_instruct": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama3_1_8b_instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "llama3_2_1b_instruct": "meta-llama/Llama-3.2-1B-Instruct",
    "qwen2_5_7b_instruct": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2_5_math_7b": "Qwen/Qwen2.5-Math-7B",
    "qwen3_30b_a3b_thinking_2507": "Qwen/Qwen3-30B-A3B-Thinking-2507",
    "qwen3_4b_thinking_2507": "Qwen/Qwen3-4B-Thinking-2507",
    "r1_distill_qwen_1_5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "r1_distill_qwen_7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
}

# Of which a sequence has room in the CPU preset's cache: where nobody checks solutions, and in any case.
SHORT, SMALL = ("r1_distill",), ("llama3_2", "qwen2_5")


def test_all_groups_are_covered():
    groups = {"algo", "reward", "model", "data", "cluster", "pipeline", "policies", "evaluation"}
    assert set(OPTIONS) == groups | {
        "training",
        "model_engine",
        "suite",
    }  # suites: test_benchmark_settings.py
    covered = [{row[i] for row in PAIRS} for i in range(2, 7)]
    for group, found in zip(DEALT, covered, strict=True):
        assert found == set(OPTIONS[group])


@pytest.mark.parametrize(("name", "cluster", "algo", "source", "reward", "pipeline", "evaluation"), PAIRS)
def test_options_compose_and_pass_the_checks(
    run, model, monkeypatch, name, cluster, algo, source, reward, pipeline, evaluation
):
    monkeypatch.setattr(cpu_defaults, "_processor_flags", frozenset)  # sizes are those of float32
    path = HUB_IDS.get(name, model)
    done = run(
        f"model={name} cluster={cluster} algo={algo} data={source} reward={reward} pipeline={pipeline}",
        f"evaluation={evaluation} actor_rollout_ref.model.path={path} dry_run=true",
    )
    assert done.launched is None
    # Where nobody checks a solution, in training or evaluation, sequences are short enough.
    alone = algo.startswith("grpo")
    if alone and evaluation in LOOPS:
        assert "marsrl.evaluation.correction_rounds" in done.err and done.status == 2
        return
    if source in ("tool_task", "calculations"):  # they bring tools, which these methods do not call
        assert "marsrl.tools.python.target" in done.err and done.status == 2
        return
    if name in ("tiny_rema", "smollm2_rema", "smollm2_tools") and not alone:  # prompts of other roles
        assert "marsrl.prompts.target" in done.err and done.status == 2
        return
    if algo == "grpo_dapo" and source in (
        "copy_chain",
        "word_problems",
    ):  # few problems a step for its updates
        assert "marsrl.pipeline.samples_per_update" in done.err and done.status == 2
        return
    if too_big(name, cluster, pipeline, alone):
        assert "marsrl.hardware.gpu_gib" in done.err or "the engine holds" in " ".join(done.err.split())
        assert done.status == 2
        return
    assert done.err == ""
    assert done.status == 0


def too_big(name: str, cluster: str, pipeline: str, alone: bool) -> bool:
    """Combinations that do not fit, and are rejected: the large model's training state on few GPUs, and what
    has no room in the cache of the CPU preset."""
    if name == "custom" or name.startswith(("tiny", "smollm2", *SMALL, *(SHORT if alone else ()))):
        return False
    big = name == "qwen3_30b_a3b_thinking_2507"
    beside = pipeline == "overlapped"
    few = cluster == "1xgpu" or (cluster == "8xgpu" and beside)
    return cluster in ("cpu", "auto") or (big and few)


def test_published_setting(run):
    done = accepted(
        run,
        "model=qwen3_30b_a3b_thinking_2507 actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Thinking-2507",
        "data=parquet cluster=4x8xgpu ray_kwargs.ray_init.address=auto",
    )
    config = done.launched
    actor, rollout, algo = (
        config.actor_rollout_ref.actor,
        config.actor_rollout_ref.rollout,
        config.marsrl.algo,
    )
    assert config.data.train_batch_size == 128
    assert (algo.group_size, algo.requests_per_stage, algo.correction_rounds) == (8, 2, 2)
    assert (algo.selection, algo.select_scope) == ("adaptive", "problem")
    for role in ("solver", "verifier", "corrector"):
        one = config.marsrl.roles[role]
        assert (one.max_prompt_tokens, one.max_new_tokens) == (32768, 65536)
        assert (one.temperature, one.top_p, one.top_k) == (0.85, 1.0, -1)
    assert rollout.temperature == 0.85
    assert rollout.max_model_len == 98304
    assert (actor.optim.lr, actor.optim.lr_scheduler_type, actor.optim.optimizer) == (
        1e-6,
        "constant",
        "AdamW",
    )
    assert (actor.use_kl_loss, actor.clip_ratio, config.marsrl.pipeline.updates_per_step) == (False, 0.2, 1)
    assert config.marsrl.reward.solver.target.endswith(":MathVerifyReward")
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node == 32


def evaluated(*overrides: str) -> EvaluationConfig:
    """The evaluation's settings of a command line, as composed."""
    return typed_settings(compose_config(parse_arguments([*overrides, "cluster=cpu"])).config).evaluation


LOOPS = {
    "marsrl": Evaluation(
        samples_per_problem=32,
        temperature=0.6,
        top_p=0.95,
        greedy=False,
        correction_rounds=10,
        accept_passes=5,
        reject_fails=10,
        fallback="passes",
    ),
    "marsrl_released": Evaluation(
        samples_per_problem=32,
        temperature=0.6,
        top_p=0.95,
        greedy=False,
        correction_rounds=11,
        accept_passes=4,
        reject_fails=11,
        fallback="released",
    ),
    "imo25": Evaluation(
        samples_per_problem=10,
        temperature=0.1,
        greedy=False,
        correction_rounds=31,
        accept_passes=5,
        reject_fails=11,
        fallback="last",
    ),
}


def replace(one: EvaluationConfig, **changes) -> EvaluationConfig:
    return one.model_copy(update=changes)


BIG = "model=qwen3_30b_a3b_thinking_2507"
PUBLISHED = replace(  # hours on 32 GPUs: none before step 1, and in between the Solver alone
    LOOPS["marsrl"],
    before=False,
    every=20,
    in_between=InBetween(problems=32, samples_per_problem=4, solver_only=True),
)


def test_published_evaluations():
    assert set(LOOPS) | {"preset", "in_training", "solver"} == set(OPTIONS["evaluation"])
    # Every method with one of them.
    for number, algo in enumerate(name for name in OPTIONS["algo"] if name.startswith("marsrl")):
        name = tuple(LOOPS)[number % len(LOOPS)]
        assert evaluated(f"algo={algo}", f"evaluation={name}") == LOOPS[name], (algo, name)


@pytest.mark.with_presets("grpo")
def test_the_usual_evaluation_is_that_of_the_schema_and_the_model():
    assert evaluated() == evaluated("evaluation=preset") == Evaluation()
    assert evaluated("evaluation=in_training") == Evaluation()
    assert evaluated("evaluation=solver") == Evaluation(correction_rounds=0)
    assert evaluated("algo=grpo") == evaluated("algo=grpo", "evaluation=solver") == EvaluationConfig()
    path = "actor_rollout_ref.model.path=x"
    own = evaluated("model=r1_distill_qwen_1_5b", path)
    assert own == Evaluation(temperature=0.6, greedy=False)
    greedy = evaluated(
        "model=r1_distill_qwen_1_5b", path, "evaluation=marsrl", "marsrl.evaluation.greedy=true"
    )
    assert greedy == replace(LOOPS["marsrl"], greedy=True)


@pytest.mark.with_presets("grpo")
def test_the_published_model_is_evaluated_as_in_its_paper():
    path = "actor_rollout_ref.model.path=x"
    assert evaluated(BIG, path) == PUBLISHED
    released = replace(PUBLISHED, correction_rounds=11, accept_passes=4, reject_fails=11, fallback="released")
    assert evaluated(BIG, path, "evaluation=marsrl_released") == released
    cheap = Evaluation(
        before=False, every=20, in_between=InBetween(problems=32), temperature=0.6, top_p=0.95, greedy=False
    )
    assert evaluated(BIG, path, "evaluation=in_training") == cheap
    alone = evaluated(BIG, path, "algo=grpo", "evaluation=solver")
    assert (type(alone), alone.samples_per_problem) == (EvaluationConfig, 32)
    small = evaluated("model=qwen3_4b_thinking_2507", path)
    assert small == Evaluation(temperature=0.6, top_p=0.95, greedy=False)


def test_a_frozen_solver_is_not_evaluated_alone():
    served = evaluated(BIG, "actor_rollout_ref.model.path=x", "policies=solver_endpoint")
    assert (served.every, served.in_between.solver_only) == (0, False)


def test_cpu_preset_holds_what_the_platform_needs(checked):
    config = checked({"trainer.n_gpus_per_node": 2}).config
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.trainer.device, config.trainer.use_v1) == ("cpu", False)
    assert (actor.strategy, actor.fsdp_config.strategy) == ("fsdp2", "fsdp2")
    assert actor.fsdp_config.use_torch_compile is False
    assert config.actor_rollout_ref.model.override_config.attn_implementation == "sdpa"
    assert config.actor_rollout_ref.model.use_remove_padding is False
    assert (rollout.tensor_model_parallel_size, rollout.enforce_eager) == (1, True)
    assert (rollout.free_cache_engine, rollout.enable_sleep_mode) == (False, False)
    assert rollout.checkpoint_engine.update_weights_bucket_megabytes == 64
    assert (rollout.agent.num_workers, config.reward.num_workers) == (1, 1)
    assert config.data.dataloader_num_workers == 0
    variables = config.ray_kwargs.ray_init.runtime_env.env_vars
    assert variables.VERL_PLATFORM == "cpu"
    assert variables.TORCHDYNAMO_DISABLE == "1"
    assert variables.VLLM_CPU_KVCACHE_SPACE == "1"
    assert config.ray_kwargs.ray_init.num_gpus == 2


def test_default_run_launches_a_fully_resolved_configuration(run):
    done = run()
    assert done.status == 0
    assert "cluster=cpu (picked from the machine" in done.text
    assert "${" not in str(done.launched)
    assert done.launched.marsrl.run.name == "default"
    assert done.launched.trainer.default_local_dir.startswith("/")


def test_own_configuration_folder(run, tmp_path):
    own = tmp_path / "mine"
    (own / "algo").mkdir(parents=True)
    (own / "algo" / "big_groups.yaml").write_text(
        "# @package _global_\ndefaults: [marsrl, _self_]\nmarsrl:\n  algo:\n    group_size: 16\n"
    )
    (own / "study.yaml").write_text(
        "defaults:\n  - marsrl\n  - override algo: big_groups\n  - _self_\nname: study\n"
    )
    done = accepted(run, "--config-dir", str(own), "--config-name", "study", "cluster=cpu")
    assert (done.launched.marsrl.algo.group_size, done.launched.marsrl.run.name) == (16, "study")


def test_reward_of_ones_own(run, tmp_path):
    (tmp_path / "length_reward.py").write_text(
        "from marsrl_verl.rewards.base import RoleReward\n"
        "from marsrl_verl.core.trajectory import RewardResult\n"
        "class Length(RoleReward):\n"
        "    def __init__(self, limit):\n"
        "        self.limit = limit\n"
        "    def score(self, request):\n"
        "        return RewardResult(float(len(request.text) < self.limit))\n"
    )
    done = accepted(
        run, "marsrl.reward.solver.target=length_reward:Length", "marsrl.reward.solver.kwargs.limit=7"
    )
    assert done.launched.marsrl.reward.solver.kwargs == {"limit": 7}


def found(raw: dict) -> tuple[list[str], list[str]]:
    """Keys that the checks of settings refuse, and the warnings."""
    context = Context(config=resolve(OmegaConf.create(raw)), raw=raw, dry_run=True)
    try:
        run_checks(context, VALUES)
    except ConfigError as error:
        return [one.key for one in error.problems], context.warnings
    return [], context.warnings


ULYSSES = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"


@pytest.mark.parametrize("algo", group_options([config_folder()])["algo"])
def test_no_setting_is_refused_for_a_default_of_a_model_with_experts(algo):
    arguments = (f"algo={algo}", "model=qwen3_30b_a3b_thinking_2507", "cluster=8xgpu", "dry_run=true")
    raw = compose_config(parse_arguments(arguments)).raw
    keys, _ = found(raw)
    left = {key for key in keys if "${" in str(reduce(dict.__getitem__, key.split("."), raw))}
    assert left <= {ULYSSES}, "the preset's, which methods that measure attention can't have"
    if not str(raw["marsrl"]["off_policy"]["mode"]).startswith("${"):
        return  # the method's own
    for role in raw["marsrl"]["roles"].values():
        role["top_p"] = 0.95
    refused, warnings = found(raw)
    assert refused == keys
    assert any("experts" in one and "so it is pois" in one for one in warnings)
