"""``gpusonde profile``: compute curve and gradients of a training job, measured with PyTorch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli import wording
from gpusonde.cli.files import check_writable
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command, positive_integer, positive_number

if TYPE_CHECKING:
    from gpusonde.simulator.job_profile import JobProfile

_MEBIBYTE = 1 << 20


def add_profile_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde profile``."""
    parser = add_command(
        subparsers,
        common,
        "profile",
        "time the steps of a PyTorch job and record when its gradients are ready",
        "Time the steps of a PyTorch job at some batch sizes and record when its gradients are ready. JOB is "
        "FILE.py:FUNCTION or MODULE:FUNCTION; the function returns a TrainingJob (docs/planning.md). The job's own "
        "code runs, in this process. Needs torch.",
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
    parser.add_argument("--warm-up", type=positive_integer, default=3, metavar="N", help="steps before them (3)")
    parser.add_argument(
        "--seconds-per-batch", type=positive_number, default=30.0, metavar="S", help="longest time per size (30)"
    )
    parser.add_argument(
        "--bucket-mib", type=positive_number, metavar="M", help="bucket_cap_mb of the job, if it sets it (default: 25)"
    )


def batch_sizes(text: str) -> list[int]:
    """Argument type: whole numbers above zero, separated by commas."""
    return [positive_integer(part) for part in text.split(",")]


def run_profile(args: argparse.Namespace) -> int:
    """Measure, write and print."""
    from gpusonde.simulator.instrument.allreduce_probe import load_job
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
            warm_up=args.warm_up,
            seconds_per_batch=args.seconds_per_batch,
            **buckets,
        )
    found.write(args.out)
    output.result(profile_payload(found, args.out), lambda screen: _render_profile(screen, found, args.out))
    return 0


def profile_payload(found: JobProfile, path: Path) -> dict[str, object]:
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
                wording.number(probe.total_s),
                wording.number(probe.forward_s),
                wording.percent(probe.spread, 1),
            )
            for probe in found.probes
        ],
        numeric=columns,
    )
    screen.line(
        f"gradients: {wording.number(found.gradients.total_bytes / 1e6)} MB in"
        f" {wording.count(int(found.gradients.bucket_bytes.size), 'bucket')}; optimizer"
        f" {wording.seconds(found.optimizer_s)}"
    )
    screen.line(f"written to {path}; name it under job.profiles of a problem file")
