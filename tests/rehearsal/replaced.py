"""What a rehearsal on a processor has otherwise than the preset on GPUs: the whole list, with reasons.

Everything else stays as it is composed: removal of padding, fused kernels, gradient checkpointing, dynamic
batches, bfloat16, FSDP2's options, offloading, adapters, the engine's prefix cache and chunked prefill, the
reward of the preset (whose grade is then tossed for, `chance.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.batching import world_size
from marsrl_verl.core.method import answering_roles
from marsrl_verl.verl_adapter.environment import REGISTER_MODULE

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_RAY = "ray_kwargs.ray_init"
_ENVIRONMENT = f"{_RAY}.runtime_env.env_vars"
VERDICTS = {
    "marsrl_verl.algos.marsrl.verdict:VerdictReward": ("Correctness: Correct", "Correctness: Wrong"),
}
"""What a Verifier's response is taken to say, by the class that grades it."""
Settings = dict[str, Any]
"""Values by key."""


@dataclass(frozen=True)
class Replacement:
    """Settings that a processor cannot honour, with what stands in for them."""

    name: str
    reason: str
    settings: Settings

    def differs(self, config: DictConfig) -> bool:
        """Whether a composed configuration has it otherwise."""
        return any(OmegaConf.select(config, key) not in (value, None) for key, value in self.settings.items())


REPLACED = (
    Replacement(
        "flash-attention's kernels",
        "They are the GPU's. Functions in torch with their arguments and results stand in for them.",
        {f"{_ENVIRONMENT}.VERL_USE_EXTERNAL_MODULES": f"{REGISTER_MODULE},flash_stand_in"},
    ),
    Replacement(
        "tensor parallel engine",
        "An engine is one process here.",
        {f"{_ROLLOUT}.tensor_model_parallel_size": 1},
    ),
    Replacement("CUDA graphs", "There are none.", {f"{_ROLLOUT}.enforce_eager": True}),
    Replacement(
        "sleeping engine",
        "vLLM gives back memory of GPUs alone.",
        {f"{_ROLLOUT}.free_cache_engine": False, f"{_ROLLOUT}.enable_sleep_mode": False},
    ),
    Replacement(
        "torch.compile",
        "It would compile code for this processor, for a minute, which says nothing about a GPU's.",
        {f"{_ACTOR}.use_torch_compile": False, f"{_ACTOR}.fsdp_config.use_torch_compile": False},
    ),
)
"""Settings that do not run on a processor."""


def machine(config: DictConfig) -> Settings:
    """Two ranks on gloo where the preset has several GPUs, a Ray of the run's own with logical GPUs, and what
    vLLM needs on a processor (configs/cluster/cpu.yaml has the reasons)."""
    ranks = min(2, int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node))
    engines = int(config.actor_rollout_ref.rollout.nnodes)
    ulysses = int(config.actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size)
    environment = {
        "VERL_PLATFORM": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": "1",
    }
    return {
        "trainer.device": "cpu",
        "trainer.logger": [],
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": ranks,
        f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size": min(ranks, ulysses),
        # The small model's state fits on one GPU, the published model's does not.
        **({f"{_ACTOR}.fsdp_config.offload_policy": True} if world_size(config) == 1 else {}),
        f"{_RAY}.address": None,
        f"{_RAY}.num_cpus": 32,
        f"{_RAY}.num_gpus": ranks * (1 + engines),
        f"{_RAY}.include_dashboard": False,
        f"{_ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend": "uni",
        f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 64,
        f"{_ROLLOUT}.agent.num_workers": 1,
        "reward.num_workers": 1,
        "data.dataloader_num_workers": 0,
        "marsrl.run.worker_logs": False,
        **{f"{_ENVIRONMENT}.{name}": value for name, value in environment.items()},
    }


def sizes(config: DictConfig) -> Settings:
    """A few steps of a few short responses: as many as it takes until every kind of row was trained."""
    marsrl, algo = config.marsrl, config.marsrl.algo
    # A model that thinks seldom ends a dialogue outside of its thoughts.
    dialogues = algo.get("max_turns") is not None
    problems = max(4 if dialogues else 2, int(marsrl.pipeline.updates_per_step))
    segments = int(marsrl.pipeline.max_segments)
    found: Settings = {
        "data.train_batch_size": problems,
        "trainer.total_training_steps": (4 if dialogues else 2) if segments == 1 else 2 + segments,
        "marsrl.algo.group_size": min(4, int(algo.group_size)),
        "marsrl.evaluation.before": False,
        "marsrl.evaluation.after": bool(config.trainer.val_only),
        "marsrl.evaluation.every": 0,
        # Several micro-batches in an update.
        f"{_ACTOR}.ppo_max_token_len_per_gpu": 2048,
    }
    if config.trainer.val_only:
        found |= {"marsrl.evaluation.problems": 2, "marsrl.evaluation.samples_per_problem": 2}
    # An action takes some twenty tokens before its text begins.
    longest = 96 if algo.get("plan_form") == "json" else 32
    for name, role in marsrl.roles.items():
        found |= {
            f"marsrl.roles.{name}.max_prompt_tokens": 1536,
            f"marsrl.roles.{name}.max_new_tokens": longest,
        }
        if role.max_sequence_tokens is not None:
            found |= {
                f"marsrl.roles.{name}.max_new_tokens": 256,
                f"marsrl.roles.{name}.max_sequence_tokens": 1700,
            }
    if marsrl.pipeline.samples_per_update is not None:
        found["marsrl.pipeline.samples_per_update"] = 4
    fewer = {"max_turns": 2, "message_tokens": 24, "result_tokens": 64, "episodes": 1, "iterations": 1}
    if algo.get("process") == "mamrp":
        fewer |= {"plans_per_problem": 2, "solutions_per_plan": 4}
    for name, most in fewer.items():
        if algo.get(name) is not None:
            found[f"marsrl.algo.{name}"] = min(most, int(algo[name]))
    if "adaptive_batch" in algo and algo.adaptive_batch.enabled:
        found["marsrl.algo.adaptive_batch.max_problems"] = problems
    if "episodes" in algo:
        # A pass is a step: what is counted, then each agent's phase, until the phases end.
        found |= {"data.train_max_samples": problems, "trainer.total_training_steps": 8}
    return found


def rewards(config: DictConfig) -> Settings:
    """A random model is never right, has no answer and gives no verdict: half of its answers are taken for
    right, half of its verdicts for Correct, and where answers are compared each solution has one, so that
    there is something to learn."""
    found: Settings = {}
    answering = answering_roles(method_class(config.marsrl.algo.name))
    for role, spec in config.marsrl.reward.items():
        if role not in answering and spec.target not in VERDICTS:
            continue
        found[f"marsrl.reward.{role}.target"] = "chance:ByChance"
        found[f"marsrl.reward.{role}.kwargs.graded_by"] = spec.target
        if spec.target in VERDICTS:
            found[f"marsrl.reward.{role}.kwargs.says"] = list(VERDICTS[spec.target])
    if config.marsrl.algo.get("plan_reward") == "consistency":
        found["marsrl.prompts.target"] = "rema_answers:AlwaysAnswered"
    return found


def settings(config: DictConfig) -> Settings:
    """All that a rehearsal of a composed configuration has otherwise."""
    found: Settings = {}
    for one in REPLACED:
        found |= one.settings
    return found | machine(config) | sizes(config) | rewards(config)


def words(changed: Settings) -> list[str]:
    """Settings as Hydra's overrides."""
    return [f"++{key}={_word(value)}" for key, value in changed.items()]


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_word(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    return str(value)
