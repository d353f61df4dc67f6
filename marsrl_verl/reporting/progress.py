"""Live progress: a block that updates itself on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from marsrl_verl.core.sanitize import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

RECENT_STEPS = 5
"""The time left is judged by the mean of so many last steps; early steps of a pipeline are shorter."""


ROUND_EVERY_S = 60.0
"""Seconds between two lines about a round, where lines are printed."""


@dataclass(frozen=True, slots=True)
class StepProgress:
    """Progress that one finished training step shows."""

    step: int
    role_rewards: dict[str, float]
    """Mean reward by role; roles without samples in the step are absent."""
    generated_tokens: int
    generation_seconds: float
    """Time spent generating, the base of tokens/s."""
    seconds: float
    """Time of the whole step."""


@dataclass(frozen=True, slots=True)
class RoundState:
    """Progress of a generation round: one of training, or an evaluation."""

    seconds: float
    """Seconds since it began."""
    groups: int
    """Groups of all stages that have begun."""
    scored: int
    """Groups that have ended, with their scores."""
    tokens: int
    """Tokens sampled so far, those of unfinished responses included."""
    requests: int
    """Requests in the engines."""
    stages: Mapping[str, int] = field(default_factory=dict)
    """Groups under way, by stage."""
    oldest: tuple[str, float] | None = None
    """The group that has been under way for longest, by its id, and its seconds."""

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds left, if groups go on ending at the rate so far; None before the first."""
        return self.seconds / self.scored * (self.groups - self.scored) if self.scored else None


def round_line(state: RoundState) -> str:
    """A round's progress in a line."""
    rate = state.tokens / state.seconds if state.seconds > 0 else 0.0
    left, oldest = state.seconds_left, state.oldest
    return " | ".join(
        part
        for part in (
            f"{state.scored:,} of {state.groups:,} groups",
            ", ".join(f"{stage} {count:,}" for stage, count in state.stages.items()),
            f"{state.requests:,} requests in the engines",
            f"{rate:,.0f} tokens/s",
            f"longest {clock_time(oldest[1])} {oldest[0]}" if oldest else "",
            f"left about {clock_time(left)}" if left is not None else "",
        )
        if part
    )


class Progress:
    """The display of a run's progress; this one shows nothing of it (`marsrl.run.progress=false`)."""

    def phase(self, name: str, detail: str = "") -> None:
        """A new phase begins (`starting`, `evaluating`, `training`, …) or its detail changes."""

    def step(self, report: StepProgress) -> None:
        """A training step is finished."""

    def round(self, state: RoundState) -> None:
        """A generation round is under way."""

    def message(self, text: str) -> None:
        """A line that stays visible."""

    def close(self) -> None:
        """Nothing more comes."""


@dataclass(slots=True)
class ProgressState:
    """The numbers behind every display."""

    total_steps: int
    expected_after_training: float = 0.0
    """Seconds expected after the last step; replaced by the time of the evaluation before training."""
    evaluates_after: bool = False
    clock: Callable[[], float] = time.monotonic
    name: str = ""
    detail: str = ""
    last: StepProgress | None = None
    round: RoundState | None = None
    started: float = field(init=False)
    phase_started: float = field(init=False)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def __post_init__(self) -> None:
        self.started = self.phase_started = self.clock()

    def enter(self, name: str, detail: str) -> bool:
        """Notes a phase; whether it is a new one (and not only a new detail)."""
        new = name != self.name
        if new:
            now = self.clock()
            if self.name == "evaluating" and self.last is None and self.evaluates_after:
                self.expected_after_training = now - self.phase_started
            self.phase_started, self.round = now, None
        self.name, self.detail = name, detail
        return new

    def finish_step(self, report: StepProgress) -> None:
        """Notes a finished step."""
        self.last, self.round = report, None
        self._recent.append(report.seconds)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.started

    @property
    def phase_elapsed(self) -> float:
        """Seconds since the phase began."""
        return self.clock() - self.phase_started

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds to the end of the run after the last finished step; None before the first."""
        if self.last is None or not self._recent:
            return None
        mean = sum(self._recent) / len(self._recent)
        return max(0, self.total_steps - self.last.step) * mean + self.expected_after_training


def clock_time(seconds: float) -> str:
    """`0:42`, `12:05`, `1:02:03`."""
    total = max(0, round(seconds))
    hours, minutes, rest = total // 3600, total // 60 % 60, total % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def step_line(state: ProgressState, report: StepProgress, *, ended: bool = False) -> str:
    """One finished step as a line of text; the time left is absent once the run has ended."""
    rewards = "  ".join(f"{role} {value:.2f}" for role, value in report.role_rewards.items())
    left = None if ended else state.seconds_left
    parts = [
        f"step {report.step}/{state.total_steps}",
        rewards or "no samples",
        f"{tokens_per_second(report):,.0f} tokens/s",
        f"{report.seconds:.1f} s",
        f"left {clock_time(left)}" if left is not None else "",
    ]
    return " | ".join(part for part in parts if part)


def tokens_per_second(report: StepProgress) -> float:
    """Generated tokens per second of generation; 0 when nothing was generated."""
    return report.generated_tokens / report.generation_seconds if report.generation_seconds > 0 else 0.0


class PlainProgress(Progress):
    """One line per phase and per step, for logs and pipes."""

    def __init__(self, state: ProgressState, stream: TextIO) -> None:
        self._state, self._stream = state, stream
        self._told = state.clock()

    def phase(self, name: str, detail: str = "") -> None:
        """Announces a phase, and every change of its detail."""
        self._state.enter(name, detail)
        self.message(f"{name}: {detail}" if detail else name)

    def step(self, report: StepProgress) -> None:
        """Prints the step's line."""
        self._told = self._state.clock()
        self._state.finish_step(report)
        self.message(step_line(self._state, report))

    def round(self, state: RoundState) -> None:
        """Prints how far it is, once a minute."""
        if state.groups and self._state.clock() - self._told >= ROUND_EVERY_S:
            self._told = self._state.clock()
            self.message(f"  {round_line(state)}")

    def message(self, text: str) -> None:
        """Prints a line."""
        print(f"[{clock_time(self._state.elapsed)}] {printable(text)}", file=self._stream, flush=True)


class LiveProgress(Progress):
    """A block at the bottom of the terminal; finished phases and messages scroll above it."""

    def __init__(self, state: ProgressState, console: Console) -> None:
        from rich.live import Live

        self._state, self._console = state, console
        self._live = Live(self, console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def phase(self, name: str, detail: str = "") -> None:
        """Switches the block to a phase; the one that ends leaves a line with its duration."""
        state = self._state
        ended, took = state.name, state.phase_elapsed
        if state.enter(name, detail) and ended:
            self._phase_ended(ended, took)

    def step(self, report: StepProgress) -> None:
        """Shows a finished step."""
        self._state.finish_step(report)

    def round(self, state: RoundState) -> None:
        """Shows how far it is."""
        self._state.round = state

    def message(self, text: str) -> None:
        """Prints a line above the block."""
        self._console.print(printable(text), highlight=False, markup=False)

    def close(self) -> None:
        """Removes the block and leaves the last phase's duration and the last step."""
        if not self._live.is_started:
            return
        self._live.stop()
        state = self._state
        if state.name:
            self._phase_ended(state.name, state.phase_elapsed)
        if state.last is not None:
            self._console.print(step_line(state, state.last, ended=True), highlight=False, markup=False)

    def _phase_ended(self, name: str, seconds: float) -> None:
        line = printable(f"{name}: {clock_time(seconds)}")
        self._console.print(line, style="dim", highlight=False, markup=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The block as it is now; rich calls this at every refresh."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        state = self._state
        head = Text(printable(state.name or "starting"), style="bold cyan")
        head.append(f" {clock_time(state.phase_elapsed)}", style="cyan")
        if state.detail:
            head.append(f"  {printable(state.detail)}", style="dim")
        yield head
        if state.round is not None and state.round.groups:
            yield Text(printable(round_line(state.round)), style="dim")
        if state.last is None:
            return
        report, left = state.last, state.seconds_left
        line = Table.grid(padding=(0, 2))
        line.add_row(
            f"step {report.step}/{state.total_steps}",
            ProgressBar(total=max(1, state.total_steps), completed=report.step, width=24),
            f"{tokens_per_second(report):,.0f} tokens/s",
            f"{report.seconds:.1f} s/step",
            f"elapsed {clock_time(state.elapsed)}",
            f"left {clock_time(left)}" if left is not None else "",
        )
        yield line
        rewards = "   ".join(f"{role} {value:.2f}" for role, value in report.role_rewards.items())
        yield Text(f"reward  {rewards}" if rewards else "reward  no samples in this step")


def make_progress(
    total_steps: int, *, enabled: bool = True, evaluates_after: bool = False, stream: TextIO | None = None
) -> Progress:
    """The display that suits the stream: live on a terminal, lines elsewhere, nothing if not enabled. The
    time left includes, if wanted (`evaluates_after`), an evaluation as long as the one before training."""
    if not enabled:
        return Progress()
    stream = stream or sys.stdout
    state = ProgressState(total_steps, evaluates_after=evaluates_after)
    if not stream.isatty():
        return PlainProgress(state, stream)
    from rich.console import Console

    return LiveProgress(state, Console(file=stream))
