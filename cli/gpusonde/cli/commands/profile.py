"""``gpusonde profile`` and ``probe``: what a plan needs to know, measured with PyTorch on the user's side.

``profile`` times the steps of a job and records when its gradients are ready; ``probe`` measures what allreduces reach
between machines.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from gpusonde import formatting
from gpusonde.cli.errors import check_writable
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import (
    Parser,
    address,
    positive_integer,
    positive_number,
    whole_number,
)
from gpusonde.errors import ProblemError, UsageError

if TYPE_CHECKING:
    from gpusonde.simulator.allreduce import AllreduceMeasurement
    from gpusonde.simulator.instrument.allreduce_probe import ProbeGrid, Rendezvous
    from gpusonde.simulator.job_profile import JobProfile

_RENDEZVOUS = ("rank", "world_size", "master")


class ReachedPayload(TypedDict):
    """What a network reached among so many processes."""

    world_size: Annotated[int, JsonKey("processes")]
    transfer_bytes: Annotated[float, JsonKey("the largest measured alone")]
    seconds: float
    bus_bits_per_second: float


class ProbePayload(TypedDict):
    """What ``gpusonde probe allreduce`` prints."""

    fabric: str
    written: Annotated[str | None, JsonKey("null on the other ranks")]
    measurements: int
    largest: Annotated[list[ReachedPayload], JsonKey("the best of each number of processes")]


def add_probe_options(parser: Parser) -> None:
    """Declare ``gpusonde probe``."""
    parser.description = (
        "Measure allreduces between the processes of a torch.distributed group. Run it on every machine, with torchrun "
        "or with --rank, --world-size and --master; rank 0 writes the file. Needs torch."
    )
    parser.add_argument("what", choices=["allreduce"], help="what to measure")
    parser.add_argument("--fabric", required=True, metavar="NAME", help="what to call this network; offers refer to it")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write the measurements to")
    parser.add_argument("--backend", default="", metavar="NAME", help="nccl, gloo ... (default: nccl where GPUs are)")
    parser.add_argument("--location", default="", metavar="NAME", help="cloud, region and zone")
    parser.add_argument("--device", default="", metavar="NAME", help="kind of device (default: as torch names it)")
    parser.add_argument(
        "--sizes", type=_whole_numbers, metavar="A,B", help="bytes of a transfer (default: 4 B to 512 MiB)"
    )
    parser.add_argument(
        "--world-sizes", type=_whole_numbers, metavar="A,B", help="measure among the first so many ranks (default: all)"
    )
    group = parser.add_argument_group("without torchrun")
    group.add_argument("--rank", type=whole_number, metavar="R", help="number of this process, from 0")
    group.add_argument("--world-size", type=positive_integer, metavar="N", help="number of processes")
    group.add_argument("--master", type=address, metavar="HOST:PORT", help="where rank 0 listens")


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(positive_integer(part) for part in text.split(","))


def run_probe(args: argparse.Namespace) -> int:
    """Measure, write and print."""
    from gpusonde.service.durable_files import write_durably
    from gpusonde.simulator.allreduce import measurements_to_json
    from gpusonde.simulator.instrument.allreduce_probe import probe_allreduce

    if (os.environ.get("RANK", "0") if args.rank is None else str(args.rank)) == "0":
        check_writable(args.out)
    try:
        grid, rendezvous = _grid(args), _rendezvous(args)
        found = probe_allreduce(
            args.fabric,
            grid,
            rendezvous=rendezvous,
            backend=args.backend,
            location=args.location,
            device=args.device,
        )
    except ProblemError as error:
        raise UsageError(f"--fabric, --location or --device: {error}") from None
    if found:
        write_durably(args.out, measurements_to_json(found).encode())
    Output(as_json=args.json).result(
        probe_payload(args.fabric, found, args.out), lambda screen: _render_probe(screen, found, args.out)
    )
    return 0


def probe_payload(fabric: str, found: Sequence[AllreduceMeasurement], path: Path) -> ProbePayload:
    """What is printed of measurements; of none on the ranks that write nothing."""
    return {
        "fabric": fabric,
        "written": str(path) if found else None,
        "measurements": len(found),
        "largest": [_figures(row) for row in _largest(found)],
    }


def _grid(args: argparse.Namespace) -> ProbeGrid:
    from gpusonde.simulator.instrument.allreduce_probe import ProbeGrid

    chosen = {name: getattr(args, name) for name in ("sizes", "world_sizes") if getattr(args, name) is not None}
    try:
        return ProbeGrid(**chosen)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _rendezvous(args: argparse.Namespace) -> Rendezvous | None:
    from gpusonde.simulator.instrument.allreduce_probe import Rendezvous

    values = [getattr(args, name) for name in _RENDEZVOUS]
    if all(value is None for value in values):
        return None
    if any(value is None for value in values):
        raise UsageError("--rank, --world-size and --master come together; with torchrun leave them out")
    try:
        return Rendezvous(*values)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _largest(found: Sequence[AllreduceMeasurement]) -> list[AllreduceMeasurement]:
    """The largest single transfer of every world size: what a network reaches at best."""
    by_world: dict[int, AllreduceMeasurement] = {}
    for row in found:
        best = by_world.get(row.world_size)
        if row.concurrent == 1 and (best is None or row.transfer_bytes > best.transfer_bytes):
            by_world[row.world_size] = row
    return [by_world[world] for world in sorted(by_world)]


def _figures(row: AllreduceMeasurement) -> ReachedPayload:
    return {
        "world_size": row.world_size,
        "transfer_bytes": row.transfer_bytes,
        "seconds": row.seconds,
        "bus_bits_per_second": 8.0 * row.bus_bytes_per_second,
    }


def _render_probe(screen: Screen, found: Sequence[AllreduceMeasurement], path: Path) -> None:
    if not found:
        screen.line("measured; rank 0 has the measurements")
        return
    columns = ("processes", "largest transfer (MB)", "takes (s)", "bus (GB/s)")
    screen.table(
        columns,
        [
            (
                str(row.world_size),
                formatting.number(row.transfer_bytes / 1e6),
                formatting.number(row.seconds),
                formatting.number(row.bus_bytes_per_second / 1e9),
            )
            for row in _largest(found)
        ],
        numeric=columns,
    )
    screen.line(
        f"{formatting.count(len(found), 'measurement')} written to {path}; "
        "name it under job.allreduce_files of a problem"
    )


_MEBIBYTE = 1 << 20


class ProfilePayload(TypedDict):
    """What ``gpusonde profile`` prints."""

    profile: str
    device: Annotated[str, JsonKey("where the model lies")]
    probes: Annotated[list[dict[str, Any]], JsonKey(holds="gpusonde.simulator.compute.ComputeProbe")]
    gradient_buckets: int
    gradient_bytes: float
    optimizer_s: float
    largest_batch: Annotated[float | None, JsonKey("that fits")]


def add_profile_options(parser: Parser) -> None:
    """Declare ``gpusonde profile``."""
    parser.description = (
        "Time the steps of a PyTorch job at some batch sizes and record when its gradients are ready. JOB is "
        "FILE.py:FUNCTION or MODULE:FUNCTION; the function returns a TrainingJob (docs/planning.md). The job's own "
        "code runs, in this process. Needs torch."
    )
    parser.add_argument("job", metavar="JOB", help="FILE.py:FUNCTION or MODULE:FUNCTION")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write the profile to")
    parser.add_argument(
        "--batch-sizes",
        type=batch_sizes,
        metavar="A,B",
        help="samples per step, two sizes or more (four up to the largest batch)",
    )
    parser.add_argument(
        "--largest-batch",
        type=positive_integer,
        metavar="N",
        help="largest batch that fits in memory (on a GPU: found by trying)",
    )
    parser.add_argument("--steps", type=positive_integer, default=20, metavar="N", help="timed steps per size (20)")
    parser.add_argument(
        "--bucket-mib", type=positive_number, metavar="M", help="bucket_cap_mb of the job, if it sets it (default: 25)"
    )


def batch_sizes(text: str) -> list[int]:
    """Argument type: whole numbers above zero, separated by commas."""
    return [positive_integer(part) for part in text.split(",")]


def run_profile(args: argparse.Namespace) -> int:
    """Measure, write and print."""
    from gpusonde.simulator.instrument.entry_point import load_job
    from gpusonde.simulator.instrument.profile import profile

    output = Output(as_json=args.json)
    check_writable(args.out)
    job = load_job(args.job)
    # Where a job sets its limit, torch uses it for the first bucket too.
    buckets = {}
    if args.bucket_mib is not None:
        limit = max(1, round(args.bucket_mib * _MEBIBYTE))
        buckets = {"bucket_bytes": limit, "first_bucket_bytes": limit}
    with output.progress("timing steps"):
        found = profile(
            job.model,
            job.make_batch,
            job.loss,
            optimizer=job.optimizer,
            batch_sizes=args.batch_sizes,
            largest_batch=args.largest_batch,
            steps=args.steps,
            **buckets,
        )
    found.write(args.out)
    output.result(profile_payload(found, args.out), lambda screen: _render_profile(screen, found, args.out))
    return 0


def profile_payload(found: JobProfile, path: Path) -> ProfilePayload:
    """What is printed of a profile."""
    return {
        "profile": str(path),
        "device": found.device,
        "probes": found.as_json()["probes"],
        "gradient_buckets": int(found.gradients.bucket_bytes.size),
        "gradient_bytes": found.gradients.total_bytes,
        "optimizer_s": found.optimizer_s,
        "largest_batch": found.largest_batch,
    }


def _render_profile(screen: Screen, found: JobProfile, path: Path) -> None:
    screen.heading(f"profile of the job on {found.device}")
    columns = ("batch size", "step (s)", "of that forward (s)", "spread")
    screen.table(
        columns,
        [
            (
                f"{probe.batch_size:g}",
                formatting.number(probe.total_s),
                formatting.number(probe.forward_s),
                formatting.percent(probe.spread, 1),
            )
            for probe in found.probes
        ],
        numeric=columns,
    )
    screen.line(
        f"gradients: {formatting.number(found.gradients.total_bytes / 1e6)} MB in"
        f" {formatting.count(int(found.gradients.bucket_bytes.size), 'bucket')}; optimizer"
        f" {formatting.seconds(found.optimizer_s)}"
    )
    screen.line(f"written to {path}; name it under job.profiles of a problem file")
