"""``gpusonde gpus``: the catalogue of GPU specifications."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command

if TYPE_CHECKING:
    from gpusonde.catalog import GpuSpec


def add_gpus_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde gpus``."""
    parser = add_command(
        subparsers,
        common,
        "gpus",
        "list the GPUs of the catalogue, or one with the source of every figure",
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="one GPU, by any name: V100-SXM2-16GB, 'Tesla T4', 'NVIDIA A10G' ..."
    )


def run_gpus(args: argparse.Namespace) -> int:
    """Print all GPUs, or one."""
    from gpusonde.catalog import load_gpus

    catalog = load_gpus()
    output = Output(as_json=args.json)
    if args.name is None:
        payload = {"requested": None, "note": None, "gpus": [_payload(spec) for spec in catalog.specs]}
        output.result(payload, lambda screen: _render_all(screen, list(catalog.specs)))
        return 0
    resolution = catalog.resolve(args.name)
    output.result(
        {"requested": args.name, "note": resolution.note or None, "gpus": [_payload(resolution.spec)]},
        lambda screen: _render_one(screen, resolution.spec, resolution.note),
    )
    return 0


def _payload(spec: GpuSpec) -> dict[str, Any]:
    figures = spec.figures()
    return {
        "name": spec.name,
        "aliases": list(spec.aliases),
        "architecture": spec.architecture,
        "memory_type": spec.memory_type,
        "released": spec.released,
        "note": spec.note or None,
        "figures": [
            {
                "name": name,
                "value": value,
                "source": source.title,
                "url": source.url or None,
                "retrieved": source.retrieved,
                "from_memory": source.from_memory,
            }
            for name, value in figures.items()
            for source in (spec.source_of(name),)
        ],
    }


def _render_all(screen: Screen, specs: list[GpuSpec]) -> None:
    columns = ("GPU", "architecture", "SMs", "boost (MHz)", "memory", "bandwidth (GB/s)", "FP32 (TFLOPS)", "power (W)")
    screen.table(
        columns,
        [
            (
                spec.name,
                spec.architecture,
                str(spec.sm_count),
                wording.number(spec.boost_clock_mhz, 4),
                wording.gibibytes(spec.memory_bytes),
                wording.number(spec.memory_bandwidth_bytes_per_second / 1e9, 4),
                wording.number(spec.fp32_tflops),
                wording.number(spec.power_limit_watts, 4),
            )
            for spec in specs
        ],
        numeric=columns[2:],
        optional=("boost (MHz)", "power (W)", "architecture", "SMs"),
    )
    screen.line()
    screen.line("'gpusonde gpus NAME' shows every figure of one with its source.")


def _render_one(screen: Screen, spec: GpuSpec, note: str) -> None:
    if note:
        screen.note(f"note: {note}")
    screen.heading(f"{spec.name} ({spec.architecture}, {spec.memory_type}, released {spec.released or 'unknown'})")
    screen.line(f"also called: {', '.join(spec.aliases)}")
    if spec.note:
        screen.note(f"note: {spec.note}")
    screen.line()
    screen.table(
        ("figure", "value", "source", "retrieved"),
        [
            (
                name,
                f"{value:,.12g}",
                f"{source.title}{' (from memory)' if source.from_memory else ''}",
                source.retrieved,
            )
            for name, value in spec.figures().items()
            for source in (spec.source_of(name),)
        ],
        numeric=("value",),
        optional=("retrieved",),
    )
