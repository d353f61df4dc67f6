"""vLLM without Ray and verl."""

from __future__ import annotations

import os
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.core.request import Sampling
from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.rollout.generation import Completion, Decoding, EngineUnavailableError
from marsrl_verl.verl_adapter.environment import prepare_environment
from marsrl_verl.verl_adapter.loopback import stay_on_loopback


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
    """vLLM's engine arguments as training has them (`actor_rollout_ref.rollout`), where they decide which
    tokens are drawn, and how they are read and told; not what serves the weight sync, the HTTP server and the
    sharing of a GPU with the trainer. Upstream behaviour: verl builds them inside
    `vLLMHttpServer.launch_server`."""
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
        "logprobs_mode": str(rollout.logprobs_mode),
        "seed": int(rollout.seed),
        "disable_log_stats": True,
        **{str(key): value for key, value in extra.items() if value is not None},
    }


class OfflineClient:
    """Implements `marsrl_verl.rollout.generation.GenerationClient`. Loads the model at once, as the training
    configuration says, with the limits of prompts and responses in `settings`."""

    def __init__(self, config: DictConfig, settings: Sampling) -> None:
        prepare_environment(config)
        stay_on_loopback()
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        # Imported late: after the environment is prepared, and only where a model is started.
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from marsrl_verl.verl_adapter.rollout_server.forced_tokens import ForcedTokens

        arguments = engine_arguments(config, settings.longest_sequence)
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        self._forced_tokens = ForcedTokens(self._engine)

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        """See `GenerationClient`."""
        from vllm.inputs import TokensPrompt
        from vllm.v1.engine.exceptions import EngineDeadError

        from marsrl_verl.verl_adapter.rollout_server.engine_requests import accepted_params, completion

        params = accepted_params(decoding, n, self._engine.model_config)
        forced = None if decoding.structured is None else self._forced_tokens.reader(decoding.structured)
        prompt = TokensPrompt(prompt_token_ids=prompt_ids.tolist())
        try:
            async for output in self._engine.generate(prompt, params, name):
                if output.finished:
                    return [completion(one, 0, decoding, forced) for one in output.outputs]
        except EngineDeadError as error:
            raise EngineUnavailableError(f"vLLM's engine is gone: {error}") from error
        return []
