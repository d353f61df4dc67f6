"""A batched sampler in plain PyTorch with a KV cache.

Runs the tiny model without Ray and vLLM: for the warm start's measurements, and as an engine for the
scheduler.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.sequence import token_ids
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput, Trajectory
from marsrl_verl.rewards.base import RoleReward, ScoreRequest
from marsrl_verl.rewards.running import RewardRunner

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(slots=True)
class Completion:
    """One sampled response."""

    token_ids: list[int]
    """The end-of-sequence token included when it was sampled."""
    log_probs: list[float]
    """Log-probability of each token at the sampling temperature (the model's own when greedy)."""
    finished: bool
    """The model ended the response itself."""


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
        """Feed the chosen tokens, shape (rows, 1), at the next call."""
        self.tokens = chosen
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], dim=1)
        self.positions = self.positions[:, -1:] + 1

    def keep(self, slots: list[int]) -> None:
        """Drop all rows but these."""
        index = torch.tensor(slots)
        self.cache.batch_select_indices(index)
        self.mask, self.positions, self.tokens = self.mask[index], self.positions[index], self.tokens[index]
        self.rows = [self.rows[slot] for slot in slots]


@torch.no_grad()
def _decode_batch(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> list[Completion]:
    end = model.config.eos_token_id
    completions = [Completion([], [], False) for _ in prompts]
    batch = _Batch(model, prompts)
    for _ in range(max_new_tokens):
        logits = batch.next_logits()
        log_probs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
        if temperature > 0:
            chosen = torch.multinomial(log_probs.exp(), 1, generator=generator)
        else:
            chosen = log_probs.argmax(-1, keepdim=True)
        picked = log_probs.gather(1, chosen)[:, 0].tolist()
        for row, token, log_prob in zip(batch.rows, chosen[:, 0].tolist(), picked, strict=True):
            completion = completions[row]
            if not completion.finished:
                completion.token_ids.append(token)
                completion.log_probs.append(log_prob)
                completion.finished = token == end
        running = [slot for slot, row in enumerate(batch.rows) if not completions[row].finished]
        if not running:
            break
        batch.append(chosen)
        if len(running) <= 0.75 * len(batch.rows):  # copying the cache costs about one decoding step
            batch.keep(running)
    return completions


def decode(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
    batch_size: int = 512,
) -> list[Completion]:
    """One response per prompt, in the order of `prompts`; temperature 0 is greedy."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    completions: dict[int, Completion] = {}
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        batch = _decode_batch(model, [prompts[row] for row in rows], max_new_tokens, temperature, generator)
        completions.update(zip(rows, batch, strict=True))
    return [completions[index] for index in range(len(prompts))]


class TorchEngine:
    """`marsrl_verl.core.engine.Engine` on a model in this process; it answers whole requests only.

    Args:
        model: a causal language model on the CPU.
        tokenizer: its tokenizer, with a chat template.
        rewards: one scorer per role.
        seed: of the sampling.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        rewards: Mapping[str, RoleReward],
        seed: int,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.rewards = {role: RewardRunner(reward) for role, reward in rewards.items()}
        self.generator = torch.Generator().manual_seed(seed)
        self.policy_version = 0
        """Written into the sequences; raise it when the weights change."""

    def generate(
        self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]
    ) -> list[RolloutOutput]:
        """Answer every request `n` times and score each trajectory.

        Raises:
            ValueError: a request continues something, or asks for what this engine has not: segments, or a
                part of the distribution.
        """
        alike: dict[tuple[str, Sampling], list[RolloutRequest]] = defaultdict(list)
        for item in requests:
            settings = item.sampling_of(item.role, sampling)
            _check(item, settings)
            alike[item.role, settings].append(item)
        answered: list[tuple[RolloutRequest, Trajectory]] = []
        for (_, settings), members in alike.items():
            answered += self._answer(members, settings)
        asyncio.run(self._score(answered))
        outputs = {item.group_id: RolloutOutput(item.group_id, []) for item in requests}
        for item, one in answered:
            outputs[item.group_id].trajectories.append(one)
        return list(outputs.values())

    def _answer(
        self, requests: list[RolloutRequest], settings: Sampling
    ) -> list[tuple[RolloutRequest, Trajectory]]:
        prompts = {item.group_id: self.prompt_ids(item) for item in requests}
        fitting = {name for name, prompt in prompts.items() if len(prompt) <= settings.max_prompt_tokens}
        decoded = iter(
            decode(
                self.model,
                [
                    prompts[item.group_id]
                    for item in requests
                    if item.group_id in fitting
                    for _ in range(item.n)
                ],
                settings.max_new_tokens,
                settings.temperature,
                self.generator,
            )
        )
        answered = []
        for item in requests:
            for k in range(item.n):
                completion = next(decoded) if item.group_id in fitting else None
                answered.append((item, self._trajectory(item, k, prompts[item.group_id], completion)))
        return answered

    def prompt_ids(self, item: RolloutRequest) -> list[int]:
        """The request's messages through the chat template."""
        encoded = self.tokenizer.apply_chat_template(
            list(item.messages), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return list(encoded)

    def _trajectory(
        self, item: RolloutRequest, k: int, prompt_ids: list[int], completion: Completion | None
    ) -> Trajectory:
        if completion is None:
            finish, completion = FinishReason.PROMPT_TOO_LONG, Completion([], [], False)
        else:
            finish = FinishReason.STOP if completion.finished else FinishReason.LENGTH
        ids = completion.token_ids
        versions = ((len(ids), self.policy_version),)
        sequence = TokenSequence(
            item.role,
            token_ids(prompt_ids),
            token_ids(ids),
            np.array(completion.log_probs, dtype=np.float32),
            versions=versions,
        )
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Trajectory(f"{item.group_id}#{k}", [sequence], finish, text, final_text(text))

    async def _score(self, answered: list[tuple[RolloutRequest, Trajectory]]) -> None:
        for item, one in answered:
            one.reward = await self.rewards[item.role].score(ScoreRequest.of(item, one))


def _check(item: RolloutRequest, settings: Sampling) -> None:
    if settings.top_p != 1.0 or settings.top_k != -1:
        raise ValueError("TorchEngine samples the whole distribution: top_p must be 1.0 and top_k -1")
    if item.prefix is not None or item.resume is not None or settings.segment_tokens is not None:
        raise ValueError(
            f"request {item.group_id}: TorchEngine answers from the prompt to the end, in one round"
        )
