"""``gpusonde workload predict``: how long training steps and epochs of networks take, from their graphs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusonde.cli.connection import add_collector_options, client_security
from gpusonde.cli.output import Output
from gpusonde.cli.parsing import Parser, Subparsers, UsageError, add_command, names, positive_integer
from gpusonde.cli.workload.answers import render_predictions, row
from gpusonde.cli.workload.sources import named_graphs

if TYPE_CHECKING:
    from gpusonde.predictor.workload.engine import WorkloadPrediction, WorkloadRequest

_PRECISIONS = ("fp32", "fp16", "fp64")
_PARALLELISMS = ("data_parallel", "distributed")
REGRESSORS = ("linear", "polynomial", "svr", "mlp", "boosted_residual")
_DEFAULT_BATCH_SIZE = 32
_MOST_QUESTIONS = 100_000
# As a collector has them (docs/workload.md); more is a slip of the hand.
_LARGEST_BATCH = 1 << 20
_MOST_DEVICES = 100_000
_MOST_SAMPLES = 1 << 50


def add_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde workload predict``."""
    parser = add_command(
        subparsers,
        common,
        "predict",
        "predict how long training steps of networks take",
        "Predict how long training steps of networks take, from their graphs. Several graphs, devices, numbers of "
        "devices and batch sizes are every combination of them, answered at once.",
    )
    parser.add_argument(
        "graphs",
        nargs="+",
        metavar="GRAPH",
        help="file of 'gpusonde workload graph', .onnx, .pt2, zoo:NAME or keras:NAME@SIZE",
    )
    group = parser.add_argument_group("what it is to run on")
    group.add_argument("--device", type=names, required=True, metavar="A,B", help="GPUs, in any spelling")
    group.add_argument(
        "--devices", type=counts, default=[1], metavar="A,B", help="how many of them in all (default: 1)"
    )
    group.add_argument("--nodes", type=positive_integer, default=1, metavar="N", help="hosts they are in (default: 1)")
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
    add_collector_options(parser, default=None)


def counts(text: str) -> list[int]:
    """Argument type: whole numbers above zero, separated by commas, none twice."""
    found = [positive_integer(part) for part in text.split(",")]
    if len(set(found)) != len(found):
        raise argparse.ArgumentTypeError(f"{text!r} names a number twice")
    return found


def run(args: argparse.Namespace) -> int:
    """Predict and print."""
    _check(args)
    output = Output(as_json=args.json)
    payload = _ask_collector(args) if args.collector is not None else _predict_here(args)
    output.result(payload, lambda screen: render_predictions(screen, payload))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.parallelism is not None and max(args.devices) == 1:
        raise UsageError("--parallelism belongs to several devices; give --devices")
    if args.nodes > min(args.devices):
        raise UsageError(f"--nodes {args.nodes}: each host has one of the {min(args.devices)} devices at least")
    if args.model is not None and args.collector is not None:
        raise UsageError("--model and --collector exclude each other: a collector has its own model")
    for option, value, most in (
        ("--batch-size", max(args.batch_size), _LARGEST_BATCH),
        ("--devices", max(args.devices), _MOST_DEVICES),
        ("--samples-per-epoch", args.samples_per_epoch or 0, _MOST_SAMPLES),
    ):
        if value > most:
            raise UsageError(f"{option} {value}: at most {most}")
    asked = len(args.graphs) * len(args.device) * len(args.devices) * len(args.batch_size)
    if asked > _MOST_QUESTIONS:
        raise UsageError(f"{asked:,} combinations; {_MOST_QUESTIONS:,} are answered at once")


def _predict_here(args: argparse.Namespace) -> dict[str, Any]:
    from gpusonde.predictor.workload.engine.model import WorkloadModel

    requests, notes = _requests(args)
    model = WorkloadModel.shipped() if args.model is None else WorkloadModel.load(args.model)
    if args.dataset_type is not None:
        notes.append(_about_embedding(args.dataset_type))
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


def _about_embedding(dataset_type: str) -> str:
    from gpusonde.predictor.workload.embedding.registry import Registry, UnknownDatasetTypeError

    try:
        Registry().get(dataset_type)
    except UnknownDatasetTypeError as error:
        return f"{error}; the prediction does without"
    return f"the embedding for {dataset_type} is not used: this model predicts from counts of the graph alone"


def _requests(args: argparse.Namespace) -> tuple[list[WorkloadRequest], list[str]]:
    from gpusonde.catalog import load_gpus
    from gpusonde.predictor.workload.engine import Cluster, Parallelism, Precision, WorkloadRequest
    from gpusonde.simulator.compute.graph_estimates import largest_batch_estimate

    gpus = load_gpus()
    resolutions = [gpus.resolve(name) for name in args.device]
    notes = [f"{each.requested}: {each.note}" for each in resolutions if each.note]
    graphs = named_graphs(args.graphs)
    for graph in graphs:
        notes += [f"{graph.name}: {note}" for note in graph.notes]
    clusters = [
        Cluster(
            resolution.spec.name,
            count,
            args.nodes,
            Precision(args.precision),
            Parallelism.NONE if count == 1 else Parallelism(args.parallelism or "distributed"),
            args.environment,
        )
        for resolution in resolutions
        for count in args.devices
    ]
    notes += [
        f"batches above {most} of {graph.name} probably do not fit into the memory of {resolution.spec.name}"
        if most
        else f"no batch of {graph.name} probably fits into the memory of {resolution.spec.name}"
        for graph in graphs
        for resolution in resolutions
        if (most := largest_batch_estimate(graph, resolution.spec.memory_bytes)) < max(args.batch_size)
    ]
    requests = [
        WorkloadRequest(graph, batch_size, cluster)
        for graph in graphs
        for cluster in clusters
        for batch_size in args.batch_size
    ]
    return requests, notes


def _ask_collector(args: argparse.Namespace) -> dict[str, Any]:
    """The same from a collector, which gets graphs as JSON, whatever files they come from: no weights leave here."""
    from gpusonde.collector.workload.client import WorkloadClient
    from gpusonde.predictor.workload.graph import dump_graph

    requests, notes = _requests(args)
    # One object for each graph: it is sent once.
    sent = {
        id(request.graph): {"content": dump_graph(request.graph).encode(), "format": "json"} for request in requests
    }
    more = {"regressor": args.regressor, "dataset_type": args.dataset_type, "samples_per_epoch": args.samples_per_epoch}
    workloads = [
        {
            "graph": sent[id(request.graph)],
            "batch_size": request.batch_size,
            "cluster": _cluster(request),
            **{key: value for key, value in more.items() if value is not None},
        }
        for request in requests
    ]
    with WorkloadClient(args.collector, security=client_security(args)) as client:
        answers = client.predict(workloads)
    rows = []
    for request, answer in zip(requests, answers, strict=True):
        found, error = answer["prediction"], answer["error"]
        rows.append(row(request, _prediction(found), args.samples_per_epoch, None if error is None else error["text"]))
        if found is not None and (embedding := found["embedding"]) is not None and embedding["note"]:
            notes.append(embedding["note"])
    return {"model_version": None, "notes": list(dict.fromkeys(notes)), "predictions": rows}


def _cluster(request: WorkloadRequest) -> dict[str, Any]:
    cluster = request.cluster
    return {
        "device": cluster.device,
        "device_count": cluster.device_count,
        "node_count": cluster.node_count,
        "precision": cluster.precision.value,
        "parallelism": cluster.parallelism.value,
        **({} if cluster.environment is None else {"environment": cluster.environment}),
    }


def _prediction(found: dict[str, Any] | None) -> WorkloadPrediction | None:
    from gpusonde.predictor.workload.engine import WorkloadPrediction

    if found is None:
        return None
    seconds = found["iteration_seconds"]
    return WorkloadPrediction(
        seconds["value"],
        seconds["low"],
        seconds["high"],
        found["coverage"],
        found["regressor"],
        found["features"],
        found["out_of_distribution"],
        tuple(found["reasons"]),
        tuple((near["name"], near["similarity"]) for near in found["nearest"]),
    )
