"""The update's gradient is a property of the trained tokens alone.

Our batch goes through the trainer's `_update_policy`, then through what our workers make of it, verl's own
mini- and micro-batching and its `ppo_loss`, with a model of a few hundred parameters. Ranks are taken one
after the other; FSDP averages their gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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

from marsrl_verl.config.upstream_names import LOSS_MEANS
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
SCALE = 8
MEANS = [*({"mean": one} for one in LOSS_MEANS), *({"turn_mean": one} for one in LossMean)]
every_mean = pytest.mark.parametrize("mean", MEANS, ids=lambda mean: "".join(mean.values()))


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

    def gradient(self) -> torch.Tensor:
        return torch.cat([parameter.grad.flatten() for parameter in self.parameters()])

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


def actor(**settings) -> FSDPActorConfig:
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        use_torch_compile=False,
        optim=FSDPOptimizerConfig(lr=1e-3),
        **settings,
    )


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
    config = actor(entropy_coeff=entropy, loss_agg_mode=mean, loss_scale_factor=SCALE)
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
    return model.gradient(), total


def assert_same(found: tuple[torch.Tensor, float], expected: tuple[torch.Tensor, float]) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=1e-9)
    assert found[1] == pytest.approx(expected[1], rel=1e-6)


@pytest.fixture(scope="module")
def whole() -> tuple[torch.Tensor, float]:
    """One rank, one micro-batch, no padding row."""
    return update_gradient(rows())


@pytest.mark.parametrize(
    "cut",
    [
        *({"multiple": rows} for rows in (12, 16, 44)),  # with 1, 5, 33 rows of padding
        *({"micro_rows": rows} for rows in (1, 2, 3, 4)),
        *({"micro_tokens": tokens} for tokens in (16, 24, 60)),
        *({"ranks": ranks, "micro_rows": rows} for ranks, rows in ((2, None), (2, 2), (3, 1), (11, 1))),
    ],
    ids=str,
)
def test_the_gradient_does_not_depend_on_the_cut(whole, cut):
    assert_same(update_gradient(rows(), **cut), whole)


def test_a_rank_with_nothing_but_padding_does_not_change_the_gradient():
    alone = rows(count=1)
    assert_same(update_gradient(alone, ranks=2), update_gradient(alone))


@pytest.mark.parametrize(("ranks", "micro_rows"), [(1, 4), (2, 1), (5, 1), (1, 7)])
def test_mini_batches_hold_the_same_rows_however_they_are_cut(ranks, micro_rows):
    """With 12 rows in 3 mini-batches; five ranks and micro-batches of seven rows need padding rows."""
    training = rows(count=12)
    expected = update_gradient(training, updates=3)
    assert_same(update_gradient(training, updates=3, ranks=ranks, micro_rows=micro_rows), expected)


# --- means, by definition -----------------------------------------------------------------------------


def turn_losses(sequence: Sequence, losses: torch.Tensor) -> list[torch.Tensor]:
    """The mean loss of each turn with a token in the loss; a sequence without turns is one."""
    turns = sequence.annotations.get(TURN, np.full(len(sequence), -1))
    kept = sequence.response_mask.astype(bool)
    return [losses[torch.from_numpy(kept & (turns == turn))].mean() for turn in np.unique(turns[kept])]


def mean_of(losses: list[torch.Tensor], mean: str = "", turn_mean: LossMean | None = None) -> torch.Tensor:
    """Over what is in the loss, of the tokens' losses of each row."""
    sequences = [sequence for sequence, _ in rows()]
    if turn_mean is None:
        masks = [torch.from_numpy(one.response_mask.astype(bool)) for one in sequences]
        parts = [loss[mask] for loss, mask in zip(losses, masks, strict=True) if mask.any()]
        if mean == "token-sum":
            return torch.cat(parts).sum()
        if mean != "token-mean":
            by = {"seq-mean-token-mean": torch.mean, "seq-mean-token-sum": torch.sum}
            parts = [by.get(mean, lambda one: one.sum() / SCALE)(one)[None] for one in parts]
    else:
        turns = [turn_losses(*one) for one in zip(sequences, losses, strict=True)]
        parts = [torch.stack(one) for one in turns if one]
        assert sum(map(len, parts)) > 25, "most rows have several"
        if turn_mean is not LossMean.TURN:
            parts = [one.mean()[None] for one in parts]
    assert len(parts) == 10, "one row has no token in the loss"
    return torch.cat(parts).mean()


def by_definition(loss: Callable[[TinyModel], torch.Tensor]) -> torch.Tensor:
    """The gradient of a loss that is written down once more."""
    model = TinyModel(seed=0)
    loss(model).backward()
    return model.gradient()


@every_mean
def test_a_mean_is_over_what_is_in_the_loss(whole, mean):
    """At ratio 1 and without entropy the gradient is that of the mean of -A log p, and whatever the cut, the
    same."""

    def defined(model: TinyModel) -> torch.Tensor:
        pairs = [(model.response_log_probs(one), torch.from_numpy(worth)) for one, worth in rows()]
        return mean_of([-worth * logs for logs, worth in pairs], **mean)

    found = update_gradient(rows(), **mean, on_policy=True, entropy=0.0)[0]
    torch.testing.assert_close(found, by_definition(defined), rtol=1e-5, atol=1e-8)
    expected = update_gradient(rows(), **mean)
    assert (found - expected[0]).abs().max() > 1e-3, "the other tests leave ratio 1"
    assert ((expected[0] - whole[0]).abs().max() > 1e-3) == (mean != MEANS[0]), "another mean"
    for cut in CUTS:
        assert_same(update_gradient(rows(), **mean, **cut), expected)


@every_mean
def test_the_entropy_bonus_has_the_same_mean(mean):
    without, with_bonus = (update_gradient(rows(), **mean, entropy=one)[1] for one in (0.0, 0.05))
    model, entropies = TinyModel(seed=0), []
    for sequence, _ in rows():
        ids = torch.from_numpy(sequence.input_ids()).long()
        logs = model.distribution(ids[:-1])[len(sequence.prompt_ids) - 1 :].detach()
        entropies.append(-(logs.exp() * logs).sum(dim=1))
    assert without - with_bonus == pytest.approx(0.05 * float(mean_of(entropies, **mean)), rel=1e-5)


# --- policy losses by name ----------------------------------------------------------------------------


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

    def defined(model: TinyModel) -> torch.Tensor:
        total, turns, tokens = torch.zeros((), dtype=torch.float64), 0, 0
        for sequence, advantages in rows():
            logs = model.response_log_probs(sequence)
            ratios = turn_losses(sequence, logs - logs.detach())
            worth = turn_losses(sequence, torch.from_numpy(advantages))
            total = total - 3.0 * sum(one.exp() * other for one, other in zip(ratios, worth, strict=True))
            turns, tokens = turns + len(ratios), tokens + sequence.trained_tokens
        return total / (tokens + turns + 10)

    found = update_gradient(rows(), spec=spec, entropy=0.0, on_policy=True)[0]
    torch.testing.assert_close(found, by_definition(defined), rtol=1e-5, atol=1e-8)


def test_a_policy_loss_that_averages_by_itself_is_refused_with_a_mean_over_turns():
    spec = LossSpec(f"{__name__}:turn_sums", (TURN, "rollout_log_probs"), {"scale": 1.0})
    with pytest.raises(
        RuntimeError, match="loss_mean = turn-mean-token-mean: the policy loss averages by itself"
    ):
        update_gradient(rows(), spec=spec, turn_mean=LossMean.TURN)
    assert_same(update_gradient(rows()), update_gradient(rows(), spec=LossSpec("vanilla")))


def not_clipped(*, log_prob, old_log_prob, advantages, response_mask, **_):
    """A policy loss that knows torch and `losses.inputs` alone."""
    return mean_loss(-(log_prob - old_log_prob).exp() * advantages, response_mask), {}


@every_mean
def test_a_policy_loss_without_verl_has_the_settings_mean(mean):
    """At ratio 1 verl's loss clips nothing, and both are the same for every cut."""
    expected = update_gradient(rows(), **mean, on_policy=True)
    for cut in ({}, *CUTS):
        spec = LossSpec(f"{__name__}:not_clipped")
        assert_same(update_gradient(rows(), spec=spec, **mean, on_policy=True, **cut), expected)
