"""Ray's `wait`, `get` and `kill` over prepared answers, and a clock that `wait` moves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class Answer:
    """What a call of an actor brings: a value or an error, at once or never.

    Args:
        silent: never.
    """

    def __init__(self, value: Any = None, *, error: Exception | None = None, silent: bool = False) -> None:
        self.value, self.error, self.silent = value, error, silent


class Method:
    """A method of an actor: called by `.remote`. What `function` returns or raises is the answer, unless it
    returns an `Answer`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def remote(self, *arguments: Any) -> Answer:
        try:
            value = self.function(*arguments)
        except Exception as error:
            return Answer(error=error)
        return value if isinstance(value, Answer) else Answer(value)

    def options(self, num_returns: int) -> Returns:
        return Returns(self, num_returns)


class Returns:
    """A call with several return values: an error is that of each."""

    def __init__(self, method: Method, number: int) -> None:
        self.method, self.number = method, number

    def remote(self, *arguments: Any) -> Any:
        answer = self.method.remote(*arguments)
        if self.number == 1:
            return answer
        if answer.error is not None or answer.silent:
            return [Answer(error=answer.error, silent=answer.silent) for _ in range(self.number)]
        assert len(answer.value) == self.number
        return [Answer(one) for one in answer.value]


def through_ray(error: Exception, method: str = "generate_group") -> Exception:
    """As the caller of an actor sees what a method of it raised."""
    from ray.exceptions import RayTaskError

    return RayTaskError(method, "Traceback: …", error).as_instanceof_cause()


def actor(**methods: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(**{name: Method(function) for name, function in methods.items()})


class FakeRay:
    """Stands for the module `ray`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.killed: list[Any] = []

    def clock(self) -> float:
        return self.now

    def wait(self, answers, num_returns=1, timeout=None):
        assert timeout is not None, "a wait without a limit"
        ready = [one for one in answers if not one.silent][:num_returns]
        if len(ready) < num_returns:
            self.now += timeout
        return ready, [one for one in answers if one not in ready]

    def get(self, answers):
        if isinstance(answers, list):
            return [self.get(one) for one in answers]
        assert not answers.silent, "a wait without a limit"
        if answers.error is not None:
            raise answers.error
        return answers.value

    def kill(self, handle) -> None:
        self.killed.append(handle)
