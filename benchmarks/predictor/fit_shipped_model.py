"""Fit the model that comes with the package, on the runs whose licence permits it.

    python benchmarks/predictor/fit_shipped_model.py ../shared/data/cross_gpu/hardware_metrics_runs.csv

The data (github.com/ddps-lab/cloud-hw-trainpred, Apache-2.0 and MIT) are not in the repository, the fitted model is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gpusonde.predictor import crossgpu
from gpusonde.predictor.crossgpu import LatencyModel, read_runs


def main() -> None:
    shipped = Path(crossgpu.__file__).parent / "shipped" / "latency_model.safetensors"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, default=shipped, help="default: into the package")
    arguments = parser.parse_args()
    runs = read_runs(arguments.runs)
    model = LatencyModel().fit(runs)
    version = model.save(arguments.out)
    print(f"{version}: {len(runs)} runs on {', '.join(runs.gpu_names)}; {arguments.out.stat().st_size} bytes")
    for situation, calibration in model.state.calibrations.items():
        print(f"  {situation.value}: quantile {calibration.quantile:.3f} of {calibration.count} left-out pairs")


if __name__ == "__main__":
    main()
