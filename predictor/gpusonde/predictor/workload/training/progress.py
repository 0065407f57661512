"""What whoever trains sees and says meanwhile.

A report per step is shown as a bar on a terminal and as plain lines elsewhere. On Ctrl-C the step under way is finished
and saved; a second Ctrl-C ends at once.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from types import FrameType
from typing import TextIO


class Phase(str, Enum):
    """What a training does, in this order."""

    ARCHITECTURES = "making architectures"
    TRAINING = "training"
    TESTING = "testing on unseen architectures"


@dataclass(frozen=True)
class ProgressReport:
    """How far a phase is.

    Attributes:
        phase: What is being done.
        done: Architectures or steps that are done.
        total: Of how many.
        loss: Mean loss of the last steps while training, else None.
        seconds_left: Estimate for this phase; None while there is nothing to estimate from.
    """

    phase: Phase
    done: int
    total: int
    loss: float | None = None
    seconds_left: float | None = None


#: Called after every step; what it raises ends the training.
Progress = Callable[[ProgressReport], None]
_SECONDS_BETWEEN_LINES = 10.0


def ignore_progress(report: ProgressReport) -> None:
    """Show nothing."""


class PlainLines:
    """A line when a phase begins and ends, and every ten seconds in between.

    Args:
        stream: Where to write them.
        clock: Monotonic time in seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._phase: Phase | None = None
        self._next = 0.0

    def __call__(self, report: ProgressReport) -> None:
        """Take a report."""
        now = self._clock()
        if report.phase is self._phase and report.done < report.total and now < self._next:
            return
        self._phase, self._next = report.phase, now + _SECONDS_BETWEEN_LINES
        loss = "" if report.loss is None else f", loss {report.loss:.3f}"
        left = "" if report.seconds_left is None else f", about {_format_duration(report.seconds_left)} left"
        print(f"{report.phase.value}: {report.done} of {report.total}{loss}{left}", file=self._stream, flush=True)


@contextlib.contextmanager
def show_on(stream: TextIO) -> Iterator[Progress]:
    """Show progress: a bar where ``stream`` is a terminal and rich is installed, else plain lines."""
    if not stream.isatty() or find_spec("rich") is None:
        yield PlainLines(stream)
        return
    # An extra, and only of use on a terminal.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[more]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(file=stream)) as bars:
        tasks = {}

        def show(report: ProgressReport) -> None:
            if report.phase not in tasks:
                tasks[report.phase] = bars.add_task(report.phase.value, total=report.total, more="")
            loss = "" if report.loss is None else f"loss {report.loss:.3f}"
            left = "" if report.seconds_left is None else f"{_format_duration(report.seconds_left)} left"
            more = ", ".join(filter(None, (loss, left)))
            bars.update(tasks[report.phase], completed=report.done, total=report.total, more=more)

        yield show


def _format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def defer_interrupts() -> Iterator[Callable[[], bool]]:
    """Take SIGINT as a wish to stop, in the main thread and where it is not ignored, as it is in background jobs.

    Yields:
        Whether it came.
    """
    came = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield came.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
