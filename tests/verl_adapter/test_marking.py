"""Steps into the batch and the engine's figures back, with numbers that tell every token apart."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl", reason="batches are verl's")

from tensordict import TensorDict
from verl.trainer.ppo.ray_trainer import left_right_2_no_padding, no_padding_2_padding
from verl.utils import tensordict_utils as tu

from marsrl_verl.attention.layout import NEVER, OUTSIDE
from marsrl_verl.core.steps import Steps
from marsrl_verl.core.types import FinishReason, Sample
from marsrl_verl.verl_adapter.arrangement import arrange_rows
from marsrl_verl.verl_adapter.batch import build_batch
from marsrl_verl.verl_adapter.fci_engine import micro_batch_layout
from marsrl_verl.verl_adapter.marking import add_step_columns, rows_to_mark, set_marks
from marsrl_verl.verl_adapter.trainer import RayMarsRLTrainer

STEPS = {"a#0": Steps((2, 3, 5), 3), "a#1": Steps((1, 2, 4), 2), "a#2": Steps((3,), 1)}


def sample(name: str, prompt: int) -> Sample:
    ends = STEPS[name].ends if name in STEPS else (0,)
    ids = list(range(100, 100 + ends[-1]))
    return Sample(name, "a", list(range(1, prompt + 1)), ids, [-1.0] * len(ids), FinishReason.STOP, "", "")


def marked_batch(reverse: bool = False):
    samples = [sample("a#0", 3), sample("a#1", 2), sample("a#2", 4), sample("a#3", 2)]
    rows = rows_to_mark(samples, "solver", "initial")
    assert [row.sample.sample_id for row in rows] == ["a#0", "a#1", "a#2"], "nothing to look at in a#3"
    batch = build_batch(rows, pad_token_id=0, row_multiple=4)
    if reverse:
        batch.reorder(torch.arange(3, -1, -1))
    add_step_columns(batch, STEPS)
    return samples, batch


def test_step_columns():
    _, batch = marked_batch()
    assert batch.batch["step_ids"].tolist() == [
        [0, 0, 1, 2, 2], [0, 1, 2, 2, -1], [0, 0, 0, -1, -1], [0, 1, 2, 2, -1]
    ]  # fmt: skip
    # Neither a first step nor one from the closing of the thinking part on.
    assert batch.batch["step_measured"].int().tolist() == [
        [0, 0, 1, 1, 1], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]
    ]  # fmt: skip


@pytest.mark.parametrize("packed", [True, False])
def test_the_layout_of_a_micro_batch(packed):
    _, batch = marked_batch()
    data = left_right_2_no_padding(batch.to_tensordict())
    layout = micro_batch_layout(
        tu.index_select_tensor_dict(data, [0, 1]), 1, packed=packed, padding=3 if packed else 0
    )
    first = [0, 0, 0, 1, 1, 2, 3, 3]
    second = [0, 0, 1, 2, 3, 3]
    outside = [OUTSIDE] * (3 if packed else 2)
    assert layout.query_steps.tolist() == first + second + outside
    assert layout.starts == (0, 8) and layout.ends == (8, 14)
    measured = [False] * 5 + [True] * 3 + [False] * 3 + [True] + [False] * (2 + len(outside))
    assert (layout.key_steps != NEVER).tolist() == measured
    assert isinstance(data, TensorDict)


@pytest.mark.parametrize("reverse", [False, True])
def test_figures_come_back_to_their_tokens_whatever_the_order(reverse):
    samples, batch = marked_batch(reverse)
    data = left_right_2_no_padding(batch.to_tensordict())
    # The engine's outputs: what belongs to token t of the flat axis stands at t - 1.
    ids = data["input_ids"]
    flat = torch.nested.nested_tensor_from_jagged((ids.values().float() / 100).roll(-1), ids.offsets())
    by_token = no_padding_2_padding(flat, data)
    found = {"log_probs": -by_token, "influence": by_token, "entropy": 2 * by_token}
    set_marks(samples, batch, STEPS, found, 0)
    for one in samples[:3]:
        assert one.trainer_log_probs == pytest.approx([-token / 100 for token in one.response_ids])
        assert one.marks.log_probs == tuple(one.trainer_log_probs)
        steps = STEPS[one.sample_id]
        firsts = [one.response_ids[steps.start(step)] / 100 for step in range(len(steps))]
        assert one.marks.influence == pytest.approx(firsts)
        assert one.marks.entropies == pytest.approx([2 * token / 100 for token in one.response_ids])
    assert samples[3].marks is None
    set_marks(samples[:1], batch, STEPS, {"log_probs": -by_token}, 0)
    assert samples[0].marks.influence == samples[0].marks.entropies == ()


def test_tokens_of_older_weights_are_not_recorded():
    samples, batch = marked_batch()
    samples[0].segments = [(2, 3), (5, 4)]
    log_probs = torch.full((4, 5), -0.5)
    set_marks(samples[:1], batch, STEPS, {"log_probs": log_probs}, 4)
    recorded = torch.tensor(samples[0].trainer_log_probs)
    assert recorded.isnan().tolist() == [True, True, False, False, False]
    assert samples[0].marks.log_probs == (-0.5,) * 5


def test_rows_of_padding_can_be_arranged():
    _, batch = marked_batch()
    order = arrange_rows(
        batch.meta_info["global_token_num"], ranks=2, updates=1, seed=1, step=1, padding_rows=1
    )
    assert sorted(order) == [0, 1, 2, 3]


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("delta", [None, 1])
def test_the_pass_is_cut_as_the_update_is_where_no_row_must_be_whole(sharing, delta):
    """In half precision two cuts differ in their last digits, which the ratio to recorded ones would show."""
    asked: list[bool] = []
    group = SimpleNamespace(input=SimpleNamespace(stage="initial", role="solver"), samples=[sample("a#0", 3)])

    class Found(Exception):
        """The batch was asked for."""

    def arranged(rows, updates, *, share):
        asked.append(share)
        raise Found

    trainer = SimpleNamespace(
        algorithm=SimpleNamespace(marked_stages=lambda: {"initial"}, influence_delta=lambda: delta),
        scheduler=SimpleNamespace(unsettled=lambda: [group]),
        settings=SimpleNamespace(training=SimpleNamespace(share_prefixes=sharing)),
        _sleep_engine=lambda: None,
        _timed=lambda name: nullcontext(),
        _arranged_batch=arranged,
    )
    with pytest.raises(Found):
        RayMarsRLTrainer._fit_mark_samples(trainer)
    assert asked == [sharing and delta is None]
