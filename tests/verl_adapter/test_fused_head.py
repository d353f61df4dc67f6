"""Fused kernels on verl's own engine: they say what a pass without them says, for heads that are tied and for
those that are not, on one rank, on two, and on two that share every sequence (`rank_fused.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_python import by_ranks, needs_workers, run_on_ranks
from rank_fused import NETWORKS, PASSES, SHARED_CASES, SHARES

pytest.importorskip("verl", reason="compares with verl's functions")

from verl.utils import torch_functional

from marsrl_verl.verl_adapter.engine.fused_head import use_whole_batch_log_probs

pytestmark = [pytest.mark.slow, needs_workers]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_on_ranks("rank_fused", tmp_path_factory.mktemp("fused"))


@pytest.fixture(scope="module")
def results(folder) -> dict[int, dict[str, Any]]:
    """What each pass gave, by number of ranks."""
    return by_ranks(folder)


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Their distance as a share of what is expected."""
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("world", "how"), [(1, PASSES[1]), *((2, how) for how in PASSES[1:])])
@pytest.mark.parametrize("network", NETWORKS)
def test_fused_kernels_and_packed_rows_train_what_a_plain_pass_trains(results, world, network, how):
    plain, fused = results[1][f"{network} plain"], results[world][f"{network} {how}"]
    # The rows stand in another order with another number of ranks.
    log_probs = [one["log_probs"].sort().values for one in (fused, plain)]
    torch.testing.assert_close(*log_probs, rtol=0.0, atol=1e-5)
    (expected,), (found,) = plain["gradients"], fused["gradients"]
    assert ("lm_head.weight" in expected) == network.endswith("untied")
    assert all(float(one.norm()) > 1e-6 for one in expected.values())
    assert {name for name, one in expected.items() if off(found[name], one) > 1e-5} == set()
    for metric in ("actor/pg_loss", "actor/entropy"):
        assert fused["metrics"][metric] == pytest.approx(plain["metrics"][metric], abs=1e-5)


@pytest.mark.skipif(not SHARES, reason="torch 2.11's gloo has no all_to_all")
@pytest.mark.parametrize("case", SHARED_CASES)
def test_shared_sequences_train_what_rows_train(folder, results, case):
    rows, shared = results[1]["qwen3_moe_untied plain"], by_ranks(folder / "shared")[2][case]
    torch.testing.assert_close(shared["log_probs"], rows["log_probs"], rtol=0.0, atol=1e-5)
    (expected,), (found,) = rows["gradients"], shared["gradients"]
    assert expected.keys() == found.keys()
    compared = {name: off(found[name], one) for name, one in expected.items() if float(one.norm()) > 1e-6}
    assert len(compared) > 10 and max(compared.values()) < 1e-4, compared
    # Of both ranks' parts of the weights, though one of them reports.
    assert shared["metrics"]["actor/weights_max"] == pytest.approx(rows["metrics"]["actor/weights_max"])


# --- logits without flash-attn ---------------------------------------------------------------------


@pytest.fixture
def whole_batch(monkeypatch):
    """verl's module with the replacement in it, and the function that was replaced."""
    walker = torch_functional.logprobs_from_logits_v2
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", walker)  # put back afterwards
    use_whole_batch_log_probs()
    return walker


def _graph_nodes(output: torch.Tensor) -> int:
    seen, open_nodes = set(), [output.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            open_nodes += [parent for parent, _ in node.next_functions]
    return len(seen)


@pytest.mark.skipif(
    torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE, reason="flash-attn takes the log-probabilities"
)
def test_log_probs_of_all_tokens_equal_the_row_by_row_ones(whole_batch):
    """Upstream: `logprobs_from_logits_v2` walks over the rows, and the engine hands it one per token."""
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(37, 11, generator=generator)).double()
    labels = torch.randint(11, (37,), generator=generator)
    weights = torch.randn(37, generator=generator).double()
    found = {}
    for name, function in {
        "ours": torch_functional.logprobs_from_logits,
        "upstream": whole_batch,
        "definition": lambda x, y: torch.log_softmax(x, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1),
    }.items():
        leaf = logits.clone().requires_grad_()
        output = function(leaf, labels)
        nodes = _graph_nodes(output)
        (output * weights).sum().backward()
        found[name] = (output.detach(), leaf.grad, nodes)
    for name in ("upstream", "definition"):
        torch.testing.assert_close(found["ours"][0], found[name][0])
        torch.testing.assert_close(found["ours"][1], found[name][1])
    assert found["upstream"][2] > len(labels), "upstream's graph grows with the tokens"
    assert found["ours"][2] < 10


def test_log_probs_of_bfloat16_logits_are_not_rounded_to_bfloat16(whole_batch):
    logits = (4 * torch.randn(37, 1000, generator=torch.Generator().manual_seed(0))).bfloat16()
    labels = torch.arange(37)
    exact = logits.double().log_softmax(-1).gather(-1, labels[:, None])[:, 0]
    ours = torch_functional.logprobs_from_logits(logits, labels)
    assert ours.dtype == torch.float32 and float((ours - exact).abs().max()) < 1e-5
    assert float((whole_batch(logits, labels) - exact).abs().max()) > 1e-3, "upstream's are rounded"


# --- the gradient of the head's weight ------------------------------------------------------------

PART = 512
"""Tokens that fused kernels compute at once."""


def fused_gradients(function: Any, hidden: torch.Tensor, weight: torch.Tensor, *, entropy: float) -> Any:
    """Gradients of hidden states and weight for a weighted sum of log-probabilities and entropies."""
    generator = torch.Generator().manual_seed(2)
    shape = hidden.shape[:-1]
    labels = torch.randint(len(weight), shape, generator=generator)
    advantages = torch.randn(shape, generator=generator) + 0.3
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    log_probs, entropies = function.apply(hidden, weight, labels, 0.8, PART)
    loss = (log_probs * advantages).sum()
    (loss + entropy * entropies.float().sum() if entropy else loss).backward()
    return hidden.grad, weight.grad


def inputs(tokens: int, words: int = 1000, size: int = 32, *, rows: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(tokens, size, generator=generator)
    weight = torch.randn(words, size, generator=generator) / size**0.5
    return [hidden.view(rows, -1, size) if rows else hidden, weight]


def functions() -> tuple[Any, Any]:
    """verl's function and ours."""
    from marsrl_verl.verl_adapter.engine.fused_head import FusedLinear

    return FusedLinear.__mro__[1], FusedLinear


@pytest.mark.parametrize("entropy", [0.0, 0.1])
@pytest.mark.parametrize("rows", [0, 3])
def test_gradients_in_float32_are_those_of_the_kernel_that_ours_stands_in_for(rows, entropy):
    hidden, weight = inputs(2 * PART + 2, words=50, rows=rows)
    upstream, ours = functions()
    expected = fused_gradients(upstream, hidden, weight, entropy=entropy)
    for found, value in zip(fused_gradients(ours, hidden, weight, entropy=entropy), expected, strict=True):
        assert found.shape == value.shape and off(found, value) < 1e-6


def test_in_bfloat16_parts_do_not_add_up_to_an_error():
    """Over 48 parts verl's sum is off by 0.9 %, in one part by 0.23 %."""
    rounded = [one.bfloat16() for one in inputs(48 * PART)]
    upstream, ours = functions()
    exact = fused_gradients(upstream, *(one.float() for one in rounded), entropy=0.0)[1]
    found = [fused_gradients(one, *rounded, entropy=0.0)[1] for one in (upstream, ours)]
    assert found[1].dtype == torch.bfloat16
    assert off(found[0].float(), exact) > 0.006, "verl's own sum is as exact: ours can go"
    assert off(found[1].float(), exact) < 0.004


def test_a_frozen_head_gets_no_gradient():
    hidden, weight = inputs(PART + 1, words=50)
    hidden.requires_grad_()
    log_probs, _ = functions()[1].apply(hidden, weight, torch.zeros(PART + 1, dtype=torch.int64), 1.0, PART)
    log_probs.sum().backward()
    assert weight.grad is None and hidden.grad.abs().min() > 0
