"""``gpusonde workload predict``: how long training steps and epochs of networks take, from their graphs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli.connection import add_collector_options
from gpusonde.cli.output import Output
from gpusonde.cli.parsing import Parser, names, positive_integer
from gpusonde.cli.workload.answers import StepsPayload, doubts_about_memory, render_predictions, row
from gpusonde.cli.workload.embed import add_registry_option, registry_of
from gpusonde.cli.workload.remote import predicted_for_hosts, predicted_there
from gpusonde.cli.workload.sources import read_graphs
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from gpusonde.predictor.workload.embedding.registry import Registry
    from gpusonde.predictor.workload.engine import EncoderReference, WorkloadRequest

_PRECISIONS = ("fp32", "fp16", "fp64")
_PARALLELISMS = ("data_parallel", "distributed")
REGRESSORS = ("linear", "polynomial", "svr", "mlp", "boosted_residual")
_DEFAULT_BATCH_SIZE = 32
_MOST_QUESTIONS = 100_000
# As a collector has them (docs/workload.md); more is a slip of the hand.
_LARGEST_BATCH = 1 << 20
_MOST_DEVICES = 100_000
_MOST_SAMPLES = 1 << 50


def add_predict_options(parser: Parser) -> None:
    """Declare ``gpusonde workload predict``."""
    parser.description = (
        "Predict how long training steps of networks take, from their graphs. Several graphs, devices, numbers of "
        "devices and batch sizes are every combination of them, answered at once."
    )
    parser.add_argument(
        "graphs",
        nargs="+",
        metavar="GRAPH",
        help="file of 'gpusonde workload graph', .onnx, .pt2, zoo:NAME or keras:NAME@SIZE",
    )
    group = parser.add_argument_group("what it is to run on")
    group.add_argument("--device", type=names, metavar="A,B", help="GPUs, in any spelling")
    group.add_argument(
        "--devices", type=counts, metavar="A,B", help="how many of them in all (default: 1, or all that the hosts have)"
    )
    group.add_argument("--nodes", type=positive_integer, metavar="N", help="hosts they are in (default: 1)")
    group.add_argument(
        "--hosts",
        type=names,
        default=[],
        metavar="A,B",
        help="hosts of the collector's agents, by name, that share the job: their GPUs (of several models, those of "
        "--device), with what is free of the hosts",
    )
    group.add_argument("--agents", type=names, default=[], metavar="A,B", help="and the hosts of these agents")
    group.add_argument(
        "--parallelism",
        choices=_PARALLELISMS,
        help="how several devices share the job: a process for each with an allreduce, or one process for all, as "
        "nn.DataParallel (default: distributed)",
    )
    group.add_argument("--precision", choices=_PRECISIONS, default="fp32", help="of matrix products (default: fp32)")
    group.add_argument("--environment", metavar="NAME", help="a place of measurement that the model knows")
    group = parser.add_argument_group("how it is trained")
    group.add_argument(
        "--batch-size",
        type=counts,
        default=[_DEFAULT_BATCH_SIZE],
        metavar="A,B",
        help=f"samples per device and step (default: {_DEFAULT_BATCH_SIZE})",
    )
    group.add_argument("--samples-per-epoch", type=positive_integer, metavar="N", help="to say how long an epoch takes")
    group.add_argument("--dataset-type", metavar="NAME", help="use the embedding that was trained on data of this type")
    group = parser.add_argument_group("how it is predicted")
    group.add_argument("--regressor", choices=REGRESSORS, help="instead of the one that validation chose")
    group.add_argument("--model", type=Path, metavar="FILE", help="model of 'gpusonde workload fit' (default: shipped)")
    add_registry_option(group)
    add_collector_options(parser, default=None)


def counts(text: str) -> list[int]:
    """Argument type: whole numbers above zero, separated by commas, none twice."""
    found = [positive_integer(part) for part in text.split(",")]
    if len(set(found)) != len(found):
        raise argparse.ArgumentTypeError(f"{text!r} names a number twice")
    return found


def run_predict(args: argparse.Namespace) -> int:
    """Predict and print."""
    _check(args)
    output = Output(as_json=args.json)
    payload = _predict_here(args) if args.collector is None else _ask_collector(args)
    output.result(payload, lambda screen: render_predictions(screen, payload))
    return 0


def _ask_collector(args: argparse.Namespace) -> StepsPayload:
    if args.hosts or args.agents:
        return predicted_for_hosts(args)
    return predicted_there(args, *_requests(args))


def _check(args: argparse.Namespace) -> None:
    _check_place(args)
    for option, value in (("--model", args.model), ("--registry", args.registry)):
        if value is not None and args.collector is not None:
            raise UsageError(f"{option} and --collector exclude each other: a collector has its own")
    for option, value, most in (
        ("--batch-size", max(args.batch_size), _LARGEST_BATCH),
        ("--devices", max(args.devices or [1]), _MOST_DEVICES),
        ("--samples-per-epoch", args.samples_per_epoch or 0, _MOST_SAMPLES),
    ):
        if value > most:
            raise UsageError(f"{option} {value}: at most {most}")
    asked = len(args.graphs) * len(args.device or [1]) * len(args.devices or [1]) * len(args.batch_size)
    if asked > _MOST_QUESTIONS:
        raise UsageError(f"{asked:,} combinations; {_MOST_QUESTIONS:,} are answered at once")


def _check_place(args: argparse.Namespace) -> None:
    fewest, most = min(args.devices or [1]), max(args.devices or [1])
    if args.hosts or args.agents:
        if args.collector is None:
            raise UsageError("--hosts and --agents belong to --collector, which knows them")
        if args.nodes is not None:
            raise UsageError("--nodes belongs to --device; --hosts are as many as they are")
    elif args.device is None:
        raise UsageError("name GPUs by --device, or --hosts of a --collector")
    elif args.parallelism is not None and most == 1:
        raise UsageError("--parallelism belongs to several devices; give --devices")
    elif (args.nodes or 1) > fewest:
        raise UsageError(f"--nodes {args.nodes}: each host has one of the {fewest} devices at least")


def _predict_here(args: argparse.Namespace) -> StepsPayload:
    from gpusonde.predictor.workload.engine.model import WorkloadModel

    registry = registry_of(args)
    requests, notes = _requests(args)
    model = WorkloadModel.shipped() if args.model is None else WorkloadModel.load(args.model, registry=registry)
    if args.dataset_type is not None:
        notes += _about_embedding(args.dataset_type, model.encoder, registry)
    known = model.state.familiarity.environments
    if args.environment not in (None, *known):
        notes.append(f"environments that the model knows: {', '.join(known) or 'none'}")
    found = model.predict(requests, regressor=args.regressor)
    return {
        "model_version": model.version,
        "notes": notes,
        "predictions": [
            row(request, prediction, args.samples_per_epoch)
            for request, prediction in zip(requests, found, strict=True)
        ],
    }


def _about_embedding(dataset_type: str, used: EncoderReference | None, registry: Registry | None) -> list[str]:
    """What became of the wish for an embedding."""
    from gpusonde.predictor.workload.embedding.registry import Registry, UnknownDatasetTypeError

    if used is not None and used.dataset_type == dataset_type:
        return []
    how = "predicts from counts of the graph alone" if used is None else f"was fitted with {used}"
    try:
        (registry or Registry()).get(dataset_type)
    except UnknownDatasetTypeError as error:
        return [f"{error}; the prediction does without: this model {how}"]
    return [f"the embedding for {dataset_type} is not used: this model {how}"]


def _requests(args: argparse.Namespace) -> tuple[list[WorkloadRequest], list[str]]:
    from gpusonde.catalog import load_gpus
    from gpusonde.predictor.workload.engine import Cluster, Parallelism, Precision, WorkloadRequest

    gpus = load_gpus()
    resolutions = [gpus.resolve(name) for name in args.device]
    notes = [f"{each.requested}: {each.note}" for each in resolutions if each.note]
    graphs = read_graphs(args.graphs)
    for graph in graphs:
        notes += [f"{graph.name}: {note}" for note in graph.notes]
    clusters = [
        Cluster(
            resolution.spec.name,
            count,
            args.nodes or 1,
            Precision(args.precision),
            Parallelism.NONE if count == 1 else Parallelism(args.parallelism or "distributed"),
            args.environment,
        )
        for resolution in resolutions
        for count in args.devices or [1]
    ]
    notes += doubts_about_memory(graphs, [each.spec for each in resolutions], max(args.batch_size))
    requests = [
        WorkloadRequest(graph, batch_size, cluster)
        for graph in graphs
        for cluster in clusters
        for batch_size in args.batch_size
    ]
    return requests, notes
