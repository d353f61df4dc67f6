"""Sampling with hidden tokens: what they can't do, and what batches don't."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.disruption import sampling
from benchmarks.disruption.sampling import Beginning, Decoding, draw, sample_rest

GREEDY = Decoding(top_p=1e-9)
NO_END: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def model():
    """A random model of R1-Distill's architecture whose tokens depend on all that came before."""
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
        attn_implementation="sdpa",
    )
    # In double precision other batches give the same digits but for the last ones.
    return Qwen2ForCausalLM(config).double().eval()


def row(length: int, seed: int, hidden: tuple[int, int] = (0, 0), most: int = 12) -> Beginning:
    ids = np.random.default_rng(seed).integers(0, 60, length)
    return Beginning(tuple(int(one) for one in ids), most, seed, hidden)


def with_token(beginning: Beginning, at: int, token: int) -> Beginning:
    ids = (*beginning.ids[:at], token, *beginning.ids[at + 1 :])
    return Beginning(ids, beginning.most, beginning.seed, beginning.hidden)


def by_definition(model, beginning: Beginning) -> list[int]:
    """Greedy, a whole forward pass for each token, columns of hidden tokens taken out of a square mask."""
    ids = list(beginning.ids)
    for _ in range(beginning.most):
        seen = torch.ones(len(ids), len(ids)).tril().bool()
        seen[:, beginning.hidden[0] : beginning.hidden[1]] = False
        mask = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -1e30)[None, None]
        with torch.no_grad():
            logits = model(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(beginning.ids) :]


def test_hidden_tokens_have_no_influence(model):
    rows = [row(20, seed, hidden=(6, 11)) for seed in range(8)]
    before = sample_rest(model, rows, Decoding(), NO_END)
    for at in (6, 10):
        changed = [with_token(one, at, (one.ids[at] + 17) % 60) for one in rows]
        assert sample_rest(model, changed, Decoding(), NO_END) == before
    for at in (5, 11):  # those beside them have
        changed = [with_token(one, at, (one.ids[at] + 17) % 60) for one in rows]
        assert sample_rest(model, changed, Decoding(), NO_END) != before


def test_tokens_keep_their_positions_where_others_are_hidden(model):
    rows = [row(18, 1, hidden=(4, 9)), row(11, 2, hidden=(9, 10)), row(25, 3), row(14, 4, hidden=(1, 13))]
    expected = [by_definition(model, one) for one in rows]
    assert sample_rest(model, rows, GREEDY, NO_END) == expected
    assert len({tuple(one) for one in expected}) == 4


def test_batches_do_not_change_what_is_sampled(model, monkeypatch):
    ends = frozenset({7, 21, 33})
    rows = [row(8 + seed % 5, seed, hidden=(2, 3 + seed % 4), most=6 + seed % 20) for seed in range(13)]
    alone = sample_rest(model, rows, Decoding(batch_size=1), ends)
    lengths = {len(one) for one in alone}
    assert len(lengths) > 3, "rows must end at different times"
    for size in (3, 8, 13):
        assert sample_rest(model, rows, Decoding(batch_size=size), ends) == alone
    monkeypatch.setattr(sampling, "PREFILL_TOKENS", 16)
    assert sample_rest(model, rows, Decoding(batch_size=4), ends) == alone, "read in pieces"
    assert sample_rest(model, rows[::-1], Decoding(batch_size=4), ends) == alone[::-1]


def test_any_end_token_ends_a_row_and_the_limit_does(model):
    rows = [row(10, seed, most=40) for seed in range(6)]
    free = sample_rest(model, rows, Decoding(), NO_END)
    assert [len(one) for one in free] == [40] * 6
    ends = frozenset({free[0][5], free[1][9]})
    for whole, ended in zip(free, sample_rest(model, rows, Decoding(), ends), strict=True):
        first = min((at for at, token in enumerate(whole) if token in ends), default=39)
        assert ended == whole[: first + 1]


def test_ended_rows_leave_the_batch(model):
    class Counted:
        """The model, with the number of rows of each forward pass."""

        config, device = model.config, model.device

        def __init__(self):
            self.rows: list[int] = []

        def __call__(self, **inputs):
            self.rows.append(len(inputs["input_ids"]))
            return model(**inputs)

    limits = [2, 2, 3, 30]
    counted = Counted()
    sample_rest(counted, [row(9, 40 + most, most=most) for most in limits], Decoding(), NO_END)
    assert counted.rows == [4, 4, *[2], *[1] * 27]


def test_temperature_and_top_p():
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
    uniforms = torch.tensor([0.05, 0.3, 0.6, 0.95])

    def drawn(decoding: Decoding) -> list[int]:
        return draw(logits.expand(4, -1), uniforms, decoding).tolist()

    assert drawn(Decoding()) == [0, 1, 2, 3]
    # Squared: 1/30, 16/30, 4/30, 9/30.
    assert drawn(Decoding(temperature=0.5)) == [1, 1, 2, 3]
    # 0.4 and 0.3 reach 0.5; they are 4/7 and 3/7 then.
    assert drawn(Decoding(top_p=0.5)) == [1, 1, 3, 3]
    many = draw(
        logits.expand(4000, -1), torch.rand(4000, generator=torch.Generator().manual_seed(1)), Decoding()
    )
    shares = torch.bincount(many, minlength=4) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.4, 0.2, 0.3]), atol=0.03, rtol=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Decoding(temperature=0), "temperature is 0"),
        (lambda: Decoding(top_p=0), "top_p is 0"),
        (lambda: Decoding(batch_size=0), "batch_size is 0"),
        (lambda: row(5, 1, hidden=(3, 5)), "tokens 3 to 5 .* in 5 tokens"),
        (lambda: row(5, 1, most=0), "at most 0 tokens"),
    ],
)
def test_what_cannot_be_sampled_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
