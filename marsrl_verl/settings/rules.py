"""Rules that a setting chooses: one of a closed set, or a function of the user's, `package.module:function`.

    class Selects(Protocol):
        def __call__(self, candidates: Sequence[Candidate], k: int) -> Sequence[Candidate]: ...

    class Config(MethodConfig):
        selection: Rule[Strategy, Selects] = Strategy.ADAPTIVE

Reading the settings imports the function and compares its parameters with the protocol's, so that a wrong one
is rejected before anything starts. A function says with `needs` what it reads of a pass of the trainer's or
the engine's, among what the protocol `offers`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Generic, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import OWN_MESSAGE
from marsrl_verl.settings.imports import ImportTargetError, import_target, raised_at, source_of
from marsrl_verl.settings.issues import did_you_mean

E = TypeVar("E", bound=Choice)
P = TypeVar("P")
F = TypeVar("F", bound=Callable[..., Any])

FORM = "package.module:function"
"""Form in which a function is named."""


class RuleError(RuntimeError):
    """A function that a setting names raised, or returned what it must not.

    Args:
        key: the setting.
        function: its value.
        found: what the function did.
        place: the user's file and line.
    """

    def __init__(self, key: str, function: str, found: str, place: str | None) -> None:
        super().__init__(key, function, found, place)
        self.key, self.function, self.found, self.place = key, function, found, place

    def __str__(self) -> str:
        return f"{self.key} = {self.function} {self.found} ({self.place})"


def needs(*what: str) -> Callable[[F], F]:
    """A decorator: what a function reads of the trainer's or the engine's pass, such as `entropies`."""

    def mark(function: F) -> F:
        typing.cast(Any, function).needs = frozenset(what)
        return function

    return mark


def offers(*what: str) -> Callable[[type[P]], type[P]]:
    """A decorator of a protocol: what its functions may request with `needs`."""

    def mark(protocol: type[P]) -> type[P]:
        typing.cast(Any, protocol).offers = what
        return protocol

    return mark


class OwnFunction(str, Generic[P]):
    """A function of the user's by its name, `package.module:function`."""

    __slots__ = ()

    @property
    def function(self) -> P:
        """The function itself."""
        return typing.cast(P, _found(str(self)))

    @property
    def needs(self) -> frozenset[str]:
        """Names of what it reads beside what it always gets (`needs`)."""
        named = getattr(self.function, "needs", ())
        return frozenset([named] if isinstance(named, str) else named)

    def call(self, key: str, *arguments: Any) -> Any:
        """Calls the function and returns its result.

        Args:
            key: the setting that names it, for the message.

        Raises:
            RuleError: it raised; with the user's file and line.
        """
        function: Any = self.function
        try:
            return function(*arguments)
        except Exception as error:
            code = getattr(inspect.unwrap(function), "__code__", None)
            own = None if code is None else code.co_filename
            place = raised_at(error, lambda name: name == own) or raised_at(error)
            raised = RuleError(key, str(self), f"raised {type(error).__name__}: {error}", place)
            raise raised.with_traceback(error.__traceback__) from error

    def refuse(self, key: str, found: str, expected: str) -> RuleError:
        """The error of a value that the function must not return."""
        return RuleError(key, str(self), f"returned {found}; expected {expected}", source_of(self.function))


class _Names:
    """Lets pydantic read a `Rule` or a `Function`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = typing.get_args(source) if typing.get_origin(source) is not OwnFunction else (source,)
        protocol = next(typing.get_args(one)[0] for one in kinds if typing.get_origin(one) is OwnFunction)
        names = next((one for one in kinds if isinstance(one, type) and issubclass(one, Enum)), None)

        def read(value: Any) -> Any:
            if names is not None and value in [one.value for one in names]:
                return names(value)
            if isinstance(value, str) and (":" in value or names is None):
                if fault := _fault(value, protocol):
                    what, fix = fault
                    raise PydanticCustomError(OWN_MESSAGE, "{what}", {"what": what, "fix": fix})
                return OwnFunction(value)
            raise PydanticKnownError("enum", {"expected": FORM})

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.to_string_ser_schema()
        )


Rule = Annotated[E | OwnFunction[P], _Names()]
"""One of a closed set of rules, or a function of the user's: `Rule[Choice, Protocol]`."""
Function = Annotated[OwnFunction[P], _Names()]
"""A function of the user's: `Function[Protocol]`."""


@lru_cache
def _found(target: str) -> Any:
    module, name = import_target(target)
    return getattr(module, name)


def _fault(target: str, protocol: type[Any]) -> tuple[str, str] | None:
    """Describes what is wrong with a function, and what to do."""
    module_name, colon, name = target.partition(":")
    expected = _in_words(_signature(protocol))
    if not (module_name and colon and name.isidentifier()):
        return f"Expected {FORM}.", f"Name a function {expected} of yours so (docs/guides/new_method.md)."
    try:
        module, _ = import_target(target)
    except ImportTargetError as error:
        return str(error), error.fix
    function = getattr(module, name, None)
    if function is None:
        there = [
            one
            for one, item in vars(module).items()
            if inspect.isfunction(item) and item.__module__ == module.__name__
        ]
        near = did_you_mean(name, there)
        guess = f"Did you mean {module_name}:{near[0]}? " if near else ""
        fix = f"{guess}Functions there: {', '.join(there) or 'none'}."
        return f"The module {module_name} ({module.__file__}) has no {name!r}.", fix
    if not callable(function) or inspect.isclass(function):
        return f"Expected a function {expected}, found {function!r}.", f"Name a function as {FORM}."
    fix = f"Let it be {name}{expected}, in {source_of(function)} (docs/guides/new_method.md)."
    if inspect.iscoroutinefunction(function):
        return "Expected a plain function, found a coroutine (async def).", fix
    if (found := _refused_arguments(function, _signature(protocol))) is not None:
        return f"Expected a function {expected}, found {name}{found}.", fix
    offered = tuple(getattr(protocol, "offers", ()))
    if unknown := sorted(OwnFunction[Any](target).needs.difference(offered)):
        what = f"It needs {', '.join(unknown)}, which this setting's functions can't have."
        return what, f"Ask with @needs for {', '.join(offered) or 'nothing'}, in {source_of(function)}."
    return None


def _refused_arguments(function: Any, expected: inspect.Signature) -> str | None:
    """The function's signature where it does not take what it will be called with."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):  # compiled: it has none that could be looked at
        return None
    try:
        found.bind(*expected.parameters)
    except TypeError:
        return _in_words(found)
    return None


def _signature(protocol: type[Any]) -> inspect.Signature:
    """The signature that a protocol's functions have."""
    one = inspect.signature(typing.cast(Any, protocol).__call__)
    return one.replace(parameters=list(one.parameters.values())[1:])


def _in_words(signature: inspect.Signature) -> str:
    return str(signature).replace("'", "")
