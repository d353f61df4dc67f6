"""The update's gradient is a property of the trained tokens alone.

Our batch goes through the trainer's `_update_actor`, then through verl's own mini- and micro-batching
and its `ppo_loss`, with a model of a few hundred parameters. Ranks are taken one after the other; FSDP
averages their gradients.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

pytest.importorskip("verl", reason="the loss is verl's")
pytest.importorskip("vllm", reason="verl's trainer imports its rollout")

from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, FSDPOptimizerConfig
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.utils.losses import ppo_loss

from marsrl_verl.core.types import FinishReason, Sample
from marsrl_verl.verl_adapter.arrangement import arrange_rows
from marsrl_verl.verl_adapter.batch import TrainingRow, build_batch
from marsrl_verl.verl_adapter.trainer import RayMarsRLTrainer

VOCABULARY = 13
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

    def response_log_probs(self, sample: Sample) -> torch.Tensor:
        ids = torch.tensor(sample.prompt_ids + sample.response_ids)
        start = len(sample.prompt_ids) - 1
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
    """Stands for the actor's worker group: keeps the batch it is sent."""

    def __init__(self) -> None:
        self.sent = None

    def update_actor(self, data):
        self.sent = data
        return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": {"mfu": 0.0}})


def rows(count: int = 11, seed: int = 5) -> list[TrainingRow]:
    """Rows of uneven lengths, advantages and masks; one answer is empty, one is partly a tool's."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        prompt, response = (int(torch.randint(1, 9, (), generator=generator)) for _ in range(2))
        response = 0 if i == 3 else response
        ids = torch.randint(VOCABULARY, (prompt + response,), generator=generator).tolist()
        sample = Sample(
            sample_id=f"g#{i}",
            group_id="g",
            prompt_ids=ids[:prompt],
            response_ids=ids[prompt:],
            rollout_log_probs=[-1.0] * response,
            finish_reason=FinishReason.STOP,
            text="",
            final_text="",
            response_mask=[k % 2 for k in range(response)] if i == 5 else [],
        )
        first, second = torch.randn(2, generator=generator).tolist()
        parts = ((response // 2, first), (response, second)) if i % 2 else ((response, first),)
        made.append(TrainingRow(sample, "solver", "solver", parts))
    return made


def batch_sent(training: list[TrainingRow], *, ranks: int, updates: int, multiple: int, behaviour: TinyModel):
    """The tensors that the trainer sends to its workers."""
    batch = build_batch(training, pad_token_id=0, row_multiple=multiple)
    lengths = batch.meta_info["global_token_num"]
    padding = len(batch) - len(training)
    order = arrange_rows(lengths, ranks=ranks, updates=updates, seed=1, step=1, padding_rows=padding)
    batch.reorder(torch.tensor(order))
    batch.meta_info["updates"] = updates
    old = torch.zeros_like(batch.batch["rollout_log_probs"], dtype=torch.float64)
    samples = {row.sample.sample_id: row.sample for row in training}
    for i, name in enumerate(batch.non_tensor_batch["sample_id"]):
        with torch.no_grad():
            logs = behaviour.response_log_probs(samples[name])
        old[i, : len(logs)] = logs
    batch.batch["old_log_probs"] = old
    actor = {
        "calculate_entropy": False, "entropy_coeff": ENTROPY_COEFFICIENT, "ppo_epochs": 1,
        "data_loader_seed": 42, "shuffle": False,
    }  # fmt: skip
    workers = Workers()
    trainer = SimpleNamespace(
        config=OmegaConf.create({"actor_rollout_ref": {"actor": actor}}),
        actor_rollout_wg=workers,
    )
    RayMarsRLTrainer._update_actor(trainer, batch)
    return workers.sent


def update_gradient(
    training: list[TrainingRow],
    *,
    ranks: int = 1,
    updates: int = 1,
    multiple: int | None = None,
    micro_rows: int | None = None,
    micro_tokens: int | None = None,
    on_policy: bool = False,
    entropy: float = ENTROPY_COEFFICIENT,
) -> tuple[torch.Tensor, float]:
    """Gradient and loss of the first mini-batch, averaged over ranks and summed over micro-batches."""
    model = TinyModel(seed=0)
    behaviour = model if on_policy else TinyModel(seed=0)
    if not on_policy:
        with torch.no_grad():
            behaviour.head += 0.2 * TinyModel(seed=1).head  # far enough for some ratios to be clipped
    multiple = multiple or ranks * updates * (micro_rows or 1)
    sent = batch_sent(training, ranks=ranks, updates=updates, multiple=multiple, behaviour=behaviour)
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        use_torch_compile=False,
        entropy_coeff=entropy,
        optim=FSDPOptimizerConfig(lr=1e-3),
    )
    assert tu.get(sent, "num_mini_batch") == updates
    mini_batches = [tu.chunk_tensordict(part, updates)[0] for part in tu.chunk_tensordict(sent, ranks)]
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
            loss, _ = ppo_loss(config, model.output(micro_batch), micro_batch)
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
    for row in rows():
        logs = model.response_log_probs(row.sample)
        mask = torch.tensor(row.sample.response_mask or [1] * len(logs), dtype=torch.float64)
        values, start = torch.zeros_like(logs), 0
        for end, advantage in row.advantages:
            values[start:end], start = advantage, end
        weighted = weighted + (values * logs * mask).sum()
        tokens += int(mask.sum())
    (-weighted / tokens).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-9)
    assert (found[0] - whole[0]).abs().max() > 1e-3, "the other tests leave ratio 1"


@pytest.mark.parametrize("padding", [1, 5, 33])
def test_padding_rows_do_not_change_the_gradient(whole, padding):
    assert_same(update_gradient(rows(), multiple=11 + padding), whole)


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
