"""Real training with torch's DistributedDataParallel over shaped links, and what the simulator said before.

Needs root, iproute2 and torch.

Real: autograd, torch's reducer with buckets of 1 MiB, gloo, TCP between network namespaces (what each machine sends
shaped to 50 or 100 Mbit/s), SGD with momentum over 4.7 MB of parameters. Emulated: computation, by layers that sleep
(forward 20 ms + 1 ms per sample, backward twice that). Known beforehand: the profile of each kind of device
(``gpusonde profile``) at batch sizes 8, 24, 80 and 240, and medians of five or more allreduces (``gpusonde probe
allreduce``) of 4 to 2,048 KiB in the same world, alone and two at a time. Asked: batch sizes 16, 48, 120 and 200 per
device. Measured: the median of 6 iterations after 3 (of 12 with scattering steps), on the slowest rank; taken again,
up to three times, where they scatter by 10 % or more, then left out. Default: the iteration simulator with max-min
sharing of what two transfers of the largest probed size reach together. APM: straight line through the same profile,
rated bandwidth, full overlap. The seed's rules: its piecewise linear curve and sharing, no optimizer step. No
overlap: straight line, then the exchange at rated bandwidth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from page import NotRunError, bar, percent, table
from shaped_network import ShapedNetwork, ShapedNetworkError
from simulator_baselines import ApmGroup, apm_iteration_s

from gpusonde.simulator.allreduce import AllreduceMeasurement, AllreduceModel
from gpusonde.simulator.communication import BandwidthSharing, SharingRule
from gpusonde.simulator.compute import CurveKind
from gpusonde.simulator.gradients import ring_traffic_bytes
from gpusonde.simulator.iteration import DeviceGroup, IterationEstimate, IterationSimulator
from gpusonde.simulator.job_profile import JobProfile

BUCKET_BYTES = 1 << 20
PROFILED_BATCHES = (8, 24, 80, 240)
ASKED_BATCHES = (16, 48, 120, 200)
TRANSFER_BYTES = (4 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20)
_GLOO_IN_FLIGHT = 2
_MOST_SCATTER = 0.1
_SLOW = 1.6
_NOISE = 0.1
_RANK = Path(__file__).with_name("ddp_rank.py")
_PATIENCE_S = 900.0


@dataclass(frozen=True)
class Device:
    """An emulated device: how slow it is, and how much its steps scatter."""

    slowness: float
    noise: float


@dataclass(frozen=True)
class Configuration:
    """Devices that train together."""

    name: str
    slowness: tuple[float, ...]
    noise: float
    iterations: int

    @property
    def devices(self) -> tuple[Device, ...]:
        """The device of every rank."""
        return tuple(Device(each, self.noise) for each in self.slowness)


@dataclass(frozen=True)
class Run:
    """One measured configuration and batch size, and what was said about it, seconds."""

    megabits: float
    world_size: int
    configuration: str
    batch_size: int
    measured_s: float
    scatter: float
    tries: int
    said_s: dict[str, float]

    def error(self, method: str) -> float:
        """Relative error of a method."""
        return abs(self.said_s[method] / self.measured_s - 1.0)


def configurations(world_size: int) -> list[Configuration]:
    """Alike, unlike and scattering devices."""
    half = world_size // 2
    return [
        Configuration("alike", (1.0,) * world_size, 0.0, 6),
        Configuration(f"half of them {_SLOW} times as slow", (1.0,) * half + (_SLOW,) * half, 0.0, 6),
        Configuration(f"steps scatter by {percent(_NOISE, 0)}", (1.0,) * world_size, _NOISE, 12),
    ]


def section(args: argparse.Namespace) -> list[str]:
    """Real training over a shaped network."""
    load_before = os.getloadavg()[0]
    links = [(100.0, 2)] if args.quick else [(rate, world) for world in (2, 4) for rate in (50.0, 100.0)]
    # The noisy configuration needs many iterations.
    chosen = {world: configurations(world)[: 2 if args.quick else 3] for _, world in links}
    asked = ASKED_BATCHES[:2] if args.quick else ASKED_BATCHES
    if os.geteuid() != 0:
        raise NotRunError("needs root, for network namespaces")
    devices = {device for each in chosen.values() for one in each for device in one.devices}
    profiles = {device: profile_of(device, 3 if args.quick else None) for device in devices}
    runs = []
    for megabits, world_size in links:
        runs += measure(megabits, world_size, chosen[world_size], asked, profiles)
    kept = [run for run in runs if run.scatter < _MOST_SCATTER]
    if not kept:
        raise NotRunError(f"all {len(runs)} iteration times scattered by more than {percent(_MOST_SCATTER, 0)}")
    methods = list(kept[0].said_s)[:-1]  # not the computation alone
    means = {method: float(np.mean([run.error(method) for run in kept])) for method in methods}
    ours, apm = (means[method] for method in methods[:2])
    bar(args, "real DDP over shaped links, 2 and 4 ranks", "<= 5 %, below APM",
        f"{percent(ours)}, APM {percent(apm)}", met=ours <= 0.05 and ours < apm)  # fmt: skip
    names = list(dict.fromkeys(run.configuration for run in kept))
    rows = []
    for key in dict.fromkeys((run.world_size, run.megabits) for run in kept):
        beside = [run for run in kept if (run.world_size, run.megabits) == key]
        seconds = [run.measured_s for run in beside]
        groups = [[run for run in beside if run.configuration == name] for name in names]
        rows.append(
            (
                f"{key[0]} ranks, {key[1]:.0f} Mbit/s",
                f"{min(seconds):.2f} to {max(seconds):.2f} s",
                *(" / ".join(_mean_error(group, method) for method in methods[:2]) for group in groups),
            )
        )
    below = np.mean([run.said_s[methods[0]] < run.measured_s for run in kept])
    worst = max(run.error(methods[0]) for run in kept)
    text = (
        f"{len(kept)} of {len(runs)} kept, {sum(run.tries > 1 for run in kept)} of them after a repetition. The load "
        f"average was {load_before:.1f} before and {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores. The "
        f"default's worst error is {percent(worst)}; {percent(float(below), 0)} of its estimates are below the "
        f"measurement. Others: {'; '.join(f'{method} {percent(means[method])}' for method in methods[2:])}. Behind one "
        "shaped link any sharing that keeps it busy takes equally long, so this does not tell the default's rules from "
        f"the seed's. By devices, {' / '.join(methods[:2])}:"
    )
    columns = ("links", "iterations", *names)
    return ["## Real training over a shaped network", "", text, "", *table(columns, rows)]


def _mean_error(runs: Sequence[Run], method: str) -> str:
    return percent(float(np.mean([run.error(method) for run in runs]))) if runs else "-"


def profile_of(device: Device, steps: int | None = None, batch_sizes: Sequence[int] = PROFILED_BATCHES) -> JobProfile:
    """Profile an emulated device as a user would."""
    # Only here: the module imports torch.
    from emulated_job import job

    from gpusonde.simulator.instrument.profile import profile

    of = job(device.slowness, device.noise)
    return profile(
        of.model, of.make_batch, of.loss, optimizer=of.optimizer, batch_sizes=batch_sizes,
        steps=steps or (20 if device.noise else 10), bucket_bytes=BUCKET_BYTES, first_bucket_bytes=BUCKET_BYTES,
    )  # fmt: skip


def measure(
    megabits: float,
    world_size: int,
    chosen: Sequence[Configuration],
    batch_sizes: Sequence[int],
    profiles: dict[Device, JobProfile],
) -> list[Run]:
    """Train on machines with such links, and say beforehand how long an iteration takes."""
    task = {
        "address": ShapedNetwork.address(0),
        "world_size": world_size,
        "transfer_bytes": TRANSFER_BYTES,
        "bucket_bytes": BUCKET_BYTES,
        "warm_up": 3,
        "most_scatter": _MOST_SCATTER,
        "batch_sizes": list(batch_sizes),
        "configurations": [vars(each) for each in chosen],
    }
    found = run_ranks(task, megabits)
    measurements = [AllreduceMeasurement(**each) for each in found["allreduces"]]
    return [
        Run(
            megabits, world_size, configuration.name, timed["batch_size"], statistics.median(timed["seconds"]),
            timed["scatter"], timed["tries"],
            say(configuration, timed["batch_size"], profiles, measurements, megabits),
        )
        for configuration, batches in zip(chosen, found["iterations"], strict=True)
        for timed in batches
    ]  # fmt: skip


def say(
    configuration: Configuration,
    batch_size: int,
    profiles: dict[Device, JobProfile],
    measurements: Sequence[AllreduceMeasurement],
    megabits: float,
) -> dict[str, float]:
    """Method -> seconds of an iteration."""
    world_size = len(configuration.devices)
    used = [profiles[device] for device in dict.fromkeys(configuration.devices)]
    # Several kinds of device have one model, and so one trace; the slowest device decides when a bucket is ready.
    slowest = max(used, key=lambda each: each.probes[-1].total_s)
    network = AllreduceModel.fit(measurements).network("shaped")
    largest = [each for each in measurements if each.transfer_bytes == TRANSFER_BYTES[-1] and each.concurrent > 1]
    capacity = largest[0].bus_bytes_per_second * largest[0].concurrent

    def simulated(kind: CurveKind, share: SharingRule, optimizer_s: float) -> IterationEstimate:
        sharing = BandwidthSharing(share, capacity, _GLOO_IN_FLIGHT if share is SharingRule.MAXMIN else None)
        groups = [
            DeviceGroup(profiles[device].curve(kind), configuration.devices.count(device), batch_size)
            for device in dict.fromkeys(configuration.devices)
        ]
        return IterationSimulator(slowest.gradients, network, sharing, optimizer_s=optimizer_s).estimate(groups)

    # Both from the same profile; what is rated, not measured.
    parameter_bytes, rated = slowest.gradients.total_bytes, megabits * 1e6 / 8
    straight = [each.curve("linear").predict(batch_size) for each in used]
    compute_s = max(float(each.total_s[0]) for each in straight)
    apm = [
        ApmGroup(profiles[device].probes, configuration.devices.count(device), batch_size, rated)
        for device in dict.fromkeys(configuration.devices)
    ]
    return {
        "default": simulated("default", SharingRule.MAXMIN, slowest.optimizer_s).p50_s,
        "APM": apm_iteration_s(apm, parameter_bytes),
        "the seed's rules": simulated("paper", SharingRule.SEED, 0.0).p50_s,
        "no overlap": compute_s + float(ring_traffic_bytes([parameter_bytes], world_size)[0]) / rated,
        "computation alone": compute_s,
    }


def run_ranks(task: dict[str, Any], megabits: float) -> dict[str, Any]:
    """Run a task on machines of their own; returns what rank 0 wrote down.

    Raises:
        NotRunError: This host cannot have such a network.
        RuntimeError: A rank failed, or took too long.
    """
    ranks = range(task["world_size"])
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as cleanup:
        path, result, log = (Path(folder) / name for name in ("task.json", "result.json", "log"))
        path.write_text(json.dumps({**task, "result": str(result)}), encoding="utf-8")
        output = cleanup.enter_context(log.open("w"))
        try:
            network = cleanup.enter_context(ShapedNetwork(len(ranks)))
            network.shape(megabits)
        except ShapedNetworkError as error:
            raise NotRunError(f"no shaped network here: {error}") from error
        processes = []
        for rank in ranks:
            command = [*network.inside(rank), sys.executable, str(_RANK), str(path), str(rank)]
            processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))
            cleanup.callback(_end, processes[-1])
        try:
            codes = [process.wait(_PATIENCE_S) for process in processes]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the ranks took more than {_PATIENCE_S:.0f} s:\n{log.read_text()}") from None
        if any(codes):
            raise RuntimeError(f"a rank failed:\n{log.read_text()}")
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
