"""``TopApp``: the terminal of ``gpusonde top``: the fleet or one job, asked for again every two seconds."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rich.color import Color
from rich.console import Group, RenderableType
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.renderables.sparkline import Sparkline
from textual.screen import Screen as Page
from textual.widgets import DataTable, Footer, Input, Static

from gpusonde import formatting
from gpusonde.cli.runs_view import job_facts, level_text, noun_of
from gpusonde.errors import CollectorError
from gpusonde.formatting import local_time

if TYPE_CHECKING:
    from textual.binding import BindingType

    from gpusonde.collector.client import Client, JobInfo, JobMember, RunEpochs, SampleBounds

_INTERVAL_S = 2.0
_MOST_JOBS = 1000
_MOST_TRACES = 8
_BINS = 120
# Those that want somebody first. Sign and colour: neither alone says which it is.
_STATES = {
    "hung": ("x", "red"),
    "stalled": ("=", "orange1"),
    "slower": ("v", "yellow"),
    "idle": ("-", "grey62"),
    "unknown": ("?", "plum3"),
    "starting": ("+", "sky_blue1"),
    "training": (">", "green3"),
    "evaluating": ("o", "cyan"),
    "checkpointing": ("#", "dodger_blue1"),
    "serving": ("~", "medium_purple1"),
    "ended": (".", "grey62"),
}
_RANKS = {state: rank for rank, state in enumerate(_STATES)}
_SPARK = (Color.parse("grey62"), Color.parse("green3"))


@dataclass(frozen=True)
class JobDetail:
    """One job and what is drawn of it.

    Attributes:
        job: The job.
        epochs: Of the run that speaks for it; None while it has none.
        traces: Its GPUs, with the bounds of what tells how busy each was.
    """

    job: JobInfo
    epochs: RunEpochs | None
    traces: Sequence[tuple[JobMember, SampleBounds]]


_ORDERS: dict[str, Callable[[JobInfo], Any]] = {
    "state": lambda job: (_RANKS.get(job.state, 0), -job.state_unix_nano),
    "newest": lambda job: -job.start_unix_nano,
    "GPUs": lambda job: -_gpu_count(job),
    "goodput": lambda job: math.inf if math.isnan(job.goodput_ratio) else job.goodput_ratio,
    "name": lambda job: job.job_id,
}
# Column, its width, and how wide the terminal must be for it.
_COLUMNS = (("job", 24, 0), ("state", 17, 0), ("for", 8, 0), ("GPUs", 4, 0), ("goodput", 7, 100), ("cycle", 22, 110))


class TopApp(App[None]):
    """The terminal.

    Args:
        client: Asks the collector, from a thread of its own.
        address: What the collector is called.
        interval_s: Between two looks.
    """

    TITLE = "gpusonde top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #told, #heat { height: auto; padding: 0 1; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    #filter.shown { display: block; }
    DataTable { height: 1fr; }
    #job { padding: 0 1; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        # As in every other command, also while a filter is typed.
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, client: Client, address: str, interval_s: float = _INTERVAL_S) -> None:
        super().__init__()
        self.address = address
        self.gone = ""
        self.jobs: list[JobInfo] = []
        self.every = False
        self.wanted = ""
        self.is_over = False
        self.detail: JobDetail | None = None
        self._client = client
        self._interval_s = interval_s
        self._over = threading.Event()
        self._now = threading.Event()

    def on_mount(self) -> None:
        """Show the fleet and begin to ask; a daemon, for an answer that does not come must not keep the terminal."""
        self.push_screen(FleetPage())
        threading.Thread(target=self._follow, daemon=True).start()

    def on_unmount(self) -> None:
        """Ask no more."""
        self._over.set()
        self._now.set()

    def look(self, key: str | None = None) -> None:
        """Ask at once; for the job of a row of the fleet, or for the fleet where it is empty."""
        if key is not None:
            self.wanted, self.is_over, self.detail = key, False, None
        self._now.set()

    def _follow(self) -> None:
        while not self._over.is_set():
            self._now.clear()
            # What is gone is told; the last answer stays.
            gone, answer, wanted = "", None, self.wanted
            try:
                answer = self._ask_job(wanted) if wanted else self._ask_fleet()
            except CollectorError as error:
                gone = str(error)
            except Exception as error:  # whatever it is, the terminal lives on and says it
                gone = f"{type(error).__name__}: {error}"
            with contextlib.suppress(RuntimeError):  # the terminal is gone
                self.call_from_thread(self._take, wanted, gone, answer)
            self._now.wait(self._interval_s)

    def _ask_fleet(self) -> list[JobInfo]:
        return self._client.list_jobs(active_only=not self.every, limit=_MOST_JOBS)

    def _ask_job(self, key: str) -> JobDetail | None:
        known = self.detail
        jobs = self._client.list_jobs(job_id=key.split(" ", 2)[2])
        # One that has not worked yet, or has lost its oldest runs, has another beginning later.
        name = key.split(" ", 1)[1]
        going_on = next((job for job in jobs if job.active and _key_of(job).split(" ", 1)[1] == name), None)
        job = {_key_of(job): job for job in jobs}.get(key, going_on)
        if job is None:
            return None
        bin_ns = (job.end_unix_nano - job.start_unix_nano) / _BINS
        if known and _key_of(known.job) == _key_of(job) and job.end_unix_nano - known.job.end_unix_nano < bin_ns:
            # Of a run of days a picture does not change every two seconds.
            return JobDetail(job, known.epochs, known.traces)
        newest = {member.gpu_uuid: member for member in job.present if member.run_id}
        members = list(newest.values())
        epochs = self._client.list_epochs(members[-1].run_id) if members else None
        return JobDetail(job, epochs, [(m, self._client.read_bounds(m.run_id, _BINS)) for m in members[:_MOST_TRACES]])

    def _take(self, wanted: str, gone: str, answer: list[JobInfo] | JobDetail | None) -> None:
        if gone:
            self.gone = self.gone or time.strftime("%H:%M:%S")
        else:
            self.gone = ""
        if isinstance(answer, list):
            self.jobs = answer
        elif wanted == self.wanted and not gone:
            self.detail, self.is_over = answer or self.detail, answer is None
        if isinstance(self.screen, FleetPage | JobPage):
            self.screen.show(gone)

    def link(self, gone: str) -> Text:
        """Return the line that says who answers."""
        if gone:
            return Text(f"no answer since {self.gone}, tries again: {gone}", "bold red")
        return Text(f"{self.address} at {time.strftime('%H:%M:%S')}", "dim")


class FleetPage(Page[None]):
    """All jobs, those that want somebody first, under a line of all GPUs by state."""

    app: TopApp
    BINDINGS: ClassVar[list[BindingType]] = [
        ("s", "order", "Sort"),
        ("slash", "filter", "Filter"),
        ("a", "every", "Ended too"),
        ("escape", "unfilter", "No filter"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._order = "state"
        self._gone = ""

    def compose(self) -> ComposeResult:
        """Return the parts."""
        yield Static(id="told")
        yield Static(id="heat")
        yield Input(placeholder="part of a job, a state, a host or a GPU", id="filter")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Have the arrow keys move in the table."""
        self.query_one(DataTable).focus()

    def on_screen_resume(self) -> None:
        """Ask for the fleet again."""
        self.app.look("")

    def on_resize(self, _event: events.Resize) -> None:
        """Fit the columns to the terminal."""
        self.show(self._gone)

    def action_order(self) -> None:
        """Sort by the next of the orders."""
        names = list(_ORDERS)
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self.show(self._gone)

    def action_filter(self) -> None:
        """Have a filter typed."""
        field = self.query_one(Input)
        field.add_class("shown")
        field.focus()

    def action_unfilter(self) -> None:
        """Show all again."""
        field = self.query_one(Input)
        field.value = ""
        field.remove_class("shown")
        self.query_one(DataTable).focus()

    def action_every(self) -> None:
        """Show jobs that are over, or no more."""
        self.app.every = not self.app.every
        self.app.look()

    def on_input_changed(self, _event: Input.Changed) -> None:
        """Filter while it is typed."""
        self.show(self._gone)

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Go back to the table."""
        self.query_one(DataTable).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a job."""
        self.app.push_screen(JobPage(str(event.row_key.value)))

    def show(self, gone: str) -> None:
        """Show what is known now."""
        self._gone = gone
        if not self.query(DataTable):  # not there yet, or no more
            return
        wanted = self.query_one(Input).value.lower()
        jobs = sorted((job for job in self.app.jobs if _matches(job, wanted)), key=_ORDERS[self._order])
        line = self.app.link(gone)
        shown = f", {len(jobs)} shown" if wanted else ""
        line.append(f"  {formatting.count(len(self.app.jobs), 'job')}{shown}, by {self._order}", "none")
        self.query_one("#told", Static).update(line)
        states = sorted((job.state for job in jobs for _ in range(_gpu_count(job))), key=lambda s: _RANKS.get(s, 0))
        self.query_one("#heat", Static).update(_fleet_line(states, max(1, self.size.width - 2)))
        table: DataTable[Text] = self.query_one(DataTable)
        row, chosen = table.cursor_row, _key_at(table)
        table.clear(columns=True)
        longest = max((len(job.job_id) for job in jobs), default=0)
        columns = [
            (name, min(width, max(8, longest)) if name == "job" else width)
            for name, width, least in _COLUMNS
            if self.size.width >= least
        ]
        rest = self.size.width - sum(width + 2 for _, width in columns) - 4
        for name, width in [*columns, ("why", max(16, rest))]:
            table.add_column(name, width=width, key=name)
        for job in jobs:
            cells = _cells(job)
            table.add_row(*(cells[str(key.value)] for key in table.columns), key=_key_of(job))
        if jobs:
            keys = [_key_of(job) for job in jobs]
            table.move_cursor(row=keys.index(chosen) if chosen in keys else min(row, len(jobs) - 1))


class JobPage(Page[None]):
    """One job: its states and why, its cycles, what its GPUs did.

    Args:
        key: That of its row in the fleet.
    """

    app: TopApp
    BINDINGS: ClassVar[list[BindingType]] = [("escape,backspace,left", "back", "Fleet")]

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key
        self._gone = ""

    def compose(self) -> ComposeResult:
        """Return the parts."""
        yield Static(id="told")
        with VerticalScroll():
            yield Static("loading", id="job")
        yield Footer()

    def on_mount(self) -> None:
        """Have the arrow keys scroll, and ask."""
        self.query_one(VerticalScroll).focus()
        self.app.look(self._key)

    def on_resize(self, _event: events.Resize) -> None:
        """Draw for the new width."""
        self.show(self._gone)

    def action_back(self) -> None:
        """Go back to the fleet."""
        self.app.pop_screen()

    def show(self, gone: str) -> None:
        """Show what is known now."""
        self._gone = gone
        if not self.query("#job"):  # not there yet, or no more
            return
        self.query_one("#told", Static).update(self.app.link(gone))
        if self.app.is_over:
            self.query_one("#job", Static).update("no such job any more; escape shows the fleet")
        elif self.app.detail is not None:
            self.query_one("#job", Static).update(Group(*_job_parts(self.app.detail, max(20, self.size.width - 4))))


def _key_of(job: JobInfo) -> str:
    return f"{job.start_unix_nano} {job.scheduler or '-'} {job.job_id}"


def _key_at(table: DataTable[Text]) -> str:
    keys = list(table.rows)
    return str(keys[table.cursor_row].value) if 0 <= table.cursor_row < len(keys) else ""


def _gpu_count(job: JobInfo) -> int:
    return len({(member.agent_id, member.gpu_uuid) for member in job.present})


def _matches(job: JobInfo, wanted: str) -> bool:
    told = [job.job_id, job.state, *(name for m in job.present for name in (m.host_name, m.gpu_uuid, m.product_name))]
    return any(wanted in text.lower() for text in told)


def _mark(state: str) -> Text:
    sign, colour = _STATES.get(state, _STATES["unknown"])
    return Text(f"{sign} {state}", colour)


def _fleet_line(states: Sequence[str], width: int) -> Text:
    """One sign for each GPU, or for some of them the worst; below, how many are in which state."""
    line = Text()
    for place in range(min(width, len(states))):
        cell = states[place * len(states) // min(width, len(states))]
        line.append(*_STATES.get(cell, _STATES["unknown"]))
    told = [_mark(state).append(f" {count}") for state, count in Counter(states).items()]
    return line + Text("\n") + Text("  ").join(told) if states else Text("no job goes on; a shows those that are over")


def _cells(job: JobInfo) -> dict[str, Text]:
    probability = f" {formatting.probability(job.confidence)}" if job.confidence else ""
    return {
        "job": Text(job.job_id, overflow="ellipsis", no_wrap=True),
        "state": _mark(job.state).append(probability),
        "for": Text(
            formatting.duration((job.end_unix_nano - job.state_unix_nano) / 1e9) if job.active else formatting.ABSENT
        ),
        "GPUs": Text(str(_gpu_count(job)), justify="right"),
        "goodput": Text(formatting.percent(job.goodput_ratio), justify="right"),
        "cycle": Text(level_text(job)),
        "why": Text(job.reason, overflow="ellipsis", no_wrap=True),
    }


def _job_parts(detail: JobDetail, width: int) -> Iterable[RenderableType]:
    job = detail.job
    yield Text(job.job_id, "bold")
    yield _mark(job.state).append(
        f" {formatting.probability(job.confidence)} since {local_time(job.state_unix_nano)}: "
    )
    yield Text(job.reason)
    if job.level is not None:
        yield Text(f"progress: {level_text(job)}")
    if not math.isnan(job.goodput_ratio):
        yield Text(f"goodput: {formatting.percent(job.goodput_ratio)} of {job.gpu_s / 3600:.1f} GPU hours")
    for fact in job_facts(job):
        yield Text(fact)
    if job.history or job.active:
        yield Text(f"\nstates from {local_time(job.start_unix_nano)} to {local_time(job.end_unix_nano)}")
        yield _history(job, width)
    epochs = detail.epochs
    if epochs is not None and epochs.epochs:
        lengths = [(epoch.end_unix_nano - epoch.start_unix_nano) / 1e9 for epoch in epochs.epochs][-width:]
        bounds = f"{formatting.seconds(min(lengths))} to {formatting.seconds(max(lengths))}"
        yield Text(f"\nlength of the latest {formatting.count(len(lengths), noun_of(epochs.role))}, {bounds}")
        yield Sparkline(lengths, width=len(lengths), min_color=_SPARK[0], max_color=_SPARK[1])
    for member, trace in detail.traces:
        most = [0.0 if math.isnan(value) else value for value in trace.maximums]
        yield Text(f"\n{member.host_name or member.agent_id} {member.gpu_uuid} {trace.metric}, at most {max(most):.3g}")
        yield Sparkline(most, width=min(width, _BINS), min_color=_SPARK[0], max_color=_SPARK[1])


def _history(job: JobInfo, width: int) -> Text:
    line = Text()
    for place in range(width):
        at = job.start_unix_nano + (job.end_unix_nano - job.start_unix_nano) * (place + 0.5) / width
        spans = (span.state for span in job.history if span.start_unix_nano <= at < span.end_unix_nano)
        now = job.state if at >= job.state_unix_nano else None
        state = now or next(spans, None)
        line.append(*(_STATES.get(state, _STATES["unknown"]) if state else (" ", "none")))
    return line
