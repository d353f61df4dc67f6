"""A workload with responses as uneven as those of reasoning models: most are short, some fill their limit.

The tiny task's own responses hardly differ in length, so that no schedule of a round can gain from it. Here
the tiny model's logits are divided by a number, which is sampling at that temperature: it rambles. (vLLM
takes no temperature over 2.) With 2.8 and a limit of 144 tokens the Solver's responses have about 40 tokens
on average, so the limit is 3.6 times the mean; at the published lengths, 64k against 19k, it is 3.4 times.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

LIMIT = 144
"""Tokens of a response. Three responses and a problem fit into the model's 512 positions."""
PROMPT_LIMITS = {"solver": 24, "verifier": 192, "corrector": 360}
_FINAL_NORM = "model.norm.weight"
"""The logits are linear in it: it scales the last hidden states, and there is no bias behind it."""


def write_rambling_model(source: Path, target: Path, temperature: float) -> Path:
    """Copies a model with its logits divided by `temperature` (above 0).

    Raises:
        ValueError: the temperature is not positive, or the model has no final norm of the expected name.
    """
    if temperature <= 0:
        raise ValueError(f"the temperature has to be above 0, found {temperature}")
    shutil.copytree(source, target)
    path = target / "model.safetensors"
    weights = load_file(path)
    if _FINAL_NORM not in weights:
        raise ValueError(f"{path} has no weight {_FINAL_NORM}, found e.g. {sorted(weights)[:3]}")
    weights[_FINAL_NORM] = weights[_FINAL_NORM] / temperature
    save_file(weights, path, metadata={"format": "pt"})
    return target


def overrides(model: Path) -> list[str]:
    """The settings with which a training run samples long, uneven responses from that model."""
    limits = [f"marsrl.roles.{role}.max_prompt_tokens={limit}" for role, limit in PROMPT_LIMITS.items()]
    lengths = [f"marsrl.roles.{role}.max_new_tokens={LIMIT}" for role in PROMPT_LIMITS]
    return [f"actor_rollout_ref.model.path={model}", *lengths, *limits]
