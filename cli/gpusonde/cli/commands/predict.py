"""``gpusonde predict``: epoch latency on other GPUs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli.commands.detect import add_trace_options, read_chosen_trace
from gpusonde.cli.connection import add_collector_options, connect
from gpusonde.cli.errors import error_context
from gpusonde.cli.output import Output
from gpusonde.cli.parsing import Parser, names, positive_number, whole_number
from gpusonde.errors import CommandError, UsageError

if TYPE_CHECKING:
    from gpusonde.catalog import GpuCatalog, GpuSpec
    from gpusonde.cli.measuring import Predictions, SourceRun
    from gpusonde.collector.client import Measurement
    from gpusonde.predictor.crossgpu import LatencyModel, SourceMeasurement

# As catalog.Precision has them.
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "mixed", "fp8")


def add_predict_options(parser: Parser) -> None:
    """Declare ``gpusonde predict``."""
    parser.description = (
        "Predict the epoch latency of a run on other GPUs. The run is a trace file, a row of a runs table, a run that "
        "a collector has seen, or, without any metric, an epoch latency on a GPU (--gpu-model with --epoch-s)."
    )
    parser.add_argument(
        "--targets", type=names, metavar="A,B", help="GPUs to predict for (default: all of the catalogue)"
    )
    run_group = parser.add_argument_group("the run (one of --trace, --runs, --run, and --gpu-model with --epoch-s)")
    run_group.add_argument("--trace", type=Path, metavar="TRACE", help="trace file; its epochs are detected")
    run_group.add_argument("--gpu-model", metavar="SRC", help="GPU of the trace, where the file does not say")
    run_group.add_argument(
        "--epoch-s", type=positive_number, metavar="X", help="seconds per epoch, instead of detecting"
    )
    run_group.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of the job's matrix products and convolutions, where you know it: PyTorch's convolutions are tf32, its "
        "matrix products fp32 (default: taken for tf32, and the answer for fp32 is told where it differs)",
    )
    run_group.add_argument("--runs", type=Path, metavar="RUNS.csv", help="runs table")
    run_group.add_argument("--row", type=whole_number, metavar="N", help="its data row, from 0")
    run_group.add_argument("--run", metavar="ID", help="run of a collector ('gpusonde runs' lists them)")
    add_trace_options(parser)
    model_group = parser.add_argument_group("the model (default: the shipped one)")
    model_group.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="model written by 'gpusonde train'; or a collector's data directory, for the model in service there",
    )
    add_collector_options(parser, default=None)


def run_predict(args: argparse.Namespace) -> int:
    """Predict and print."""
    _check(args)
    output = Output(as_json=args.json)
    predictions = _ask_collector(args) if args.collector is not None else _predict_here(args)
    output.result(predictions.payload(), predictions.render)
    return 0


def _check(args: argparse.Namespace) -> None:
    sources = [name for name in ("trace", "runs", "run") if getattr(args, name) is not None]
    if not sources and args.gpu_model is not None and args.epoch_s is not None:
        sources = ["gpu_model"]
    if len(sources) != 1:
        raise UsageError(
            "give one of --trace TRACE, --runs RUNS.csv with --row N, --run ID with --collector, and --gpu-model SRC "
            "with --epoch-s X"
        )
    belongs = {
        "precision": ("trace", "gpu_model", "run"),
        "gpu_model": ("trace", "gpu_model"),
        "epoch_s": ("trace", "gpu_model"),
        "gpu": ("trace",),
        "gpus": ("trace",),
        "interval_s": ("trace",),
        "row": ("runs",),
    }
    for option, allowed in belongs.items():
        if getattr(args, option) is not None and sources[0] not in allowed:
            raise UsageError(
                f"--{option.replace('_', '-')} belongs to --{allowed[0]}, not to --{sources[0].replace('_', '-')}"
            )
    if args.runs is not None and args.row is None:
        raise UsageError("--runs needs --row N")
    if args.run is not None and args.collector is None:
        raise UsageError("--run needs --collector HOST:PORT")
    if args.model is not None and args.collector is not None:
        raise UsageError("--model and --collector exclude each other: a collector has its own model")


def _source(args: argparse.Namespace, gpus: GpuCatalog) -> SourceRun:
    from gpusonde.cli import measuring

    if args.trace is not None:
        trace = read_chosen_trace(args, args.trace)
        with error_context(args.trace):
            return measuring.from_trace(trace, args.gpu_model, args.epoch_s, gpus, args.precision)
    if args.runs is None:
        return measuring.from_latency(args.gpu_model, args.epoch_s, gpus, args.precision)
    from gpusonde.predictor.crossgpu import read_runs

    table = read_runs(args.runs, gpus=gpus)
    with error_context(args.runs):
        return measuring.from_runs_table(table, args.row)


def _targets(args: argparse.Namespace, gpus: GpuCatalog) -> tuple[list[GpuSpec], list[str]]:
    if args.targets is None:
        return list(gpus.specs), []
    resolutions = [gpus.resolve(name) for name in args.targets]
    notes = [f"{resolution.requested}: {resolution.note}" for resolution in resolutions if resolution.note]
    return [resolution.spec for resolution in resolutions], notes


def _predict_here(args: argparse.Namespace) -> Predictions:
    from gpusonde.catalog import load_gpus
    from gpusonde.cli.measuring import Predictions

    gpus = load_gpus()
    targets, notes = _targets(args, gpus)
    source = _source(args, gpus)
    model, problems = _model(args.model)
    measurement = source.measurement
    return Predictions(
        source_gpu=measurement.gpu.name,
        epoch_latency_s=measurement.epoch_latency_s,
        rows=model.predict(measurement, targets),
        model_version=model.version,
        notes=[*problems, *([source.note] if source.note else []), *notes],
        measured_s=source.measured_s,
    )


def _model(path: Path | None) -> tuple[LatencyModel, list[str]]:
    """The model to ask, and what was wrong with others that should have come before it."""
    from gpusonde.predictor.crossgpu import LatencyModel
    from gpusonde.predictor.crossgpu.learning import MODELS, ModelVersions

    if path is None:
        return LatencyModel.shipped(), []
    if path.is_dir():
        if not any((path / name).exists() for name in (MODELS, "catalog.sqlite")):
            raise CommandError(
                f"{path} is neither a model nor a collector's data directory; name the file or directory"
            )
        return ModelVersions(path / MODELS).in_service()
    return LatencyModel.load(path), []


def _ask_collector(args: argparse.Namespace) -> Predictions:
    from gpusonde.catalog import load_gpus
    from gpusonde.cli.commands.epochs import find_run
    from gpusonde.cli.measuring import from_answer

    gpus = load_gpus()
    targets, notes = _targets(args, gpus)
    names_of_targets = [] if args.targets is None else [spec.name for spec in targets]
    with connect(args) as client:
        if args.run is not None:
            run_id = find_run(client, args.run).run_id
            return from_answer(client.predict_run(run_id, names_of_targets, args.precision or ""), notes)
        source = _source(args, gpus)
        answer = client.predict_measurement(to_wire(source.measurement), names_of_targets)
        return from_answer(answer, [*([source.note] if source.note else []), *notes], source.measured_s)


def to_wire(measurement: SourceMeasurement) -> Measurement:
    """A measurement as a collector takes it."""
    from gpusonde.collector.client import MeasuredMetric, Measurement

    return Measurement(
        gpu_model=measurement.gpu.name,
        epoch_latency_s=measurement.epoch_latency_s,
        metrics={
            name: MeasuredMetric(
                distribution.mean,
                distribution.standard_deviation,
                distribution.minimum,
                distribution.quartile_1,
                distribution.median,
                distribution.quartile_3,
                distribution.maximum,
            )
            for name, distribution in measurement.metrics.items()
        },
        epoch_latency_relative_error=measurement.epoch_latency_relative_error,
        static_attributes=measurement.static_attributes,
        precision=measurement.precision.value if measurement.precision else "",
    )
