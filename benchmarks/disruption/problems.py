"""The problems of the study, the chats that ask them, and the check of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.core.request import Problem
from marsrl_verl.core.sequence import token_ids
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.trajectory import FinishReason, RewardResult, is_correct
from marsrl_verl.data.columns import Columns
from marsrl_verl.data.problems import Collected, collect
from marsrl_verl.data.rows import read_rows
from marsrl_verl.demo.problems import Split, generate
from marsrl_verl.rewards.base import AnswerReward, ScoreRequest
from marsrl_verl.rewards.loading import load_class
from marsrl_verl.rewards.running import RewardRunner
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from studies.tiny.transcripts import as_problem

REWARDS = {
    "exact": "marsrl_verl.rewards.exact:ExactAnswerReward",
    "math_verify": "marsrl_verl.rewards.math_verify:MathVerifyReward",
    "hybrid": "marsrl_verl.rewards.hybrid:HybridReward",
}
"""By the names of `configs/reward`."""
_SHOWN_PLACES = 3
_GRADERS = 2


def tiny_problems(count: int, seed: int) -> list[Problem]:
    """Held-out problems of the tiny task."""
    return [as_problem(chain) for chain in generate(Split.HELD_OUT, count, seed)]


def read_problems(path: Path, columns: Columns, count: int | None) -> list[Problem]:
    """The first `count` problems of a parquet, JSON-lines or JSON file, or all of them, each once. Rows are
    read as the data script does (`docs/guides/data.md`); ids are hashes of the chats.

    Raises:
        DataError: the file can't be read.
        ValueError: it has a row that is no usable problem, or too few problems.
    """
    found = collect(read_rows([path], columns.names), columns, None)
    if found.faults:
        raise ValueError(f"{path}: {_faults(found)}")
    problems = [one.problem for one in found.problems.values()]
    if not problems:
        raise ValueError(f"{path}: it holds no problem, expected one at least; name another file")
    if count is not None and len(problems) < count:
        raise ValueError(
            f"{path}: it holds {len(problems)} problems, but --problems is {count}; lower it, or leave it "
            "out for all of them"
        )
    return problems[:count]


def _faults(found: Collected) -> str:
    parts = []
    for what, fault in found.faults.items():
        places = ", ".join(fault.places[:_SHOWN_PLACES])
        more = ", …" if fault.count > _SHOWN_PLACES else ""
        parts.append(f"{what} ({places}{more}); {fault.fix}")
    return f"{found.bad_rows} of {found.rows} rows are no usable problem: " + "; ".join(parts)


class AnswerCheck:
    """Tells right answers as training does: with a reward class, in a few threads.

    Args:
        reward: a name in `REWARDS`.
        chat: the model's tokenizer, with all of its end tokens in `end_ids`.
    """

    def __init__(self, reward: str, chat: ChatTokenizer) -> None:
        self._chat = chat
        target = REWARDS[reward]
        load_class(target, None, AnswerReward).close()  # a missing package is told now
        self._reward = RewardRunner(load_class(target, None, AnswerReward), threads=_GRADERS)

    def right(self, answered: Sequence[tuple[Problem, Sequence[int], Sequence[int]]]) -> list[bool | None]:
        """Whether each response is right. One that was cut off is wrong; None: the grader itself failed.

        Args:
            answered: problems with the ids of their prompts and of whole responses.
        """

        async def score_all() -> list[RewardResult]:
            return await asyncio.gather(*[self._reward.score(self._request(*one)) for one in answered])

        results = asyncio.run(score_all())
        return [is_correct(one.value) if one.graded else None for one in results]

    def _request(
        self, problem: Problem, prompt_ids: Sequence[int], response_ids: Sequence[int]
    ) -> ScoreRequest:
        text = self._chat.text(list(response_ids))
        ended = bool(response_ids) and response_ids[-1] in self._chat.end_ids
        return ScoreRequest(
            trajectory_id=problem.problem_id,
            role=SOLVER,
            stage=SOLVER,
            problem=problem,
            text=text,
            final_text=final_text(text, thinking_opened=self._chat.opens_thinking(token_ids(prompt_ids))),
            finish_reason=FinishReason.STOP if ended else FinishReason.LENGTH,
        )

    def close(self) -> None:
        """Ends the graders."""
        self._reward.close()
