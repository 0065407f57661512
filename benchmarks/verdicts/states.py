"""State by second against what the jobs logged."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from playing import Told, is_held_back, play
from recordings import JobRecording

from gpusonde.epoch_detect.progress import JobState, StateWatch
from gpusonde.telemetry import FloatArray

_LEAST_TICKS = 3  # of a state that is scored, and of delay that is allowed
_LEAST_FLOOR = 0.35  # of the high power, for the range
_AT_REST = 0.35  # of the range of the power: no GPU of the job trains
LIVES_ON_S = 5.0  # a job's processes, after its log has ended
DIPPING = ("gpt3/64", "ssd/1", "ssd/8", "llama2_70b_lora/8")  # kinds whose evaluations the power shows


@dataclass(frozen=True)
class Scored:
    """One run.

    Attributes:
        kind: Its kind.
        name: Its name.
        right: Share of the scored ticks that are named right.
        scored: Share of the ticks in states of three ticks or more.
        always: Share that would be right if it always said ``training``.
        found: Ticks of evaluations that were named so.
        evaluated: Ticks of evaluations.
        named: Ticks named ``evaluating``.
    """

    kind: str
    name: str
    right: float
    scored: float
    always: float
    found: int
    evaluated: int
    named: int


def truth(recording: JobRecording) -> tuple[np.ndarray, np.ndarray]:
    """Say what each tick is, and whether it is scored.

    From the log, but for one thing that it does not know: a job that has not begun to work after its logged start is
    ``starting`` still, and at rest before an evaluation (10 s of llama2, 2.7 kW of 6.2) it is ``setting up`` one.
    """
    time_s, log = recording.time_s, recording.log
    power = recording.power.mean(axis=0)
    high = float(np.quantile(power, 0.9))
    low = min(float(power.min()), _LEAST_FLOOR * high)
    rests = power < low + _AT_REST * (high - low)
    state = np.where(time_s < log.start_s, "starting", np.where(time_s > log.stop_s, "ended", "training")).astype(
        "<U12"
    )
    scored = np.ones(time_s.size, dtype=bool)
    works = ~rests & np.roll(~rests, -1) & np.roll(~rests, -2)  # three ticks in a row: not the end of another's job
    begins = np.flatnonzero((time_s >= log.start_s) & works)
    if begins.size:
        state[: begins[0]] = "starting"
    spans = log.evaluations_s.tolist()
    tick_s = recording.interval_s
    for begin, end in spans:
        before = np.searchsorted(time_s, begin)
        first = before
        while first > 0 and rests[first - 1] and state[first - 1] == "training":
            first -= 1
        state[first:before] = "setting up"
        state[(time_s >= begin) & (time_s < end)] = "evaluating"
    short = [*spans, *((a[1], b[0]) for a, b in itertools.pairwise(spans))]
    for begin, end in short:
        if end - begin < _LEAST_TICKS * tick_s:
            scored[(time_s >= begin - tick_s) & (time_s < end + tick_s)] = False
    return state, scored


_RIGHT = {
    "starting": {"starting"},
    "training": {"training", "slower"},
    "evaluating": {"evaluating"},
    "setting up": {"starting", "evaluating", "idle"},
    "ended": {"ended", "idle"},
}


def named(recording: JobRecording, told: Told, *, liveness: bool = True) -> list[str]:
    """What the watch says of each tick three ticks later."""

    def marks(watch: StateWatch, now_s: float) -> None:
        watch.note_marks(now_s, processes=int(now_s < recording.log.stop_s + LIVES_ON_S))

    said: list[str] = []
    times: FloatArray = recording.time_s
    last: tuple = ()
    for index, (_, watch) in enumerate(play(recording, told, marks if liveness else None)):
        if index >= _LEAST_TICKS:
            said.append(_state_at(watch, float(times[index - _LEAST_TICKS])))
        last = watch.spans
    said += [_of(last, float(at)) for at in times[len(said) :]]
    return said


def _state_at(watch: StateWatch, at_s: float) -> str:
    return _of(watch.spans, at_s)


def _of(spans: Sequence, at_s: float) -> str:
    for span in reversed(spans):
        if span.start_s < at_s or span is spans[0]:
            return str(span.state)
    return str(JobState.UNKNOWN)


def score(recording: JobRecording, told: Told, *, liveness: bool = True) -> Scored:
    """Score one run, whose ticks are 2 s."""
    true, scored = truth(recording)
    said = np.array(named(recording, told, liveness=liveness))
    right = np.array([s in _RIGHT[t] for s, t in zip(said, true, strict=True)])
    evaluates, says = true == "evaluating", (said == "evaluating") & (true != "setting up")
    return Scored(
        recording.kind, recording.name, float(right[scored].mean()), float(scored.mean()),
        float((true[scored] == "training").mean()), int((evaluates & says & scored).sum()),
        int((evaluates & scored).sum()), int((says & scored).sum()),
    )  # fmt: skip


def table(rows: Sequence[Scored]) -> list[str]:
    """Lines of a Markdown table, a kind each, and the mean over kinds."""
    kinds: dict[str, list[Scored]] = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    lines = [
        "| kind | runs | ticks scored | right | held back | always `training` | evaluations: recall | precision | F1 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    means = []
    for kind, mine in sorted(kinds.items()):
        right, always = (float(np.mean([getattr(r, name) for r in mine])) for name in ("right", "always"))
        back = [r.right for r in mine if is_held_back(r.name, r.kind)]
        means.append((right, always))
        lines.append(
            f"| {kind} | {len(mine)} | {np.mean([r.scored for r in mine]):.0%} | {right:.1%} | "
            f"{f'{np.mean(back):.1%}' if back else '-'} | {always:.1%} | {_evaluations(mine)} |"
        )
    right, always = np.mean(means, axis=0)
    lines.append(f"| mean over kinds | {len(rows)} | | **{right:.1%}** | | {always:.1%} | | | |")
    dipping = [r for r in rows if r.kind in DIPPING]
    lines.append(f"| where the power dips | {len(dipping)} | | | | | {_evaluations(dipping)} |")
    return lines


def _evaluations(rows: Sequence[Scored]) -> str:
    found, true, said = (sum(getattr(r, name) for r in rows) for name in ("found", "evaluated", "named"))
    if not true:
        return f"- | - | {said} ticks falsely |"[:-2] if said else "- | - | -"
    return f"{found / true:.2f} | {found / max(said, 1):.2f} | {2 * found / (true + said):.2f}"
