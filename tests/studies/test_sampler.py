"""The plain sampler: batching changes nothing, limits hold, log-probabilities are the model's."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import token_ids
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.demo.problems import Split, generate
from marsrl_verl.rollout.generation import Decoding, EngineUnavailableError
from studies.tiny.measure import build_engine
from studies.tiny.model import build_model
from studies.tiny.sampler import TorchClient, decode
from studies.tiny.tokenizer import build_tokenizer
from studies.tiny.transcripts import as_problem

PROMPTS = [[6, 10, 20], [7, 9], [8, 30, 31, 32, 33], [12]]


@pytest.fixture(scope="module")
def model():
    return build_model(seed=0).eval()


def request(n: int = 3, group_id: str = "g", **fields) -> RolloutRequest:
    problem = as_problem(generate(Split.TRAIN, 1, seed=0)[0], "p")
    return RolloutRequest(
        group_id=group_id,
        problem=problem,
        stage="solver",
        role=SOLVER,
        messages=({"role": "user", "content": problem.question},),
        n=n,
        **fields,
    )


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


def engine_and(model, **settings):
    defaults = {"max_new_tokens": 5, "max_prompt_tokens": 24}
    return build_engine(model, seed=0), {SOLVER: Sampling(**{**defaults, **settings})}


def test_engine_answers_and_scores_every_request(model):
    engine, sampling = engine_and(model)
    engine.runner.client.version = 7
    outputs = engine.generate([request(3, "a"), request(2, "b")], sampling)
    assert [output.group_id for output in outputs] == ["a", "b"]
    members = [one for output in outputs for one in output.trajectories]
    assert [one.trajectory_id for one in members] == ["a#0", "a#1", "a#2", "b#0", "b#1"]
    assert all(one.reward is not None and one.reward.graded for one in members)
    assert {one.sequence.versions for one in members} == {((one.tokens, 7),) for one in members}


def test_truncated_distributions_are_refused(model):
    engine, sampling = engine_and(model, top_p=0.9)
    with pytest.raises(EngineUnavailableError, match=r"g: TorchClient samples the whole distribution"):
        engine.generate([request(1)], sampling)


@pytest.mark.parametrize("at", [1, 3])
def test_greedy_responses_go_on_where_they_were_left(model, at):
    """From a prefix, and in a later round."""
    engine, sampling = engine_and(model, temperature=0.0)
    ((whole,),) = (output.trajectories for output in engine.generate([request(1)], sampling))
    ids = whole.sequence.response_ids.tolist()
    assert len(ids) > at
    prefix = whole.sequence.truncate(at)
    ((continued,),) = (one.trajectories for one in engine.generate([request(1, prefix=prefix)], sampling))
    segments = {SOLVER: replace(sampling[SOLVER], segment_tokens=at)}
    (output,) = engine.generate([request(1)], segments)
    while output.trajectories[0].paused:
        assert output.trajectories[0].new_tokens == at
        (output,) = engine.generate([request(1, resume=output)], segments)
    assert [one.sequence.response_ids.tolist() for one in (continued, output.trajectories[0])] == [ids] * 2


def test_a_stop_string_ends_a_response_with_the_token_that_completes_it(model):
    tokenizer = build_tokenizer()

    def sampled(client: TorchClient, *stop: str):
        decoding = Decoding(12, temperature=0.0, stop=stop)
        return asyncio.run(client.generate("policy", token_ids(PROMPTS[0]), decoding, session="s", name="r"))[
            0
        ]

    client = TorchClient(model, 0, tokenizer)
    ids = sampled(client).token_ids.tolist()
    texts = [tokenizer.decode([one]) for one in ids]
    wanted = texts[1] + texts[2]
    end = next(n for n in range(1, len(ids) + 1) if wanted in "".join(texts[:n]))
    stopped = sampled(client, "never", wanted)
    assert (stopped.token_ids.tolist(), stopped.stop, stopped.finish) == (
        ids[:end],
        wanted,
        FinishReason.STOP,
    )
    with pytest.raises(EngineUnavailableError, match="where it has no tokenizer, stop strings"):
        sampled(TorchClient(model, 0), wanted)
