"""Parameters of a request to vLLM, and its answer as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from vllm import SamplingParams
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.endpoints.answer import FINISH_REASONS
from marsrl_verl.rollout.generation import Completion, Decoding, TopLogProbs

Number = TypeVar("Number", np.int32, np.float32)

_SEED_RANGE = 2**62
"""vLLM's seeds are signed 64-bit numbers, and the k-th completion of a prompt adds k."""
_STRUCTURES = ("json", "regex", "choice", "grammar")
ENGINE_KEYS = "actor_rollout_ref.rollout.engine_kwargs.vllm"


def accepted_params(decoding: Decoding, n: int, model: Any) -> SamplingParams:
    """`sampling_params` of a request that the engine (its `model_config` is `model`) survives; ValueError: it
    cannot sample in this way, or returns fewer log-probabilities. Upstream behaviour: its process dies of a
    request for more log-probabilities than the vocabulary has tokens."""
    params = sampling_params(decoding, n)
    if requested := decoding.top_log_probs:
        vocabulary = model.get_vocab_size()
        most = vocabulary if model.max_logprobs == -1 else min(model.max_logprobs, vocabulary)
        if requested > most:
            raise ValueError(
                f"top_log_probs={requested}: this engine returns log-probs for at most {most} tokens per "
                f"position, of {vocabulary} in its vocabulary; {ENGINE_KEYS}.max_logprobs sets it"
            )
    return params


def sampling_params(decoding: Decoding, n: int, **changed: Any) -> SamplingParams:
    """vLLM's parameters of a request for `n` completions, those in `changed`, by vLLM's names, replaced.
    ValueError: vLLM can't sample in this way."""
    optional: dict[str, Any] = {}
    if decoding.stop:
        # Only vLLM's text shows a stop string. Special tokens count as the text that they are, so that a
        # string can't be spelt around them.
        optional |= {
            "stop": list(decoding.stop),
            "include_stop_str_in_output": True,
            "detokenize": True,
            "skip_special_tokens": False,
        }
    if decoding.structured is not None:
        optional["structured_outputs"] = _structure(decoding.structured)
    return SamplingParams(
        **{
            "n": n,
            "max_tokens": decoding.max_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "top_k": decoding.top_k,
            "repetition_penalty": decoding.repetition_penalty,
            "seed": None if decoding.seed is None else decoding.seed % _SEED_RANGE,
            # Of that many tokens, and of the sampled one.
            "logprobs": decoding.top_log_probs if _tells_log_probs(decoding) else None,
            "flat_logprobs": True,
            "detokenize": False,  # the rollout code makes the text of the ids
            "output_kind": RequestOutputKind.FINAL_ONLY,
            **optional,
            **changed,
        }
    )


def _structure(structured: Mapping[str, Any]) -> StructuredOutputsParams:
    if len(structured) != 1 or not structured.keys() <= set(_STRUCTURES):
        found = ", ".join(map(str, structured)) or "-"
        raise ValueError(f"structured output is one of {', '.join(_STRUCTURES)}, found: {found}")
    ((kind, value),) = structured.items()
    return StructuredOutputsParams(**{kind: list(value) if kind == "choice" else value})


def _tells_log_probs(decoding: Decoding) -> bool:
    return decoding.log_probs or decoding.top_log_probs > 0


def completion(
    answer: CompletionOutput,
    version: int,
    decoding: Decoding,
    forced: Callable[[TokenIds], NDArray[np.bool_]] | None = None,
) -> Completion:
    """One of the completions of a finished request, made with `flat_logprobs`: vLLM's flat lists have the
    sampled token and then the `top_log_probs` likeliest at every position, also where the sampled one is
    among these. `forced` tells the tokens that a structure forced (`ForcedTokens.reader`)."""
    top_log_probs = decoding.top_log_probs
    flat, length, width = answer.logprobs, len(answer.token_ids), top_log_probs + 1
    log_probs, top = np.zeros((length, 1), np.float32), None
    if _tells_log_probs(decoding):
        log_probs = _array(flat.logprobs, np.float32).reshape(length, width)  # type: ignore[union-attr]
    if top_log_probs:
        ids = _array(flat.token_ids, np.int32).reshape(length, width)  # type: ignore[union-attr]
        top = TopLogProbs(ids[:, 1:].copy(), log_probs[:, 1:].copy())
    # Its other ends (abort, error, repetition) are not the model's.
    finish = FINISH_REASONS.get(answer.finish_reason or "", FinishReason.ABORTED)
    # For an end token it is None, or the token's id where the model has several.
    matched = finish is FinishReason.STOP and isinstance(answer.stop_reason, str)
    token_ids = _array(answer.token_ids, np.int32)
    return Completion(
        token_ids=token_ids,
        log_probs=log_probs[:, 0].copy() if top_log_probs else log_probs[:, 0],
        finish=finish,
        stop=str(answer.stop_reason) if matched else None,
        version=version,
        top=top,
        forced=None if forced is None else forced(token_ids),
    )


def _array(values: Sequence[Any], dtype: type[Number]) -> NDArray[Number]:
    """A fifth faster than `np.array`."""
    return np.fromiter(values, dtype, len(values))


def unanswered(n: int, version: int, top_log_probs: int) -> list[Completion]:
    """The completions of a request that the engine gave up before it began."""
    none = np.zeros(0, np.int32), np.zeros(0, np.float32)
    shape = (0, top_log_probs)
    top = TopLogProbs(none[0].reshape(shape), none[1].reshape(shape)) if top_log_probs else None
    return [Completion(*none, FinishReason.ABORTED, version=version, top=top) for _ in range(n)]
