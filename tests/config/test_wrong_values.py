"""Values that verl, vLLM or Ray would refuse in the middle of a run, or accept without sense."""

from __future__ import annotations

import pytest
from messages import accepted, assert_checks_refuse, assert_refused, commands, refusals

from marsrl_verl.config import checks
from marsrl_verl.config.upstream_names import LOSS_MEANS, loggers, policy_losses
from marsrl_verl.settings.issues import ConfigError

pytestmark = pytest.mark.slow

MODEL, ROLLOUT, ACTOR = (f"actor_rollout_ref.{node}" for node in ("model", "rollout", "actor"))
REF = "actor_rollout_ref.ref"
KL = "algorithm.kl_ctrl"
LOOP = "marsrl.evaluation"

SETS = {
    "GPUS": {"trainer.device": "cuda"},
    "PROFILE": {"global_profiler.steps": [3], f"{ACTOR}.profiler.enable": True},
    "ONE_STAGE": {"marsrl.algo.correction_rounds": 0, "marsrl.algo.train_roles": ["solver"]},
}

# What is typed -> the key that the message names, a part of what it says.
COMMANDS = commands(f"""
    key removed | ~trainer.nnodes | ~trainer.nnodes | verl's default: 1
    node removed | ~{ACTOR}.policy_loss | policy_loss | can't be removed
    group without option | algo=null | algo = null | marsrl_balanced
    group of verl's name | reward=null | reward = null | math_verify
    group removed | ~reward | reward = null | math_verify
    null for a number | data.train_max_samples=null | data.train_max_samples = null | default -1
    null that others follow | {ACTOR}.fsdp_config.ulysses_sequence_parallel_size=null
        | {ACTOR}.fsdp_config.ulysses_sequence_parallel_size = null | a whole number
    text for a list | marsrl.algo.train_roles=solver | train_roles = solver | train_roles=[a,b]
    null for text | marsrl.reward.solver.target=null | marsrl.reward.solver.target = null | text
    null for our node | marsrl.pipeline=null | marsrl.pipeline = null | step_prompt_budget
    null for a name | name=null | name = null | expected text
    key of another node | marsrl.roles.solver.frequency_penalty=1.2 | marsrl.roles.solver.frequency_penalty
        | max_new_tokens
    our node as a whole | marsrl=null | marsrl = null | keys below it
    name of no key | data.seed=${{marsrl.run.sed}} | ${{marsrl.run.sed}} | mean ${{marsrl.run.seed}}?
""")

# What is set -> the key that the message names (if another than the last), a part of what it says.
SETTINGS = refusals(
    f"""
    no patience with engines | marsrl.run.engine_timeout_s=0.5 | at least 10
    no patience with a sync | marsrl.run.sync_timeout_s=0 | at least 10
    no patience with a round | marsrl.run.progress_timeout_s=-1 | at least 10
    a reward whose own limits are longer than a round may stand still
        | marsrl.reward.solver.target=marsrl_verl.rewards.math_verify:MathVerifyReward
        'marsrl.reward.solver.kwargs={{timeout_s: 200.0}}'
        | marsrl.reward.solver.kwargs | allow a call 4882 s
    a grade longer than a round may stand still | marsrl.reward.verifier.timeout_s=7200.0
        | marsrl.run.progress_timeout_s above 7200
    rows shuffled by the workers | {ACTOR}.shuffle=true | Leave it false
    stale inputs that nothing makes wait | marsrl.pipeline.max_request_staleness=2 | step_prompt_budget
    staleness below an input's first turn
        | marsrl.pipeline.max_request_staleness=0 marsrl.pipeline.step_prompt_budget=4
        | marsrl.pipeline.max_request_staleness = 0 | first turn
    shared prefixes with fused kernels | marsrl.training.share_prefixes=true {MODEL}.use_fused_kernels=true
        | a branch has several
    shared prefixes with eager attention
        | marsrl.training.share_prefixes=true '{MODEL}.override_config={{attn_implementation: eager}}'
        | attn_implementation = eager | flash_attention_2
    shared prefixes in fixed micro-batches | marsrl.training.share_prefixes=true {ACTOR}.use_dynamic_bsz=false
        | training=shared_prefixes
    null tokens | {ACTOR}.ppo_max_token_len_per_gpu=null | a whole number
    null ranks | {ROLLOUT}.tensor_model_parallel_size=null | a whole number
    null epochs | {ACTOR}.ppo_epochs=null | a whole number
    null node | {ACTOR}.policy_loss=null | the keys loss_mode
    text for a number that may be null | {ACTOR}.ppo_micro_batch_size_per_gpu=abc | a whole number
    number for a file | data.train_files=3 | the path of a file
    numbers for files | data.val_files=[3] | the path of a file
    no device | trainer.device=null | cuda, cpu
    CPU without its platform | ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM=cuda
        | trainer.device = cpu | choose cluster=cpu
    older place | {ACTOR}.ulysses_sequence_parallel_size=2 | fsdp_config.ulysses
    engine of a part | {ACTOR}.fsdp_config.strategy=fsdp | fsdp2
    LoRA node | {MODEL}.lora.rank=8 | Megatron
    LoRA adapter | {MODEL}.lora_adapter_path=x | adapter
    mean without its scale | {ACTOR}.loss_agg_mode=seq-mean-token-sum-norm | {ACTOR}.loss_scale_factor = null
        | longest response in tokens
    unknown mean | {ACTOR}.loss_agg_mode=token | seq-mean-token-sum-norm
    two means | marsrl.training.loss_mean=turn-mean-token-mean {ACTOR}.loss_agg_mode=seq-mean-token-mean
        | averaged by marsrl.training.loss_mean = turn-mean-token-mean
    mean over turns that nobody notes | marsrl.training.loss_mean=seq-mean-turn-mean-token-mean
        | the rollouts of marsrl note none
    unknown loss | {ACTOR}.policy_loss.loss_mode=vanila | mean vanilla?
    loss of sequences | {ACTOR}.policy_loss.loss_mode=geo_mean | update is cut
    loss of the sampler's | {ACTOR}.policy_loss.loss_mode=bypass_mode | vanilla
    loss without its number | {ACTOR}.policy_loss.loss_mode=dro | dro_beta = null | above 0
    dual clip | {ACTOR}.clip_ratio_c=1.0 | above 1
    shuffled held-out problems | data.validation_shuffle=true | paired by position
    checkpoint in the background | {ACTOR}.checkpoint.async_save=true | as a whole
    checkpoint deleted when it is read | trainer.del_local_ckpt_after_load=true
        | trainer.max_actor_ckpt_to_keep=N
    no checkpoint kept | trainer.max_actor_ckpt_to_keep=0 | or to null to keep all
    text for checkpoints kept | trainer.max_actor_ckpt_to_keep=two | a whole number
    checkpoint far away | trainer.default_hdfs_dir=hdfs://x | default_local_dir
    ranks that do not divide | trainer.n_gpus_per_node=2 data.train_batch_size=5 | Set it to 4
    KL for nothing | {ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_coef=0.0 | computed for nothing
    KL in rewards for nothing | algorithm.use_kl_in_reward=true {KL}.kl_coef=0.0
        | set algorithm.use_kl_in_reward=false
    paid for KL | algorithm.use_kl_in_reward=true {KL}.kl_coef=-0.1 | at least 0
    KL in rewards of unknown type | algorithm.use_kl_in_reward=true algorithm.kl_penalty=full | low_var_kl
    KL in rewards with a gradient | algorithm.use_kl_in_reward=true algorithm.kl_penalty=k3+ | Set it to k3
    controller of rewards without KL | {KL}.kl_coef=0.1 | algorithm.use_kl_in_reward=true
    estimate of rewards without KL | algorithm.kl_penalty=abs | algorithm.use_kl_in_reward=true
    horizon that nothing adapts to | algorithm.use_kl_in_reward=true {KL}.horizon=100 | type=adaptive
    no such controller | algorithm.use_kl_in_reward=true {KL}.type=linear | adaptive
    no target | algorithm.use_kl_in_reward=true {KL}.type=adaptive {KL}.target_kl=0.0 | above 0
    KL that is not known of all
        | algorithm.use_kl_in_reward=true marsrl.pipeline.max_segments=2 marsrl.pipeline.min_group=2
        | algorithm.use_kl_in_reward = True | marsrl.algo.estimator=reinforce_pp
    discount in groups | marsrl.algo.gamma=0.9 | estimator=reinforce_pp
    deviation without groups | marsrl.algo.estimator=reinforce_pp marsrl.algo.normalize_std=false
        | estimator=group
    no discount | marsrl.algo.estimator=reinforce_pp marsrl.algo.gamma=1.5 | at most 1
    KL of unknown type | GPUS {ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_type=k4 | low_var_kl
    KL without micro-batch | {ACTOR}.use_kl_loss=true {REF}.log_prob_micro_batch_size_per_gpu=8 | Set it to 32
    tools of verl | {ROLLOUT}.multi_turn.enable=true | a method's workflow calls tools itself
    agent loop of verl | {ROLLOUT}.agent.default_agent_loop=x | RolloutRequest.rollout
    penalty of the engine | {ROLLOUT}.repetition_penalty=1.2 | marsrl.roles
    no memory | {ROLLOUT}.gpu_memory_utilization=0.0 | at most 1
    no epoch | {ACTOR}.ppo_epochs=0 | at least 1
    half an epoch | {ACTOR}.ppo_epochs=1.5 | a whole number
    nobody scores | reward.num_workers=0 | at least 1
    nobody asks | {ROLLOUT}.agent.num_workers=0 | at least 1
    uphill | {ACTOR}.optim.lr=-1.0e-06 | from 0 to 1
    schedule | {ACTOR}.optim.lr_scheduler_type=linear | cosine
    number format | {ROLLOUT}.dtype=foo | bfloat16
    device | trainer.device=gpu | cuda
    three ranks on the CPU | trainer.n_gpus_per_node=3 | at most 2
    two nodes of CPUs | trainer.nnodes=2 | one machine
    offload on the CPU | {ACTOR}.fsdp_config.offload_policy=true | already
    no GPUs for Ray | GPUS ray_kwargs.ray_init.num_gpus=0 | Leave it out
    layers split | trainer.n_gpus_per_node=2 {ROLLOUT}.pipeline_model_parallel_size=2 | Leave it at 1
    experts split | {ROLLOUT}.expert_parallel_size=2 | 1 or 1
    profiler without ranks | global_profiler.steps=[3] | Set {ACTOR}.profiler.enable=true
    profiler without steps | {ACTOR}.profiler.tool=torch {ACTOR}.profiler.enable=true
        | Set global_profiler.steps
    profiler of steps together | global_profiler.profile_continuous_steps=true | a step at a time
    profiler of the engine | {ROLLOUT}.profiler.enable=true | Only the trainer's ranks
    profiler that Ray starts | PROFILE {ACTOR}.profiler.tool=nsys | torch or torch_memory
    GPU memory on the CPU | PROFILE {ACTOR}.profiler.tool=torch_memory | a GPU's memory
    routes of nobody | {ROLLOUT}.enable_rollout_routing_replay=true | off_policy.mode=tis
    selection of nothing | ONE_STAGE marsrl.algo.selection=random | the only stage
    inputs of nothing | ONE_STAGE marsrl.algo.requests_per_stage=4 | Leave it at 2
    answers of nothing | ONE_STAGE marsrl.algo.distinct_answers=true | the only stage
    answers nobody judges | marsrl.algo.train_roles=[solver] marsrl.algo.distinct_answers=true
        | the Solver alone
    accepted by nothing | {LOOP}.accept_passes=0 | at least 1
    rejected by nothing | {LOOP}.reject_fails=0 | null is no number
    unknown fallback | {LOOP}.fallback=pass | Did you mean passes?
    more passes than rounds | {LOOP}.accept_passes=3 | at most {LOOP}.correction_rounds = 2
    more fails than rounds | {LOOP}.reject_fails=3 | at most {LOOP}.correction_rounds = 2
    passes of nobody | {LOOP}.correction_rounds=0 {LOOP}.accept_passes=2 | nobody judges
    fails of nobody | {LOOP}.correction_rounds=0 {LOOP}.reject_fails=1 | nobody judges
    choice of one | {LOOP}.correction_rounds=0 {LOOP}.fallback=passes | nobody judges
    """,
    **SETS,
)


@pytest.mark.parametrize("case", COMMANDS)
def test_refused_command(run, case):
    words, key, hint = COMMANDS[case]
    assert_refused(run(*words), key, hint)


@pytest.mark.parametrize("case", SETTINGS)
def test_refused_setting(checked, case):
    assert_checks_refuse(checked, *SETTINGS[case])


ACCEPTED = refusals(
    f"""
    a loss of sequences | {ACTOR}.policy_loss.loss_mode=gspo
    a profiler of all ranks | PROFILE {ACTOR}.profiler.tool=torch {ACTOR}.profiler.all_ranks=true
        {ACTOR}.profiler.tool_config.torch.contents=[cpu,stack]
    a loss of one's own | {ACTOR}.policy_loss.loss_mode=mine {MODEL}.external_lib=my_losses
    a loss with its number | {ACTOR}.policy_loss.loss_mode=dro {ACTOR}.policy_loss.dro_beta=0.1
    KL with a gradient | GPUS {ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_coef=0.1 {ACTOR}.kl_loss_type=k3+
    KL in the loss | {ACTOR}.use_kl_loss=true
    KL in rewards | algorithm.use_kl_in_reward=true algorithm.kl_penalty=low_var_kl {KL}.kl_coef=0.01
    KL in rewards of parts of groups | algorithm.use_kl_in_reward=true {KL}.type=adaptive {KL}.horizon=500
        {KL}.target_kl=0.02 marsrl.algo.estimator=reinforce_pp marsrl.algo.gamma=0.99
        marsrl.pipeline.max_segments=2 marsrl.pipeline.min_group=2
    two ranks | trainer.n_gpus_per_node=2 ray_kwargs.ray_init.num_gpus=2
    no learning | {ACTOR}.optim.lr=0
    prompts whole | {ROLLOUT}.max_num_batched_tokens=4096
    distinct answers | marsrl.algo.distinct_answers=true
    no judge in evaluations | {LOOP}.correction_rounds=0
    as many passes as rounds | {LOOP}.correction_rounds=3 {LOOP}.accept_passes=3 {LOOP}.reject_fails=3
        {LOOP}.fallback=majority
    """,
    **SETS,
)


@pytest.mark.parametrize("case", ACCEPTED)
def test_settings_that_act_are_accepted(checked, case):
    checked(*ACCEPTED[case], dry_run=True)


def test_one_logger_without_a_list(run):
    done = accepted(run, "trainer.logger=tensorboard")
    assert list(done.launched.trainer.logger) == ["tensorboard"]


def test_logger_that_is_not_installed(checked, monkeypatch):
    monkeypatch.setattr("marsrl_verl.config.checks.loggers.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install swanlab"):
        checked({"trainer.logger": ["console", "swanlab"]})


def broken_check(ctx):
    raise ZeroDivisionError("division by zero")


def test_a_check_that_breaks_is_a_message(checked, monkeypatch):
    monkeypatch.setattr(checks, "ROUNDS", ((broken_check,),))
    with pytest.raises(ConfigError) as caught:
        checked({})
    assert "test_wrong_values.py, line" in str(caught.value), "the line of whoever wrote it"
    monkeypatch.setattr(checks, "users_line", lambda error: None)
    caught = assert_checks_refuse(checked, {}, "broken_check", "ZeroDivisionError: division by zero")
    assert "report it" in " ".join(caught.split())


def test_a_check_that_breaks_on_a_found_problem_is_silent(checked, monkeypatch):
    monkeypatch.setattr(checks, "ROUNDS", ((broken_check, *checks.ROUNDS[0]),))
    with pytest.raises(ConfigError) as caught:
        checked({"data.train_batch_size": 0})
    assert "ZeroDivisionError" not in str(caught.value)


def test_names_read_from_the_source_are_verls():
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
    tracking = pytest.importorskip("verl.utils.tracking")
    assert set(policy_losses()) == set(core_algos.POLICY_LOSS_REGISTRY)
    assert loggers() == tuple(tracking.Tracking.supported_backend)


@pytest.mark.parametrize("mode", [*LOSS_MEANS, "mean"])
def test_means_are_those_that_verl_accepts(mode):
    config = pytest.importorskip("verl.workers.config")
    arguments = {"strategy": "fsdp2", "rollout_n": 1, "use_dynamic_bsz": True, "loss_agg_mode": mode}
    if mode in LOSS_MEANS:
        config.ActorConfig(**arguments)
    else:
        with pytest.raises(ValueError, match="loss_agg_mode"):
            config.ActorConfig(**arguments)
