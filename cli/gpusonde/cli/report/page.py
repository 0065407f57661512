"""One run as a page that holds all it needs: no script, nothing from elsewhere, and every text escaped."""

from __future__ import annotations

import base64
import html
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from gpusonde import formatting
from gpusonde.cli.commands.detect import headline, plot, told_as
from gpusonde.cli.measuring import Predictions, fastest_first
from gpusonde.cli.report.story import RunStory
from gpusonde.epoch_detect.progress import JobState, StateSpan
from gpusonde.service.durable_files import write_durably

_MOST_ROWS = 200
_MOST_TEXT = 500
_STRIP_WIDTH = 1000.0
_COLOURS = {
    "training": "#2e8b57",
    "evaluating": "#7fb48f",
    "checkpointing": "#8a7bb8",
    "slower": "#d9a441",
    "stalled": "#d9742d",
    "hung": "#c8452d",
    "serving": "#2f6f9f",
    "idle": "#c4ccd4",
    "starting": "#e3d9c8",
}
_OTHER = "#eef1f4"
_BETWEEN = frozenset({JobState.EVALUATING, JobState.CHECKPOINTING, JobState.IDLE, JobState.UNKNOWN})
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1f2933; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.1em; margin: 1.8em 0 .4em; }
.told { font-size: 1.15em; margin: .3em 0 1em; } .muted { color: #66727f; }
table { border-collapse: collapse; font-size: .93em; }
th, td { text-align: left; padding: .2em .9em .2em 0; vertical-align: top; }
th { color: #66727f; font-weight: 600; } tr + tr td { border-top: 1px solid #e3e7eb; }
td.n, th.n { text-align: right; white-space: nowrap; }
img, svg { max-width: 100%; } code { background: #f3f5f7; padding: .1em .3em; overflow-wrap: anywhere; }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def write_page(story: RunStory, path: Path, command: str) -> None:
    """Write the page.

    Args:
        story: The run.
        path: File to write.
        command: What was typed, to be told.

    Raises:
        OSError: The file cannot be written.
    """
    title = _text(story.title)
    told = _text(headline(story.detection))
    parts = [
        f"<h1>{title}</h1><p class=told>{told}; goodput {formatting.percent(story.goodput_ratio)}</p>",
        _section("What it is", _pairs(story.facts)),
        _picture(story),
        _section("Levels of cycles", _levels(story)),
        _section("States", _states(story)),
        _section("Slowdowns and other events", _events(story)),
        _section(_named(story), _epochs(story)),
        _section("On other GPUs", _predictions(story)),
        _section("Evidence", _evidence(story, command)),
    ]
    page = (
        f'<!doctype html><html lang=en><head><meta charset=utf-8><meta http-equiv="Content-Security-Policy" '
        f'content="{_POLICY}"><meta name=viewport content="width=device-width"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
    write_durably(path, page.encode())


def _text(text: object) -> str:
    told = formatting.printable(str(text))
    return html.escape(told if len(told) <= _MOST_TEXT else f"{told[: _MOST_TEXT - 1]}…")


def _section(heading: str, body: str) -> str:
    return f"<h2>{_text(heading)}</h2>{body}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[str] = ()) -> str:
    """Draw a table; of more rows than a reader goes through the first, and how many there are."""
    rows = list(rows)
    kind = ["n" if column in numeric else "" for column in columns]
    head = "".join(f"<th class='{k}'>{_text(column)}</th>" for column, k in zip(columns, kind, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td class='{k}'>{_text(cell)}</td>" for cell, k in zip(row, kind, strict=True)) + "</tr>"
        for row in rows[:_MOST_ROWS]
    )
    rest = f"<p class=muted>the first {_MOST_ROWS} of {len(rows):,}</p>" if len(rows) > _MOST_ROWS else ""
    return f"<table><tr>{head}</tr>{body}</table>{rest}"


def _pairs(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(fact)}</td></tr>" for name, fact in facts.items())
    return f"<table>{rows}</table>"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"


def _picture(story: RunStory) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.png"
        plot(path, story.gpus[0], story.detection)
        content = base64.b64encode(path.read_bytes()).decode()
    several = "<p class=muted>the first GPU; times count from its first tick</p>" if len(story.gpus) > 1 else ""
    return f'<p><img alt="metrics and cycles over time" src="data:image/png;base64,{content}"></p>{several}'


def _levels(story: RunStory) -> str:
    cycles = story.detection.cycles
    if not cycles:
        return f"<p>{_text(story.detection.reason)}</p>"
    rows = [
        (
            str(cycle.role),
            formatting.seconds(cycle.period_s),
            formatting.interval(cycle.period_low_s, cycle.period_high_s),
            f"{cycle.count:,}",
            formatting.probability(cycle.confidence),
            formatting.probability(cycle.role_confidence) if cycle.role_confidence else formatting.ABSENT,
            "" if cycle.parent is None else formatting.seconds(cycles[cycle.parent].period_s),
            "told above" if index == story.detection.level else "",
        )
        for index, cycle in enumerate(cycles)
    ]
    columns = ("role", "period", "95 % interval (s)", "whole cycles", "confidence", "of the role", "within", "")
    table = _table(columns, rows, numeric=columns[1:6])
    deviations = [f"GPU {each.gpu} deviates: {each.kind} ({each.amount:.3g})" for each in story.detection.deviations]
    told = len(story.detection.epoch_starts_s)
    differs = story.detection.level is not None and cycles[story.detection.level].count != told
    counted = (
        f"<p class=muted>told above and listed below are the {told:,} whose begin and end were placed, of the"
        " level that is told; whole cycles are counted apart from them</p>"
        if differs
        else ""
    )
    return table + counted + (_list(deviations) if deviations else "")


def _states(story: RunStory) -> str:
    if not story.states:
        return "<p>none is known</p>"
    begin, end = story.states[0].start_s, max(story.states[-1].end_s, story.states[0].start_s + 1e-9)
    scale = _STRIP_WIDTH / (end - begin)
    bars = "".join(
        f'<rect x="{(span.start_s - begin) * scale:.2f}" y="0" width="{(span.end_s - span.start_s) * scale:.2f}" '
        f'height="28" fill="{_COLOURS.get(str(span.state), _OTHER)}"><title>{_text(f"{span.state}: {span.reason}")}'
        f"</title></rect>"
        for span in story.states
    )
    strip = f'<svg viewBox="0 0 {_STRIP_WIDTH:g} 28" role="img" aria-label="states over time">{bars}</svg>'
    spent: dict[str, float] = {}
    times = Counter(str(span.state) for span in story.states)
    # One that the run ends with may have no length that is known.
    for span in (each for each in story.states if each.end_s > each.start_s):
        spent[str(span.state)] = spent.get(str(span.state), 0.0) + span.end_s - span.start_s
    keys = "".join(
        f'<tr><td><span class=key style="background:{_COLOURS.get(state, _OTHER)}"></span>{_text(state)}</td>'
        f"<td class=n>{_text(formatting.duration(seconds))}</td><td class=n>{times[state]:,}</td></tr>"
        for state, seconds in sorted(spent.items(), key=lambda item: -item[1])
    )
    idle, stalled = story.progress.idle_share, story.progress.stalled_share
    shares = f"idle {formatting.percent(idle, 1)} of the time; lost in stalls {formatting.percent(stalled, 1)}"
    head = "<tr><th>state</th><th class=n>in all</th><th class=n>times</th></tr>"
    return f"{strip}<table>{head}{keys}</table><p>{_text(shares)}</p>"


def _events(story: RunStory) -> str:
    told: list[StateSpan] = []
    for span in story.states:
        # Evaluations and checkpoints of a slow job end its slowdown for nobody.
        if span.state == JobState.SLOWER and told and told[-1].state == JobState.SLOWER:
            told[-1] = replace(span, start_s=told[-1].start_s)
        elif span.state not in _BETWEEN:
            told.append(span)
    slow = []
    for span in told:
        if span.state in (JobState.SLOWER, JobState.STALLED, JobState.HUNG):
            is_over = span.state == JobState.SLOWER or span.end_s < story.states[-1].end_s
            lasted = formatting.lasted(span.end_s - span.start_s, is_over=is_over)
            slow.append((f"{span.start_s:,.1f}", f"{span.state} {lasted}", span.reason))
    other = [
        (f"{event.time_s:,.1f}", event.text, "" if event.gpu is None else story.gpus[event.gpu].gpu_uuid)
        for event in story.events
    ]
    rows = sorted([*slow, *other], key=lambda row: float(row[0].replace(",", "")))
    if not rows:
        return "<p>none</p>"
    return _table(("time (s)", "what", "why, or which GPU"), rows, numeric=("time (s)",))


def _named(story: RunStory) -> str:
    return f"{told_as(story.detection).capitalize()}s"


def _epochs(story: RunStory) -> str:
    if not story.progress.table:
        return "<p>none</p>"
    columns = ("", "start (s)", "end (s)", "duration (s)", "energy (kJ)", "seen")
    rows = [
        (
            number,
            f"{epoch.start_s:,.2f}",
            f"{epoch.end_s:,.2f}",
            f"{epoch.end_s - epoch.start_s:,.2f}",
            formatting.number(epoch.energy_joules / 1000),
            formatting.percent(epoch.seen_share),
        )
        for number, epoch in enumerate(story.progress.table, start=1)
    ]
    return _table(columns, rows, numeric=columns)


def _predictions(story: RunStory) -> str:
    found = story.predictions
    if found is None:
        return f"<p>{_text(story.prediction_reason)}</p>"
    columns = ("GPU", "takes (s)", "interval (s)", "by", "")
    rows = [
        (
            row.target_gpu if row.gpu_count == 1 else f"{row.gpu_count}x {row.target_gpu}",
            formatting.number(row.epoch_latency_s),
            formatting.interval(row.epoch_latency_low_s, row.epoch_latency_high_s),
            row.method,
            row.reason,
        )
        for row in fastest_first(found.rows)
    ]
    return f"<p>{_text(_of_source(found))}</p>{_table(columns, rows, numeric=columns[1:3])}"


def _of_source(found: Predictions) -> str:
    gpus = found.source_gpu if found.source_gpu_count == 1 else f"{found.source_gpu_count}x {found.source_gpu}"
    return "; ".join([f"what takes {formatting.seconds(found.epoch_latency_s)} on {gpus}", *found.notes])


def _evidence(story: RunStory, command: str) -> str:
    model = story.predictions.model_version if story.predictions else ""
    facts = {
        "gpusonde": metadata.version("gpusonde"),
        "cycles from": ", ".join(story.detection.metrics) or "no metric",
        "because": story.detection.reason,
        "confidence": formatting.probability(story.detection.confidence),
    }
    if model:
        facts["model of epoch latency"] = model
    notes = _list(story.notes) if story.notes else ""
    return f"{_pairs(facts)}<p><code>{_text(command)}</code></p>{notes}"
