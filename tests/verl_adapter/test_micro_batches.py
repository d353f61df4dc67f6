"""Micro-batches are cut as verl cuts them, in less time."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("verl", reason="the adapter's tests need verl")

from hypothesis import given
from hypothesis import strategies as st
from verl.utils import seqlen_balancing
from verl.utils.seqlen_balancing import karmarkar_karp as upstream

from marsrl_verl.verl_adapter.engine.micro_batches import karmarkar_karp, use_fast_partitions

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


def test_rows_of_a_published_step_take_no_time():
    """Upstream takes seconds for each count that it tries, and it tries many."""
    lengths = [24576 * (row * 7919 % 60000 + 200) for row in range(600)]

    def seconds(function) -> float:
        started = time.process_time()
        function(lengths, 120, False)
        return time.process_time() - started

    # The best of three: a collection of garbage takes longer than the function does.
    assert min(seconds(karmarkar_karp) for _ in range(3)) * 5 < seconds(upstream)


def test_verl_uses_it(monkeypatch):
    monkeypatch.setattr(seqlen_balancing, "karmarkar_karp", upstream)
    use_fast_partitions()
    assert seqlen_balancing.karmarkar_karp is karmarkar_karp
    assert "karmarkar_karp" in seqlen_balancing.get_seqlen_balanced_partitions.__code__.co_names
    assert seqlen_balancing.get_seqlen_balanced_partitions([5, 4, 3, 3, 3], 2, False) == [[1, 2, 3], [0, 4]]
