"""``gpusonde predict``: epoch latency on other GPUs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli.commands.detect import add_told_options, add_trace_options, detect_job, read_job, warnings_of
from gpusonde.cli.connection import add_collector_options, connect
from gpusonde.cli.errors import check_writable, error_context
from gpusonde.cli.exchange_rates import FORMATS
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import OptionGroup, Parser, add_plot_option, at_most, duration_s, names, whole_number
from gpusonde.errors import CommandError, UsageError

if TYPE_CHECKING:
    from gpusonde.catalog import GpuCatalog
    from gpusonde.cli.measuring import Predictions, SourceRun
    from gpusonde.collector.client import Client, GpuPlacement, Measurement
    from gpusonde.predictor.crossgpu import LatencyModel, SourceMeasurement
    from gpusonde.simulator.parallel import Placement

# As catalog.Precision has them.
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "mixed", "fp8")


def add_predict_options(parser: Parser) -> None:
    """Declare ``gpusonde predict``."""
    parser.description = (
        "Predict the epoch latency of a run on other GPUs. The run is a trace file, a row of a runs table, a run that "
        "a collector has seen, or, without any metric, an epoch latency on a GPU (--gpu-model with --epoch-s)."
    )
    parser.add_argument(
        "--targets",
        type=names,
        metavar="A,B",
        help="GPUs to predict for (default: all of the catalogue), as many as the run has or 4xA, 2x8xB on two hosts",
    )
    add_matrix_option(parser)
    add_plot_option(parser, "the predictions with their intervals")
    add_run_options(parser, "the run (one of --trace, --runs, --run, --job, and --gpu-model with --epoch-s)")
    model_group = parser.add_argument_group("the model (default: the shipped one)")
    model_group.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="model written by 'gpusonde train'; or a collector's data directory, for the model in service there",
    )
    add_collector_options(parser, default=None)


def add_run_options(parser: Parser, title: str) -> None:
    """Declare what a prediction starts from; ``check_run`` says what goes together."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--trace",
        type=Path,
        action="append",
        metavar="TRACE",
        help="trace file, - for stdin; its epochs are detected (repeatable: the GPUs of one job)",
    )
    add_gpu_options(group)
    group.add_argument("--runs", type=Path, metavar="RUNS.csv", help="runs table")
    group.add_argument("--row", type=whole_number, metavar="N", help="its data row, from 0")
    group.add_argument("--run", metavar="ID", help="run of a collector ('gpusonde runs' lists them)")
    group.add_argument("--job", metavar="ID", help="job of a collector ('gpusonde jobs' lists them)")
    add_trace_options(parser, every="; all for one job on all")
    add_told_options(parser.add_argument_group("the cycles of the trace"))


def add_gpu_options(group: OptionGroup) -> None:
    """Declare what a trace does not say of itself."""
    group.add_argument(
        "--gpu-model",
        metavar="SRC",
        help="GPU of the trace, where the file does not say; 8xSRC or 2x8xSRC for a job on several",
    )
    group.add_argument(
        "--epoch-s",
        type=at_most(duration_s, 366 * 86_400.0, "366 days"),
        metavar="TIME",
        help="seconds per epoch, instead of detecting",
    )
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of the job's matrix products and convolutions, where you know it: PyTorch's convolutions are tf32, its "
        "matrix products fp32 (default: taken for tf32, and the answer for fp32 is told where it differs)",
    )


def add_matrix_option(parser: Parser) -> None:
    """Declare ``--matrix``."""
    parser.add_argument(
        "--matrix",
        nargs="?",
        const="table",
        choices=FORMATS,
        metavar="FORM",
        help="instead of times how many of each GPU replace one of another: a table, csv, kueue (what 'gpusonde tell "
        "kueue' annotates) or slurm (TRESBillingWeights)",
    )


def run_predict(args: argparse.Namespace) -> int:
    """Predict and print."""
    check_run(args)
    check_writable(args.plot)
    output = Output(as_json=args.json)
    predictions, _ = predict_run_of(args, output)
    payload = predictions.payload()
    if args.plot is not None:
        predictions.draw(args.plot)
    rates = None if args.matrix is None else predictions.exchange_rates()
    payload["exchange_rates"] = None if rates is None else rates.payload()

    def render(screen: Screen) -> None:
        if rates is None:
            predictions.render(screen)
        else:
            for note in predictions.notes if args.matrix == "table" else ():
                screen.note(f"note: {note}")
            rates.render(screen, args.matrix)
        if args.plot is not None and args.matrix in (None, "table"):
            screen.line(f"picture: {args.plot}")

    output.result(payload, render)
    return 0


def check_run(args: argparse.Namespace, used: Sequence[str] = ()) -> None:
    """Check that one run is named, and what goes with it; options in ``used`` go with every run.

    Raises:
        UsageError: It is not so.
    """
    sources = [name for name in ("trace", "runs", "run", "job") if getattr(args, name) is not None]
    if not sources and args.gpu_model is not None and args.epoch_s is not None:
        sources = ["gpu_model"]
    if len(sources) != 1:
        raise UsageError(
            "give one of --trace TRACE, --runs RUNS.csv with --row N, --run ID or --job ID with --collector, and "
            "--gpu-model SRC with --epoch-s X"
        )
    belongs = {
        "gpu_model": ("trace", "gpu_model"),
        "epoch_s": ("trace", "gpu_model"),
        "gpu": ("trace",),
        "gpus": ("trace",),
        "interval_s": ("trace",),
        "column": ("trace",),
        "total_epochs": ("trace",),
        "steps_per_epoch": ("trace",),
        "role": ("trace",),
        "row": ("runs",),
    }
    for option, allowed in belongs.items():
        if getattr(args, option) not in (None, []) and sources[0] not in allowed and option not in used:
            raise UsageError(
                f"--{option.replace('_', '-')} belongs to --{allowed[0]}, not to --{sources[0].replace('_', '-')}"
            )
    if args.runs is not None and args.row is None:
        raise UsageError("--runs needs --row N")
    if sources[0] in ("run", "job") and args.collector is None:
        raise UsageError(f"--{sources[0]} needs --collector HOST:PORT")
    if args.model is not None and args.collector is not None:
        raise UsageError("--model and --collector exclude each other: a collector has its own model")


def _source(args: argparse.Namespace, gpus: GpuCatalog, output: Output) -> SourceRun:
    from gpusonde.cli import measuring

    if args.trace is not None:
        job = read_job(args)
        with error_context(args.trace[0]):
            found = measuring.from_traces(
                job, args.gpu_model, args.epoch_s, gpus, args.precision, lambda: detect_job(args, job, output)
            )
        return replace(found, notes=[*warnings_of(job, found.detection), *found.notes])
    if args.runs is None:
        return measuring.from_latency(args.gpu_model, args.epoch_s, gpus, args.precision)
    from gpusonde.predictor.crossgpu import read_runs

    table = read_runs(args.runs, gpus=gpus)
    with error_context(args.runs):
        return measuring.from_runs_table(table, args.row, args.precision)


def _targets(args: argparse.Namespace, gpus: GpuCatalog) -> tuple[list[Placement], list[str]]:
    from gpusonde.simulator.parallel import Placement

    if args.targets is None:
        return [Placement(spec, counted=False) for spec in gpus.specs], []
    placed = [(text, *Placement.parse(text, gpus)) for text in args.targets]
    notes = [f"{text}: {note}" for text, _, note in placed if note]
    # Two names of one GPU are one row.
    return list(dict.fromkeys(target for _, target, _ in placed)), notes


def predict_run_of(
    args: argparse.Namespace, output: Output, targets: Sequence[Placement] | None = None
) -> tuple[Predictions, SourceRun | None]:
    """Predict the run that the options of ``add_run_options`` name, here or at the collector of ``args``.

    Args:
        args: With ``targets`` and ``model`` besides.
        output: Where progress is shown.
        targets: What to predict for, in place of ``args.targets``.

    Returns:
        The predictions, and what they start from; None where only the collector knows that.
    """
    from gpusonde.catalog import load_gpus

    gpus = load_gpus()
    chosen, notes = _targets(args, gpus) if targets is None else (list(targets), [])
    if args.collector is not None:
        is_default = targets is None and args.targets is None
        return _ask_collector(args, gpus, output, [] if is_default else chosen, notes)
    source = _source(args, gpus, output)
    return predict_here(source, chosen, args.model, notes), source


def predict_here(
    source: SourceRun, targets: Sequence[Placement], model_path: Path | None, notes: Sequence[str] = ()
) -> Predictions:
    """Predict with a model of this machine, the shipped one without a path."""
    from gpusonde.catalog import load_offers
    from gpusonde.cli.measuring import Predictions
    from gpusonde.simulator.parallel import ParallelPredictor, Placement

    model, problems = _model(model_path)
    measurement = source.measurement
    here = source.here or Placement(measurement.gpu)
    offers = load_offers().all if any(each.gpus_per_host > 1 for each in (here, *targets)) else ()
    return Predictions(
        source_gpu=measurement.gpu.name,
        epoch_latency_s=measurement.epoch_latency_s,
        rows=ParallelPredictor(offers).predict(model, measurement, here, targets),
        model_version=model.version,
        notes=[*problems, *source.notes, *notes],
        measured_s=source.measured_s,
        source_gpu_count=here.gpu_count,
        source_host_count=here.host_count,
        noun=source.noun,
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


def _ask_collector(
    args: argparse.Namespace, gpus: GpuCatalog, output: Output, targets: Sequence[Placement], notes: Sequence[str]
) -> tuple[Predictions, SourceRun | None]:
    from gpusonde.cli.measuring import from_answer
    from gpusonde.cli.runs_view import noun_of

    names_of_targets = [target.gpu.name for target in targets]
    placements = [_place_on_wire(target) for target in targets]
    with connect(args) as client:
        if args.run is not None or args.job is not None:
            run_id = run_id_of(args, client)
            answer = client.predict_run(run_id, names_of_targets, args.precision or "", placements=placements)
            return from_answer(answer, notes, noun=noun_of(client.list_epochs(run_id).role)), None
        source = _source(args, gpus, output)
        here = None if source.here is None else _place_on_wire(source.here)
        answer = client.predict_measurement(
            to_wire(source.measurement), names_of_targets, here=here, placements=placements
        )
        return from_answer(answer, [*source.notes, *notes], source.measured_s, source.noun), source


def run_id_of(args: argparse.Namespace, client: Client) -> str:
    """Return the run that ``--run`` names, or one of the job that ``--job`` names.

    Raises:
        CommandError: There is none.
    """
    from gpusonde.cli.commands.epochs import find_run

    if args.run is not None:
        return find_run(client, args.run).run_id
    runs = [member.run_id for job in client.list_jobs(job_id=args.job) for member in job.members if member.run_id]
    if not runs:
        raise CommandError(f"the collector knows no run of a job {args.job!r} ('gpusonde jobs' lists them)")
    return runs[0]


def _place_on_wire(placement: Placement) -> GpuPlacement:
    from gpusonde.collector.client import GpuPlacement

    return GpuPlacement(
        placement.gpu_count if placement.counted else 0,
        placement.host_count if placement.counted else 0,
        placement.link,
        placement.network_bytes_per_second,
        placement.batch_per_gpu,
    )


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
