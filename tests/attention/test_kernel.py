"""The Triton kernels agree with the chunked sums. Without a GPU they run in Triton's interpreter.

They leave causality to the steps and skip masks where all pairs count, so that a wrong bound shows only where
blocks are mixed or where scores that must not count are large.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from attention_cases import Case, case_of, packed_layout, padded_layout, random_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_cases import DEVICE, agrees, expected_lse, lse_agrees, plan_of, sums_of

from marsrl_verl.attention import kernel, lse_kernel
from marsrl_verl.attention.chunked import chunked_column_sums
from marsrl_verl.attention.column_sums import ColumnSums
from marsrl_verl.attention.kernel import KEY_BLOCK, triton_column_sums, walked_block
from marsrl_verl.attention.layout import NEVER, OUTSIDE, build_layout
from marsrl_verl.attention.lse_kernel import triton_lse

pytestmark = pytest.mark.usefixtures("interpreter")

LONG = [[40, 5, 30, 60, 2, 50, 33, 1, 21]]
"""242 tokens: more than a block of keys and several of queries."""


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.bfloat16, 128), (torch.float16, 64), (torch.float32, 64), (torch.float32, 128)]
)
def test_a_sequence_of_several_blocks(dtype, size):
    agrees(random_case(LONG, heads=2, kv_heads=1, size=size, dtype=dtype))


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (4, 2)])
def test_shared_key_heads(heads):
    agrees(random_case([[3, 9, 30, 5, 7, 20]], heads=heads[0], kv_heads=heads[1]))


def test_packed_sequences_of_uneven_lengths():
    agrees(random_case([[2, 3, 70, 4, 90], [1, 1, 1, 1], [5], [10, 20, 130, 6, 9]], heads=2, kv_heads=1))


def test_nothing_to_measure():
    assert not sums_of(random_case([[5, 6, 7]], delta=3)).any()


def test_blocks_that_add_nothing_are_not_visited():
    layout = packed_layout([[300, 10, 100, 100, 100]], delta=2)
    plan = plan_of(layout)
    # The first measured step is 2 (tokens 310 to 410), its first query is in step 4, at token 510.
    assert plan.keys.key_start.tolist() == [256, 384]
    assert plan.keys.query_start.tolist() == [510, 510]
    # Keys of the second block are of steps 2 and 3, and for those of step 3 no query counts.
    assert plan.keys.full_start.tolist() == [510, 610]
    assert plan.keys.query_end.tolist() == [610, 610]
    assert plan.queries.query_start.tolist() == [510]


UNEVEN = [[5, 9, 140, 20, 130], [7], [3, 2, 30, 4, 20, 6], [40, 1, 1, 1, 1, 150]]
"""Rows of 304, 7, 65 and 194 tokens: more than a block of queries and less than one."""


@pytest.mark.parametrize("left", [False, True])
def test_padded_rows_with_gaps_between_them(left):
    case = case_of(padded_layout(UNEVEN, width=310, delta=1, left=left), heads=2, kv_heads=1)
    agrees(case)
    lse_agrees(case)


def test_a_packed_row_with_padding_behind_it():
    packed = packed_layout(UNEVEN, delta=1)
    padding = torch.full((33,), OUTSIDE)
    owner = torch.arange(4).repeat_interleave(torch.tensor([304, 7, 65, 194]))
    steps = torch.cat([packed.query_steps.long(), padding])
    layout = build_layout(steps, steps > 1, delta=1, sequence_ids=torch.cat([owner, torch.full((33,), 4)]))
    case = case_of(layout, heads=2, kv_heads=1)
    agrees(case)
    lse_agrees(case)


def test_what_is_in_the_padding_does_not_matter():
    layout = padded_layout(UNEVEN, width=310, delta=1)
    case = case_of(layout, heads=2, kv_heads=1)
    expected = sums_of(case)
    gaps = layout.query_steps == OUTSIDE
    case.query[gaps], case.key[gaps] = float("nan"), float("nan")
    assert torch.equal(sums_of(case), expected)


def test_the_log_sum_exp_may_lie_query_by_query_in_memory():
    case = random_case(LONG, heads=2, kv_heads=1)
    lse = expected_lse(case).T.contiguous().T.to(DEVICE)
    query, key, layout = case.query.to(DEVICE), case.key.to(DEVICE), case.layout.to(DEVICE)
    sums = triton_column_sums(query, key, lse, layout, plan_of(case.layout).keys, case.scale)
    torch.testing.assert_close(sums, ColumnSums(layout, "triton")(query, key, case.scale))


def test_repeated_runs_are_equal_bit_by_bit():
    case = random_case(LONG, heads=2, kv_heads=1)
    assert torch.equal(sums_of(case), sums_of(case))


def test_a_head_size_without_a_kernel_is_refused():
    with pytest.raises(ValueError, match="head size 48"):
        sums_of(random_case([[3, 4, 5, 6]], delta=1, size=48))


# --- which pairs of tokens count ------------------------------------------------------------------------

SEVERAL_BLOCKS = [[10, 20, 90, 40, 30, 150, 1, 1, 60, 200, 88]]
"""690 tokens: five blocks of keys and a part of one."""


@pytest.mark.parametrize("window", [1, 15, 64, 127, 128, 129, 192, 300, 10_000])
def test_sliding_windows_shorter_and_longer_than_a_block(window):
    case = random_case(SEVERAL_BLOCKS, delta=1, heads=1, kv_heads=1, unmeasured=(0,))
    lse_agrees(case, window)
    if window == 1:  # a token sees itself alone, and nothing of an earlier step
        assert not sums_of(case, window).any()
    else:
        agrees(case, window)


@pytest.mark.parametrize("window", [40, 200])
def test_queries_beyond_the_window_are_not_read(window):
    """A hundred tokens are measured. Queries that see none of them are not numbers."""
    case = random_case([[100, 100, 1500]], delta=1, heads=1, kv_heads=1, unmeasured=(0, 2))
    layout, lse = case.layout.to(DEVICE), expected_lse(case, window).to(DEVICE)
    expected = chunked_column_sums(case.query, case.key, case.layout, case.scale, window=window)
    assert expected.any()
    case.query[200 - 1 + window :] = float("nan")
    query, key = case.query.to(DEVICE), case.key.to(DEVICE)
    blocks = plan_of(case.layout).keys
    sums = triton_column_sums(query, key, lse, layout, blocks, case.scale, window=window)
    torch.testing.assert_close(sums.cpu(), expected, rtol=2e-5, atol=1e-7)


@pytest.fixture
def tiles(monkeypatch) -> list[int]:
    """Grows by one with every product of two blocks."""
    if DEVICE != "cpu":
        pytest.skip("Triton's interpreter, which counts the products, runs without a GPU only")
    from triton.runtime.interpreter import interpreter_builder

    found: list[int] = []
    product = interpreter_builder.create_dot

    def counted(*arguments):
        found.append(1)
        return product(*arguments)

    monkeypatch.setattr(interpreter_builder, "create_dot", counted)
    return found


@pytest.mark.parametrize("window", [1, 50, 300])
def test_the_work_with_a_window_grows_with_the_tokens_alone(window, tiles):
    case = random_case([[50] * 30], delta=1, heads=1, kv_heads=1, unmeasured=())
    plan, block = plan_of(case.layout), walked_block(case.query.dtype)
    # Each of the three parts of a walk (with a mask, without, with a mask) may end within a block.
    most = (KEY_BLOCK + window) // block + 3
    lse = triton_lse(case.query, case.key, plan.queries, case.scale, window=window)
    assert 0 < len(tiles) <= most * plan.queries.query_start.numel()
    tiles.clear()
    triton_column_sums(case.query, case.key, lse, case.layout, plan.keys, case.scale, window=window)
    assert len(tiles) <= most * plan.keys.key_start.numel()


def test_without_a_window_the_part_below_the_diagonal_is_visited_once(tiles):
    case = random_case(SEVERAL_BLOCKS, delta=1, heads=1, kv_heads=1, unmeasured=())
    plan, block = plan_of(case.layout), walked_block(case.query.dtype)
    lse = triton_lse(case.query, case.key, plan.queries, case.scale)
    walks = (plan.queries.query_end - plan.queries.key_start) / block
    assert walks.sum() <= len(tiles) <= (walks + 2).sum()  # either part may end within a block
    tiles.clear()
    triton_column_sums(case.query, case.key, lse, case.layout, plan.keys, case.scale)
    walks = (plan.keys.query_end - plan.keys.query_start) / block
    assert walks.sum() <= len(tiles) <= (walks + 2).sum()


def large_before(case: Case, first: int) -> Case:
    """Keys from `first` on have scores with all queries before it that no exponent can take."""
    case.query[:, :, 0], case.key[:, :, 0] = 0.0, 0.0
    case.query[:first, :, 0], case.key[first:, :, 0] = 1e4, 1e4
    return case


# numpy tells of the infinities that the masks take out.
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("first", [40, 64, 128, 129, 200, 330])
def test_a_query_never_counts_for_a_later_key(first):
    """With every token measured, nothing but the steps keeps earlier queries away."""
    case = random_case(
        [[7, 13, 20, 24, 64, 1, 1, 70, 30, 100, 50, 60]], delta=1, heads=1, kv_heads=1, unmeasured=()
    )
    agrees(large_before(case, first))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_blocks_that_are_measured_in_part():
    """The first block holds the prompt, the first step and measured steps; the second measured steps between
    others; the third begins with steps after the thinking, which come after queries that count."""
    lengths = [20, 12, 30, 40, 26, 30, 34, 40, 60, 1, 1, 200]
    layout = packed_layout([lengths], delta=1, unmeasured=(0, 1, 4, 6, 8, 9, 10, 11))
    for block in layout.key_steps[:384].split(KEY_BLOCK):
        assert (block == NEVER).any()
    assert (layout.key_steps[:KEY_BLOCK] != NEVER).any() and (layout.key_steps[128:256] != NEVER).any()
    agrees(large_before(case_of(layout, heads=2, kv_heads=1), 240))


def test_where_all_pairs_of_a_block_count_there_is_no_mask():
    layout = packed_layout([[128] * 8], delta=1, unmeasured=())
    plan = plan_of(layout)
    assert plan.keys.key_start.tolist() == plan.keys.full_start.sub(128).tolist()
    # Where there is no mask the steps of the queries are not read, so that wrong ones change nothing.
    case = case_of(layout, heads=1, kv_heads=1)
    expected = chunked_column_sums(case.query, case.key, layout, case.scale)
    layout.query_steps[:] = -1
    lse = expected_lse(case).to(DEVICE)
    moved = layout.to(DEVICE)
    sums = triton_column_sums(case.query.to(DEVICE), case.key.to(DEVICE), lse, moved, plan.keys, case.scale)
    torch.testing.assert_close(sums.cpu(), expected, rtol=2e-5, atol=1e-7)


@given(
    st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=7), min_size=1, max_size=2),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from([None, 1, 7, 16, 17, 40, 1000]),
    st.sets(st.integers(0, 6), max_size=4),
    st.integers(0, 1000),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_small_blocks_agree_with_the_chunked_sums(rows, left, delta, window, unmeasured, seed):
    """Blocks of 16 tokens, so that short rows have every kind of block."""
    layout = padded_layout(
        rows, width=max(map(sum, rows)) + 3, delta=delta, left=left, unmeasured=tuple(unmeasured)
    )
    case = case_of(layout, heads=1, kv_heads=1, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "KEY_BLOCK", 16)
        patch.setattr(lse_kernel, "LSE_QUERY_BLOCK", 16)
        for module in (kernel, lse_kernel):
            patch.setattr(module, "walked_block", lambda dtype: 16)
        found = sums_of(case, window)
    expected = chunked_column_sums(case.query, case.key, layout, case.scale, window=window)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-6)
