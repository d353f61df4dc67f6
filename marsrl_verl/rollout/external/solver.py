"""A Solver that is not the trained model: its answers become samples of stage `solver`.

Its text is all that is known of it. Such a sample has no token ids and no log-probabilities, since those of
another tokenizer would mean nothing to the trained model, and it never enters a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from marsrl_verl.core.thinking import CLOSE, OPEN, final_text
from marsrl_verl.core.types import FinishReason, Sample, StageInput
from marsrl_verl.rollout.single_call import ChatTokenizer


@dataclass(frozen=True, slots=True)
class ExternalAnswer:
    """One answer of an external Solver, as it came."""

    content: str
    """The answer; a thinking part in `<think>` tags may stand before it."""
    reasoning: str = ""
    """The thinking part where it came apart from the answer."""
    finish_reason: FinishReason = FinishReason.STOP
    error: str | None = None
    """Why there is no regular answer."""


def failed(note: str, reason: FinishReason = FinishReason.ERROR) -> ExternalAnswer:
    """An answer that did not come, with the reason for the log."""
    return ExternalAnswer("", finish_reason=reason, error=note)


class AnswerSource(Protocol):
    """Whatever answers problems."""

    async def answers(self, stage_input: StageInput) -> list[ExternalAnswer]:
        """`stage_input.n` answers. One that could not be had is an answer with an error, never an
        exception."""
        ...


@dataclass(slots=True)
class ExternalSolver:
    """Turns the answers of a source into samples."""

    source: AnswerSource
    chat: ChatTokenizer
    """The trained model's tokenizer: its control tokens are taken out of the answers."""

    async def answer(self, stage_input: StageInput) -> list[Sample]:
        """The `n` unscored samples of one input of stage `solver`."""
        answers = await self.source.answers(stage_input)
        if len(answers) != stage_input.n:
            raise ValueError(
                f"input {stage_input.group_id}: the external Solver gave {len(answers)} answers, "
                f"expected {stage_input.n}"
            )
        return [self._sample(stage_input, k, one) for k, one in enumerate(answers)]

    def _sample(self, stage_input: StageInput, k: int, answer: ExternalAnswer) -> Sample:
        content = self.chat.without_control_tokens(answer.content)
        reasoning = self.chat.without_control_tokens(answer.reasoning).strip()
        return Sample(
            sample_id=f"{stage_input.group_id}#{k}",
            group_id=stage_input.group_id,
            prompt_ids=[],
            response_ids=[],
            rollout_log_probs=[],
            finish_reason=answer.finish_reason,
            text=f"{OPEN}\n{reasoning}\n{CLOSE}\n\n{content}" if reasoning else content,
            final_text=final_text(content),
            error=answer.error,
            external=True,
        )
