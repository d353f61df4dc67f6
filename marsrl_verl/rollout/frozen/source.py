"""Answers of a model that is not trained here.

Its text is all that is known of it. Its trajectories have no sequences, since the tokens of another tokenizer
would mean nothing to the trained model, and they never enter a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from marsrl_verl.core.request import Message, RolloutRequest
from marsrl_verl.core.thinking import CLOSE, OPEN, final_text
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer


class AnswerSource(Protocol):
    """Whatever answers for a policy of which only text is known."""

    async def answer(
        self, request: RolloutRequest, k: int, messages: Sequence[Message], stop: Sequence[str] = ()
    ) -> ChatAnswer:
        """Answer number `k` (of `request.n`) to a chat. One that could not be had is an answer with an error,
        never an exception.

        Args:
            stop: strings behind which nothing is used. The answer has the first one; it may go on.
        """


def answered(trajectory_id: str, answer: ChatAnswer, chat: ChatTokenizer) -> Trajectory:
    """An answer as an unscored trajectory without sequences. The trained model's control tokens are taken out
    of it, since its text becomes part of that model's prompts."""
    content = chat.without_control_tokens(answer.content)
    reasoning = chat.without_control_tokens(answer.reasoning).strip()
    return Trajectory(
        trajectory_id,
        sequences=[],
        finish=answer.finish,
        text=f"{OPEN}\n{reasoning}\n{CLOSE}\n\n{content}" if reasoning else content,
        final_text=final_text(content),
        detail=answer.detail,
    )
