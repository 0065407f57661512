"""What the rounding of compacted ticks changes in what is made of them: epochs, and latencies on other GPUs.

    python benchmarks/telemetry/rounding.py --data ../shared/data/traces

Every trace of the sets of benchmarks/epochs is looked at twice: as agents send it, in float32, and as a compacted store
gives it back.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "epochs"))

import sets
from compare import mapped

from gpusonde.catalog import load_gpus
from gpusonde.collector.storage.samples import column_type, round_values
from gpusonde.epoch_detect import EpochDetection, detect
from gpusonde.epoch_detect.evaluation import Truth, score, summarise
from gpusonde.predictor.crossgpu import LatencyModel, SourceMeasurement, summarise_metrics
from gpusonde.telemetry import Trace

# What the runs of traces are taken to have been measured on; any GPU that the model knows would do.
_SOURCE = "T4"
_NOTICEABLE = 1e-3


@dataclass(frozen=True)
class Pair:
    """What is found in one trace, before and after."""

    exact: EpochDetection
    rounded: EpochDetection
    predicted: np.ndarray
    predicted_of_rounded: np.ndarray

    @property
    def period_change(self) -> float:
        """Relative change of the period; infinite where it is found in one only."""
        before, after = self.exact.period_s, self.rounded.period_s
        if not (np.isfinite(before) and np.isfinite(after)):
            return 0.0 if np.isfinite(before) == np.isfinite(after) else np.inf
        return abs(after / before - 1)

    @property
    def prediction_change(self) -> float:
        """Largest relative change of a predicted latency; NaN where there is none."""
        if not self.predicted.size or not self.predicted_of_rounded.size:
            return np.nan
        return float(np.abs(self.predicted_of_rounded / self.predicted - 1).max())


def as_sent(trace: Trace) -> Trace:
    """The trace with the digits that a record holds."""
    return replace(trace, values={n: v.astype(column_type(n)) for n, v in trace.values.items()})


def as_compacted(trace: Trace) -> Trace:
    """The trace as it is read after compaction."""
    return replace(trace, values={n: round_values(n, v.astype(column_type(n))) for n, v in trace.values.items()})


def compared(trace: Trace) -> Pair:
    """Look at a trace twice."""
    sent, compacted = as_sent(trace), as_compacted(trace)
    exact, rounded = detect(sent), detect(compacted)
    return Pair(exact, rounded, _predicted(sent, exact), _predicted(compacted, rounded))


def _predicted(trace: Trace, found: EpochDetection) -> np.ndarray:
    if not np.isfinite(found.period_s):
        return np.empty(0)
    gpus = load_gpus()
    source = SourceMeasurement(gpus.get(_SOURCE), found.period_s, summarise_metrics(trace))
    return np.array([p.epoch_latency_s for p in _model().predict(source, list(gpus.specs))])


_MODELS: list[LatencyModel] = []


def _model() -> LatencyModel:
    if not _MODELS:
        _MODELS.append(LatencyModel.shipped())
    return _MODELS[0]


def _row(name: str, cases: list[tuple[str, Trace, Truth]], pairs: list[Pair]) -> str:
    truths = [(trace_id, truth) for trace_id, _, truth in cases]
    before = summarise([score(i, pair.exact, truth) for (i, truth), pair in zip(truths, pairs, strict=True)])
    after = summarise([score(i, pair.rounded, truth) for (i, truth), pair in zip(truths, pairs, strict=True)])
    verdicts = sum(pair.exact.verdict is not pair.rounded.verdict for pair in pairs)
    changes = np.array([pair.period_change for pair in pairs])
    predictions = np.array([pair.prediction_change for pair in pairs])
    predictions = predictions[np.isfinite(predictions)]

    def both(key: str) -> str:
        values = [getattr(summary, key) for summary in (before, after)]
        return " / ".join("-" if value is None else f"{value:.4f}" for value in values)

    return (
        f"| {name} | {len(pairs)} | {verdicts} | {int((changes > _NOTICEABLE).sum())} | {np.median(changes):.1e} | "
        f"{both('mape')} | {both('within_10pct')} | {both('false_positive_rate')} | "
        + (f"{np.median(predictions):.1e}, {predictions.max():.1e} |" if predictions.size else "- |")
    )


def rounding_table(data: Path, per_family: int, jobs: int, most: int | None = None) -> Iterator[str]:
    """Yield the lines of the table, one per set."""
    yield (
        "| set | traces | other verdict | period off by over 0.1 % | change of period, median | MAPE, exact / rounded "
        "| within 10 % | false positives | change of predicted latency, median and largest |"
    )
    yield "|---" * 9 + "|"
    for name, each in sets.every_set(data, per_family).items():
        if not each.is_read or data.is_dir():
            cases = list(islice(each.traces(), most))
            yield _row(name, cases, list(mapped(compared, (trace for _, trace, _ in cases), jobs)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/traces"), help="recorded traces")
    parser.add_argument("--per-family", type=int, default=4, help="generated traces per family")
    parser.add_argument("--most", type=int, help="traces of a set, at most")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    for line in rounding_table(arguments.data, arguments.per_family, arguments.jobs, arguments.most):
        print(line, flush=True)


if __name__ == "__main__":
    main()
