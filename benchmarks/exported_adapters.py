"""The adapters of a run's checkpoint, read by transformers with peft and by vLLM.

    python -m benchmarks.exported_adapters RUN_FOLDER STEP RESULT.json

The tokens that each policy sampled in that step are given to both, with its adapter and without one. RESULT
has, by policy, the largest differences of their log-probabilities.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marsrl_verl.verl_adapter.environment import prepare_environment
from marsrl_verl.verl_adapter.loopback import stay_on_loopback
from marsrl_verl.verl_adapter.rollout_server.offline_engine import engine_arguments

ROWS = 16
"""Responses of each policy."""


def sampled(folder: Path, step: int, policy: str) -> list[list[int]]:
    """Token ids of responses of a policy; of at least two tokens, since the first has no log-probability."""
    lines = (folder / f"rollouts/step_{step}.jsonl").read_text().splitlines()
    rows = [row["token_ids"] for row in map(json.loads, lines) if row["policy"] == policy]
    return [ids for ids in rows if len(ids) > 1][:ROWS]


def by_transformers(model: Any, rows: Sequence[list[int]]) -> list[list[float]]:
    """Log-probability of each token but the first, given those before it."""
    import torch

    found = []
    for ids in rows:
        given = torch.tensor([ids])
        with torch.no_grad():
            told = torch.log_softmax(model(given).logits[0, :-1].float(), dim=-1)
        found.append(told.gather(1, given[0, 1:, None])[:, 0].tolist())
    return found


def by_vllm(llm: Any, rows: Sequence[list[int]], request: Any) -> list[list[float]]:
    """The same, by an engine with the adapter of a request, or with none."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    params = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0.0)
    outputs = llm.generate(
        [TokensPrompt(prompt_token_ids=ids) for ids in rows], params, use_tqdm=False, lora_request=request
    )
    return [
        [told[token].logprob for token, told in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]
        for ids, output in zip(rows, outputs, strict=True)
    ]


def largest_difference(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Of values at the same places."""
    return max(abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def main(folder: Path, step: int, result: Path) -> None:
    config = OmegaConf.load(folder / "config.yaml")
    prepare_environment(config)
    stay_on_loopback()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    from vllm import LLM
    from vllm.lora.request import LoRARequest

    place = folder / f"checkpoints/global_step_{step}/actor/adapters"
    rollout, path = config.actor_rollout_ref.rollout, str(config.actor_rollout_ref.model.path)
    rank = int(config.actor_rollout_ref.model.lora_rank)
    llm = LLM(
        **engine_arguments(config, int(rollout.max_model_len)), enable_lora=True, max_lora_rank=max(8, rank)
    )
    found = {}
    for number, adapter in enumerate(sorted(place.iterdir()), start=1):
        rows = sampled(folder, step, adapter.name)
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(path), adapter).eval()
        own, engine = (
            by_transformers(model, rows),
            by_vllm(llm, rows, LoRARequest(adapter.name, number, str(adapter))),
        )
        with model.disable_adapter():
            base = by_transformers(model, rows)
        found[adapter.name] = {
            "transformers to vLLM": largest_difference(own, engine),
            "without adapter": largest_difference(base, by_vllm(llm, rows, None)),
            "adapter to model": largest_difference(own, base),
        }
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
