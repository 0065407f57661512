"""Compare detectors on every set: ``python benchmarks/epochs --out docs/results/epochs.md``."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import platform
import time
from collections.abc import Callable
from pathlib import Path

import sets
from exactness import exactness
from peers import PEERS
from pictures import draw_pictures
from report import Result, write_report
from streaming import streaming

from gpusonde.epoch_detect import EpochDetection, detect
from gpusonde.epoch_detect.evaluation import reliability, score, summarise
from gpusonde.telemetry import Trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/traces"))
    parser.add_argument("--out", type=Path, help="write the table into this Markdown file")
    parser.add_argument("--per-family", type=int, default=8, help="set-aside traces per family")
    parser.add_argument("--streaming-every", type=int, default=2, help="stream every n-th trace only")
    parser.add_argument("--set", action="append", help="only sets whose name contains this")
    arguments = parser.parse_args()
    detectors: dict[str, Callable[[Trace], EpochDetection]] = {
        mode: functools.partial(detect, mode=mode)  # type: ignore[arg-type]
        for mode in ("default", "paper", "notebook")
    }
    missing = [m for m in ("ruptures", "jenkspy") if importlib.util.find_spec(m) is None]
    detectors |= {name: peer for name, peer in PEERS.items() if not any(name.startswith(m) for m in missing)}
    folder = arguments.data
    every: dict[str, Callable[[], sets.Set]] = {
        "synthetic_paper_regime": lambda: sets.synthetic(folder, "synthetic_paper_regime"),
        "synthetic_epochs": lambda: sets.synthetic(folder, "synthetic_epochs"),
        "synthetic_negatives": lambda: sets.synthetic(folder, "synthetic_negatives"),
        "real GPU": lambda: sets.real(folder, "h100_*", "titanx_*"),
        "Keras on CPU": lambda: sets.real(folder, "cpu_*"),
        "disturbed families": lambda: sets.disturbed_traces(arguments.per_family),
        "set-aside families": lambda: sets.set_aside_traces(arguments.per_family),
    }
    results: dict[str, dict[str, Result]] = {}
    for name, traces in every.items():
        if arguments.set and not any(part in name for part in arguments.set):
            continue
        results[name] = compare(list(traces()), detectors)
        for detector, result in results[name].items():
            s = result.summary
            print(f"{name:24} {detector:16} " + " ".join(f"{k}={_short(v)}" for k, v in vars(s).items()), flush=True)
    own = [s for by_detector in results.values() for s in by_detector["default"].scores]
    for line in reliability(own):
        print(line)
    if arguments.out:
        more = streaming(folder, arguments.streaming_every)
        if importlib.util.find_spec("luminol"):
            more += exactness()
        more += draw_pictures(arguments.out.parent.parent / "images", arguments.per_family)
        write_report(arguments.out, results, more, platform.processor() or platform.machine(), missing)


def compare(traces: list[tuple[str, Trace, sets.Truth]], detectors: dict[str, Callable[[Trace], EpochDetection]]):
    """Score every detector on the same traces."""
    hours = sum(trace.duration_s for _, trace, _ in traces) / 3600
    results = {}
    for name, detector in detectors.items():
        begin = time.process_time()
        scores = [score(trace_id, detector(trace), truth) for trace_id, trace, truth in traces]
        results[name] = Result(summarise(scores), scores, (time.process_time() - begin) / hours)
    return results


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
