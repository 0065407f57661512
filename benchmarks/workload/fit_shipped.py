"""Fit the model that comes with the package, on the measurements whose licence permits it.

    python benchmarks/workload/fit_shipped.py ../shared/data/workloads/training_times.csv

The measurements (github.com/ryujaehun/pytorch-gpu-benchmark and github.com/ddps-lab/profet, both MIT, and those of
``modern_rows.py``) are not in the repository but for ``data/published_*.csv``, the fitted model is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import modern_rows

from gpusonde.catalog import load_gpus
from gpusonde.predictor.workload import engine
from gpusonde.predictor.workload.engine import WorkloadModel, read_measurements


def main() -> None:
    shipped = Path(engine.__file__).parent / "shipped" / "workload_model.safetensors"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", type=Path)
    parser.add_argument("--out", type=Path, default=shipped, help="default: into the package")
    arguments = parser.parse_args()
    catalog, other = load_gpus(), arguments.measurements.parents[1] / "cross_gpu"
    rows = [
        *read_measurements(arguments.measurements, catalog, licences=("MIT",)).measurements,
        *modern_rows.published(),
        *modern_rows.timm(arguments.measurements.with_name("timm_train_rtx3090.csv")),
        *modern_rows.published_passes(),
        *modern_rows.timm_passes(other / "timm_infer_amp.csv"),
        *modern_rows.neusight(other / "neusight_transformers.csv"),
    ]
    model = WorkloadModel(catalog).fit(rows)
    version = model.save(arguments.out)
    print(f"{version}: {len(rows)} measurements; {arguments.out.stat().st_size} bytes")
    for name, score in model.scores.items():
        fitted = model.state.estimators[name]
        print(f"  {name}: {score:.4f}, interval {fitted.architecture.quantile:.3f}, {fitted.estimator.candidate}")
    for newness, calibration in model.state.intervals.quantiles.items():
        print(f"  {newness.name.lower()}: interval {calibration.quantile:.3f} of {calibration.count} errors")


if __name__ == "__main__":
    main()
