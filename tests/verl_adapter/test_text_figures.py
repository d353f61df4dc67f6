"""The figures of texts that rollout workers note count what a policy sampled, and nothing else."""

from __future__ import annotations

import pytest

from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput, Trajectory
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.testing.client import CharacterTokenizer
from marsrl_verl.verl_adapter.rollout_server.worker import describe

CHARACTERS = CharacterTokenizer()
CHAT = ChatTokenizer(CHARACTERS)


def sequence(role: str, *parts: tuple[str, int]) -> Sequence:
    """Of (text, whether the policy sampled it)."""
    ids = CHARACTERS.encode("".join(text for text, _ in parts))
    mask = [own for text, own in parts for _ in CHARACTERS.encode(text)]
    return Sequence(role, [1], ids, [0.0] * len(ids), mask, text="".join(text for text, _ in parts))


def described(*sequences: Sequence) -> Trajectory:
    one = Trajectory("g#0", list(sequences), FinishReason.STOP, text="".join(s.text for s in sequences))
    describe(RolloutOutput("g", [one]), CHAT)
    return one


def test_words_and_tokens_of_tools_do_not_count():
    found = described(sequence("solver", ("wait, abcd", 1), ("however, check: abcd" * 9, 0), ("hmm", 1)))
    assert found.figures == {"reflection_words": 2.0, "distinct": pytest.approx(1.0)}


def test_each_of_several_sequences_has_figures_of_its_own():
    found = described(sequence("meta", ("wait, hmm", 1)), sequence("reasoning", ("a" * 30, 1)))
    meta, reasoning = (one.figures for one in found.sequences)
    assert found.figures == {}
    assert (meta["reflection_words"], reasoning["reflection_words"]) == (2.0, 0.0)
    assert reasoning["repetition"] == pytest.approx(10 / 11)
