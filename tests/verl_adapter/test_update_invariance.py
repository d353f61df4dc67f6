"""The update's gradient is a property of the trained tokens alone.

Our batch goes through the trainer's `_update_policy`, then through what our workers make of it, verl's own
mini- and micro-batching and its `ppo_loss`, with a model of a few hundred parameters. Ranks are taken one
after the other; FSDP averages their gradients.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

pytest.importorskip("verl", reason="the loss is verl's")
pytest.importorskip("vllm", reason="verl's trainer imports its rollout")

from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, FSDPOptimizerConfig
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.utils.losses import ppo_loss

from marsrl_verl.core.credit import LossSpec
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import ADVANTAGES, OLD_LOG_PROBS, RowRef
from marsrl_verl.core.sequence import TURN, Sequence
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.losses.inputs import loss_inputs, mean_loss
from marsrl_verl.settings.choices import LossMean
from marsrl_verl.verl_adapter.engine.batch import BatchLayout, arrange
from marsrl_verl.verl_adapter.engine.policy_loss import update_loss
from marsrl_verl.verl_adapter.engine.rank_rows import HeldRows
from marsrl_verl.verl_adapter.trainer.policy_trainer import PolicyTrainer

VOCABULARY = 13
CUTS = ({"multiple": 40}, {"micro_rows": 3}, {"micro_tokens": 24}, {"ranks": 3, "micro_rows": 2})
ENTROPY_COEFFICIENT = 0.05


class TinyModel(torch.nn.Module):
    """Predicts the next token from the mean of all tokens so far."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, 6, generator=generator, dtype=torch.float64))
        self.head = torch.nn.Parameter(torch.randn(6, VOCABULARY, generator=generator, dtype=torch.float64))

    def distribution(self, ids: torch.Tensor) -> torch.Tensor:
        counts = torch.arange(1, len(ids) + 1, dtype=torch.float64).unsqueeze(1)
        return torch.log_softmax(self.table[ids].cumsum(dim=0) / counts @ self.head, dim=-1)

    def response_log_probs(self, sequence: Sequence) -> torch.Tensor:
        ids = torch.from_numpy(sequence.input_ids()).long()
        start = len(sequence.prompt_ids) - 1
        return self.distribution(ids[:-1])[start:].gather(1, ids[start + 1 :, None])[:, 0]

    def output(self, data) -> dict[str, torch.Tensor]:
        """What verl's engine hands to the loss: one value per token, for the token that follows it."""
        log_probs, entropies = [], []
        for ids in data["input_ids"].unbind():
            logs = self.distribution(ids)
            log_probs.append(logs.gather(1, ids.roll(-1)[:, None])[:, 0])
            entropies.append(-(logs.exp() * logs).sum(dim=1))
        offsets = data["input_ids"].offsets()
        return {
            name: torch.nested.nested_tensor_from_jagged(torch.cat(values), offsets)
            for name, values in {"log_probs": log_probs, "entropy": entropies}.items()
        }


class Workers:
    """Stands for the actor's worker group: keeps what it is sent, as ranks do."""

    def __init__(self, ranks: int) -> None:
        self.ranks = [HeldRows() for _ in range(ranks)]
        self.shares = []

    def hold_rows(self, data):
        for rank, share in zip(self.ranks, tu.chunk_tensordict(data, len(self.ranks)), strict=True):
            rank.hold(share)

    def update_actor(self, data):
        shares = tu.chunk_tensordict(data, len(self.ranks))
        self.shares = [rank.complete(share) for rank, share in zip(self.ranks, shares, strict=True)]
        return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": {"mfu": 0.0}})


def rows(count: int = 11, seed: int = 5) -> list[tuple[Sequence, np.ndarray]]:
    """Sequences of uneven lengths with advantages by token, most of them with turns; a tool wrote part of
    one, and all of one."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        prompt, response = (int(torch.randint(1, 9, (), generator=generator)) for _ in range(2))
        ids = torch.randint(VOCABULARY, (prompt + response,), generator=generator).tolist()
        mask = [k % 2 for k in range(response)] if i == 5 else [int(i != 3)] * response
        turns = {TURN: np.arange(response, dtype=np.int16) // (1 + i % 3)} if i % 4 else {}
        sequence = Sequence("solver", ids[:prompt], ids[prompt:], [-1.0] * response, mask, annotations=turns)
        first, second = torch.randn(2, generator=generator).tolist()
        half = response // 2 if i % 2 else response
        made.append((sequence, np.array([first] * half + [second] * (response - half))))
    return made


def shares_sent(
    training, *, ranks: int, updates: int, multiple: int, behaviour: TinyModel, spec: LossSpec, mean
) -> list:
    """What every rank trains on: the rows that the trainer sent it, and the update's columns."""
    members = [
        Trajectory(f"g#{i}", [sequence], FinishReason.STOP) for i, (sequence, _) in enumerate(training)
    ]
    request = RolloutRequest("g", Problem("p", "?", "1"), "solver", "solver", (), n=len(members))
    refs = [RowRef(0, place) for place in range(len(members))]
    plan = BatchLayout(ranks, seed=1, step=1, micro_batch_rows=multiple)
    columns = tuple({*spec.columns, *((TURN,) if mean else ())})
    batch = arrange([Group(request, members)], refs, lambda policy: plan, lambda count: updates, columns)
    found, (part,) = batch.rows, batch.parts
    old, advantages = (np.zeros(found.tokens) for _ in range(2))
    for row, ref in enumerate(found.refs):
        with torch.no_grad():
            old[found.slice(row)] = behaviour.response_log_probs(found.sequence(row)).numpy()
        advantages[found.slice(row)] = training[ref.trajectory][1] * found.sequence(row).response_mask
    found.columns |= {OLD_LOG_PROBS: old, ADVANTAGES: advantages}
    actor = {
        "calculate_entropy": False, "entropy_coeff": ENTROPY_COEFFICIENT, "ppo_epochs": 1,
        "data_loader_seed": 42, "shuffle": False,
    }  # fmt: skip
    workers = Workers(ranks)
    trainer = SimpleNamespace(
        config=OmegaConf.create({"actor_rollout_ref": {"actor": actor}}), _workers=lambda policy: workers,
        settings=SimpleNamespace(training=SimpleNamespace(loss_mean=mean)), _loss=spec, _loss_columns=columns,
    )  # fmt: skip
    workers.hold_rows(part.ids(1.0))
    PolicyTrainer._update_policy(trainer, part)
    return workers.shares


def update_gradient(
    training: list[tuple[Sequence, np.ndarray]],
    *,
    ranks: int = 1,
    updates: int = 1,
    multiple: int | None = None,
    micro_rows: int | None = None,
    micro_tokens: int | None = None,
    on_policy: bool = False,
    entropy: float = ENTROPY_COEFFICIENT,
    mean: str = "token-mean",
    turn_mean: LossMean | None = None,
    spec: LossSpec | None = None,
) -> tuple[torch.Tensor, float]:
    """Gradient and loss of the first mini-batch, averaged over ranks and summed over micro-batches."""
    model = TinyModel(seed=0)
    behaviour = model if on_policy else TinyModel(seed=0)
    if not on_policy:
        with torch.no_grad():
            behaviour.head += 0.2 * TinyModel(seed=1).head  # far enough for some ratios to be clipped
    multiple = multiple or micro_rows or 1
    cut = {"ranks": ranks, "updates": updates, "multiple": multiple}
    shares = shares_sent(training, **cut, behaviour=behaviour, spec=spec or LossSpec(), mean=turn_mean)
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        use_torch_compile=False,
        entropy_coeff=entropy,
        loss_agg_mode=mean,
        loss_scale_factor=8,
        optim=FSDPOptimizerConfig(lr=1e-3),
    )
    assert {tu.get(share, "num_mini_batch") for share in shares} == {updates}
    mini_batches = [tu.chunk_tensordict(share, updates)[0] for share in shares]
    loss_fn = functools.partial(update_loss, functools.partial(ppo_loss, config=config))
    tokens = sum(int(one["loss_mask"].sum()) for one in mini_batches)
    total = 0.0
    for data in mini_batches:
        tu.assign_non_tensor(data, batch_num_tokens=tokens, dp_size=ranks)
        if micro_tokens is None:
            size = micro_rows or len(data)
            tu.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=size)
        else:
            tu.assign_non_tensor(data, use_dynamic_bsz=True, max_token_len_per_gpu=micro_tokens)
        for micro_batch in prepare_micro_batches(data)[0]:
            loss, _ = loss_fn(model_output=model.output(micro_batch), data=micro_batch)
            (loss / ranks).backward()
            total += loss.item() / ranks
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]), total


def assert_same(found: tuple[torch.Tensor, float], expected: tuple[torch.Tensor, float]) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=1e-9)
    assert found[1] == pytest.approx(expected[1], rel=1e-6)


@pytest.fixture(scope="module")
def whole() -> tuple[torch.Tensor, float]:
    """One rank, one micro-batch, no padding row."""
    return update_gradient(rows())


def test_gradient_is_the_token_mean_of_the_advantages(whole):
    """At ratio 1 and without entropy the gradient is that of -sum(A log p) / tokens, by definition."""
    found = update_gradient(rows(), on_policy=True, entropy=0.0)
    model = TinyModel(seed=0)
    weighted, tokens = torch.zeros((), dtype=torch.float64), 0
    for sequence, advantages in rows():
        logs = model.response_log_probs(sequence)
        mask = torch.from_numpy(sequence.response_mask)
        weighted = weighted + (torch.from_numpy(advantages) * logs * mask).sum()
        tokens += int(mask.sum())
    (-weighted / tokens).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-9)
    assert (found[0] - whole[0]).abs().max() > 1e-3, "the other tests leave ratio 1"


@pytest.mark.parametrize("padding", [1, 5, 33])
def test_padding_rows_do_not_change_the_gradient(whole, padding):
    assert_same(update_gradient(rows(), multiple=11 + padding), whole)


@pytest.mark.parametrize("mean", ["seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_means_over_sequences_are_over_those_in_the_loss(whole, mean):
    """Whatever the cut; at ratio 1 and without entropy it is the definition's gradient, without the row that
    has no token in the loss."""
    expected = update_gradient(rows(), mean=mean)
    for cut in CUTS:
        assert_same(update_gradient(rows(), mean=mean, **cut), expected)
    model, losses = TinyModel(seed=0), []
    for sequence, advantages in rows():
        mask = torch.from_numpy(sequence.response_mask)
        tokens = mask.sum() if mean == "seq-mean-token-mean" else 8 if mean.endswith("norm") else 1
        if mask.any():
            logs = model.response_log_probs(sequence)
            losses.append((torch.from_numpy(advantages) * logs * mask).sum() / tokens)
    assert len(losses) == 10
    (-sum(losses) / len(losses)).backward()
    by_definition = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    found = update_gradient(rows(), mean=mean, on_policy=True, entropy=0.0)
    torch.testing.assert_close(found[0], by_definition, rtol=1e-5, atol=1e-8)


def turn_losses(sequence: Sequence, losses: torch.Tensor) -> list[torch.Tensor]:
    """The mean loss of each turn with a token in the loss; a sequence without turns is one."""
    turns = sequence.annotations.get(TURN, np.full(len(sequence), -1))
    kept = sequence.response_mask.astype(bool)
    return [losses[torch.from_numpy(kept & (turns == turn))].mean() for turn in np.unique(turns[kept])]


@pytest.mark.parametrize("mean", LossMean)
def test_means_over_turns_are_over_those_in_the_loss(whole, mean):
    """As means over sequences: whatever the cut, and at ratio 1 the definition's gradient."""
    expected = update_gradient(rows(), turn_mean=mean)
    assert (expected[0] - whole[0]).abs().max() > 1e-3, "another mean"
    for cut in CUTS:
        assert_same(update_gradient(rows(), turn_mean=mean, **cut), expected)
    model, means = TinyModel(seed=0), []
    for sequence, advantages in rows():
        logs = model.response_log_probs(sequence)
        means.append(turn_losses(sequence, -torch.from_numpy(advantages) * logs))
    means = [one for one in means if one]
    assert len(means) == 10 and sum(map(len, means)) > 25
    if mean is LossMean.TURN:
        loss = torch.stack([one for some in means for one in some]).mean()
    else:
        loss = torch.stack([torch.stack(some).mean() for some in means]).mean()
    loss.backward()
    by_definition = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    found = update_gradient(rows(), turn_mean=mean, on_policy=True, entropy=0.0)
    torch.testing.assert_close(found[0], by_definition, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("mean", LossMean)
def test_entropy_bonus_has_the_same_mean_over_turns(mean):
    without, with_bonus = (update_gradient(rows(), turn_mean=mean, entropy=one)[1] for one in (0.0, 0.05))
    model, means = TinyModel(seed=0), []
    for sequence, _ in rows():
        ids = torch.from_numpy(sequence.input_ids()).long()
        logs = model.distribution(ids[:-1])[len(sequence.prompt_ids) - 1 :].detach()
        means.append(turn_losses(sequence, -(logs.exp() * logs).sum(dim=1)))
    of_sequences = [torch.stack(one).mean() for one in means if one]
    chosen = [one for some in means for one in some] if mean is LossMean.TURN else of_sequences
    assert without - with_bonus == pytest.approx(0.05 * float(torch.stack(chosen).mean()), rel=1e-5)


def turn_sums(*, log_prob, old_log_prob, advantages, response_mask, config, **_):
    """A policy loss by `package.module:function`: the geometric ratio of each turn times its advantage,
    summed over turns and divided by tokens, turns and sequences of the mini-batch."""
    found = loss_inputs()
    turns, total = found.columns[TURN], 0.0
    assert found.columns["rollout_log_probs"].shape == response_mask.shape
    for row, kept in enumerate(response_mask):
        for turn in turns[row][kept].unique():
            chosen = kept & (turns[row] == turn)
            ratio = (log_prob - old_log_prob)[row][chosen].mean().exp()
            total = total - found.settings["scale"] * ratio * advantages[row][chosen].mean()
    return total * found.ranks / (found.tokens + found.turns + found.sequences), {}


def test_a_policy_loss_of_a_method_reads_columns_normalisers_and_settings():
    named = f"{__name__}:turn_sums"
    spec = LossSpec(named, (TURN, "rollout_log_probs"), {"scale": 3.0})
    expected = update_gradient(rows(), spec=spec, entropy=0.0)
    for cut in CUTS:
        assert_same(update_gradient(rows(), spec=spec, entropy=0.0, **cut), expected)
    model, total, turns, tokens = TinyModel(seed=0), 0.0, 0, 0
    for sequence, advantages in rows():
        logs = model.response_log_probs(sequence)
        ratios = turn_losses(sequence, logs - logs.detach())
        worth = turn_losses(sequence, torch.from_numpy(advantages))
        total = total - 3.0 * sum(one.exp() * other for one, other in zip(ratios, worth, strict=True))
        turns, tokens = turns + len(ratios), tokens + sequence.trained_tokens
    (total / (tokens + turns + 10)).backward()
    by_definition = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    found = update_gradient(rows(), spec=spec, entropy=0.0, on_policy=True)
    torch.testing.assert_close(found[0], by_definition, rtol=1e-5, atol=1e-8)


def test_a_policy_loss_that_averages_by_itself_is_refused_with_a_mean_over_turns():
    spec = LossSpec(f"{__name__}:turn_sums", (TURN, "rollout_log_probs"), {"scale": 1.0})
    with pytest.raises(
        RuntimeError, match="loss_mean = turn-mean-token-mean: the policy loss averages by itself"
    ):
        update_gradient(rows(), spec=spec, turn_mean=LossMean.TURN)
    assert_same(update_gradient(rows()), update_gradient(rows(), spec=LossSpec("vanilla")))


@pytest.mark.parametrize("micro_rows", [1, 2, 3, 4])
def test_fixed_micro_batches_do_not_change_the_gradient(whole, micro_rows):
    assert_same(update_gradient(rows(), micro_rows=micro_rows), whole)


@pytest.mark.parametrize("micro_tokens", [16, 24, 60])
def test_micro_batches_cut_by_tokens_do_not_change_the_gradient(whole, micro_tokens):
    assert_same(update_gradient(rows(), micro_tokens=micro_tokens), whole)


@pytest.mark.parametrize(("ranks", "micro_rows"), [(2, None), (2, 2), (3, 1), (11, 1)])
def test_number_of_ranks_does_not_change_the_gradient(whole, ranks, micro_rows):
    assert_same(update_gradient(rows(), ranks=ranks, micro_rows=micro_rows), whole)


def test_a_rank_with_nothing_but_padding_does_not_change_the_gradient():
    alone = rows(count=1)
    assert_same(update_gradient(alone, ranks=2), update_gradient(alone))


@pytest.mark.parametrize(("ranks", "micro_rows"), [(1, 4), (2, 1), (5, 1), (1, 7)])
def test_mini_batches_hold_the_same_rows_however_they_are_cut(ranks, micro_rows):
    """With 12 rows in 3 mini-batches; five ranks and micro-batches of seven rows need padding rows."""
    training = rows(count=12)
    expected = update_gradient(training, updates=3)
    assert_same(update_gradient(training, updates=3, ranks=ranks, micro_rows=micro_rows), expected)


def not_clipped(*, log_prob, old_log_prob, advantages, response_mask, **_):
    """A policy loss that knows torch and `losses.inputs` alone."""
    return mean_loss(-(log_prob - old_log_prob).exp() * advantages, response_mask), {}


@pytest.mark.parametrize("turn_mean", [None, *LossMean])
@pytest.mark.parametrize("mean", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_a_policy_loss_without_verl_has_the_settings_mean(mean, turn_mean):
    """At ratio 1 verl's loss clips nothing, and both are the same for every cut."""
    means = {"mean": mean, "turn_mean": turn_mean, "on_policy": True}
    expected = update_gradient(rows(), **means)
    for cut in ({}, *CUTS):
        spec = LossSpec(f"{__name__}:not_clipped")
        assert_same(update_gradient(rows(), spec=spec, **means, **cut), expected)
