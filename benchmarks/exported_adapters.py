"""The adapters of a run's checkpoint, read by transformers with peft and by vLLM.

    python -m benchmarks.exported_adapters RUN_FOLDER STEP RESULT.json

vLLM goes on from responses that each policy sampled in that step, with its adapter and without one, and
transformers computes the log-probabilities of what it sampled. RESULT has the largest differences by policy.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.verl_adapter.environment import prepare_environment
from marsrl_verl.verl_adapter.loopback import stay_on_loopback
from marsrl_verl.verl_adapter.rollout_server.offline_engine import engine_arguments

ROWS, NEW_TOKENS = 16, 24
"""Responses of each policy, and tokens behind each."""


def sampled(folder: Path, step: int, policy: str) -> list[list[int]]:
    """Token ids of responses of a policy."""
    lines = (folder / f"rollouts/step_{step}.jsonl").read_text().splitlines()
    rows = [row["token_ids"] for row in map(json.loads, lines) if row["policy"] == policy]
    return [ids for ids in rows if ids][:ROWS]


def by_vllm(
    llm: Any, prompts: Sequence[list[int]], request: Any
) -> tuple[list[list[int]], list[list[float]]]:
    """What an engine samples behind each prompt with the adapter of a request, or with none, and the
    log-probabilities of these tokens."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=1.0, seed=1, logprobs=0, ignore_eos=True)
    prompt_tokens = [TokensPrompt(prompt_token_ids=ids) for ids in prompts]
    outputs = llm.generate(prompt_tokens, params, use_tqdm=False, lora_request=request)
    ids = [list(output.outputs[0].token_ids) for output in outputs]
    log_probs = [
        [step[token].logprob for token, step in zip(tokens, output.outputs[0].logprobs, strict=True)]
        for tokens, output in zip(ids, outputs, strict=True)
    ]
    return ids, log_probs


def by_transformers(model: Any, prompts: Sequence[list[int]], ids: Sequence[list[int]]) -> list[list[float]]:
    """Log-probabilities of tokens behind prompts."""
    import torch

    found = []
    for prompt, tokens in zip(prompts, ids, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        chosen = torch.tensor(tokens)[:, None]
        found.append(torch.log_softmax(logits.float(), dim=-1).gather(1, chosen)[:, 0].tolist())
    return found


def largest_difference(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Of values at the same places."""
    return max(abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def main(folder: Path, step: int, result: Path) -> None:
    config = OmegaConf.load(folder / "config.yaml")
    assert isinstance(config, DictConfig), "the record of a run's settings"
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
        prompts = sampled(folder, step, adapter.name)
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(path), adapter).eval()
        ids, engine = by_vllm(llm, prompts, LoRARequest(adapter.name, number, str(adapter)))
        own = by_transformers(model, prompts, ids)
        plain, without = by_vllm(llm, prompts, None)
        with model.disable_adapter():
            base, on_plain = (by_transformers(model, prompts, one) for one in (ids, plain))
        found[adapter.name] = {
            "transformers to vLLM": largest_difference(own, engine),
            "without adapter": largest_difference(on_plain, without),
            "adapter to model": largest_difference(own, base),
        }
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
