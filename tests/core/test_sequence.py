"""One row of a batch: truncated, continued, saved; golden values by hand and properties."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from equal_sequences import equal_sequences
from hypothesis import given
from hypothesis import strategies as st
from scheduler_tools import frozen

from marsrl_verl.core.sequence import Sequence


@st.composite
def sequences(draw) -> Sequence:
    """Parts of some versions, with annotations."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    ends = np.cumsum(sizes).tolist()
    length = ends[-1]
    versions = [(end, draw(st.integers(0, 9))) for end in ends]
    return Sequence(
        "solver",
        draw(st.lists(st.integers(0, 9), max_size=3)),
        draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length)),
        draw(st.lists(st.floats(-9, 0, width=32), min_size=length, max_size=length)),
        draw(st.lists(st.integers(0, 1), min_size=length, max_size=length)),
        versions,
        annotations={
            "turn": np.arange(length, dtype=np.int16),
            "entropy": np.linspace(0, 1, length, dtype=np.float32),
        },
    )


def three_parts() -> Sequence:
    return Sequence(
        "solver", [1, 2], [11, 12, 13, 14, 15], [-0.1, -0.2, 0, -0.4, -0.5], [1, 1, 0, 1, 1],
        versions=[(2, 3), (2, 4), (5, 7)], annotations={"turn": np.array([0, 0, 0, 1, 1], dtype=np.int16)},
    )  # fmt: skip


def test_figures_by_hand():
    one = three_parts()
    assert (len(one), one.trained_tokens, one.version, one.new_tokens) == (5, 4, 7, 3)
    assert one.token_versions().tolist() == [3, 3, 7, 7, 7]
    assert one.input_ids().tolist() == [1, 2, 11, 12, 13, 14, 15]
    kinds = (one.prompt_ids, one.response_ids, one.rollout_log_probs, one.response_mask)
    assert [str(column.dtype) for column in kinds] == ["int32", "int32", "float32", "uint8"]


def test_what_is_left_out():
    one = Sequence("solver", [1], [2, 3], [0.0, 0.0])
    assert one.response_mask.tolist() == [1, 1] and one.versions == ((2, 0),)
    assert (one.policy, one.annotations, one.reward) == ("shared", {}, None)
    empty = Sequence("solver", [1], [], [])
    assert (len(empty), empty.new_tokens, empty.token_versions().tolist()) == (0, 0, [])
    assert empty.versions == ((0, 0),)


@pytest.mark.parametrize(
    ("tokens", "versions"),
    [(0, ((0, 3),)), (2, ((2, 3),)), (3, ((2, 3), (2, 4), (3, 7))), (5, ((2, 3), (2, 4), (5, 7)))],
)
def test_truncated_by_hand(tokens, versions):
    one = three_parts().truncate(tokens)
    assert one.versions == versions
    assert one.response_ids.tolist() == [11, 12, 13, 14, 15][:tokens]
    assert one.response_mask.tolist() == [1, 1, 0, 1, 1][:tokens]
    assert one.annotations["turn"].tolist() == [0, 0, 0, 1, 1][:tokens]


def test_a_truncated_sequence_has_no_reward_and_copies_nothing():
    one = three_parts()
    one.reward = 1.0
    part = one.truncate(3)
    assert part.reward is None and one.reward == 1.0
    assert part.prompt_ids is one.prompt_ids and np.shares_memory(part.response_ids, one.response_ids)


def test_extended_by_hand():
    one = three_parts().extend([16, 17], [-0.6, 0.0], 8, [1, 0])
    assert one.versions == ((2, 3), (2, 4), (5, 7), (7, 8))
    assert one.response_ids.tolist() == [11, 12, 13, 14, 15, 16, 17]
    assert one.response_mask.tolist() == [1, 1, 0, 1, 1, 1, 0]
    assert one.annotations["turn"].tolist() == [0, 0, 0, 1, 1, 0, 0], "whole numbers have no NaN"
    assert one.new_tokens == 2
    first = Sequence("solver", [1], [], []).extend([5], [-1.0], 2)
    assert first.versions == ((1, 2),), "nothing was sampled before"
    nothing = three_parts().extend([], [], 9)
    assert nothing.versions[-1] == (5, 9) and (nothing.new_tokens, nothing.version) == (0, 9)


@given(sequences(), st.lists(st.integers(0, 9), max_size=4), st.integers(0, 20))
def test_what_is_extended_begins_as_it_was(one, ids, version):
    more = one.extend(ids, [-1.0] * len(ids), version)
    assert len(more) == len(one) + len(ids) and more.version == version and more.new_tokens == len(ids)
    assert more.token_versions().tolist() == one.token_versions().tolist() + [version] * len(ids)
    assert more.annotations["entropy"][: len(one)].tolist() == one.annotations["entropy"].tolist()
    assert np.isnan(more.annotations["entropy"][len(one) :]).all()
    back = more.truncate(len(one))
    assert equal_sequences(back.keeping(), Sequence(
        one.role, one.prompt_ids, one.response_ids, one.rollout_log_probs, one.response_mask, back.versions
    ))  # fmt: skip
    assert back.token_versions().tolist() == one.token_versions().tolist()


@given(sequences(), st.data())
def test_truncating_twice_is_truncating_once(one, data):
    longer = data.draw(st.integers(0, len(one)))
    shorter = data.draw(st.integers(0, longer))
    assert equal_sequences(one.truncate(longer).truncate(shorter), one.truncate(shorter))
    part = one.truncate(shorter)
    assert part.token_versions().tolist() == one.token_versions()[:shorter].tolist()
    assert part.input_ids().tolist() == one.input_ids()[: len(one.prompt_ids) + shorter].tolist()


@given(sequences())
def test_plain_data_and_back(one):
    again = Sequence.from_plain(pickle.loads(pickle.dumps(one.to_plain())))
    assert equal_sequences(one, again) and frozen(one) == frozen(again)


def test_annotations_that_come_later_are_not_in_what_was_saved():
    one = three_parts()
    plain = one.to_plain()
    one.annotations["influence"] = np.zeros(5, dtype=np.float32)
    assert set(plain["annotations"]) == {"turn"}


def test_only_the_wanted_annotations_are_kept():
    one = three_parts()
    assert list(one.keeping("turn", "absent").annotations) == ["turn"] and one.keeping().annotations == {}


@pytest.mark.parametrize(
    "change",
    [
        {"role": "verifier"},
        {"reward": 1.0},
        {"rollout_log_probs": [-0.1, -0.2, 0, -0.4, -0.6]},
        {"versions": [(5, 7)]},
        {"annotations": {}},
        {"annotations": {"turn": np.array([0, 0, 0, 1, 2], dtype=np.int16)}},
    ],
    ids=["role", "reward", "log-probs", "versions", "no annotations", "an annotation"],
)
def test_the_comparison_of_other_tests_looks_at_everything(change):
    """`equal_sequences` decides what pauses, restarts and forks may change."""
    one = three_parts()
    assert not equal_sequences(one, Sequence.from_plain({**one.to_plain(), **change}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rollout_log_probs": [0.0]}, r"2 response tokens has .* other lengths: \{'rollout_log_probs': 1\}"),
        ({"response_mask": [1, 1, 1]}, r"\{'response_mask': 3\}"),
        ({"annotations": {"turn": np.zeros(1)}}, r"\{'turn': 1\}"),
        ({"versions": [(1, 0)]}, r"version parts end at \[1\], expected rising ends up to 2 tokens"),
        ({"versions": [(2, 0), (1, 0), (2, 0)]}, r"version parts end at \[2, 1, 2\]"),
        ({"versions": [(-1, 0), (2, 0)]}, r"version parts end at \[-1, 2\]"),
    ],
)
def test_columns_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Sequence("solver", [1], [2, 3], **{"rollout_log_probs": [0.0, 0.0], **fields})


@pytest.mark.parametrize("tokens", [-1, 6])
def test_a_beginning_that_is_not_there_is_refused(tokens):
    with pytest.raises(ValueError, match=f"a sequence of 5 response tokens cannot be truncated to {tokens}"):
        three_parts().truncate(tokens)
