"""Requests, and rewards that misbehave."""

import threading

from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.base import RoleReward, ScoreRequest


def request(
    text: str = "",
    truth: str = "2",
    *,
    role: str = "solver",
    reason: FinishReason = FinishReason.STOP,
    final_text: str | None = None,
    **inputs,
) -> ScoreRequest:
    return ScoreRequest(
        trajectory_id="p/solver/0#0",
        role=role,
        stage=role,
        problem=Problem("p", "1 + 1 = ?", truth),
        text=text,
        final_text=text if final_text is None else final_text,
        finish_reason=reason,
        inputs=inputs,
    )


class Constant(RoleReward):
    def __init__(self, value: float = 1.0, *, note: str = "") -> None:
        self.value = value
        self.note = note
        self.thread: threading.Thread | None = None

    def score(self, request):
        self.thread = threading.current_thread()
        return RewardResult(self.value, {"answer": self.note} if self.note else {})


class Asynchronous(RoleReward):
    def __init__(self) -> None:
        self.thread: threading.Thread | None = None

    async def score(self, request):
        self.thread = threading.current_thread()
        return RewardResult(0.5)


class ReturnsAwaitable(RoleReward):
    def score(self, request):
        return Asynchronous().score(request)


class Raises(RoleReward):
    def score(self, request):
        raise KeyError("no such answer")


class RaisesLater(RoleReward):
    async def score(self, request):
        raise ValueError("judge is offline")


class ReturnsNumber(RoleReward):
    def score(self, request):
        return 1.0


class AnswerAsInfo(RoleReward):
    def score(self, request):
        return RewardResult(1.0, "42")


class NeedsPath(RoleReward):
    def __init__(self, path: str) -> None:
        raise FileNotFoundError(path)

    def score(self, request):
        return RewardResult(0.0)


class Unfinished(RoleReward):
    """Does not say how it scores."""


class TakesTexts(RoleReward):
    def score(self, text, answer):
        return RewardResult(float(text == answer))


class NoReward:
    pass


def never_ends(final_text, references):
    """A grader that hangs on one text, inside the interpreter."""
    while final_text == "hang":
        pass
    return {"correct": final_text in references, "answer": final_text, "error": None}


def noisy(final_text, references):
    """A grader whose library prints."""
    print("progress: 100 %")
    return {"correct": True, "answer": final_text, "error": None}


def dies(final_text, references):
    import os

    os._exit(3)


def greedy(final_text, references):
    return {"correct": bool(bytearray(2**40)), "answer": None, "error": None}


def nested(final_text, references):
    return nested(final_text, references)


def process_after_a_while():
    import os
    import time

    time.sleep(0.05)
    return os.getpid()
