"""Micro-batches are cut as verl cuts them, in less time."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("verl", reason="the adapter's tests need verl")

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from verl.utils import seqlen_balancing, tensordict_utils
from verl.utils.seqlen_balancing import karmarkar_karp as upstream
from verl.workers.engine.utils import prepare_micro_batches

from marsrl_verl.verl_adapter.engine.batch import jagged
from marsrl_verl.verl_adapter.engine.micro_batches import (
    index_select_tensor_dict,
    karmarkar_karp,
    use_fast_micro_batches,
)

upstream_select = tensordict_utils.index_select_tensor_dict
assert upstream_select is not index_select_tensor_dict, "nobody has replaced it in this process"

# Few values: many of them equal, and with zeros among them, where only ties decide.
LENGTHS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 10**9)), min_size=1, max_size=30)


@given(lengths=LENGTHS, data=st.data())
def test_parts_are_those_of_upstream(lengths, data):
    count = data.draw(st.integers(1, len(lengths)))
    assert karmarkar_karp(lengths, count, False) == upstream(lengths, count, False)


@given(count=st.integers(1, 6), rows=st.integers(1, 5), data=st.data())
def test_parts_of_equal_size_are_those_of_upstream(count, rows, data):
    lengths = data.draw(st.lists(st.integers(0, 50), min_size=count * rows, max_size=count * rows))
    assert karmarkar_karp(lengths, count, True) == upstream(lengths, count, True)


def test_a_count_that_does_not_divide_is_refused_as_upstream_does():
    for function in (karmarkar_karp, upstream):
        with pytest.raises(AssertionError, match="3 % 2 != 0"):
            function([1, 2, 3], 2, True)


def batch(lengths: list[int]) -> TensorDict:
    """Rows as the engine gets them: numbers, jagged columns, settings."""
    counts = np.array(lengths)
    ids = torch.arange(int(counts.sum()))
    data = TensorDict(
        {
            "row_id": torch.arange(len(lengths)),
            "input_ids": jagged(ids.numpy(), counts),
            "turn": jagged(ids.numpy().astype(np.int16), counts),
        },
        batch_size=[len(lengths)],
    )
    tensordict_utils.assign_non_tensor(data, share_prefixes=False, texts=["a"] * len(lengths))
    return data


def assert_equal_batches(found: TensorDict, expected: TensorDict) -> None:
    assert list(found.keys()) == list(expected.keys())
    assert found.batch_size == expected.batch_size
    for name in ("input_ids", "turn"):
        one, other = found[name], expected[name]
        assert (one.layout, one.dtype, one.shape[0]) == (other.layout, other.dtype, other.shape[0])
        torch.testing.assert_close(one.offsets(), other.offsets(), rtol=0, atol=0)
        torch.testing.assert_close(one.values(), other.values(), rtol=0, atol=0)
        assert one.to_padded_tensor(0).shape == other.to_padded_tensor(0).shape
    torch.testing.assert_close(found["row_id"], expected["row_id"], rtol=0, atol=0)
    assert found["texts"] == expected["texts"]
    assert tensordict_utils.get(found, "share_prefixes") is tensordict_utils.get(expected, "share_prefixes")


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), data=st.data())
def test_selected_rows_are_those_of_upstream(lengths, data):
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=10))
    for indices in (rows, torch.tensor(rows)):
        found = index_select_tensor_dict(batch(lengths), indices)
        assert_equal_batches(found, upstream_select(batch(lengths), indices))


def test_columns_of_three_dimensions_are_left_to_upstream():
    """Positions of images: jagged (rows, 4, tokens)."""
    data = batch([2, 3])
    parts = [torch.arange(4 * length).reshape(4, length) for length in (2, 3)]
    data["position_ids"] = tensordict_utils.nested_tensor_from_tensor_list(parts)
    found = index_select_tensor_dict(data, [1])["position_ids"]
    torch.testing.assert_close(found.values(), parts[1])


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40), limit=st.integers(30, 90))
def test_micro_batches_are_those_of_upstream(lengths, limit):
    def cut(partition, select) -> tuple[list[TensorDict], list[list[int]]]:
        data = batch(lengths)
        tensordict_utils.assign_non_tensor(data, use_dynamic_bsz=True, max_token_len_per_gpu=limit)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(seqlen_balancing, "karmarkar_karp", partition)
            patch.setattr(tensordict_utils, "index_select_tensor_dict", select)
            return prepare_micro_batches(data)

    expected, places = cut(upstream, upstream_select)
    found, found_places = cut(karmarkar_karp, index_select_tensor_dict)
    assert found_places == places
    for one, other in zip(found, expected, strict=True):
        assert_equal_batches(one, other)


def seconds(function) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def test_rows_of_a_published_step_take_no_time():
    """Upstream takes a second for each count that it tries, and it tries many."""
    lengths = [24576 * (row * 7919 % 60000 + 200) for row in range(600)]
    # The best of three: a collection of garbage takes longer than the function does.
    ours = min(seconds(lambda: karmarkar_karp(lengths, 200, False)) for _ in range(3))
    assert ours * 20 < seconds(lambda: upstream(lengths, 200, False))


def test_selecting_rows_takes_as_long_as_there_are_selected():
    data = batch([3] * 2000)

    def select(function) -> None:
        for row in range(0, 40, 2):
            function(data, [row, row + 1])

    ours = min(seconds(lambda: select(index_select_tensor_dict)) for _ in range(3))
    assert ours * 10 < seconds(lambda: select(upstream_select))


def test_verl_uses_them(monkeypatch):
    monkeypatch.setattr(seqlen_balancing, "karmarkar_karp", upstream)
    monkeypatch.setattr(tensordict_utils, "index_select_tensor_dict", upstream_select)
    use_fast_micro_batches()
    assert seqlen_balancing.karmarkar_karp is karmarkar_karp
    assert "karmarkar_karp" in seqlen_balancing.get_seqlen_balanced_partitions.__code__.co_names
    assert seqlen_balancing.get_seqlen_balanced_partitions([5, 4, 3, 3, 3], 2, False) == [[1, 2, 3], [0, 4]]
    assert seqlen_balancing.tu.index_select_tensor_dict is index_select_tensor_dict
    assert "index_select_tensor_dict" in seqlen_balancing.rearrange_micro_batches.__code__.co_names
