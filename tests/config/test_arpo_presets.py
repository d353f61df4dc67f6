"""ARPO's presets compose, pass the checks and say what they promise; contradicting settings are rejected."""

from __future__ import annotations

import pytest
from messages import accepted, assert_refused, commands

from marsrl_verl.algos.arpo.config import BranchingConfig, Config
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.locations import config_folder, group_options

pytestmark = pytest.mark.slow

PRESETS = ("arpo", "arpo_random", "arpo_released", "dapo_tools", "grpo_tools", "reinforce_pp_tools")
PYTHON = "+marsrl.tools.python.target=python"
TOLD = "marsrl.prompts.kwargs.tools=[python]"
MODEL = ("model=custom", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct", "cluster=8xgpu")
LENGTHS = ("marsrl.roles.solver.max_prompt_tokens=1000", "marsrl.roles.solver.max_new_tokens=2000")
RAY = "ray_kwargs.ray_init.address=auto"
USUAL = (*MODEL, *LENGTHS, "data.train_batch_size=128", PYTHON, TOLD, "dry_run=true")


def test_the_presets_are_there():
    found = group_options([config_folder()])["algo"]
    assert set(PRESETS) <= set(found)


@pytest.mark.parametrize("algo", PRESETS)
def test_presets_pass_the_checks(run, algo):
    done = accepted(run, f"algo={algo}", *USUAL)
    assert "tools: python (tags); at most 3 calls" in done.text
    independent = algo in ("grpo_tools", "dapo_tools", "reinforce_pp_tools")
    line = "16 independent trajectories" if independent else "8 roots, 8 forks or further roots"
    assert line in done.text
    reward = "released_reward:ReleasedReward" if algo == "arpo_released" else "rewards:HierarchicalReward"
    assert f"marsrl_verl.algos.arpo.{reward} (solver)" in done.text


PUBLISHED = {
    "arpo_reasoning": ((128, 16, 8, 256), (1536, 4096, 3), (11264, 0.7, 156)),
    "arpo_deep_search": ((128, 16, 8, 256), (2000, 10000, 6), (24000, 0.6, 40)),
    "arpo_deep_search_14b": ((64, 12, 6, 96), (2000, 6192, 6), (16384, 0.6, 80)),
}


@pytest.mark.parametrize("training", PUBLISHED)
def test_published_settings(run, training):
    """The launch scripts of arXiv 2507.19849's runs."""
    done = accepted(run, "algo=arpo", *MODEL, "data=parquet", f"training={training}", PYTHON, TOLD, RAY)
    config, (batch, lengths, engine) = done.launched, PUBLISHED[training]
    algo, solver = config.marsrl.algo, config.marsrl.roles.solver
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    found = (
        config.data.train_batch_size,
        algo.group_size,
        typed_settings(config).algo.roots,
        config.marsrl.pipeline.samples_per_update,
    )
    assert found == batch
    assert (solver.max_prompt_tokens, solver.max_new_tokens, algo.call_limit) == lengths
    assert (
        actor.ppo_max_token_len_per_gpu,
        rollout.gpu_memory_utilization,
        config.trainer.total_training_steps,
    ) == engine
    assert actor.ppo_max_token_len_per_gpu == 2 * (lengths[0] + lengths[1])
    assert config.trainer.max_actor_ckpt_to_keep == 1
    assert (actor.optim.lr, actor.optim.lr_scheduler_type, actor.optim.weight_decay) == (
        1e-6,
        "constant",
        0.01,
    )
    assert (actor.clip_ratio, actor.loss_agg_mode, actor.use_kl_loss, actor.entropy_coeff) == (
        0.2,
        "token-mean",
        False,
        0,
    )
    assert (solver.temperature, solver.top_p, solver.top_k) == (1.0, 1.0, -1)


def test_the_released_behaviour(run):
    done = run("algo=arpo_released", *USUAL[:-1], RAY)
    branching = done.launched.marsrl.algo.branching
    assert (branching.law, branching.entropy, branching.supplements) == ("bernoulli", "call", "one_by_one")
    assert (branching.entropy_tokens, branching.top_log_probs, branching.beam) == (20, 10, 2)
    assert (branching.base_probability, branching.entropy_weight) == (0.5, 0.2)


def test_half_of_a_group_are_roots():
    assert Config(group_size=7).roots == 4
    assert Config(group_size=7, branching=BranchingConfig(law="off")).roots == 7
    assert Config(group_size=8, branching=BranchingConfig(roots=3)).budget(2).roots == 2


REFUSED = commands(f"""
    a tool that is no tag | +marsrl.tools.answer.target=python | marsrl.tools.answer | none of answer
    more calls of a tool than of all | marsrl.tools.python.max_calls=3 | marsrl.tools.python.max_calls
        | at most 3 calls of all tools
    no place for a fork | marsrl.algo.branching.roots=16 | branching.roots | none is left
    more log-probs than the engine tells | marsrl.algo.branching.top_log_probs=50 | branching.top_log_probs
        | at most 20 tokens
    a turn compared with itself | marsrl.algo.branching.entropy=call marsrl.algo.call_limit=1
        | branching.entropy | compared with itself
    entropies that nothing looks at | marsrl.algo.branching.law=random marsrl.algo.branching.entropy_tokens=9
        | branching.entropy_tokens | a law that looks at entropy
    roots without forks | marsrl.algo.branching.law=off marsrl.algo.branching.roots=4 | branching.roots
        | a law that forks
    a threshold of a coin | marsrl.algo.branching.law=bernoulli marsrl.algo.branching.threshold=0.4
        | branching.threshold | threshold
    attribution without groups | marsrl.algo.estimator=reinforce_pp marsrl.algo.attribution=hard
        | marsrl.algo.attribution | group
    attribution without forks | marsrl.algo.branching.law=off marsrl.algo.attribution=sibling
        | marsrl.algo.attribution | no tokens are shared
    a system message without a tool |  | marsrl.prompts.kwargs.tools | {TOLD}
    a parser of tags | marsrl.algo.parser=glm | marsrl.algo.parser | chat
    parts of groups | marsrl.pipeline.max_segments=2 marsrl.pipeline.min_group=4 | marsrl.pipeline.min_group
        | grow from round to round
    a reference policy for nothing
        | actor_rollout_ref.actor.use_kl_loss=true actor_rollout_ref.actor.kl_loss_coef=0 | kl_loss_coef
        | computed for nothing
""")


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused(run, name):
    words, key, says = REFUSED[name]
    usual = [one for one in USUAL if one != TOLD or "tool" not in name]
    if name == "a tool that is no tag":
        usual.remove(PYTHON)
    assert_refused(run("algo=arpo", *usual, *words), key, says)


def test_raised_log_probs_of_the_engine_are_known(run):
    raised = "+actor_rollout_ref.rollout.engine_kwargs.vllm.max_logprobs=60"
    accepted(run, "algo=arpo", *USUAL, "marsrl.algo.branching.top_log_probs=50", raised)


def test_a_chat_template_calls_tools_of_any_name(run):
    words = ("marsrl.algo.protocol=chat", "+marsrl.tools.Look-up.target=python")
    done = accepted(run, "algo=arpo", *[one for one in USUAL if one != TOLD], *words)
    assert "(chat)" in done.text
    refused = run("algo=arpo", *USUAL, *words)
    assert "tags would contradict it" in refused.err
