"""The interface of a tool: a call in, text and an outcome out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from marsrl_verl.core.sanitize import valid_unicode
from marsrl_verl.core.sequence import Plain
from marsrl_verl.settings.api_key import ApiKeyError, KeyPlace, read_api_key
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import Settings, limits


class ToolOutcome(Choice):
    """Outcome of a call."""

    OK = "ok"
    """The tool did what was asked."""
    ERROR = "error"
    """It ran and says that the request failed: a program raised, nothing was found, there is no such page."""
    TIMEOUT = "timeout"
    """It reached its time limit."""
    FAILED = "failed"
    """The tool itself failed: its back end is gone after all retries, it raised."""
    REFUSED = "refused"
    """It never ran: unknown tool, arguments that do not fit the schema, call limit."""


class ToolUnavailableError(RuntimeError):
    """A tool can't start; the message says what is missing and what to do. The run ends at its beginning."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by a model."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str
    """Unique in the run, `<trajectory id>/<number>`: random choices of the call derive from it."""
    tools_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Values for tools in the problem's dataset row, by the tools' names (`extra_info.tools_kwargs`, as
    verl's datasets have it); the model does not see them."""
    earlier: int | None = None
    """Calls of this tool that its trajectory has made, those that it shares with others included; compared
    with `ToolConfig.max_calls`."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a call. A tool fills `text`, `outcome`, `cached` and `info`, `truncated` where it has cut the
    text itself, and `waited` where it had to get something ready; the toolbox fills the rest."""

    text: str
    """Hostile: as the tool gave it, at most `max_output_chars` characters (head and tail are kept)."""
    outcome: ToolOutcome = ToolOutcome.OK
    seconds: float = 0.0
    """Execution, all attempts, without waiting for a place."""
    waited: float = 0.0
    """Seconds until it began: for a place, and for what the tool itself had to get ready."""
    attempts: int = 1
    truncated: bool = False
    cached: bool = False
    info: Mapping[str, Plain] = field(default_factory=dict)
    """Figures and facts for logs, none of which the model sees."""


class ToolConfig(Settings):
    """A tool that the model may call by its entry's name. Its class declares further settings."""

    target: str
    """A built-in tool (`python`, `search`, `browser`, `deep_search`, `verl`) or a class of yours,
    `package.module:Class`."""
    max_calls: int | None = limits(None, ge=1, why="without a call it is no tool")
    """Most calls that run in a trajectory, those before a fork included; a further one is told that there are
    no more. null: as many as the method allows."""
    max_concurrency: int = limits(8, ge=1, why="one is made")
    """Most calls at a time in each rollout worker (`actor_rollout_ref.rollout.agent.num_workers`); further
    ones wait."""
    timeout_s: float = limits(30.0, gt=0.0, le=3600.0, why="seconds, an hour at most")
    """Most seconds of a call's attempt; time that a call waits for a place does not count."""
    retries: int = limits(2, ge=0, why="0 repeats nothing")
    """Most repetitions of a call after the tool itself has failed. A call that still fails is a result with
    outcome `failed`, which the model reads."""
    backoff_s: float = limits(0.5, ge=0.0, why="it is a time")
    """Seconds before the first repetition, doubled with each further one, 30 at most."""
    max_output_chars: int = limits(8192, ge=64, why="head and tail are kept")
    """Most characters of a result; of a longer one the middle is left out."""


class Tool(Protocol):
    """One tool of a rollout worker. Calls of one object run concurrently, in one event loop, which they must
    not block (`asyncio.to_thread`)."""

    Config: ClassVar[type[ToolConfig]] = ToolConfig
    """Its settings (`marsrl.tools.<name>`)."""
    name: str
    """Name by which the model calls it."""
    begin_s: ClassVar[float] = 0.0
    """Most seconds that a call may take to begin, beside `timeout_s`."""
    starts_in_launcher: ClassVar[bool] = True
    """If true, the launcher starts it once, as a check, where the rollout workers are on its machine."""
    keeps_state: ClassVar[bool] = False
    """If true, the result of a call depends on earlier calls of its trajectory. The state is one worker's, so
    that trajectories that pause are rejected, and forks of them where the class does not define `fork`."""

    @classmethod
    def from_settings(cls, name: str, settings: Any, *, seed: int, secrets: Mapping[str, str]) -> Tool:
        """The tool of an entry. Only keeps what it is given: what may fail belongs into `start`.

        Args:
            name: the entry's name.
            settings: an object of `Config`.
            seed: the run's.
            secrets: what `read_secrets` has read in the driver.
        """
        ...

    @classmethod
    def read_secrets(cls, settings: Any) -> Mapping[str, str]:
        """Keys that the tool needs, by names of its own. Called in the driver, before Ray starts and again to
        hand them to the workers in a call: what is in a configuration or in Ray's runtime environment is
        logged.

        Raises:
            ToolUnavailableError: there is no usable key where the settings say; without the key.
        """
        return {}

    def schema(self) -> Mapping[str, Any]:
        """The OpenAI schema: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
        ...

    async def start(self) -> None:
        """Gets ready for calls.

        Raises:
            ToolUnavailableError: it can't.
        """

    def about(self) -> Mapping[str, Plain]:
        """Facts about a started tool, shown when a run begins and kept in its record, e.g. its isolation;
        under `warning`, where there is one, a sentence to warn with."""
        return {}

    async def call(self, call: ToolCall) -> ToolResult:
        """Does what is asked. Hostile arguments raise nothing; what is raised is a failure of the tool. Ends
        when it is cancelled, and leaves nothing running."""
        ...

    def fork(self, parent: str, child: str, calls: int) -> None:
        """Gives trajectory `child` the state that `parent` had after its first `calls` calls (of all tools;
        they have the numbers below, its own go on from there). `parent` may have made more since. Asked of
        tools that keep state alone, before the child's first call; must not block."""
        what = f"{self.name}: {child} can't go on from {parent}: the tool does not define `fork`"
        raise NotImplementedError(what)

    async def close(self) -> None:
        """Releases what the tool holds (processes, connections)."""


def function_schema(
    name: str, description: str, properties: Mapping[str, Any], required: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    """A tool's schema.

    Args:
        properties: JSON schemas of the arguments by name.
        required: names of those that a call must have.
    """
    parameters = {"type": "object", "properties": dict(properties), "required": list(required)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def read_key(place: KeyPlace, node: str) -> Mapping[str, str]:
    """The secrets of a tool with one key, `{"key": …}`, as its settings in `node` name it, or none;
    ToolUnavailableError if there is no usable key where they say."""
    try:
        key = read_api_key(place)
    except ApiKeyError as error:
        raise ToolUnavailableError(f"{node}.{error}") from error
    return {} if key is None else {"key": key}


def head_and_tail(text: str, limit: int) -> tuple[str, bool]:
    """A text of at most so many characters, and whether something was left out of its middle."""
    text = valid_unicode(text)
    if len(text) <= limit:
        return text, False
    ellipsis = f"\n[… {len(text) - limit} characters left out …]\n"
    budget = max(0, limit - len(ellipsis))
    head = budget - budget // 2
    return f"{text[:head]}{ellipsis}{text[len(text) - budget // 2 :]}"[:limit], True
