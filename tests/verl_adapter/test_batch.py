from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.types import FinishReason, Group, Outcome, Problem, Sample, StageInput
from marsrl_verl.verl_adapter.batch import TrainingRow, build_batch, training_rows

PAD = 0


def sample(name: str, prompt: list[int], response: list[int], mask: list[int] | None = None) -> Sample:
    return Sample(
        sample_id=name,
        group_id=name.split("#")[0],
        prompt_ids=prompt,
        response_ids=response,
        rollout_log_probs=[-0.5] * len(response),
        finish_reason=FinishReason.STOP,
        text="",
        final_text="",
        response_mask=mask or [],
        outcome=Outcome(1.0),
    )


def row(name: str, prompt: list[int], response: list[int], advantage: float = 1.0) -> TrainingRow:
    return TrainingRow(sample(name, prompt, response), "solver", "solver", ((len(response), advantage),))


def test_prompts_are_left_padded_and_responses_right_padded():
    batch = build_batch(
        [row("a#0", [5, 6], [7]), row("a#1", [8], [9, 10, 11])], pad_token_id=PAD, row_multiple=1
    )
    tensors = batch.batch
    assert tensors["prompts"].tolist() == [[5, 6], [0, 8]]
    assert tensors["responses"].tolist() == [[7, 0, 0], [9, 10, 11]]
    assert tensors["input_ids"].tolist() == [[5, 6, 7, 0, 0], [0, 8, 9, 10, 11]]
    assert tensors["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]
    assert tensors["position_ids"].tolist() == [[0, 1, 2, 0, 0], [0, 0, 1, 2, 3]]
    assert tensors["response_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch.meta_info["global_token_num"] == [3, 4]


def test_tokens_of_tools_carry_no_advantage():
    item = TrainingRow(sample("a#0", [1], [2, 3, 4], mask=[1, 0, 1]), "solver", "solver", ((3, -2.0),))
    batch = build_batch([item], pad_token_id=PAD, row_multiple=1)
    assert batch.batch["advantages"].tolist() == [[-2.0, 0.0, -2.0]]
    assert batch.batch["response_mask"].tolist() == [[1, 0, 1]]


def test_parts_of_a_response_have_their_own_advantages_and_recorded_log_probs():
    one = sample("a#0", [1], [2, 3, 4, 5])
    one.trainer_log_probs = [-0.25, -0.75]
    rows = [TrainingRow(one, "solver", "solver", ((1, 0.5), (3, -1.0), (4, 2.0))), row("a#1", [1], [9])]
    batch = build_batch(rows, pad_token_id=PAD, row_multiple=1).batch
    assert batch["advantages"].tolist() == [[0.5, -1.0, -1.0, 2.0], [1.0, 0.0, 0.0, 0.0]]
    recorded = batch["recorded_log_probs"]
    assert recorded[0, :2].tolist() == [-0.25, -0.75]
    assert recorded.isnan().sum() == 6


def test_padding_rows_add_nothing_to_loss_or_normaliser():
    batch = build_batch([row("a#0", [1, 2], [3, 4]), row("a#1", [1], [3])], pad_token_id=PAD, row_multiple=4)
    assert len(batch) == 4
    assert batch.non_tensor_batch["is_padding"].tolist() == [False, False, True, True]
    assert batch.batch["response_mask"][2:].sum() == 0
    assert batch.batch["advantages"][2:].abs().sum() == 0
    assert batch.batch["attention_mask"][2:].sum(dim=1).tolist() == [2, 2], "padding copies the shortest row"


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        build_batch([], pad_token_id=PAD, row_multiple=2)


def test_samples_without_advantage_are_not_rows():
    problem = Problem("p0", "1+1", "2")
    stage_input = StageInput("g", problem, "first", 0, "solver", (), n=2)
    group = Group(stage_input, [sample("g#0", [1], [2]), sample("g#1", [1], [])])
    rows = training_rows([group], {"g#0": ((1, 0.5),)})
    assert [(one.sample.sample_id, one.role, one.stage) for one in rows] == [("g#0", "solver", "first")]


def test_a_part_that_was_held_back_and_its_whole_group_give_each_sample_once():
    stage_input = StageInput("g", Problem("p0", "1+1", "2"), "first", 0, "solver", (), n=3)
    one, two, three = (sample(f"g#{k}", [1], [2]) for k in range(3))
    part = Group(stage_input, [one, two])
    whole = Group(stage_input, [one, two, three], frozenset({"g#0", "g#1"}))
    advantages = {f"g#{k}": ((1, float(k)),) for k in range(3)}
    assert [row.sample.sample_id for row in training_rows([part, whole], advantages)] == ["g#0", "g#1", "g#2"]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=9),
    st.integers(1, 5),
)
def test_every_token_comes_back_whatever_the_shapes(shapes, multiple):
    rows = [
        row(f"g#{i}", list(range(1, p + 1)), list(range(10, 10 + r)), advantage=float(i))
        for i, (p, r) in enumerate(shapes)
    ]
    batch = build_batch(rows, pad_token_id=PAD, row_multiple=multiple)
    assert len(batch) % multiple == 0
    assert len(batch) - len(rows) < multiple
    for i, one in enumerate(rows):
        ids = batch.batch["input_ids"][i][batch.batch["attention_mask"][i].bool()].tolist()
        assert ids == one.sample.prompt_ids + one.sample.response_ids
    assert int(batch.batch["response_mask"].sum()) == sum(r for _, r in shapes)
    assert torch.equal(batch.batch["advantages"], batch.batch["returns"])
