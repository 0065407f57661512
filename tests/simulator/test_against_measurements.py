"""Curves and calibration on real measurements: no worse than the results page says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
ROWS = ROOT.parent / "shared" / "data" / "distributed" / "scaling.csv"

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not ROWS.is_file(), reason="the measurement files of ../shared/data are absent"),
]


@pytest.fixture(scope="module")
def benchmark():
    """The modules of the benchmark, which holds the protocols."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks" / "planning"))
        import compute
        import end_to_end
        import sia

        yield compute, end_to_end, sia.read(ROWS)


def test_curves_of_four_probes_predict_batch_sizes_that_nobody_timed(benchmark):
    compute, _, rows = benchmark
    errors = {kind: [] for kind in ("default", "paper", "linear")}
    for batch, seconds in compute.single_gpu_curves(rows).values():
        if batch.size >= 6:
            places = compute.sia.probe_places(batch.astype(int).tolist())
            for kind in errors:
                errors[kind] += compute._errors(batch, seconds, places, kind).tolist()
    means = {kind: float(np.mean(found)) for kind, found in errors.items()}
    assert means["default"] <= 0.055
    assert means["default"] < means["paper"] < means["linear"]


@pytest.mark.parametrize(("unseen", "bar"), [(False, 0.08), (True, 0.095)])
def test_calibrated_iterations_predict_batch_sizes_and_placements_that_nobody_measured(benchmark, unseen, bar):
    _, end_to_end, rows = benchmark
    curves = list(end_to_end.curves_of(rows))
    means = {
        name: float(np.mean(np.abs(end_to_end._errors(curves, method, unseen=unseen).all)))
        for name, method in end_to_end.METHODS.items()
    }
    assert means["default"] <= bar
    assert means["default"] < means["paper"] < means["APM"] < means["no overlap"]
