"""The forward passes that `benchmarks.fci_forward` times are the ones it says."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import fci_forward
from benchmarks.fci import layout_of
from benchmarks.fci_forward import ForwardPass, Setting, main, measure
from marsrl_verl.attention.layout import NEVER

TOKENS = 512
SMALL = Setting("small", 2, 4, "sdpa", "float32", "auto", sequences=2, tokens=TOKENS)


@pytest.fixture(scope="module")
def work() -> ForwardPass:
    return ForwardPass(SMALL, "cpu")


def test_the_pass_gives_each_sequence_its_log_probabilities(work, monkeypatch):
    monkeypatch.setattr(fci_forward, "LOGITS_CHUNK", 300)  # no divisor of the row
    found = work.token_log_probs(work.hidden())
    assert found.shape == (2 * TOKENS,)
    for start in (0, TOKENS):
        ids = work.ids[:, start : start + TOKENS]
        with torch.no_grad():
            alone = work.model(ids).logits[0].log_softmax(-1)
        wanted = alone[:-1].gather(1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(found[start : start + TOKENS - 1], wanted, rtol=1e-5, atol=1e-5)


def test_with_fci_the_same_pass_has_influence_for_measured_steps(work):
    hidden, influence = work.hidden_and_influence()
    assert torch.equal(hidden, work.hidden())
    layout = layout_of(TOKENS, "cpu", sequences=2)
    last = layout.query_steps[:TOKENS].max()
    counted = (layout.key_steps != NEVER) & (layout.query_steps + layout.delta <= last)
    assert counted[:TOKENS].any() and torch.equal(counted[:TOKENS], counted[TOKENS:])
    assert torch.equal(influence > 0, counted)


@pytest.mark.parametrize("shape", fci_forward.SHAPES)
def test_every_shape_is_one_that_transformers_builds(shape):
    one = ForwardPass(Setting(shape, 1, 28, "sdpa", "bfloat16", "auto", 1, 8), "meta")
    assert len(one.model.model.layers) == 1


def test_passes_take_turns_and_ratios_are_those_of_neighbours(monkeypatch):
    """With a clock that says what was run."""
    seen: list[str] = []
    layers = {"hidden": iter([10.0, 20.0, 10.0]), "hidden_and_influence": iter([11.0, 30.0, 12.0])}

    def noted(name):
        method = getattr(ForwardPass, name)

        def called(self):
            seen.append(name)
            return method(self)

        return called

    for name in layers:
        monkeypatch.setattr(ForwardPass, name, noted(name))

    def clock(work, device):
        before = len(seen)
        work()
        return next(layers[seen[before]]) if len(seen) > before else 10.0  # of the logits

    monkeypatch.setattr(fci_forward, "milliseconds", clock)
    row = measure(SMALL, "cpu", repeats=3)
    with_fci = ["hidden_and_influence", "hidden"]  # the one calls the other
    both = ["hidden", *with_fci]
    assert seen == [*both, *both, *both, *with_fci, "hidden", *both]  # warm, for the memory, three turns
    assert (row.plain_ms, row.influence_ms, row.logits_ms) == (20.0, 22.0, 10.0)
    of_pass, of_layers = row.of_pass, row.of_layers
    assert (of_pass.low, of_pass.median, of_pass.high) == pytest.approx((21 / 20, 22 / 20, 40 / 30))
    assert (of_layers.low, of_layers.median, of_layers.high) == pytest.approx((1.1, 1.2, 1.5))
    assert str(of_layers) == "20.0 % (10.0 to 50.0)"


def test_the_program_prints_and_writes_what_it_measured(tmp_path, capsys):
    path = tmp_path / "rows.json"
    main(["--shape", "small", "--layers", "1", "--lengths", "512", "--repeats", "1", "--json", str(path)])
    printed, content = capsys.readouterr().out, json.loads(path.read_text())
    for word in ("torch", "triton", "transformers"):
        assert f"{word} " in content["machine"]
    assert content["machine"] in printed and "1 of 4 layers" in printed
    (row,) = content["rows"]
    assert row["setting"]["layers"] == 1 and row["setting"]["tokens"] == 512
    assert row["plain_ms"] > row["logits_ms"] > 0 and row["influence_ms"] > 0
    assert row["of_pass"]["low"] == row["of_pass"]["high"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "small", "--layers", "5"], "--layers is 5, expected 1 to 4"),
        (["--lengths", "511"], "--lengths has 511, expected 512 or more"),
        pytest.param(
            ["--attention", "flash_attention_2"],
            "needs a GPU and flash-attn",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there may be flash-attn"),
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
