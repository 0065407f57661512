"""``gpusonde metrics``: the metric catalogue."""

from __future__ import annotations

import argparse

from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command


def add_metrics_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde metrics``."""
    add_command(subparsers, common, "metrics", "list the metrics that traces, files and options name, with their units")


def run_metrics(args: argparse.Namespace) -> int:
    """Print the catalogue."""
    from gpusonde.telemetry import METRICS

    payload = {
        "metrics": [
            {
                "name": m.name,
                "unit": m.unit,
                "kind": m.kind,
                "sampling_class": m.sampling_class,
                "description": m.description,
                "dcgm_field_id": m.dcgm_field_id,
                "gpm_metric_id": m.gpm_metric_id,
                "codes": list(m.codes),
            }
            for m in METRICS
        ]
    }

    def render(screen: Screen) -> None:
        screen.table(
            ("metric", "unit", "kind", "sampled", "DCGM", "codes", "what it is"),
            [
                (
                    m.name,
                    m.unit.value,
                    m.kind.value,
                    m.sampling_class.value,
                    str(m.dcgm_field_id or ""),
                    " ".join(m.codes),
                    m.description,
                )
                for m in METRICS
            ],
            numeric=("DCGM",),
            optional=("codes", "DCGM", "kind", "sampled"),
        )

    Output(as_json=args.json).result(payload, render)
    return 0
