"""The plain sampler: batching changes nothing, limits hold, log-probabilities are the model's."""

from __future__ import annotations

import asyncio

import pytest
import torch

from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import token_ids
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import Decoding, EngineUnavailableError
from studies.tiny.model import build_model
from studies.tiny.sampler import TorchClient, decode

PROMPTS = [[6, 10, 20], [7, 9], [8, 30, 31, 32, 33], [12]]


@pytest.fixture(scope="module")
def model():
    return build_model(seed=0).eval()


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_log_probs_are_the_models(model, temperature):
    generator = torch.Generator().manual_seed(1)
    for prompt, completion in zip(PROMPTS, decode(model, PROMPTS, 8, temperature, generator), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        chosen = expected.gather(1, torch.tensor(completion.token_ids, dtype=torch.int64)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.log_probs), chosen, atol=1e-4, rtol=1e-4)


def test_a_generator_for_each_makes_responses_that_do_not_depend_on_the_batch(model):
    def generators():
        return [derive_generator(5, row) for row in range(len(PROMPTS))]

    together = decode(model, PROMPTS, 12, 1.0, generators())
    alone = [
        decode(model, [prompt], 12, 1.0, [one])[0] for prompt, one in zip(PROMPTS, generators(), strict=True)
    ]
    in_parts = decode(model, PROMPTS, 12, 1.0, generators(), batch_size=2)
    expected = [item.token_ids.tolist() for item in together]
    assert [[item.token_ids.tolist() for item in found] for found in (alone, in_parts)] == [expected] * 2


def test_a_generator_for_each_draws_from_the_models_distribution(model):
    """The first token of 4,000 responses against its probability: within 4.5 standard errors."""
    count = 4000
    generators = [derive_generator(0, row) for row in range(count)]
    found = decode(model, [PROMPTS[0]] * count, 1, 1.0, generators)
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([PROMPTS[0]])).logits[0, -1].double(), dim=-1)
    seen = torch.bincount(torch.tensor([one.token_ids[0] for one in found]), minlength=len(expected)) / count
    assert ((seen - expected).abs() <= 4.5 * (expected * (1 - expected) / count).sqrt()).all()


def test_a_request_with_a_seed_is_answered_alike_whatever_waits_beside_it(model):
    async def asked(*others: int | None):
        client = TorchClient(model, 0)
        requests = [(7, 3), *[(seed, 2) for seed in others]]
        answers = await asyncio.gather(
            *[
                client.generate(
                    "p", token_ids(PROMPTS[n]), Decoding(8, seed=seed), session="s", name="r", n=k
                )
                for n, (seed, k) in enumerate(requests)
            ]
        )
        return [[one.token_ids.tolist() for one in answer] for answer in answers]

    alone, *more = [asyncio.run(asked(*others))[0] for others in ((), (8,), (None,), (8, None, 9))]
    assert more == [alone] * 3
    assert len({tuple(one) for one in alone}) == 3, "each completion of it has numbers of its own"
    assert asyncio.run(asked(7))[1][:2] != asyncio.run(asked(8))[1][:2]


def test_responses_end_at_the_limit_or_at_the_end_token(model):
    end = model.config.eos_token_id
    for completion in decode(model, PROMPTS * 20, 6, 1.0, torch.Generator().manual_seed(0)):
        assert len(completion.token_ids) <= 6
        assert (completion.finish is FinishReason.STOP) == (completion.token_ids[-1] == end)
        assert end not in completion.token_ids[:-1]


@pytest.mark.parametrize("asked", [{"top_p": 0.9}, {"stop": ("x",)}])
def test_what_it_does_not_do_is_refused(model, asked):
    call = TorchClient(model, 0).generate(
        "policy", token_ids(PROMPTS[0]), Decoding(5, **asked), session="s", name="g"
    )
    with pytest.raises(EngineUnavailableError, match="g: TorchClient samples the whole distribution"):
        asyncio.run(call)
