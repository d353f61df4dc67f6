"""What a cache of whole blocks can hold, counted by hand."""

from __future__ import annotations

import pytest

from benchmarks.prefix_rounds import held_in_blocks


@pytest.mark.parametrize(
    ("earlier", "prompts", "held"),
    [
        ([], [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], 4),
        # The last token of a prompt is read anyway, and its block with it.
        ([], [[1, 2, 3, 4], [1, 2, 3, 4]], 2),
        ([], [[1, 2, 3, 4], [1, 2, 3, 4, 5]], 4),
        # Unlike first blocks: the second ones are alike for nothing.
        ([], [[1, 2, 3, 4, 5], [9, 2, 3, 4, 5]], 0),
        ([], [[1, 2, 3], [1, 9, 3]], 0),
        ([[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5, 6, 7]], 4),
        ([[1, 2, 3, 4, 5, 6]], [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 8]], 12),
    ],
)
def test_whole_blocks_after_one_beginning_are_held(earlier, prompts, held):
    assert held_in_blocks(earlier, prompts, size=2) == held
