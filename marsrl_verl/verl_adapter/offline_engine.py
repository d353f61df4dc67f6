"""vLLM without Ray and verl: prompts in, completions out, each prompt as soon as it is done."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.core.seeding import derive_seed
from marsrl_verl.core.types import FinishReason, SamplingSettings
from marsrl_verl.rollout.single_call import FINISH_REASONS, Completion
from marsrl_verl.verl_adapter.environment import prepare_environment
from marsrl_verl.verl_adapter.loopback import stay_on_loopback
from marsrl_verl.verl_adapter.sampling import sampling_arguments

_QUEUED_PER_SLOT = 2
"""Completions that are handed to vLLM for each it can decode at once, so that no slot waits for the next."""


def load_tokenizer(config: DictConfig) -> Any:
    """The tokenizer of `actor_rollout_ref.model`, with its custom chat template if there is one."""
    from transformers import AutoTokenizer

    model = config.actor_rollout_ref.model
    tokenizer = AutoTokenizer.from_pretrained(
        model.get("tokenizer_path") or model.path, trust_remote_code=bool(model.get("trust_remote_code"))
    )
    if model.get("custom_chat_template"):
        tokenizer.chat_template = model.custom_chat_template
    return tokenizer


def engine_arguments(config: DictConfig, max_model_len: int) -> dict[str, Any]:
    """vLLM's engine arguments as training has them (`actor_rollout_ref.rollout`).

    Not taken: what serves the weight sync and the sharing of a GPU with the trainer, `load_format` and
    `gpu_memory_utilization` among it.
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    extra = OmegaConf.to_container(rollout.engine_kwargs.get("vllm") or OmegaConf.create({}))
    assert isinstance(extra, dict)
    on_cpu = str(config.trainer.device) == "cpu"
    return {
        "model": str(model.path),
        "tokenizer": model.get("tokenizer_path"),
        "trust_remote_code": bool(model.get("trust_remote_code")),
        "dtype": str(rollout.dtype),
        "tensor_parallel_size": int(rollout.tensor_model_parallel_size),
        "max_model_len": max_model_len,
        "max_num_seqs": int(rollout.max_num_seqs),
        # Every request has a seed of its own, and with one vLLM's CPU engine cannot read a prompt in parts.
        "max_num_batched_tokens": max(int(rollout.max_num_batched_tokens), max_model_len if on_cpu else 0),
        "enable_chunked_prefill": bool(rollout.enable_chunked_prefill) and not on_cpu,
        "enable_prefix_caching": bool(rollout.enable_prefix_caching),
        "enforce_eager": bool(rollout.enforce_eager),
        "seed": int(rollout.seed),
        "disable_log_stats": True,
        **{str(key): value for key, value in extra.items() if value is not None},
    }


class OfflineEngine:
    """Implements `marsrl_verl.data_preparation.sampling.AnswerGenerator`. Loads the model at once.

    Each prompt has a seed of its own, from `seed` and its key, so that its answers depend neither on the
    other prompts nor on interruptions.

    Args:
        config: the training configuration; engine, model and environment are taken from it.
        settings: how tokens are drawn.
        seed: of the answers.
    """

    def __init__(self, config: DictConfig, settings: SamplingSettings, seed: int) -> None:
        prepare_environment(config)
        stay_on_loopback()
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        # Imported late: after the environment is prepared, and only where a model is started.
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.settings = settings
        self.seed = seed
        arguments = engine_arguments(config, settings.max_prompt_tokens + settings.max_new_tokens)
        self._slots = int(arguments["max_num_seqs"])
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))

    def generate(
        self, prompts: Iterable[tuple[str, list[int]]], n: int
    ) -> Iterator[tuple[str, list[Completion]]]:
        """See `AnswerGenerator`. With fewer prompts taken than vLLM has room for, new ones are added."""
        from vllm.inputs import TokensPrompt

        waiting = iter(prompts)
        room = -(-_QUEUED_PER_SLOT * self._slots // n)
        running, more = 0, True
        while more or running:
            while more and running < room:
                one = next(waiting, None)
                if one is None:
                    more = False
                    break
                key, prompt_ids = one
                self._engine.add_request(
                    key, TokensPrompt(prompt_token_ids=prompt_ids), self._sampling(key, n)
                )
                running += 1
            for output in self._engine.step() if running else ():
                if output.finished:
                    running -= 1
                    yield output.request_id, [_completion(one) for one in output.outputs]

    def _sampling(self, key: str, n: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings = replace(self.settings, seed=derive_seed(self.seed, "answers", key))
        return SamplingParams(
            n=n,
            **sampling_arguments(settings, settings.max_new_tokens),
            detokenize=False,  # as in training, the text is made of the token ids by the rollout code
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _completion(one: Any) -> Completion:
    # Nothing is trained on these answers: log-probabilities are not asked for.
    tokens = list(one.token_ids)
    reason = FINISH_REASONS.get(one.finish_reason, FinishReason.ABORTED)
    return Completion(tokens, [0.0] * len(tokens), reason)
