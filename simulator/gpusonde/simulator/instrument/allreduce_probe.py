"""``probe_allreduce``: measures allreduces among the processes of a ``torch.distributed`` group.

Every process calls it, started by torchrun or told its rank; the first one returns the measurements. torch is imported
only when it is called.
"""

from __future__ import annotations

import datetime
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpusonde.errors import MeasurementError
from gpusonde.simulator.allreduce.measurements import AllreduceMeasurement

_LOG = logging.getLogger(__name__)
_WARMING_BYTES = 1 << 20
_ITEM_BYTES = 4  # float32, as gradients usually are
_MAD_TO_DEVIATION = 1.4826


def _default_sizes() -> tuple[int, ...]:
    """4 B to 512 MiB as Srifty probes, by factors of 4 up to 1 MiB and of 2 above, where buckets of gradients lie."""
    return (*(4**power for power in range(1, 10)), *(1 << power for power in range(20, 30)))


@dataclass(frozen=True)
class ProbeGrid:
    """What is measured.

    Attributes:
        sizes: Bytes of a transfer, multiples of 4.
        concurrent: Numbers of transfers at a time.
        world_sizes: The first so many ranks take part; empty: all ranks. One launch can so measure several.
        warm_up: Transfers before each measurement that do not count.
        least_repeats: Of each measurement.
        most_repeats: Likewise.
        seconds_per_point: Once a measurement has taken so long it ends, after the least repeats.
        most_bytes: Sizes whose buffers together take more are left out.

    Raises:
        ValueError: A figure out of range.
    """

    sizes: tuple[int, ...] = field(default_factory=_default_sizes)
    concurrent: tuple[int, ...] = (1, 2, 4)
    world_sizes: tuple[int, ...] = ()
    warm_up: int = 2
    least_repeats: int = 5
    most_repeats: int = 40
    seconds_per_point: float = 0.5
    most_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if not self.sizes or any(size < _ITEM_BYTES or size % _ITEM_BYTES for size in self.sizes):
            raise ValueError("sizes are multiples of 4 bytes, one at least")
        if not self.concurrent or min(self.concurrent) < 1:
            raise ValueError("concurrent needs a number of transfers, 1 or more")
        if any(world < 2 for world in self.world_sizes):
            raise ValueError("a world size is 2 or more")
        if self.warm_up < 1 or not 1 <= self.least_repeats <= self.most_repeats:
            raise ValueError("warm_up and least_repeats are 1 or more, most_repeats no less than least_repeats")
        if not self.seconds_per_point > 0 or self.most_bytes < min(self.sizes):
            raise ValueError("seconds_per_point is above zero, and the smallest size must fit into most_bytes")

    def points(self) -> Iterator[tuple[int, int]]:
        """Yield size and number of transfers of every measurement of one world size."""
        for count in self.concurrent:
            for size in self.sizes:
                if size * count <= self.most_bytes:
                    yield size, count


@dataclass(frozen=True)
class Rendezvous:
    """How the processes find each other without torchrun.

    Attributes:
        rank: Number of this process, from 0.
        world_size: Number of processes.
        master: Host and port of rank 0, "10.0.0.1:29500".
    """

    rank: int
    world_size: int
    master: str

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} must lie between 0 and world_size - 1")
        if not self.master.rpartition(":")[2].isdigit() or not self.master.rpartition(":")[0]:
            raise ValueError(f"master must be host:port, not {self.master!r}")


def probe_allreduce(
    fabric: str,
    grid: ProbeGrid | None = None,
    *,
    rendezvous: Rendezvous | None = None,
    backend: str = "",
    location: str = "",
    device: str = "",
    devices_per_machine: int = 0,
    timeout_s: float = 300.0,
    clock: Callable[[], float] = time.time,
) -> tuple[AllreduceMeasurement, ...]:
    """Measure the grid; every process of the group calls it with the same arguments.

    A repeat lasts from a barrier until the slowest process has all of its transfers; the measurement is the median.

    Args:
        fabric: What to call the network, such as "AWS p4d.24xlarge EFA".
        grid: What to measure; None: the default grid, some minutes.
        rendezvous: None: as torchrun says in the environment, or the group that torch.distributed has already.
        backend: Of torch.distributed; empty: nccl where there are GPUs, gloo elsewhere.
        location: Cloud, region and zone.
        device: Kind of device; empty: as torch names it.
        devices_per_machine: 0: as torchrun says, or the number of GPUs.
        timeout_s: A transfer or a start-up that takes longer is an error.
        clock: Unix time in seconds.

    Returns:
        The measurements on rank 0, nothing on the others.

    Raises:
        MeasurementError: No torch, fewer than two processes, a backend that is missing, or a group that fails.
        ValueError: A name that a measurement cannot have.
    """
    # A name that cannot be stored is refused before minutes of measuring.
    AllreduceMeasurement(fabric, _ITEM_BYTES, 2, 1.0, location=location, device=device)
    torch = _torch()
    chosen = grid or ProbeGrid()
    with _group(torch, backend, rendezvous, timeout_s) as used:
        target = _device(torch, used)
        _meet(torch)
        world_size = torch.distributed.get_world_size()
        worlds = sorted(set(chosen.world_sizes)) or [world_size]
        if world_size < 2:
            raise MeasurementError("one process takes part; an allreduce needs two or more")
        if worlds[-1] > world_size:
            raise MeasurementError(
                f"{world_size} processes take part; world size {worlds[-1]} needs {worlds[-1]} of them"
            )
        named = device or _device_name(torch, target)
        machine = devices_per_machine or _devices_per_machine(torch, target)
        found: list[AllreduceMeasurement] = []
        try:
            for world in worlds:
                for size, count, durations in _probe_world(torch, chosen, target, world):
                    seconds = float(np.median(durations))
                    found.append(
                        AllreduceMeasurement(
                            fabric=fabric,
                            transfer_bytes=float(size),
                            world_size=world,
                            seconds=seconds,
                            concurrent=count,
                            location=location,
                            device=named,
                            devices_per_machine=machine,
                            repeats=len(durations),
                            log_spread=_spread(durations),
                            measured_at_s=clock(),
                        )
                    )
        except RuntimeError as error:
            raise MeasurementError(f"an allreduce failed: {error}") from error
        return tuple(found) if torch.distributed.get_rank() == 0 else ()


def _meet(torch: Any) -> None:
    """Wait for all processes: rank 0, by which they find each other, must not leave with an error before."""
    try:
        torch.distributed.barrier()
    except RuntimeError as error:
        raise MeasurementError(f"the processes do not hear of each other: {error}") from error


def _probe_world(torch: Any, grid: ProbeGrid, target: Any, world: int) -> Iterator[tuple[int, int, list[float]]]:
    """Measure one world size; ranks beyond it wait."""
    distributed = torch.distributed
    group = distributed.new_group(list(range(world)))
    if distributed.get_rank() < world:
        # Connections open and threads wake with the first transfers: the first measurements would be theirs.
        for size in (min(grid.sizes), max(size for size in grid.sizes if size <= max(_WARMING_BYTES, min(grid.sizes)))):
            _probe_point(torch, grid, group, target, size, 1)
    distributed.barrier()
    for size, count in grid.points():
        if distributed.get_rank() < world:
            durations = _probe_point(torch, grid, group, target, size, count)
            _LOG.info("world %d, %d x %d bytes: %.6f s", world, count, size, float(np.median(durations)))
            yield size, count, durations
        # After every measurement: the others wait no longer than one takes, which a time-out allows.
        distributed.barrier()


def _probe_point(torch: Any, grid: ProbeGrid, group: Any, target: Any, size: int, count: int) -> list[float]:
    """Durations of the slowest process, in seconds, the same list on all of them."""
    buffers = [torch.ones(size // _ITEM_BYTES, dtype=torch.float32, device=target) for _ in range(count)]

    def transfer() -> float:
        torch.distributed.barrier(group=group)
        _wait(torch, target)
        started = time.perf_counter()
        works = [torch.distributed.all_reduce(buffer, group=group, async_op=True) for buffer in buffers]
        for work in works:
            work.wait()
        _wait(torch, target)
        return time.perf_counter() - started

    def of_slowest(durations: list[float]) -> list[float]:
        agreed = torch.tensor(durations, dtype=torch.float64, device=target)
        torch.distributed.all_reduce(agreed, op=torch.distributed.ReduceOp.MAX, group=group)
        return [float(value) for value in agreed.tolist()]

    first = of_slowest([transfer() for _ in range(grid.warm_up)])
    # All processes must repeat equally often: the number follows from what they agreed on.
    wanted = int(grid.seconds_per_point / max(first[-1], 1e-9))
    repeats = min(max(wanted, grid.least_repeats), grid.most_repeats)
    # Sums of sums grow without end, and infinities may be slower.
    for buffer in buffers:
        buffer.fill_(0.0)
    return of_slowest([transfer() for _ in range(repeats)])


def _spread(durations: list[float]) -> float:
    logs = np.log(durations)
    return float(_MAD_TO_DEVIATION * np.median(np.abs(logs - np.median(logs))))


def _torch() -> Any:
    try:
        # An extra that most installations lack.
        import torch  # noqa: PLC0415
        import torch.distributed  # noqa: PLC0415
    except ImportError as error:
        raise MeasurementError("probing needs PyTorch: install gpusonde[torch]") from error
    if not torch.distributed.is_available():
        raise MeasurementError("this build of PyTorch has no torch.distributed")
    return torch


@contextmanager
def _group(torch: Any, backend: str, rendezvous: Rendezvous | None, timeout_s: float) -> Iterator[str]:
    """The process group, and its backend; one that was there before stays."""
    distributed = torch.distributed
    if rendezvous is None and distributed.is_initialized():
        yield str(distributed.get_backend())
        return
    used = backend or ("nccl" if torch.cuda.is_available() and distributed.is_nccl_available() else "gloo")
    if rendezvous is None and not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise MeasurementError(
            "no process group: start this with torchrun on every machine, or give each process its --rank, "
            "--world-size and --master"
        )
    where: dict[str, Any] = {"init_method": "env://"}
    if rendezvous is not None:
        where = {
            "init_method": f"tcp://{rendezvous.master}",
            "rank": rendezvous.rank,
            "world_size": rendezvous.world_size,
        }
    try:
        distributed.init_process_group(used, timeout=datetime.timedelta(seconds=timeout_s), **where)
    except (RuntimeError, ValueError) as error:
        raise MeasurementError(f"the processes do not find each other over {used}: {error}") from error
    try:
        yield used
    finally:
        distributed.destroy_process_group()


def _device(torch: Any, backend: str) -> Any:
    """Where the buffers lie: NCCL moves those of a GPU only."""
    if "nccl" not in backend:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MeasurementError("nccl needs GPUs, and PyTorch sees none: use --backend gloo")
    rank = torch.distributed.get_rank()
    chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank % torch.cuda.device_count())))
    torch.cuda.set_device(chosen)
    return chosen


def _wait(torch: Any, target: Any) -> None:
    if target.type == "cuda":
        torch.cuda.synchronize(target)


def _device_name(torch: Any, target: Any) -> str:
    if target.type == "cuda":
        return str(torch.cuda.get_device_name(target))
    return f"CPU {platform.machine()}"


def _devices_per_machine(torch: Any, target: Any) -> int:
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    if told.isdigit():
        return int(told)
    return int(torch.cuda.device_count()) if target.type == "cuda" else 0
