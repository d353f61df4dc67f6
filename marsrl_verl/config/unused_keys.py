"""verl's keys that the trainer does not use, or that must stay as they are, and what to set instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Inert:
    """A key, or a node with everything below it, that the trainer does not use."""

    key: str
    reason: str
    instead: str
    but: tuple[str, ...] = ()
    """Keys below it that the trainer does use."""


_V0 = "The trainer extends verl's V0 trainer."
_CREDIT = "Advantages come from the method, not from verl's estimators."
_CREDIT_FIX = "Leave it out; marsrl.algo sets how rewards are credited."
_KL_IN_REWARD = ("algorithm.use_kl_in_reward", "algorithm.kl_penalty", "algorithm.kl_ctrl")
_NO_CRITIC = "No method here trains a critic."
_EVALUATION = "Roles and system are evaluated by the plugin."
_EVALUATION_FIX = "Leave it out; marsrl.evaluation says when and how."
_NO_TOOLS = "verl's agent loops and tools are not used: a method's rollout program calls tools itself."
_NO_LOOP_FIX = "Leave it out; RolloutRequest.rollout names the program (docs/new_method.md)."
_NO_TOOLS_FIX = "Leave it out; marsrl.tools.<name> with target=verl takes a tool of verl's (docs/tools.md)."
_ROLLOUTS = "Every sample is written below the run's folder."
_ROLLOUTS_FIX = "Leave it out; see marsrl.run.log_rollouts."
_REWARDS = "Responses are scored by the class of their role."
_REWARDS_FIX = "Leave it out; set marsrl.reward.<role>.target, or reward.custom_reward_function.path."
_PROFILE, _ACTOR_PROFILE = "global_profiler", "actor_rollout_ref.actor.profiler"
_NO_PROFILE = "Only the trainer's ranks are profiled, by torch, a step at a time."
_NO_PROFILE_FIX = (
    f"Leave it out; {_PROFILE}.steps=[3] {_PROFILE}.tool=torch {_ACTOR_PROFILE}.enable=true profiles a step."
)
_EVERYWHERE = ("tool", "save_path", "finish_hook_cmd", "finish_hook_all_ranks", "finish_hook_ranks")
_OF_RANKS = ("enable", "all_ranks", "ranks", "tool_config.torch_memory")
_OF_TORCH = ("contents", "discrete", "schedule")
_PROFILES = (
    *(f"{_PROFILE}.{name}" for name in (*_EVERYWHERE, "steps", "global_tool_config.torch_memory")),
    *(f"{_ACTOR_PROFILE}.{name}" for name in (*_EVERYWHERE, *_OF_RANKS)),
    *(f"{_ACTOR_PROFILE}.tool_config.torch.{name}" for name in _OF_TORCH),
)
_OUT = "Leave it out."

_INERT: dict[str, dict[str, tuple[str, str] | tuple[str, str, tuple[str, ...]]]] = {
    "": {
        "model_engine": ("Only the FSDP2 engine (dp) is driven.", "Leave it at dp."),
        "transfer_queue": ("Batches travel through the driver, not through TransferQueue.", _OUT),
        "algorithm": (_CREDIT, _CREDIT_FIX, _KL_IN_REWARD),
        "critic": (_NO_CRITIC, _OUT),
        "distillation": ("No method here distils from a teacher.", _OUT),
        "reward_model": (_REWARDS, _REWARDS_FIX),
        "sandbox_fusion": (_REWARDS, _REWARDS_FIX),
        _PROFILE: (_NO_PROFILE, _NO_PROFILE_FIX, _PROFILES),
        "skip": ("Rollouts are never replayed from another run.", _OUT),
    },
    "trainer.": {
        "use_v1": (_V0, "Leave it false."),
        "v1": (_V0, _OUT),
        "balance_batch": ("Rows are always dealt out evenly.", "Leave it true."),
        "critic_warmup": (_NO_CRITIC, _OUT),
        "max_critic_ckpt_to_keep": (_NO_CRITIC, _OUT),
        "val_before_train": (_EVALUATION, _EVALUATION_FIX),
        "test_freq": (_EVALUATION, _EVALUATION_FIX),
        "log_val_generations": (_ROLLOUTS, _ROLLOUTS_FIX),
        "rollout_data_dir": (_ROLLOUTS, _ROLLOUTS_FIX),
        "validation_data_dir": (_ROLLOUTS, _ROLLOUTS_FIX),
        "esi_redundant_time": ("Checkpoints follow trainer.save_freq alone.", "Leave it at 0."),
    },
    "actor_rollout_ref.": {
        "hybrid_engine": (
            "Where the engine decodes is said by other keys.",
            "Leave it true; for engines on GPUs of their own set pipeline=overlapped_two_pools.",
        ),
        "ref.profiler": (_NO_PROFILE, _NO_PROFILE_FIX),
        "ref.ulysses_sequence_parallel_size": (
            "verl has another place for it.",
            "Set actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size.",
        ),
    },
    "actor_rollout_ref.actor.": {
        "shuffle": (
            "The trainer draws rows into mini-batches, by the run's seed and evenly over ranks.",
            "Leave it false.",
        ),
        "ppo_mini_batch_size": (
            "Mini-batches are cut by number, since the rows of a step vary.",
            "Set marsrl.pipeline.updates_per_step or samples_per_update.",
        ),
        "grad_clip": (
            "The engine clips by the optimizer's setting.",
            "Set actor_rollout_ref.actor.optim.clip_grad.",
        ),
        "ulysses_sequence_parallel_size": (
            "verl has another place for it.",
            "Set actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size.",
        ),
        "optim.warmup_style": (
            "verl has another name for it.",
            "Remove it and set actor_rollout_ref.actor.optim.lr_scheduler_type.",
        ),
        "profiler": (_NO_PROFILE, _NO_PROFILE_FIX, _PROFILES),
    },
    "actor_rollout_ref.rollout.": {
        "mode": ("The engine always runs as a server.", "Leave it at async."),
        "name": ("Only vLLM is driven.", "Leave it at vllm."),
        "n": ("A group is sampled from one row.", "Set marsrl.algo.group_size."),
        "do_sample": ("Groups are always sampled.", "Leave it true."),
        "calculate_log_probs": ("Samples keep their log-probabilities.", "Leave it true."),
        "over_sample_rate": ("Every group is decoded to its end.", "Leave it at 0."),
        "ignore_eos": ("Answers end where the model ends them.", "Leave it false."),
        "repetition_penalty": ("Samples are drawn by marsrl.roles, without penalties.", _OUT),
        "val_kwargs": (_EVALUATION, _EVALUATION_FIX),
        "multi_turn": (_NO_TOOLS, _NO_TOOLS_FIX),
        "enable_rollout_routing_replay": (
            "The FSDP engine does not replay the experts that the engine chose.",
            "Leave it false; marsrl.off_policy.mode=tis weighs what differs by that.",
        ),
        "agent.default_agent_loop": (_NO_TOOLS, _NO_LOOP_FIX),
        "agent.agent_loop_config_path": (_NO_TOOLS, _NO_LOOP_FIX),
        "agent.agent_loop_manager_class": ("The trainer needs its own.", _OUT),
        "profiler": (_NO_PROFILE, _NO_PROFILE_FIX),
    },
    "reward.": {
        "reward_manager": (_REWARDS, _REWARDS_FIX),
        "reward_model": (_REWARDS, _REWARDS_FIX),
        "sandbox_fusion": (_REWARDS, _REWARDS_FIX),
    },
    "data.": {
        "gen_batch_size": ("A step takes data.train_batch_size problems.", "Set data.train_batch_size."),
        "val_batch_size": (_EVALUATION, _EVALUATION_FIX),
        "reward_fn_key": (_REWARDS, _REWARDS_FIX),
        "filter_overlong_prompts_workers": ("Prompts are measured in one process.", _OUT),
        "truncation": ("Prompts are never truncated; too long ones are not asked.", _OUT),
        "tool_config_path": (_NO_TOOLS, _NO_TOOLS_FIX),
        "function_tool_path": (_NO_TOOLS, _NO_TOOLS_FIX),
    },
}
INERT_KEYS = tuple(
    Inert(f"{node}{name}", *why) for node, keys in _INERT.items() for name, why in keys.items()
)
"""What the trainer does not use, and what to set instead."""

_LORA_FIX = "Leave it out; actor_rollout_ref.model.lora_rank (policies=lora) trains new adapters."

FIXED_KEYS: tuple[Inert, ...] = (
    Inert("actor_rollout_ref.model.lora_adapter_path", "Adapters begin at nothing here.", _LORA_FIX),
    Inert("actor_rollout_ref.model.lora", "verl's Megatron engine alone reads it.", _LORA_FIX),
    Inert(
        "data.validation_shuffle",
        "Held-out problems are paired by position, before training with after.",
        "Leave it false.",
    ),
    Inert(
        "actor_rollout_ref.actor.checkpoint.async_save",
        "A checkpoint counts once it is written as a whole, the scheduler's state with it.",
        "Leave it false.",
    ),
    Inert(
        "trainer.del_local_ckpt_after_load",
        "Until the next checkpoint is sealed, a run that stops has only the one that it resumed from.",
        "Leave it false; trainer.max_actor_ckpt_to_keep=N deletes older checkpoints after each save.",
    ),
    Inert(
        "trainer.default_hdfs_dir",
        "A run is only resumed from a folder.",
        "Leave it out; trainer.default_local_dir may lie on a mounted file system.",
    ),
    Inert("actor_rollout_ref.rollout.disaggregation", "Each engine both reads prompts and decodes.", _OUT),
)
"""What must stay as it is: another value would be honoured by a part of the run, with a wrong result."""
