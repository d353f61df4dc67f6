import io

import pytest
from rich.console import Console
from rich.text import Text

from marsrl_verl.reporting.progress import (
    LiveProgress,
    PlainProgress,
    Progress,
    ProgressState,
    RoundState,
    StepProgress,
    clock_time,
    make_progress,
    step_line,
)


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Recorder:
    """Notes every event."""

    def __init__(self):
        self.events = []

    def phase(self, name, detail=""):
        self.events.append((name, detail))

    def step(self, report):
        self.events.append(report)

    def message(self, text):
        self.events.append(text)

    def close(self):
        self.events.append("closed")


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def report(step, seconds=4.0):
    return StepProgress(step, {"solver": 0.5, "verifier": 0.75}, 3000, 2.0, seconds)


def run(sink, clock):
    sink.phase("starting")
    clock.now += 5
    sink.phase("evaluating", "before training")
    clock.now += 20
    sink.phase("training")
    for step in (1, 2):
        clock.now += 4
        sink.step(report(step))
    sink.message("checkpoint written")
    sink.close()


def test_plain_lines():
    clock, stream = Clock(), io.StringIO()
    run(PlainProgress(ProgressState(12, evaluates_after=True, clock=clock), stream), clock)
    assert stream.getvalue().splitlines() == [
        "[0:00] starting",
        "[0:05] evaluating: before training",
        "[0:25] training",
        "[0:29] step 1/12 | solver 0.50  verifier 0.75 | 1,500 tokens/s | 4.0 s | left 1:04",
        "[0:33] step 2/12 | solver 0.50  verifier 0.75 | 1,500 tokens/s | 4.0 s | left 1:00",
        "[0:33] checkpoint written",
    ]


ROUND = RoundState(
    90.0, 120, 30, 108_000, 640, {"solver": 60, "verifier": 30}, ("p00012/solver.0\x1b[2J", 85.0)
)
ROUND_LINE = (
    "30 of 120 groups | solver 60, verifier 30 | 640 requests in the engines | 1,200 tokens/s | "
    "longest 1:25 p00012/solver.0\\x1b[2J | left about 4:30"
)


def test_a_long_round_says_once_a_minute_how_far_it_is():
    clock, stream = Clock(), io.StringIO()
    sink = PlainProgress(ProgressState(2, clock=clock), stream)
    sink.phase("training")
    for _ in range(150):
        clock.now += 1
        sink.round(ROUND)
    assert stream.getvalue().splitlines() == [
        "[0:00] training",
        f"[1:00]   {ROUND_LINE}",
        f"[2:00]   {ROUND_LINE}",
    ]
    sink.step(report(1))
    clock.now += 59
    sink.round(ROUND)
    assert len(stream.getvalue().splitlines()) == 4


def test_the_live_block_shows_the_round_until_the_step_has_ended():
    console = Console(file=Terminal(), force_terminal=True, width=200)
    sink = LiveProgress(ProgressState(12, clock=Clock()), console)
    sink.close()
    sink.phase("training")

    def shown() -> str:
        with console.capture() as capture:
            console.print(sink)
        return capture.get()

    sink.round(ROUND)
    assert ROUND_LINE in shown()
    sink.step(report(1))
    assert "groups" not in shown()
    empty = RoundState(0.0, 0, 0, 0, 0)
    sink.round(empty)
    assert "groups" not in shown() and empty.seconds_left is None


def test_time_left_follows_the_last_steps_and_the_evaluation():
    state = ProgressState(20, clock=Clock())
    assert state.seconds_left is None
    for step in range(1, 11):
        state.finish_step(report(step, seconds=1.0 if step <= 5 else 3.0))
    assert state.seconds_left == 30.0
    state.finish_step(report(20))
    assert state.seconds_left == 0.0


def test_a_step_without_samples_or_generation():
    state = ProgressState(2, clock=Clock())
    state.finish_step(StepProgress(1, {}, 0, 0.0, 1.0))
    assert step_line(state, state.last) == "step 1/2 | no samples | 0 tokens/s | 1.0 s | left 0:01"


def test_live_block():
    clock, stream = Clock(), Terminal()
    console = Console(file=stream, force_terminal=True, width=120)
    sink = LiveProgress(ProgressState(12, clock=clock), console)
    run(sink, clock)
    text = stream.getvalue()
    for expected in ("starting: 0:05", "evaluating: 0:20", "checkpoint written", "step 2/12"):
        assert expected in text
    sink.close()  # a second close does nothing
    assert stream.getvalue() == text


HOSTILE = "\x1b[2J\x1b]0;own\x07[bold]x[/bold]"
SPELT_OUT = "\\x1b[2J\\x1b]0;own\\x07[bold]x[/bold]"


def test_text_of_others_can_not_steer_the_terminal():
    stream = io.StringIO()
    plain = PlainProgress(ProgressState(2, clock=Clock()), stream)
    plain.phase("training", HOSTILE)
    plain.message(HOSTILE)
    assert stream.getvalue() == f"[0:00] training: {SPELT_OUT}\n[0:00] {SPELT_OUT}\n"

    console = Console(file=Terminal(), force_terminal=True, width=120)
    live = LiveProgress(ProgressState(2, clock=Clock()), console)
    live.close()
    live.phase("training", HOSTILE)
    with console.capture() as capture:
        live.message(HOSTILE)
        console.print(live)
    assert capture.get().count(SPELT_OUT) == 2


def test_live_block_fits_in_four_lines():
    clock = Clock()
    console = Console(file=Terminal(), force_terminal=True, width=120, record=True)
    sink = LiveProgress(ProgressState(12, clock=clock), console)
    sink.close()
    sink.phase("training", "update")
    sink.step(report(3))
    with console.capture() as capture:
        console.print(sink)
    shown = capture.get()
    assert shown.count("\n") <= 4
    for expected in ("training", "update", "step 3/12", "1,500 tokens/s", "left 0:36", "solver 0.50"):
        assert expected in shown


def test_an_ended_run_leaves_its_last_step_without_a_time_left():
    console = Console(file=Terminal(), force_terminal=True, width=120)
    live = LiveProgress(ProgressState(12, clock=Clock()), console)
    live.phase("training")
    live.step(report(3))
    with console.capture() as capture:
        live.close()
    last = Text.from_ansi(capture.get()).plain.splitlines()[-1]
    assert last.startswith("step 3/12 | solver") and "left" not in last


def test_display_suits_the_stream():
    assert isinstance(make_progress(3, stream=io.StringIO()), PlainProgress)
    assert type(make_progress(3, enabled=False)) is Progress
    live = make_progress(3, stream=Terminal())
    assert isinstance(live, LiveProgress)
    live.close()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3723, "1:02:03"), (-1, "0:00")])
def test_clock_time(seconds, text):
    assert clock_time(seconds) == text
