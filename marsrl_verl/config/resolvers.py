"""The `${marsrl.…}` functions of our YAML files.

They are resolved before the configuration leaves the launcher; no other process needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.pools import CPU_SYNC, CPU_SYNC_MODULE, GPU_SYNC
from marsrl_verl.config.schema import chosen_method
from marsrl_verl.config.tiny_files import tiny_data, tiny_model
from marsrl_verl.core.method import Method
from marsrl_verl.settings.choices import OffPolicyMode, Overlap


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-int(numerator) // max(1, int(denominator)))


def _method(algo: Any) -> tuple[type[Method], Any]:
    """The method and its settings; a value out of its range is reported later."""
    method, found = chosen_method(algo), OmegaConf.to_container(algo, resolve=True)
    return method, method.Config.model_construct(**found)  # type: ignore[arg-type]


def _limits(marsrl: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Prompt and response limits of the roles that the run asks."""
    method, config = _method(marsrl["algo"])
    evaluation: Any = method.Evaluation.model_construct(**marsrl["evaluation"])
    asked = method.asked_roles(config, evaluation)
    roles = [marsrl["roles"][role] for role in asked]
    return [(int(role["max_prompt_tokens"]), int(role["max_new_tokens"])) for role in roles]


def _longest_prompt(marsrl: Mapping[str, Any]) -> int:
    return max(prompt for prompt, _ in _limits(marsrl))


def _longest_response(marsrl: Mapping[str, Any]) -> int:
    return max(response for _, response in _limits(marsrl))


def _longest_sequence(marsrl: Mapping[str, Any]) -> int:
    return max(prompt + response for prompt, response in _limits(marsrl))


def _sampling(algo: Mapping[str, Any], roles: Mapping[str, Any], name: str) -> Any:
    """A sampling setting of the method's first role, which verl's own key copies."""
    return roles[chosen_method(algo).roles[0]][name]


def _smallest(*numbers: int) -> int:
    return min(int(number) for number in numbers)


def _largest(*numbers: int) -> int:
    return max(int(number) for number in numbers)


def _sum(*numbers: int) -> int:
    return sum(int(number) for number in numbers)


def _absolute(path: str) -> str:
    """Workers do not share the launcher's working folder."""
    return str(Path(path).expanduser().absolute())


def _engine_sleeps(overlap: str, rollout_nodes: int) -> bool:
    """Whether engine and trainer share GPUs and take turns."""
    return overlap == Overlap.NONE.value and int(rollout_nodes) == 0


def _off_policy_mode(overlap: str) -> str:
    """How the loss treats older tokens by default. With overlap there are no others, and with `pois` each
    would count as if the weights that are updated had sampled it."""
    return (OffPolicyMode.POIS if overlap == Overlap.NONE.value else OffPolicyMode.TIS).value


def _engine_share(alone: float, beside: float, overlap: str, rollout_nodes: int) -> float:
    """The part of a GPU's memory that the engine gets: more where the trainer is elsewhere, be it in time or
    on other GPUs."""
    shares = overlap != Overlap.NONE.value and int(rollout_nodes) == 0
    return float(beside if shares else alone)


def _fused_kernels(method: str, share_prefixes: bool) -> bool:
    """Whether log-probabilities are computed without the logits of all tokens at once. A shared prefix has
    more than one next token, and some methods look at what a fused pass does not compute."""
    return method_class(method).fused_kernels and not share_prefixes


def _pool_sync(device: str) -> str:
    return CPU_SYNC if device == "cpu" else GPU_SYNC


def _pool_sync_module(device: str) -> str | None:
    """What verl's workers import so that they know the weight sync."""
    return CPU_SYNC_MODULE if device == "cpu" else None


def _logical_gpus(trainer: int, rollout_nodes: int, rollout: int) -> int:
    """What Ray hands out on a machine without GPUs: one for each rank of trainer and engine pool."""
    return int(trainer) + int(rollout_nodes) * int(rollout)


def register() -> None:
    """Make the functions known to OmegaConf; calling it again changes nothing."""
    functions: dict[str, Callable[..., Any]] = {
        "absolute": _absolute,
        "ceil_div": _ceil_div,
        "min": _smallest,
        "max": _largest,
        "sum": _sum,
        "longest_prompt": _longest_prompt,
        "longest_response": _longest_response,
        "longest_sequence": _longest_sequence,
        "sampling": _sampling,
        "engine_sleeps": _engine_sleeps,
        "off_policy_mode": _off_policy_mode,
        "engine_share": _engine_share,
        "fused_kernels": _fused_kernels,
        "pool_sync": _pool_sync,
        "pool_sync_module": _pool_sync_module,
        "logical_gpus": _logical_gpus,
        "tiny_model": tiny_model,
        "tiny_data": tiny_data,
    }
    for name, function in functions.items():
        OmegaConf.register_new_resolver(f"marsrl.{name}", function, replace=True, use_cache=False)
