"""A reward function in verl's form: `compute_score(data_source, solution_str, ground_truth, extra_info)`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import RoleReward, ScoreRequest
from marsrl_verl.rewards.loading import ClassLoadError

PACKAGE_PREFIX, FILE_PREFIX = "pkg://", "file://"
"""Prefixes by which verl tells a module that can be imported from a file."""
_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_SINGLE_TURN = {"num_turns": 2, "rollout_reward_scores": {}}
"""Entries that verl's single-turn agent loop adds to `extra_info`."""


class ComputeScoreReward(RoleReward):
    """The score of a function that was written for verl, an ordinary one or a coroutine.

    It gets what verl gives it: the whole decoded response, the row's ground truth as text (a list of accepted
    answers as a list), its data source and its `extra_info`. It returns a number, or a dictionary with
    `score`, whose `pred` becomes the answer on record. A response that the model did not end itself has
    reward 0, as with every reward here; verl would pay it.

    Args:
        path: a Python file, or `pkg://package.module`.
        name: the function.
        reward_kwargs: further keyword arguments; they win over those above.
    """

    FUNCTION: ClassVar[str] = "compute_score"
    """The name that verl looks for where none is given."""

    def __init__(
        self, path: str, name: str = FUNCTION, reward_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self.function = _function(path, name)
        self.kwargs = dict(reward_kwargs or {})
        arguments = {**dict.fromkeys(_ARGUMENTS), **self.kwargs}
        try:
            inspect.signature(self.function).bind(**arguments)
        except TypeError as error:
            taken = ", ".join(arguments)
            raise ClassLoadError(
                f"the function {name} in {path} can't be called with {taken}: {error}",
                f"Let {name} take ({taken}).",
            ) from error

    def score(self, request: ScoreRequest) -> RewardResult | Awaitable[RewardResult]:
        """Calls the function with the response."""
        arguments = {
            "data_source": request.problem.data_source,
            "solution_str": request.text,
            "ground_truth": _ground_truth(request.problem.ground_truth),
            "extra_info": {**request.problem.extra_info, **_SINGLE_TURN},
        }
        result = self.function(**{**arguments, **self.kwargs})
        return _later(result) if inspect.isawaitable(result) else _result(result)


async def _later(result: Awaitable[Any]) -> RewardResult:
    return _result(await result)


def _result(result: Any) -> RewardResult:
    if not isinstance(result, dict):
        return RewardResult(float(result))
    if "score" not in result:
        raise KeyError(f"the function returned a dictionary without 'score', with {sorted(result)}")
    answer = result.get("pred")
    return RewardResult(float(result["score"]), {} if answer is None else {"answer": str(answer)})


def _ground_truth(text: str) -> Any:
    """Returns the value that the row has: a dictionary, and several accepted answers, are kept as JSON."""
    if not text.startswith(("[", "{")):
        return text
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    is_structured = isinstance(parsed, dict) or all(isinstance(one, str) for one in parsed)
    return parsed if is_structured else text


def _function(path: str, name: str) -> Callable[..., Any]:
    try:
        module = _module(path)
    except ClassLoadError:
        raise
    except Exception as error:
        raise ClassLoadError(
            f"executing {path} failed with {type(error).__name__}: {error}",
            "Repair it, or install what it needs.",
        ) from error
    if not hasattr(module, name):
        known = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        raise ClassLoadError(
            f"{path} has no function {name!r}; functions there: {', '.join(known) or 'none'}"
        )
    function = getattr(module, name)
    if not callable(function):
        raise ClassLoadError(f"{name} in {path} is {type(function).__name__}, expected a function")
    return function  # type: ignore[no-any-return]


@lru_cache
def _module(path: str) -> ModuleType:
    """The module; a file is executed once, whichever roles it scores."""
    if path.startswith(PACKAGE_PREFIX):
        return importlib.import_module(path.removeprefix(PACKAGE_PREFIX).replace("/", "."))
    file = Path(path.removeprefix(FILE_PREFIX)).expanduser()
    if not file.is_file():
        raise ClassLoadError(f"there is no file {file}")
    name = f"marsrl_reward_function_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ClassLoadError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    spec.loader.exec_module(module)
    return module
