"""Whether GPUs that move together are one job: nodes of one run beside nodes of two runs of the same program.

``python benchmarks/epochs/twins.py ../shared/data/mlperf_power`` prints, for each least correlation of their power from
which nodes would be taken for one job, how many pairs of one run it finds and how many of two runs it joins. Runs of
one program are moved to a common start, as those of a sweep have, and by up to three readings to where they fit best.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.ndimage import uniform_filter1d

_STEP_S = 2.0
_SLOWER = 45  # readings: what changes more slowly is left out
_MOST_NODES, _MOST_RUNS = 6, 8
_REACH = 3
_LEAST_READINGS = 40
_THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)


def _correlation(one: np.ndarray, other: np.ndarray, readings: int, reach: int) -> float:
    """Return the best correlation of two series within a few readings; NaN where they are too short."""
    count = min(readings, one.size, other.size)
    if count < _LEAST_READINGS:
        return float("nan")
    one, other = (each[:count] - uniform_filter1d(each[:count], _SLOWER, mode="nearest") for each in (one, other))
    return max(
        float(np.corrcoef(one[max(0, by) : count + min(0, by)], other[max(0, -by) : count - max(0, by)])[0, 1])
        for by in range(-reach, reach + 1)
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with node_power.parquet and runs.json")
    folder = parser.parse_args().folder
    runs = json.loads((folder / "runs.json").read_text())
    power = dict(iter(pd.read_parquet(folder / "node_power.parquet").groupby("run_id")))

    def series(run: str, node: int) -> np.ndarray:
        rows = power[run][power[run]["node"] == node].sort_values("time_s")
        start_s, stop_s = (np.ravel(runs[run][key])[0] for key in ("run_start_s", "run_stop_s"))
        return np.interp(np.arange(start_s, stop_s, _STEP_S), rows["time_s"], rows["power_watts"])

    programs: dict[tuple[str, int], list[str]] = {}
    for run, facts in runs.items():
        programs.setdefault((facts["network"], facts["nodes"]), []).append(run)
    for name, readings in (("the first 5 minutes", 150), ("the whole run", 1 << 40)):
        same, twins = [], []
        for alike in programs.values():
            for run in alike[:_MOST_RUNS]:
                nodes = [series(run, node) for node in sorted(power[run]["node"].unique())[:_MOST_NODES]]
                same += [_correlation(*pair, readings, 0) for pair in itertools.combinations(nodes, 2)]
            firsts = [series(run, power[run]["node"].min()) for run in alike[:_MOST_RUNS]]
            twins += [_correlation(*pair, readings, _REACH) for pair in itertools.combinations(firsts, 2)]
        one, two = (np.array(each)[np.isfinite(each)] for each in (same, twins))
        print(f"{name}: {one.size} pairs of one run, {two.size} of two")
        for least in _THRESHOLDS:
            print(f"  from {least:.2f}: finds {(one >= least).mean():.0%}, joins {(two >= least).mean():.0%}")


if __name__ == "__main__":
    main()
