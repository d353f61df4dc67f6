"""The `${marsrl.…}` functions of our YAML files.

They are resolved before the configuration leaves the launcher; no other process needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marsrl_verl.config import cpu_defaults
from marsrl_verl.config.memory import estimate_memory, gpu_bytes, model_shapes
from marsrl_verl.config.model_shapes import has_experts
from marsrl_verl.config.models import named_adapters, named_models, named_rates
from marsrl_verl.config.node import chosen_method
from marsrl_verl.config.pools import CPU_SYNC, CPU_SYNC_MODULE, GPU_SYNC
from marsrl_verl.config.schema import first_sampled_role, sampled_roles
from marsrl_verl.core.method import Method
from marsrl_verl.settings.choices import OffPolicyMode, Overlap
from marsrl_verl.settings.declaration import UNCUT
from marsrl_verl.settings.imports import import_target
from marsrl_verl.settings.lengths import longest_sequence

_SURE = 0.9
"""Part of what may be planned of a GPU that a plan fills at most where nobody chose it."""


def _method(algo: Any) -> tuple[type[Method], Any]:
    """The method and its settings; a value out of its range is reported later."""
    method, found = chosen_method(algo), OmegaConf.to_container(algo, resolve=True)
    return method, method.Config.model_construct(**found)  # type: ignore[arg-type]


def _limits(marsrl: Mapping[str, Any]) -> list[tuple[int, int, int | None]]:
    """Limits of prompt, response and both together, of the roles that the run asks."""
    method, config = _method(marsrl["algo"])
    evaluation: Any = method.Evaluation.model_construct(**marsrl["evaluation"])
    roles = [marsrl["roles"][name] for name in method.active_roles(config, evaluation)]
    return [
        (int(role["max_prompt_tokens"]), int(role["max_new_tokens"]), role["max_sequence_tokens"])
        for role in roles
    ]


def _sampling(marsrl: Mapping[str, Any], name: str) -> Any:
    role = first_sampled_role(marsrl, tuple(chosen_method(marsrl["algo"]).roles))
    return marsrl["roles"][role][name]


def _shares_gpus(overlap: str, rollout_nodes: int) -> tuple[bool, bool]:
    """Returns whether engine and trainer share GPUs by taking turns, and whether at the same time."""
    shared, turns = int(rollout_nodes) == 0, overlap == Overlap.NONE.value
    return shared and turns, shared and not turns


def _engine_share(alone: float, beside: float, overlap: str, rollout_nodes: int) -> float:
    """The part of a GPU's memory that the engine gets: more where the trainer is elsewhere, be it in time or
    on other GPUs."""
    return float(beside if _shares_gpus(overlap, rollout_nodes)[1] else alone)


def _off_policy_mode(overlap: str, lora_rank: int, path: str, *, _root_: DictConfig) -> str:
    """Default of `marsrl.off_policy.mode`: how the loss treats tokens that other weights sampled, or the same
    ones in the engine. With overlap all tokens are older, and with experts engine and trainer choose
    different ones for the same token; with `pois` each would count as if the trainer's weights had sampled
    it. Experts are no reason where the engine samples from a part of the vocabulary: its log-probabilities
    then can't be compared."""
    marsrl: Any = _root_.marsrl  # OmegaConf refuses a key of a node that refers to the node
    if overlap == Overlap.NONE.value:
        trained = named_models(lora_rank, path, marsrl).values() or [path]
        if not any(map(has_experts, trained)) or _samples_from_part(marsrl):
            return OffPolicyMode.POIS.value
    return OffPolicyMode.TIS.value


def _samples_from_part(marsrl: Mapping[str, Any]) -> bool:
    """True if a role that is sampled here has a cut, or a trained one a grammar."""
    method, config = _method(marsrl["algo"])
    roles = [marsrl["roles"][role] for role in sampled_roles(marsrl, tuple(method.roles))]
    cut = any(role[name] != value for role in roles for name, value in UNCUT.items())
    return cut or bool(method.traits(config).grammar_roles)


def _fused_kernels(share_prefixes: bool, *, _root_: DictConfig) -> bool:
    """True if log-probabilities are computed without the logits of all tokens at once. A shared prefix has
    more than one next token, and some methods need what a fused pass does not compute."""
    method, config = _method(_root_.marsrl.algo)
    return method.traits(config).fused_kernels and not share_prefixes


def _fused_optimizer(module: str, name: str) -> dict[str, bool] | None:
    """Arguments of an optimizer that computes a step in one kernel, where it is torch's and its kernel takes
    FSDP2's sharded tensors (SGD's does not)."""
    return {"fused": True} if module == "torch.optim" and name in ("Adam", "AdamW") else None


def _state_exceeds_gpu(*, _root_: DictConfig) -> bool:
    """True if a model's training state has to stay in main memory: its size is unknown, or with the state on
    the GPU the plan would need more memory than the GPU has."""
    tree: Any = OmegaConf.to_container(_root_, resolve=False)
    tree["actor_rollout_ref"]["actor"]["fsdp_config"] |= {
        "offload_policy": False,
        "param_offload": True,
        "optimizer_offload": True,
        "use_no_sync_for_gradient_accumulation": False,
    }
    config = OmegaConf.create(tree)
    try:
        shapes = model_shapes(config)
        return not shapes or estimate_memory(config, *shapes).exceeds(int(_SURE * gpu_bytes(config)))
    except (ArithmeticError, OmegaConfBaseException, TypeError, ValueError):
        return True  # a wrong value elsewhere, which the checks report by its own key


def _file(function: str, *arguments: Any) -> str:
    """A path that `package.module:function` tells, such as of a file that it makes on first use."""
    module, name = import_target(function)
    return str(getattr(module, name)(*arguments))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    # Workers do not share the launcher's working folder.
    "absolute": lambda path: str(Path(path).expanduser().absolute()),
    "ceil_div": lambda numerator, denominator: -(-int(numerator) // max(1, int(denominator))),
    "min": lambda *numbers: min(map(int, numbers)),
    "max": lambda *numbers: max(map(int, numbers)),
    "sum": lambda *numbers: sum(map(int, numbers)),
    "longest_prompt": lambda marsrl: max(prompt for prompt, *_ in _limits(marsrl)),
    "longest_response": lambda marsrl: max(response for _, response, _ in _limits(marsrl)),
    "longest_sequence": lambda marsrl: max(longest_sequence(*each) for each in _limits(marsrl)),
    # A sampling setting of the method's first role that is sampled here, which verl's own key copies.
    "sampling": _sampling,
    "adapters": named_adapters,
    "models": named_models,
    "learning_rates": named_rates,
    # An engine that is sent adapters alone has to read the model itself.
    "load_format": lambda lora_rank: "auto" if int(lora_rank) > 0 else "dummy",
    "is_lora": lambda lora_rank: int(lora_rank) > 0,
    "engine_sleeps": lambda overlap, rollout_nodes: _shares_gpus(overlap, rollout_nodes)[0],
    "off_policy_mode": _off_policy_mode,
    "engine_share": _engine_share,
    "fused_kernels": _fused_kernels,
    "fused_optimizer": _fused_optimizer,
    "state_exceeds_gpu": _state_exceeds_gpu,
    "pool_sync": lambda device: CPU_SYNC if device == "cpu" else GPU_SYNC,
    # What verl's workers import so that they know the weight sync.
    "pool_sync_module": lambda device: CPU_SYNC_MODULE if device == "cpu" else None,
    # What Ray hands out on a machine without GPUs: one for each rank of trainer and engine pool.
    "logical_gpus": lambda trainer, rollout_nodes, rollout: int(trainer) + int(rollout_nodes) * int(rollout),
    "file": _file,
    "is_real": cpu_defaults.is_real,
    "shares_prefixes": cpu_defaults.shares_prefixes,
    "cpu_dtype": cpu_defaults.dtype,
    "cpu_param_dtype": cpu_defaults.param_dtype,
    "cpu_threads": cpu_defaults.threads,
    "weight_bucket": cpu_defaults.weight_bucket,
    "choose": lambda condition, yes, no: yes if condition else no,
    "equal": lambda one, other: one == other,
}


def register() -> None:
    """Makes the functions known to OmegaConf; calling it again changes nothing."""
    for name, function in _FUNCTIONS.items():
        OmegaConf.register_new_resolver(f"marsrl.{name}", function, replace=True, use_cache=False)
