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

import torch

from marsrl_verl.core.types import FinishReason, Outcome, Sample, SamplingSettings, StageInput
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
    """`marsrl_verl.core.types.Engine` on a model in this process.

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
        """Written into the samples; raise it when the weights change."""

    def generate(self, inputs: list[StageInput], sampling: dict[str, SamplingSettings]) -> list[Sample]:
        """Answer every input `input.n` times and score each sample."""
        by_role: dict[str, list[StageInput]] = defaultdict(list)
        for stage_input in inputs:
            by_role[stage_input.role].append(stage_input)
        samples: list[Sample] = []
        requests: list[ScoreRequest] = []
        for role, members in by_role.items():
            for stage_input, sample in self._answer(members, sampling[role]):
                samples.append(sample)
                requests.append(ScoreRequest.of(stage_input, sample))
        for sample, outcome in zip(samples, asyncio.run(self._score(requests)), strict=True):
            sample.outcome = outcome
        return samples

    def _answer(
        self, inputs: list[StageInput], settings: SamplingSettings
    ) -> list[tuple[StageInput, Sample]]:
        if settings.top_p != 1.0 or settings.top_k != -1:
            raise ValueError("TorchEngine samples the whole distribution: top_p must be 1.0 and top_k -1")
        prompts = {stage_input.group_id: self.prompt_ids(stage_input) for stage_input in inputs}
        fitting = [i for i in inputs if len(prompts[i.group_id]) <= settings.max_prompt_tokens]
        decoded = iter(
            decode(
                self.model,
                [prompts[stage_input.group_id] for stage_input in fitting for _ in range(stage_input.n)],
                settings.max_new_tokens,
                settings.temperature,
                self.generator,
            )
        )
        accepted = {stage_input.group_id for stage_input in fitting}
        answered = []
        for stage_input in inputs:
            for index in range(stage_input.n):
                completion = next(decoded) if stage_input.group_id in accepted else None
                sample = self._sample(stage_input, index, prompts[stage_input.group_id], completion)
                answered.append((stage_input, sample))
        return answered

    def prompt_ids(self, stage_input: StageInput) -> list[int]:
        """The input's messages through the chat template."""
        encoded = self.tokenizer.apply_chat_template(
            list(stage_input.messages), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return list(encoded)

    def _sample(
        self, stage_input: StageInput, index: int, prompt_ids: list[int], completion: Completion | None
    ) -> Sample:
        if completion is None:
            reason, completion = FinishReason.PROMPT_TOO_LONG, Completion([], [], False)
        else:
            reason = FinishReason.STOP if completion.finished else FinishReason.LENGTH
        text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        return Sample(
            sample_id=f"{stage_input.group_id}#{index}",
            group_id=stage_input.group_id,
            prompt_ids=prompt_ids,
            response_ids=completion.token_ids,
            rollout_log_probs=completion.log_probs,
            finish_reason=reason,
            text=text,
            final_text=text.rpartition("</think>")[2].strip(),
            policy_version=self.policy_version,
        )

    async def _score(self, requests: list[ScoreRequest]) -> list[Outcome]:
        return [await self.rewards[request.role].score(request) for request in requests]
