"""``gpusonde train``: fit an epoch latency model on a table of runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpusonde.cli.errors import naming
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command


def add_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde train``."""
    parser = add_command(
        subparsers,
        common,
        "train",
        "fit an epoch latency model on a table of runs",
        "Fit the model that 'gpusonde predict --model' and the collector use.",
    )
    parser.add_argument("runs", type=Path, metavar="RUNS.csv", help="one row per run (docs/latency_prediction.md)")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="file to write the model to")


def run(args: argparse.Namespace) -> int:
    """Fit and save."""
    from gpusonde.predictor.crossgpu import LatencyModel, read_runs

    output = Output(as_json=args.json)
    table = read_runs(args.runs)
    sources, _ = table.pairs()
    with output.progress(f"fitting on {len(table)} runs"), naming(args.runs):
        model = LatencyModel().fit(table)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    model.save(args.out)

    def render(screen: Screen) -> None:
        screen.line(f"fitted on {len(table)} runs ({len(sources)} pairs) on {', '.join(table.gpu_names)}")
        screen.line(f"model {model.version} written to {args.out}")

    output.result(
        {
            "runs_file": str(args.runs),
            "runs": len(table),
            "pairs": len(sources),
            "gpus": list(table.gpu_names),
            "model": str(args.out),
            "model_version": model.version,
            "model_bytes": args.out.stat().st_size,
        },
        render,
    )
    return 0
