"""What it costs to find the epochs of an hour: 10 Hz, four metrics.

``python benchmarks/epochs/offline_cost.py --against REF`` compares with another commit, on hours with and without
pauses and on shorter traces of every family.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from paired import load, side_by_side
from sets import disturbed_traces, seen_once_traces, set_aside_traces

from gpusonde.epoch_detect import detect
from gpusonde.telemetry import Trace

_TICKS = 36_000
_INTERVAL_S = 0.1
_RUNS = 3
_EPOCHS_S = (20.0, 61.0, 300.0)
_PAUSE_EVERY = 7  # epochs
_PAUSE = 0.4  # of an epoch


def offline_cost() -> list[str]:
    """Lines for the page: CPU seconds per hour-long trace, the best of three runs each."""
    found_s, cpu_s = [], []
    for epoch_s in _EPOCHS_S:
        trace = _hour(epoch_s)
        spent = []
        for _ in range(_RUNS):
            begin = time.process_time()
            found = detect(trace)
            spent.append(time.process_time() - begin)
        found_s.append(f"{found.period_s:.2f}")
        cpu_s.append(min(spent))
    said = (
        f"Hour-long traces at 10 Hz with four metrics, with epochs of {', '.join(map('{:g}'.format, _EPOCHS_S))} s "
        f"(found: {', '.join(found_s)} s), detected at once: {min(cpu_s):.2f} to {max(cpu_s):.2f} s of CPU, the best "
        "of three runs each."
    )
    return ["## Offline cost", "", said, ""]


def compare_with(reference: str, rounds: int) -> list[str]:
    """Measure both commits in turns; the sums of the best round of each trace are compared."""
    groups = {
        "an hour": {f"{epoch_s:g} s": _hour(epoch_s) for epoch_s in _EPOCHS_S},
        "an hour with pauses": {f"{epoch_s:g} s": _hour(epoch_s, pauses=True) for epoch_s in _EPOCHS_S},
        "one of each family": {
            name: trace for some in (disturbed_traces, seen_once_traces, set_aside_traces) for name, trace, _ in some(1)
        },
    }
    traces = {f"{group}: {name}": trace for group, some in groups.items() for name, trace in some.items()}
    spent = {name: np.full(2, np.inf) for name in traces}
    answers: dict[str, set[tuple[str, float]]] = {name: set() for name in traces}
    with side_by_side(reference, traces) as workers:
        for turn in range(rounds):
            for name in traces:
                for side in (0, 1) if turn % 2 else (1, 0):
                    outcome = workers[side].run("offline", name)
                    spent[name][side] = min(spent[name][side], outcome.cpu_s[0])
                    answers[name].add((outcome.looks[0].verdict, round(outcome.looks[0].period_s, 9)))
    lines = [f"CPU seconds per trace at {reference} and here, best of {rounds} rounds each; {load()}"]
    for group, some in groups.items():
        before, after = sum((spent[f"{group}: {name}"] for name in some), np.zeros(2)) / len(some)
        lines.append(f"{group:24} {before:.3f} s  {after:.3f} s  ratio {after / before:.2f}")
    # NaN is unlike itself, so verdicts without a period are compared as text.
    different = [name for name, found in answers.items() if len({str(answer) for answer in found}) > 1]
    return [*lines, f"other answers: {', '.join(different) or 'none'}"]


def _hour(epoch_s: float, *, pauses: bool = False) -> Trace:
    rng = np.random.default_rng(1)
    time_s = np.arange(_TICKS) * _INTERVAL_S
    place = time_s % ((_PAUSE_EVERY + _PAUSE) * epoch_s) if pauses else time_s
    level = np.where(place % epoch_s < 0.8 * epoch_s, 0.8, 0.4)
    level = np.where(pauses & (place >= _PAUSE_EVERY * epoch_s), 0.0, level)
    level = level + rng.normal(0, 0.02, _TICKS) + 0.05 * np.sin(2 * np.pi * time_s / 0.73)
    shares = {"sm_active": 1.0, "dram_active": 0.7, "tensor_active": 0.5}
    return Trace(time_s, {**{name: share * level for name, share in shares.items()}, "power_watts": 100 + 400 * level})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="REF", required=True, help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("\n".join(compare_with(arguments.against, arguments.rounds)))


if __name__ == "__main__":
    main()
