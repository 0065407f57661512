"""What a detector answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpusonde import formatting
from gpusonde.telemetry import FloatArray, as_traces

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


class Verdict(str, Enum):
    """The three answers of a detector; members compare equal to their text."""

    EPOCHS = "epochs"
    SHORT_CYCLE = "short_cycle"  # a clear cycle of under about 20 ticks: iteration or epoch, undecidable
    NONE = "none"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Hypothesis:
    """One reading of the trace.

    Attributes:
        period_s: Seconds per cycle.
        cycles: How many cycles were seen.
        score: How well the cycles agree, 0..1; comparable between the hypotheses of one trace only.
    """

    period_s: float
    cycles: int
    score: float


_NAMED = 0.7  # confidence of a role from which on what is told is called by it


class CycleRole(str, Enum):
    """What a level of the tree of cycles is judged to be; members compare equal to their text."""

    STEP = "step"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    EPOCH = "epoch"
    TRIAL = "trial"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


class RunState(str, Enum):
    """What a GPU does in a trace as a whole; members compare equal to their text."""

    TRAINING = "training"
    SERVING = "serving"
    IDLE = "idle"
    OTHER = "other"  # works at something else, cycles without epochs among it

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Cycle:
    """One level of the tree of cycles of a job.

    Attributes:
        period_s: Typical seconds from start to start.
        period_low_s: Lower end of the 95 % interval of ``period_s``.
        period_high_s: Upper end of it.
        count: How many whole cycles were seen.
        starts_s: Shape (cycles,), starts of the cycles in the trace's own time.
        confidence: Probability, 0..1, that the job has a level within 10 % of ``period_s``.
        role: What the level is judged to be; ``unknown`` where the metrics cannot tell.
        role_confidence: Probability, 0..1, that ``role`` is right, given that the level is real; 0 for ``unknown``.
        parent: Index of the level, in the same tuple, that this one is nested in; None for the outermost.
        confirmed: Whether it has held for six of its own cycles or two of its parent's; it is provisional until then.
    """

    period_s: float
    period_low_s: float
    period_high_s: float
    count: int
    starts_s: FloatArray
    confidence: float
    role: CycleRole = CycleRole.UNKNOWN
    role_confidence: float = 0.0
    parent: int | None = None
    confirmed: bool = False


class _WithRole(Protocol):
    @property
    def role(self) -> str: ...

    @property
    def role_confidence(self) -> float: ...


def told_role(cycles: Sequence[_WithRole], level: int | None) -> CycleRole:
    """Return the role by which the cycles of a level are told: its own where that is sure enough, else ``unknown``.

    Args:
        cycles: The levels of a tree of cycles.
        level: Index of the one that is told as the epochs; None if it is none of them.
    """
    if level is None or cycles[level].role_confidence < _NAMED:
        return CycleRole.UNKNOWN
    return CycleRole(cycles[level].role)


@dataclass(frozen=True)
class Deviation:
    """What one GPU of a job does otherwise than the others.

    Attributes:
        gpu: Its UUID, or its place in the list of the traces.
        kind: ``idle``; ``lag``, behind the others or ahead of them; ``missing``, without some of their cycles; or
            ``unlike``, at something else.
        amount: Its mean load, 0..1; the seconds that it is behind; how many cycles; or its correlation with the others.
    """

    gpu: str
    kind: str
    amount: float


@dataclass(frozen=True)
class EpochDetection:
    """The epochs of one trace, or the cycles that measure its progress best: ``role`` says which.

    Attributes:
        verdict: ``epochs``, ``short_cycle`` or ``none``.
        reason: Why, for a human reader.
        period_s: Typical epoch duration in seconds; NaN without a verdict, like both bounds.
        period_low_s: Lower end of the 95 % interval of ``period_s``.
        period_high_s: Upper end of it.
        confidence: Probability, 0..1, that ``period_s`` is within 10 % of the truth; 0 for ``none``.
        epoch_starts_s: Shape (epochs,), in the trace's own time.
        epoch_ends_s: Shape (epochs,); an epoch ends where the next one starts unless a stall or a hole lies between.
        mode: Which detector answered: ``default``, ``paper`` or ``notebook``.
        metrics: Metrics that were used.
        cycles: The levels of the tree of cycles, shortest first, at most five.
        run_state: What the GPU does in the trace as a whole; None where it was not judged.
        run_state_confidence: Probability, 0..1, that ``run_state`` is right.
        level: Index in ``cycles`` of the level that ``period_s`` and the epochs tell; None if it is none of them.
        hypotheses: Best readings of the trace, the chosen one first: where cycles nest, P and k P.
        deviations: GPUs of the job that do otherwise than the others.
        warnings: What was left out, for the user to see.
    """

    verdict: str
    reason: str
    period_s: float = float("nan")
    period_low_s: float = float("nan")
    period_high_s: float = float("nan")
    confidence: float = 0.0
    epoch_starts_s: FloatArray = field(default_factory=lambda: np.empty(0))
    epoch_ends_s: FloatArray = field(default_factory=lambda: np.empty(0))
    mode: str = "default"
    metrics: tuple[str, ...] = ()
    cycles: tuple[Cycle, ...] = ()
    level: int | None = None
    run_state: RunState | None = None
    run_state_confidence: float = 0.0
    hypotheses: tuple[Hypothesis, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def role(self) -> CycleRole:
        """What is told as the epochs: the role of its level where that is sure enough (0.7), ``unknown`` elsewhere.

        What is no epoch, or not surely one, measures progress all the same.
        """
        return told_role(self.cycles, self.level)

    @property
    def end_s(self) -> float:
        """End of the last epoch, in the trace's own time; NaN without epochs."""
        return float(self.epoch_ends_s[-1]) if self.epoch_ends_s.size else float("nan")

    def to_pandas(self) -> DataFrame:
        """Return the levels of the tree of cycles, a row each: what ``Cycle`` has, but for the starts."""
        import pandas as pd  # noqa: PLC0415 - an extra

        names = [known.name for known in fields(Cycle) if known.name != "starts_s"]
        rows = [[getattr(cycle, name) for name in names] for cycle in self.cycles]
        return pd.DataFrame(rows, columns=names)

    def plot(self, traces: Any, columns: Sequence[str] | Mapping[str, str] = (), *, ax: Axes | None = None) -> Axes:
        """Draw the first metric that was used, of the first GPU, with the epochs, and return matplotlib's axes.

        Args:
            traces: What was given to ``detect``.
            columns: Likewise.
            ax: Where to draw; None for a figure of its own.
        """
        import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

        trace = as_traces(traces, columns)[0]
        name = next((name for name in self.metrics if name in trace.values), trace.metrics[0])
        axes = plt.subplots(figsize=(11.0, 2.8), layout="constrained")[1] if ax is None else ax
        axes.plot(trace.time_s, trace.values[name], lw=0.8)
        for start, end in zip(self.epoch_starts_s[::2], self.epoch_ends_s[::2], strict=True):
            axes.axvspan(start, end, color="tab:red", alpha=0.08, lw=0)
        for start in self.epoch_starts_s:
            axes.axvline(start, color="tab:red", lw=0.8)
        axes.set(xlabel="time (s)", ylabel=name)
        axes.set_title(self.reason, parse_math=False)
        return axes

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it."""
        head = "".join(f"<th>{name}</th>" for name in ("cycle of", "95 % interval (s)", "count", "role", "confidence"))
        rows = "".join(
            f"<tr><td>{formatting.seconds(cycle.period_s)}</td>"
            f"<td>{formatting.interval(cycle.period_low_s, cycle.period_high_s)}</td><td>{cycle.count}</td>"
            f"<td>{cycle.role}</td><td>{formatting.probability(cycle.confidence)}</td></tr>"
            for cycle in self.cycles
        )
        lines = [f"<b>{escape(str(self.verdict))}</b>: {escape(self.reason)}", *map(escape, self.warnings)]
        return f"<p>{'<br>'.join(lines)}</p>" + (f"<table><tr>{head}</tr>{rows}</table>" if rows else "")


def shifted(detection: EpochDetection, by_s: float) -> EpochDetection:
    """The same detection on a time axis whose origin lies ``by_s`` seconds earlier."""
    return replace(
        detection,
        epoch_starts_s=detection.epoch_starts_s + by_s,
        epoch_ends_s=detection.epoch_ends_s + by_s,
        cycles=tuple(replace(cycle, starts_s=cycle.starts_s + by_s) for cycle in detection.cycles),
    )
