"""``gpusonde workload predict``: how long training steps and epochs of networks take, from their graphs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli.commands.predict import PRECISIONS, add_matrix_option
from gpusonde.cli.connection import add_collector_options
from gpusonde.cli.exchange_rates import ExchangeRates
from gpusonde.cli.output import Output
from gpusonde.cli.parsing import Parser, names, positive_integer
from gpusonde.cli.workload.answers import StepsPayload, render_predictions, row
from gpusonde.cli.workload.remote import predict_for_hosts, predict_there
from gpusonde.cli.workload.sources import read_graphs
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from gpusonde.predictor.workload.engine import WorkloadRequest

_PARALLELISMS = ("data_parallel", "distributed")
_OPTIMIZERS = ("sgd", "momentum", "adamw")
REGRESSORS = ("linear", "polynomial", "svr", "mlp", "boosted_residual")
_DEFAULT_BATCH_SIZE = 32
_MOST_QUESTIONS = 100_000
# As a collector has them (docs/workload.md); more is a slip of the hand.
_LARGEST_BATCH = 1 << 20
_MOST_GPUS = 100_000
_MOST_SAMPLES = 1 << 50


def add_predict_options(parser: Parser) -> None:
    """Declare ``gpusonde workload predict``."""
    parser.description = (
        "Predict how long training steps of networks take, from their graphs. Several graphs, GPU models, numbers "
        "of GPUs and batch sizes are every combination of them, answered at once."
    )
    parser.add_argument(
        "graphs",
        nargs="+",
        metavar="GRAPH",
        help="file of 'gpusonde workload graph', .onnx, .pt2, config.json, zoo:NAME or keras:NAME@SIZE",
    )
    add_matrix_option(parser)
    group = parser.add_argument_group("what it is to run on")
    group.add_argument(
        "--target-gpus",
        type=names,
        metavar="A,B",
        help="GPU models, in any spelling; 8xA, 2x8xA@400gbit on two hosts, 4xA@pcie instead of --gpus and --machines",
    )
    group.add_argument(
        "--gpus", type=counts, metavar="A,B", help="how many GPUs in all (default: 1, or all that the hosts have)"
    )
    group.add_argument(
        "--machines", type=positive_integer, metavar="N", help="machines that they are spread over (default: 1)"
    )
    group.add_argument(
        "--hosts",
        type=names,
        default=[],
        metavar="A,B",
        help="hosts of the collector's agents, by name, that share the job: their GPUs (of several models, those of "
        "--target-gpus), with what is free of the hosts",
    )
    group.add_argument(
        "--parallelism",
        choices=_PARALLELISMS,
        help="how several GPUs share the job: a process for each with an allreduce, or one process for all, as "
        "nn.DataParallel (default: distributed)",
    )
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="fp32 has convolutions in TF32 where the GPU can, as PyTorch; tf32 matrix products too (default: fp32)",
    )
    group.add_argument("--channels-last", action="store_true", help="images have their channels innermost (NHWC)")
    group.add_argument(
        "--graph-launch",
        action="store_true",
        help="kernels are started by an executor of graphs (TensorFlow, MXNet, JAX, TorchScript, CUDA graphs), not one "
        "by one from Python",
    )
    group.add_argument("--environment", metavar="NAME", help="framework and host that the model was measured with")
    group = parser.add_argument_group("how it is trained")
    group.add_argument(
        "--batch-size",
        type=counts,
        default=[_DEFAULT_BATCH_SIZE],
        metavar="A,B",
        help=f"samples per GPU and step (default: {_DEFAULT_BATCH_SIZE})",
    )
    group.add_argument(
        "--optimizer",
        choices=_OPTIMIZERS,
        default="adamw",
        help="what updates the weights: it counts for the memory, not for the time (default: adamw)",
    )
    group.add_argument("--samples-per-epoch", type=positive_integer, metavar="N", help="to say how long an epoch takes")
    group.add_argument(
        "--dataset-type", metavar="NAME", help="with --collector: what the data are like, to have an embedding trained"
    )
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


def run_predict(args: argparse.Namespace) -> int:
    """Predict and print; exit code 1 if nothing could be predicted."""
    _check(args)
    output = Output(as_json=args.json)
    payload = _predict_here(args) if args.collector is None else _ask_collector(args)
    if args.matrix is None:
        output.result(payload, lambda screen: render_predictions(screen, payload))
        return 0 if any(each["error"] is None for each in payload["predictions"]) else 1
    rates = ExchangeRates.from_steps(payload["predictions"])
    payload["exchange_rates"] = rates.payload()
    output.result(payload, lambda screen: rates.render(screen, args.matrix))
    return 0


def _ask_collector(args: argparse.Namespace) -> StepsPayload:
    if args.hosts:
        return predict_for_hosts(args)
    return predict_there(args, *_make_requests(args))


def _check(args: argparse.Namespace) -> None:
    _check_cluster(args)
    if args.model is not None and args.collector is not None:
        raise UsageError("--model and --collector exclude each other: a collector has its own")
    if args.channels_last and args.collector is not None:
        raise UsageError("--channels-last belongs to a model here; a collector answers for channels first")
    if args.graph_launch and args.collector is not None:
        raise UsageError("--graph-launch belongs to a model here; a collector answers for launches from Python")
    if args.dataset_type is not None and args.collector is None:
        raise UsageError(
            "--dataset-type belongs to --collector; a model here has the embedding that it was fitted with"
        )
    for option, value, most in (
        ("--batch-size", max(args.batch_size), _LARGEST_BATCH),
        ("--gpus", max(args.gpus or [1]), _MOST_GPUS),
        ("--samples-per-epoch", args.samples_per_epoch or 0, _MOST_SAMPLES),
    ):
        if value > most:
            raise UsageError(f"{option} {value}: at most {most}")
    asked = len(args.graphs) * len(args.target_gpus or [1]) * len(args.gpus or [1]) * len(args.batch_size)
    if asked > _MOST_QUESTIONS:
        raise UsageError(f"{asked:,} combinations; {_MOST_QUESTIONS:,} are answered at once")


def _check_cluster(args: argparse.Namespace) -> None:
    fewest, most = min(args.gpus or [1]), max(args.gpus or [1])
    if args.hosts:
        if args.collector is None:
            raise UsageError("--hosts belongs to --collector, which knows them")
        if args.machines is not None:
            raise UsageError("--machines belongs to --target-gpus; --hosts are as many as they are")
    elif args.target_gpus is None:
        raise UsageError("name GPU models by --target-gpus, or --hosts of a --collector")
    elif args.parallelism is not None and most == 1 and not any("x" in each for each in args.target_gpus):
        raise UsageError("--parallelism belongs to several GPUs; give --gpus")
    elif (args.machines or 1) > fewest:
        raise UsageError(f"--machines {args.machines}: each has one of the {fewest} GPUs at least")


def _predict_here(args: argparse.Namespace) -> StepsPayload:
    from gpusonde.predictor.workload.engine import WorkloadModel
    from gpusonde.simulator.steps import DataParallelModel

    requests, notes = _make_requests(args)
    model = WorkloadModel.shipped() if args.model is None else WorkloadModel.load(args.model)
    known = model.state.ood_detector.environments
    if args.environment not in (None, *known):
        notes.append(f"environments that the model knows: {', '.join(known) or 'none'}")
    found = DataParallelModel(model).predict(requests, regressor=args.regressor)
    return {
        "model_version": model.version,
        "notes": notes,
        "predictions": [
            row(request, prediction, args.samples_per_epoch)
            for request, prediction in zip(requests, found, strict=True)
        ],
        "exchange_rates": None,
    }


def _make_requests(args: argparse.Namespace) -> tuple[list[WorkloadRequest], list[str]]:
    from gpusonde.catalog import Precision, load_gpus
    from gpusonde.predictor.workload.engine import Cluster, Optimizer, Parallelism, WorkloadRequest
    from gpusonde.simulator.parallel import Placement

    gpus = load_gpus()
    placed = [(name, *Placement.parse(name, gpus)) for name in args.target_gpus]
    notes = [f"{name}: {note}" for name, _, note in placed if note]
    graphs = read_graphs(args.graphs)
    for graph in graphs:
        notes += [f"{graph.name}: {note}" for note in graph.notes]
    clusters = [
        Cluster(
            place.gpu.name,
            count,
            place.host_count if place.counted else args.machines or 1,
            Precision(args.precision),
            Parallelism.NONE if count == 1 else Parallelism(args.parallelism or "distributed"),
            args.environment,
            channels_last=args.channels_last,
            graph_launch=args.graph_launch,
            link=place.link,
            network_bytes_per_second=place.network_bytes_per_second,
        )
        for _, place, _ in placed
        for count in ([place.gpu_count] if place.counted else args.gpus or [1])
    ]
    requests = [
        WorkloadRequest(graph, batch_size, cluster, Optimizer(args.optimizer))
        for graph in graphs
        for cluster in clusters
        for batch_size in args.batch_size
    ]
    return requests, notes
