"""Pictures of a run with its epochs, of predicted latencies, of plans to choose from and of what jobs did when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpusonde.formatting import number
from gpusonde.telemetry import FloatArray, Trace, Unit, metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

MAX_PANELS = 4
# Shown first where the trace has them: what tells epochs apart best, then what a reader knows best.
_PREFERRED = (
    "dram_active",
    "sm_active",
    "gpu_utilization",
    "power_watts",
    "tensor_active",
    "sm_clock_mhz",
    "memory_utilization",
    "pcie_rx_bytes_per_second",
    "framebuffer_used_bytes",
)
_INK, _MUTED, _LINE, _BOUNDARY, _BAND, _TRUE = "#1f2933", "#66727f", "#2f6f9f", "#c8452d", "#f3ebe4", "#2e8b57"
# More numbers than this along the top would touch one another.
_MAX_NUMBERS = 40
# More starts of a level than this become a bar: a run has a million steps.
_MAX_STARTS = 300
_PANEL_INCHES, _LEVEL_INCHES = 1.55, 0.24


@dataclass(frozen=True)
class LevelMarks:
    """A level of the tree of cycles, in a row of its own.

    Attributes:
        label: What it is, in a few words.
        starts_s: Shape (n,), where its cycles start.
        told: Whether the epochs are of it.
    """

    label: str
    starts_s: FloatArray
    told: bool = False


@dataclass(frozen=True)
class EpochMarks:
    """What is marked on the trace, in its own ``time_s``.

    Attributes:
        starts_s: Shape (n,), start of each epoch.
        ends_s: Shape (n,), end of each epoch.
        headline: The verdict in words, for the title.
        detail: A second, smaller line; may be empty.
        true_starts_s: Shape (m,), where epochs are known to start; empty where that is not known.
        levels: The levels of the tree of cycles, shortest first.
        noun: What each of those that are marked is.
    """

    starts_s: FloatArray
    ends_s: FloatArray
    headline: str
    detail: str = ""
    true_starts_s: FloatArray = field(default_factory=lambda: np.empty(0))
    levels: tuple[LevelMarks, ...] = ()
    noun: str = "epoch"


def choose_panels(trace: Trace, wanted: Sequence[str] = ()) -> list[str]:
    """The metrics worth a panel: those asked for, else up to four that vary, the most telling first."""
    if wanted:
        return [name for name in wanted if name in trace.values][:MAX_PANELS]
    order = [*_PREFERRED, *(name for name in trace.metrics if name not in _PREFERRED)]
    varying = [name for name in order if name in trace.values and _varies(trace.values[name])]
    return (varying or list(trace.metrics))[:MAX_PANELS]


def draw(path: Path, trace: Trace, marks: EpochMarks, *, panels: Sequence[str] = ()) -> None:
    """Write the picture.

    Args:
        path: File to write, of which the ending says how.
        trace: The ticks to draw.
        marks: Epoch boundaries and the title.
        panels: Metrics to draw, at most four; chosen by ``choose_panels`` when empty.

    Raises:
        OSError: The file cannot be written.
    """
    shown = choose_panels(trace, panels)
    unit_s, unit_name = _time_unit(trace.duration_s)
    rows_inches = 0.1 + _LEVEL_INCHES * len(marks.levels)
    heights = [_PANEL_INCHES] * len(shown) + [rows_inches] * bool(marks.levels)
    figure = _new_figure(12.0, 1.3 + sum(heights))
    figure.get_layout_engine().set(h_pad=0.06, w_pad=0.06, hspace=0.04)  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    origin_s = float(trace.time_s[0]) if len(trace) else 0.0

    def on_axis(times: FloatArray) -> FloatArray:
        return (np.asarray(times, dtype=np.float64) - origin_s) / unit_s

    times, breaks = _with_breaks(trace)
    for axis, name in zip(axes[: len(shown)], shown, strict=True):
        label, scale = _label(name)
        values = np.insert(trace.values[name], breaks, np.nan) * scale
        for i, (start, end) in enumerate(zip(on_axis(marks.starts_s), on_axis(marks.ends_s), strict=True)):
            if i % 2 == 0:
                axis.axvspan(start, end, color=_BAND, lw=0, zorder=0)
            axis.axvline(start, color=_BOUNDARY, lw=0.9, zorder=3)
        if len(marks.ends_s):
            axis.axvline(on_axis(marks.ends_s)[-1], color=_BOUNDARY, lw=0.9, ls=(0, (4, 2)), zorder=3)
        for start in on_axis(marks.true_starts_s):
            # From below to a third of the height, so that a boundary found at the same place stays visible.
            axis.axvline(start, ymax=0.33, color=_TRUE, lw=2.4, alpha=0.8, zorder=1)
        axis.plot(on_axis(times), values, color=_LINE, lw=0.8, zorder=2)
        axis.set_ylabel(label, fontsize=10, color=_INK)
        axis.margins(x=0.005, y=0.12)
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]) if not _is_narrow(values) else None)
        axis.grid(axis="y", color="#e3e7eb", lw=0.7, zorder=0)
        axis.tick_params(colors=_MUTED, labelsize=9, length=3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#c4ccd4")
        axis.yaxis.set_major_locator(_few_ticks())
    if marks.levels:
        rows = [replace(level, starts_s=on_axis(level.starts_s)) for level in marks.levels]
        _draw_levels(axes[-1], rows)
    if shown:
        _number_epochs(axes[0], on_axis(marks.starts_s), on_axis(marks.ends_s), marks.noun)
        axes[-1].set_xlabel(f"time since the first tick ({unit_name})", fontsize=10, color=_INK)
        figure.align_ylabels(list(axes[: len(shown)]))
        _write_above(axes[0], marks.detail, 22, fontsize=10, color=_MUTED)
        _write_above(axes[0], marks.headline, 40, fontsize=14, color=_INK, fontweight="bold")
    _save(figure, path)


def _new_figure(width_inches: float, height_inches: float) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure

    # Prices and the names of jobs are no formulas.
    matplotlib.rcParams["text.parse_math"] = False
    return Figure(figsize=(width_inches, height_inches), dpi=120, facecolor="white", layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        if path.is_file():
            path.unlink()  # half a picture
        error.filename = str(path)
        raise


# More rows than this would make a picture that nobody can look at.
_MOST_ROWS = 100
_ROW_INCHES = 0.26


@dataclass(frozen=True)
class LatencyMark:
    """A predicted latency.

    Attributes:
        label: What it is predicted for.
        value_s: The latency.
        low_s: Lower end of its interval.
        high_s: Upper end of it.
        kind: ``measured``, ``predicted`` or ``extrapolated``.
    """

    label: str
    value_s: float
    low_s: float
    high_s: float
    kind: str


# Colour and filling.
_KINDS = {"measured": (_TRUE, _TRUE), "predicted": (_LINE, _LINE), "extrapolated": (_LINE, "white")}


def draw_latencies(path: Path, marks: Sequence[LatencyMark], headline: str, detail: str, axis_label: str) -> None:
    """Write latencies with their intervals, a row each in the order given, at most 100.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    shown = marks[:_MOST_ROWS]
    if len(shown) < len(marks):
        detail += f" · the first {len(shown)} of {len(marks)}"
    figure, axis = _one_axis(_ROW_INCHES * len(shown), headline, detail)
    for kind, colour, fill in (
        ("measured", _TRUE, _TRUE),
        ("predicted", _LINE, _LINE),
        ("extrapolated", _LINE, "white"),
    ):
        rows = [(row, mark) for row, mark in enumerate(shown) if mark.kind == kind]
        for row, mark in rows:
            axis.hlines(row, mark.low_s, mark.high_s, color=colour, lw=1.6, ls="-" if fill == colour else (0, (4, 2)))
            axis.annotate(
                number(mark.value_s), (mark.high_s, row), (5, 0), textcoords="offset points", va="center", fontsize=8.5,
                color=_MUTED,
            )  # fmt: skip
        if rows:
            values, places = [mark.value_s for _, mark in rows], [row for row, _ in rows]
            axis.plot(values, places, "o", color=colour, mfc=fill, ms=6, label=kind)
    axis.set_xscale("log")
    axis.margins(x=0.09)
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(lambda value, _place: f"{value:,g}")
    axis.set_yticks(range(len(shown)), [mark.label for mark in shown], fontsize=9)
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.set_xlabel(axis_label, fontsize=10, color=_INK)
    axis.grid(axis="x", color="#e3e7eb", lw=0.7, zorder=0)
    _add_legend(axis)
    _save(figure, path)


@dataclass(frozen=True)
class PlanMark:
    """A plan: its mean time and cost, and what is kept with confidence."""

    label: str
    time_s: float
    kept_s: float
    cost_usd: float
    kept_usd: float


def draw_plans(path: Path, plans: Sequence[PlanMark], headline: str, detail: str, kept: str) -> None:
    """Write plans, cost over time,, at most 100; ``kept`` says how surely more of both is kept.

    Raises:
        OSError: The file cannot be written.
    """
    shown = plans[:_MOST_ROWS]
    figure, axis = _one_axis(4.6 + 0.15 * len(shown), headline, detail)
    unit_s, unit = _time_unit(max((plan.time_s for plan in shown), default=0.0))
    times, costs = [plan.time_s / unit_s for plan in shown], [plan.cost_usd for plan in shown]
    for plan, time, cost in zip(shown, times, costs, strict=True):
        axis.plot([time, plan.kept_s / unit_s], [cost, plan.kept_usd], color=_LINE, lw=1.2, alpha=0.5, zorder=1)
    ends = [plan.kept_s / unit_s for plan in shown], [plan.kept_usd for plan in shown]
    axis.plot(*ends, "_", color=_LINE, ms=9, mew=1.6, alpha=0.7, label=kept)
    axis.plot(times, costs, "o", color=_BOUNDARY, ms=7, zorder=3, label="expected")
    for place, (time, cost) in enumerate(zip(times, costs, strict=True), start=1):
        axis.annotate(
            str(place), (time, cost), (-6, -7), textcoords="offset points", ha="right", va="top", fontsize=9.5,
            color=_BOUNDARY, fontweight="bold",
        )  # fmt: skip
    axis.margins(0.08)
    axis.set_ylim(bottom=0)
    axis.set_xlim(left=0)
    axis.set_xlabel(f"time of the job ({unit})", fontsize=10, color=_INK)
    axis.set_ylabel("cost of the job ($)", fontsize=10, color=_INK)
    axis.grid(color="#e3e7eb", lw=0.7, zorder=0)
    _add_legend(axis)
    names = "\n".join(f"{place}  {plan.label}" for place, plan in enumerate(shown, start=1))
    figure.supxlabel(names, x=0.06, ha="left", fontsize=9, color=_MUTED)
    _save(figure, path)


@dataclass(frozen=True)
class JobMarks:
    """What a job did when, in Unix time.

    Attributes:
        label: Its name.
        spans: State, start and end of each stretch.
        end_s: Expected end with its interval, lower end first; None where that is not known.
    """

    label: str
    spans: Sequence[tuple[str, float, float]]
    end_s: tuple[float, float, float] | None = None


_STATE_COLOURS = {
    "starting": "#b9c4cf",
    "training": "#2f6f9f",
    "evaluating": "#7fb3d5",
    "checkpointing": "#8e6bbf",
    "slower": "#e0a030",
    "stalled": "#e07b39",
    "hung": "#c8452d",
    "serving": "#2e8b57",
    "idle": "#dfe4e8",
    "unknown": "#f3ebe4",
}


def draw_jobs(path: Path, jobs: Sequence[JobMarks], headline: str, detail: str) -> None:
    """Write what jobs did when, a row each, at most 100.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = jobs[:_MOST_ROWS]
    if len(shown) < len(jobs):
        detail += f" · the first {len(shown)} of {len(jobs)}"
    figure, axis = _one_axis(1.2 * _ROW_INCHES * len(shown) + 0.5, headline, detail)
    zone = datetime.now().astimezone().tzinfo

    def moment(unix_s: float) -> Any:
        return datetime.fromtimestamp(unix_s, tz=zone)

    for row, job in enumerate(shown):
        for state, start_s, end_s in job.spans:
            width = moment(end_s) - moment(start_s)
            axis.barh(row, width, left=moment(start_s), height=0.6, color=_STATE_COLOURS.get(state, _BAND), lw=0)
        if job.end_s is not None:
            low, end, high = map(moment, job.end_s)
            axis.hlines(row, low, high, color=_INK, lw=1.6)
            axis.plot([end], [row], "D", color=_INK, ms=6)
    seen = {state for job in shown for state, *_ in job.spans}
    legend: list[Any] = [Patch(color=colour, label=state) for state, colour in _STATE_COLOURS.items() if state in seen]
    if any(job.end_s is not None for job in shown):
        legend.append(Line2D([], [], marker="D", color=_INK, ms=6, label="expected end, 90 % interval"))
    locator = AutoDateLocator(tz=zone)  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))  # type: ignore[no-untyped-call]
    axis.set_yticks(range(len(shown)), [job.label for job in shown], fontsize=9)
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.set_xlabel(f"time of day ({datetime.now(zone):%Z})", fontsize=10, color=_INK)
    axis.grid(axis="x", color="#e3e7eb", lw=0.7, zorder=0)
    axis.set_axisbelow(True)
    _add_legend(axis, legend)
    _save(figure, path)


@dataclass(frozen=True)
class WatchMarks:
    """What became of a watched job; times are seconds on its clock.

    Attributes:
        held: By offer: how many machines, start and end of each stretch.
        wanted: Likewise, the machines of the recommended plans.
        taken: Offer and time of machines that were taken away.
        refused: Offer and time of machines that could not be had.
        times_s: Shape (n,), of what follows.
        done: Shape (n,), share of the iterations.
        spent_usd: Shape (n,).
        deadline_s: None without.
        budget_usd: None without.
    """

    held: Mapping[str, Sequence[tuple[int, float, float]]]
    wanted: Mapping[str, Sequence[tuple[int, float, float]]]
    taken: Sequence[tuple[str, float]]
    refused: Sequence[tuple[str, float]]
    times_s: FloatArray
    done: FloatArray
    spent_usd: FloatArray
    deadline_s: float | None = None
    budget_usd: float | None = None


def draw_watch(path: Path, marks: WatchMarks, headline: str, detail: str) -> None:
    """Write what a watched job held and was to hold, its progress and its cost, one above the other on one time axis.

    Raises:
        OSError: The file cannot be written.
    """
    offers = list({**marks.wanted, **marks.held})[:_MOST_ROWS]
    rows_inches = 0.5 + 1.2 * _ROW_INCHES * len(offers)
    heights = [rows_inches, _PANEL_INCHES, _PANEL_INCHES]
    figure = _new_figure(10.0, 1.9 + sum(heights))
    axes = figure.subplots(3, 1, sharex=True, height_ratios=heights)
    unit_s, unit = _time_unit(max([*marks.times_s, marks.deadline_s or 0.0]))
    machines, progress, cost = axes
    for row, offer in enumerate(offers):
        held, wanted = marks.held.get(offer, ()), marks.wanted.get(offer, ())
        most = max((count for count, *_ in (*held, *wanted)), default=1)
        for spans, top, height, colour in ((held, -0.3, 0.5, _LINE), (wanted, 0.26, 0.14, _TRUE)):
            for count, start_s, end_s in spans:
                tall, width = height * count / most, (end_s - start_s) / unit_s
                machines.barh(row + top + height, width, -tall, start_s / unit_s, align="edge", color=colour, lw=0)
    for events, mark, colour in ((marks.refused, "|", _MUTED), (marks.taken, "x", _BOUNDARY)):
        at = [(time_s / unit_s, offers.index(offer)) for offer, time_s in events if offer in offers]
        machines.plot([time for time, _ in at], [row for _, row in at], mark, color=colour, ms=7, mew=1.6, lw=0)
    machines.set_yticks(range(len(offers)), offers, fontsize=9)
    machines.set_ylim(len(offers) - 0.4, -0.6)
    times = marks.times_s / unit_s
    progress.plot(times, 100 * marks.done, color=_LINE, lw=1.6)
    progress.set_ylim(0, 104)
    progress.set_ylabel("done (%)", fontsize=10, color=_INK)
    cost.plot(times, marks.spent_usd, color=_LINE, lw=1.6)
    cost.set_ylim(bottom=0)
    cost.set_ylabel("cost ($)", fontsize=10, color=_INK)
    cost.set_xlabel(f"time since the job began ({unit})", fontsize=10, color=_INK)
    if marks.budget_usd is not None:
        cost.axhline(marks.budget_usd, color=_BOUNDARY, lw=0.9, ls=(0, (4, 2)))
    for axis in axes:
        if marks.deadline_s is not None:
            axis.axvline(marks.deadline_s / unit_s, color=_BOUNDARY, lw=1.2)
        axis.margins(x=0.01)
        axis.grid(axis="x", color="#e3e7eb", lw=0.7, zorder=0)
        axis.set_axisbelow(True)
        axis.tick_params(colors=_MUTED, labelsize=9, length=3)
        axis.spines[["top", "right"]].set_visible(False)
    _write_above(machines, detail, 8, fontsize=10, color=_MUTED)
    _write_above(machines, headline, 26, fontsize=14, color=_INK, fontweight="bold")
    _add_legend(machines, _watch_legend(marks))
    _save(figure, path)


def _watch_legend(marks: WatchMarks) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def drawn(label: str, **style: Any) -> Line2D:
        return Line2D([], [], label=label, **style)

    return [
        Patch(color=_LINE, label="held"),
        Patch(color=_TRUE, label="recommended"),
        *([drawn("taken away", color=_BOUNDARY, marker="x", mew=1.6, lw=0)] if marks.taken else ()),
        *([drawn("refused", color=_MUTED, marker="|", mew=1.6, lw=0)] if marks.refused else ()),
        *([drawn("deadline", color=_BOUNDARY, lw=1.2)] if marks.deadline_s is not None else ()),
        *([drawn("budget", color=_BOUNDARY, lw=0.9, ls=(0, (4, 2)))] if marks.budget_usd is not None else ()),
    ]


def _one_axis(inches: float, headline: str, detail: str) -> tuple[Figure, Axes]:
    figure = _new_figure(10.0, 1.9 + inches)
    axis = figure.subplots()
    axis.tick_params(colors=_MUTED, labelsize=9, length=3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#c4ccd4")
    axis.set_title(f"{headline}\n", loc="left", fontsize=14, color=_INK, fontweight="bold")
    _write_above(axis, detail, 8, fontsize=10, color=_MUTED)
    return figure, axis


def _add_legend(axis: Axes, handles: Sequence[Any] | None = None) -> None:
    """Put the legend outside, where it covers nothing."""
    named = axis.get_legend_handles_labels()[0] if handles is None else handles
    if named:
        axis.legend(handles=named, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _draw_levels(axis: Axes, levels: Sequence[LevelMarks]) -> None:
    """Draw a row for each level, the shortest at the bottom; the one that is told as the epochs are."""
    for row, level in enumerate(levels):
        colour = _BOUNDARY if level.told else _MUTED
        if 0 < level.starts_s.size <= _MAX_STARTS:
            axis.vlines(level.starts_s, row - 0.36, row + 0.36, color=colour, lw=1.4 if level.told else 0.9)
        elif level.starts_s.size:
            width = level.starts_s[-1] - level.starts_s[0]
            axis.barh(row, width, height=0.5, left=level.starts_s[0], color=colour, alpha=0.5, lw=0)
    axis.set_yticks(range(len(levels)), [level.label for level in levels], fontsize=8.5)
    for text, level in zip(axis.get_yticklabels(), levels, strict=True):
        text.set_color(_BOUNDARY if level.told else _MUTED)
        text.set_fontweight("bold" if level.told else "normal")
    axis.set_ylim(-0.6, len(levels) - 0.4)
    axis.tick_params(axis="x", colors=_MUTED, labelsize=9, length=3)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color("#c4ccd4")


def _write_above(axis: Axes, text: str, points: float, **style: Any) -> None:
    axis.annotate(text, (0.0, 1.0), xycoords="axes fraction", xytext=(0, points), textcoords="offset points", **style)


def _number_epochs(axis: Axes, starts: FloatArray, ends: FloatArray, noun: str) -> None:
    every = max(1, -(-len(starts) // _MAX_NUMBERS))
    for i, middle in enumerate((starts + ends) / 2):
        if i % every == 0:
            axis.annotate(
                str(i + 1) if i else f"{noun} 1",
                (middle, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                color=_BOUNDARY,
            )


def _few_ticks() -> Locator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10])


def _with_breaks(trace: Trace) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    """Times with a NaN inserted into every hole, and the positions of the insertions: a hole is not a line."""
    steps = np.diff(trace.time_s)
    breaks = np.flatnonzero(steps > max(10 * trace.interval_s, 1.0)) + 1
    return np.insert(trace.time_s, breaks, np.nan), breaks


def _varies(values: FloatArray) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size) and float(finite.min()) < float(finite.max())


def _is_narrow(values: FloatArray) -> bool:
    """Whether the values lie so far from zero that an axis from zero would flatten them."""
    finite = values[np.isfinite(values)]
    return bool(finite.size) and float(finite.min()) > 0.75 * float(finite.max()) > 0


def _time_unit(duration_s: float) -> tuple[float, str]:
    if duration_s > 3 * 3600:
        return 3600.0, "hours"
    if duration_s > 20 * 60:
        return 60.0, "minutes"
    return 1.0, "seconds"


_UNIT_LABELS = {
    Unit.RATIO: ("", "%", 100.0),
    Unit.BYTES: ("_bytes", "GiB", 1 / (1 << 30)),
    Unit.BYTES_PER_SECOND: ("_bytes_per_second", "GB/s", 1e-9),
    Unit.WATTS: ("_watts", "W", 1.0),
    Unit.JOULES: ("_joules", "kJ", 1e-3),
    Unit.CELSIUS: ("_celsius", "°C", 1.0),
    Unit.MEGAHERTZ: ("_mhz", "MHz", 1.0),
    Unit.COUNT: ("", "count", 1.0),
    Unit.BITS: ("_bits", "bits", 1.0),
}


def _label(name: str) -> tuple[str, float]:
    """The axis label of a metric and the factor from its unit to the label's."""
    suffix, unit, scale = _UNIT_LABELS[metric(name).unit]
    words = name.removesuffix(suffix).split("_")
    spelled = {"gpu": "GPU", "sm": "SM", "dram": "DRAM", "pcie": "PCIe", "nvlink": "NVLink", "rx": "in", "tx": "out"}
    text = " ".join(spelled.get(word, word) for word in words)
    return f"{text[:1].upper()}{text[1:]}\n({unit})", scale
