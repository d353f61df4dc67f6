"""A batched sampler in plain PyTorch with a KV cache.

Runs the tiny model without Ray and vLLM: for the warm start's measurements, and as the token client of
rollouts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import TokenIds, token_ids
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import Completion, Decoding, EngineUnavailableError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(slots=True)
class _Response:
    """A response that is being sampled."""

    token_ids: list[int] = field(default_factory=list)
    """The end-of-sequence token included when it was sampled."""
    log_probs: list[float] = field(default_factory=list)
    """Log-probability of each token at the sampling temperature (the model's own when greedy)."""
    finished: bool = False
    """The model ended the response itself, or a stop string did."""
    stop: str | None = None
    """That string."""

    def completion(self) -> Completion:
        return Completion(
            token_ids(self.token_ids),
            np.array(self.log_probs, dtype=np.float32),
            FinishReason.STOP if self.finished else FinishReason.LENGTH,
            stop=self.stop,
        )


class _Batch:
    """Left-padded prompts that are decoded together; finished rows are dropped now and then."""

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> None:
        from transformers import DynamicCache

        self.model = model
        pad = model.config.pad_token_id
        width = max(map(len, prompts))
        self.tokens = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        self.mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        self.positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
        self.rows = list(range(len(prompts)))
        self.cache = DynamicCache()

    def next_logits(self) -> torch.Tensor:
        """Logits of the next token of every remaining row, shape (rows, vocabulary)."""
        output = self.model(
            input_ids=self.tokens,
            attention_mask=self.mask,
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()

    def append(self, chosen: torch.Tensor) -> None:
        """Feeds the chosen tokens, shape (rows, 1), at the next call."""
        self.tokens = chosen
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], dim=1)
        self.positions = self.positions[:, -1:] + 1

    def keep(self, slots: list[int]) -> None:
        """Drops all rows but these."""
        index = torch.tensor(slots)
        self.cache.batch_select_indices(index)
        self.mask, self.positions, self.tokens = self.mask[index], self.positions[index], self.tokens[index]
        self.rows = [self.rows[slot] for slot in slots]


StopIn = Callable[[list[int]], "str | None"]
"""The stop string that the last token of a response completes."""


Randomness: TypeAlias = torch.Generator | Sequence[np.random.Generator]
"""One generator for all responses, or one for each, whatever is decoded beside it."""


def _draw(log_probs: torch.Tensor, rows: Sequence[int], randomness: Randomness) -> torch.Tensor:
    """Token ids (rows, 1) from log-probabilities (rows, vocabulary)."""
    if isinstance(randomness, torch.Generator):
        return torch.multinomial(log_probs.exp(), 1, generator=randomness)
    cumulated = log_probs.double().exp().cumsum(-1)
    uniform = torch.tensor([[randomness[row].random()] for row in rows], dtype=torch.float64)
    # The first token whose cumulated probability is above the number.
    return (cumulated <= uniform * cumulated[:, -1:]).sum(-1, keepdim=True)


@torch.no_grad()
def _decode_batch(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    randomness: Randomness,
    stop_in: StopIn,
) -> list[Completion]:
    end = model.config.eos_token_id
    responses = [_Response() for _ in prompts]
    batch = _Batch(model, prompts)
    for _ in range(max_new_tokens):
        logits = batch.next_logits()
        log_probs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
        if temperature > 0:
            chosen = _draw(log_probs, batch.rows, randomness)
        else:
            chosen = log_probs.argmax(-1, keepdim=True)
        picked = log_probs.gather(1, chosen)[:, 0].tolist()
        for row, token, log_prob in zip(batch.rows, chosen[:, 0].tolist(), picked, strict=True):
            response = responses[row]
            if not response.finished:
                response.token_ids.append(token)
                response.log_probs.append(log_prob)
                response.stop = None if token == end else stop_in(response.token_ids)
                response.finished = token == end or response.stop is not None
        running = [slot for slot, row in enumerate(batch.rows) if not responses[row].finished]
        if not running:
            break
        batch.append(chosen)
        if len(running) <= 0.75 * len(batch.rows):  # copying the cache costs about one decoding step
            batch.keep(running)
    return [one.completion() for one in responses]


def decode(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    randomness: Randomness,
    batch_size: int = 512,
    stop_in: StopIn = lambda ids: None,
) -> list[Completion]:
    """One response per prompt, in the order of `prompts`; temperature 0 is greedy. With a generator for each
    prompt a response is the same in every batch."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    completions: dict[int, Completion] = {}
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        some = [prompts[row] for row in rows]
        theirs = randomness
        if not isinstance(randomness, torch.Generator):
            theirs = [randomness[row] for row in rows]
        batch = _decode_batch(model, some, max_new_tokens, temperature, theirs, stop_in)
        completions.update(zip(rows, batch, strict=True))
    return [completions[index] for index in range(len(prompts))]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """One of the completions of a request."""

    prompt_ids: list[int]
    decoding: Decoding
    k: int
    """Which of them."""
    answer: asyncio.Future[Completion]

    def generator(self) -> np.random.Generator:
        """Its own, by the seed of its request."""
        assert self.decoding.seed is not None
        return derive_generator(self.decoding.seed, self.k)


class TorchClient:
    """Implements `GenerationClient` on a model in this process: requests that wait at the same time are
    decoded together. A request with a seed of its own is answered alike whatever waits beside it.

    Args:
        model: a causal language model on the CPU.
        seed: of requests that have none of their own.
        tokenizer: the model's, for stop strings; None: there are none.
    """

    def __init__(self, model: PreTrainedModel, seed: int, tokenizer: Any = None) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.generator = torch.Generator().manual_seed(seed)
        self.version = 0
        """Of the weights; raise it when they change."""
        self._waiting: list[_Waiting] = []

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        """See `GenerationClient`.

        Raises:
            EngineUnavailableError: it is asked for what it does not do.
        """
        stop = () if self.tokenizer is None else decoding.stop
        plain = Decoding(
            decoding.max_tokens,
            decoding.temperature,
            seed=decoding.seed,
            stop=stop,
            log_probs=decoding.log_probs,
        )
        if decoding != plain:
            raise EngineUnavailableError(
                f"request {name}: TorchClient samples the whole distribution (top_p 1.0, top_k -1), without "
                "grammars, log-probabilities of other tokens and, where it has no tokenizer, stop strings; "
                f"it was asked for {decoding}"
            )
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._decode)  # when everybody has asked who can
        found = [_Waiting(prompt_ids.tolist(), plain, k, loop.create_future()) for k in range(n)]
        self._waiting += found
        return list(await asyncio.gather(*[one.answer for one in found]))

    def _decode(self) -> None:
        """Answer what waits."""
        waiting, self._waiting = self._waiting, []
        alike = defaultdict(list)
        for one in waiting:
            alike[replace(one.decoding, seed=None), one.decoding.seed is None].append(one)
        try:
            for (how, unseeded), members in alike.items():
                randomness = self.generator if unseeded else [one.generator() for one in members]
                found = decode(
                    self.model,
                    [one.prompt_ids for one in members],
                    how.max_tokens,
                    how.temperature,
                    randomness,
                    stop_in=partial(self._stop_in, how.stop),
                )
                for one, completion in zip(members, found, strict=True):
                    one.answer.set_result(replace(completion, version=self.version))
        except Exception as error:
            for one in waiting:
                if not one.answer.done():
                    one.answer.set_exception(error)

    def _stop_in(self, stop: tuple[str, ...], ids: list[int]) -> str | None:
        if not stop:
            return None
        text = str(self.tokenizer.decode(ids[-max(map(len, stop)) :]))
        return next((one for one in stop if one in text), None)
