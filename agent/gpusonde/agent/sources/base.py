"""What every source of readings looks like to the sampler, and what a measured value cannot be.

A source hides one vendor library (or one recorded trace) behind three calls. It decides once, in
:meth:`GpuSource.open`, which GPUs and which columns it will give, and gives exactly those afterwards. Sentinels,
impossible figures, and zeros while the GPU works become missing values with a reason.
"""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt

from gpusonde.telemetry import FloatArray, Metric, MissingReason, metric

# Why a metric is missing for as long as driver, board and rights are what they are.
LASTING_REASONS = (MissingReason.NOT_SUPPORTED, MissingReason.NO_PERMISSION, MissingReason.NOT_FOUND)

# Profiling values that are zero under load: NVIDIA/DCGM issues 16 and 303, GPM on some boards. The driver's utilisation
# lags by up to a second.
_ZEROS_S = 10.0
_LONGEST_PATIENCE_S = 300.0


def plausible(name: str, value: float) -> float | MissingReason:
    """Return the value, or why it cannot be one: the vendor's libraries have sentinels of their own."""
    highest = metric(name).maximum
    if math.isnan(value):
        return MissingReason.NO_DATA
    if value < 0 or (highest is not None and value > highest):
        return MissingReason.OUT_OF_RANGE
    return float(value)


class ZeroGuard:
    """Notices profiling values that say zero while the driver says that kernels run.

    Args:
        now_s: The monotonic clock.

    Attributes:
        BUSY: ``gpu_utilization`` from which zeros are doubtful.
    """

    BUSY = 0.2

    def __init__(self, now_s: float) -> None:
        self._good_s = now_s
        self._renewed_s = float("-inf")
        self._patience_s = _ZEROS_S

    def observe(self, utilization: float, activity: float, now_s: float) -> bool:
        """Take one tick and return whether its profiling values are to be distrusted.

        Args:
            utilization: ``gpu_utilization``, 0..1, or NaN.
            activity: The largest of the tick's profiling ratios, or NaN.
            now_s: The monotonic clock.
        """
        if not (utilization >= self.BUSY and activity == 0.0):
            self._good_s, self._patience_s = now_s, _ZEROS_S
        return now_s - self._good_s >= _ZEROS_S

    def due(self, now_s: float) -> bool:
        """Whether to renew the watch now; True once per period of patience."""
        if now_s - self._good_s < _ZEROS_S or now_s - self._renewed_s < self._patience_s:
            return False
        self._renewed_s = now_s
        self._patience_s = min(2 * self._patience_s, _LONGEST_PATIENCE_S)
        return True


# Two clocks that were read farther apart than this were not read at once: the scheduler came between.
CLOCK_READ_S = 0.01


@dataclass(frozen=True)
class Clocks:
    """The time as sampler and sources see it.

    Attributes:
        monotonic: Seconds, never set back.
        wall_ns: Unix time in nanoseconds.
        processor: Seconds of processor time of the calling thread.
        sleep: Waits for seconds.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall_ns: Callable[[], int] = time.time_ns
    processor: Callable[[], float] = time.thread_time
    sleep: Callable[[float], None] = time.sleep


TimeArray = npt.NDArray[np.int64]


class StaticOrigin(Enum):
    """Who told a static attribute."""

    NVML = "nvml"
    CUDA_DRIVER = "cuda_driver"
    DCGM = "dcgm"
    RECORDED = "recorded"  # read in a trace file, whoever wrote it there


@dataclass(frozen=True)
class StaticAttribute:
    """One figure of a device that does not change while the driver is loaded; the unit is in the name."""

    name: str
    value: float
    origin: StaticOrigin


@dataclass(frozen=True)
class GpuDescription:
    """One sampled GPU.

    Attributes:
        gpu_uuid: UUID of the board; for a MIG instance that of the GPU it is a part of.
        gpu_index: Index on the host; moves across reboots.
        product_name: As the driver spells it.
        pci_bus_id: Empty when unknown.
        framebuffer_bytes: Device memory, 0 when unknown.
        driver_version: Empty when unknown.
        mig_uuid: Empty unless the entity is a MIG compute instance; it then is its key in the fleet.
        static_attributes: Figures of the device.
        missing_metrics: Metrics of the catalogue that this GPU cannot give, and why.
        replayed: True when the samples were not measured on this device now.
    """

    gpu_uuid: str
    gpu_index: int = 0
    product_name: str = ""
    pci_bus_id: str = ""
    framebuffer_bytes: int = 0
    driver_version: str = ""
    mig_uuid: str = ""
    static_attributes: tuple[StaticAttribute, ...] = ()
    missing_metrics: Mapping[str, MissingReason] = field(default_factory=dict)
    replayed: bool = False

    @property
    def key(self) -> str:
        """The name by which fleet, jobs and processes know it: the MIG instance's UUID, else the GPU's."""
        return self.mig_uuid or self.gpu_uuid


@dataclass(frozen=True)
class SourceInventory:
    """What an open source gives: its GPUs, its columns and its pace.

    Attributes:
        source: Name of the source, for example "nvml", "gpm" or "replay".
        gpus: The GPUs; ticks name them by their index here.
        metrics: The columns of every tick, in order.
        interval_s: Seconds between ticks.
        multiplexed: Names of the metrics that the device measures only part of the time.
        can_wait: True when a late reading loses nothing because the source keeps its ticks (a recorded trace). Such a
            source is held back while the spool has no room; hardware never is.
    """

    source: str
    gpus: tuple[GpuDescription, ...]
    metrics: tuple[Metric, ...]
    interval_s: float
    multiplexed: frozenset[str] = frozenset()
    can_wait: bool = False


@dataclass(frozen=True)
class GpuTicks:
    """One or more consecutive ticks of one GPU.

    Attributes:
        gpu: Index into :attr:`SourceInventory.gpus`.
        time_unix_nano: Shape (n,), wall clock, whole microseconds.
        values: Shape (metrics, n) in the catalogue's units, NaN where the source gave no value.
        blanks: Column -> why its values are NaN in these ticks; NO_DATA where nothing is said.
    """

    gpu: int
    time_unix_nano: TimeArray
    values: FloatArray
    blanks: Mapping[int, MissingReason] = field(default_factory=dict)


class AlignedTicks(Sequence[GpuTicks]):
    """As many ticks of each of several GPUs, in arrays of all of them.

    Args:
        gpus: Indices into :attr:`SourceInventory.gpus`.
        time_unix_nano: Shape (GPUs, n), as in :class:`GpuTicks`.
        values: Shape (GPUs, metrics, n).
        blanks: For each GPU what :class:`GpuTicks` says of them.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        time_unix_nano: TimeArray,
        values: FloatArray,
        blanks: Sequence[Mapping[int, MissingReason]],
    ) -> None:
        self.gpus = gpus
        self.time_unix_nano = time_unix_nano
        self.values = values
        self.blanks = blanks

    def __len__(self) -> int:
        return len(self.gpus)

    @overload
    def __getitem__(self, index: int) -> GpuTicks: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[GpuTicks]: ...

    def __getitem__(self, index: int | slice) -> GpuTicks | Sequence[GpuTicks]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return GpuTicks(self.gpus[index], self.time_unix_nano[index], self.values[index], self.blanks[index])


class RawTicks(Sequence[GpuTicks]):
    """One tick of several GPUs as the vendor's library wrote it; it becomes numbers when somebody looks at them.

    Many ticks at once cost little more than one: who wants them later calls :meth:`join` then. Either way each is to be
    taken once, in order, and by one thread: what depends on the ticks before it is found then.
    """

    @abc.abstractmethod
    def peek(self) -> Sequence[GpuTicks]:
        """Return the values as far as they follow from this tick alone; callable from any thread, at any time."""

    @abc.abstractmethod
    def join(self, following: Sequence[RawTicks]) -> Sequence[GpuTicks]:
        """Return this tick and those that follow it, of the same source, as few entries for each GPU."""


class GpuEventKind(Enum):
    """What happened to a GPU outside its metrics."""

    XID = "xid"
    LOST = "lost"
    RECOVERED = "recovered"
    CLOCK_STEP = "clock_step"


@dataclass(frozen=True)
class SourceEvent:
    """An event of one GPU.

    Attributes:
        gpu: Index into :attr:`SourceInventory.gpus`.
        time_unix_nano: When, on the wall clock.
        kind: What.
        value: XID code, or the size of a clock step in microseconds; 0 otherwise.
    """

    gpu: int
    time_unix_nano: int
    kind: GpuEventKind
    value: int = 0


class OwnLook(NamedTuple):
    """A look at the device that a source took by itself.

    Attributes:
        deadline_s: When it was due, monotonic clock.
        began_s: When it was taken.
        ended_s: When the answer was there.
        wall_ns: Unix time then, nanoseconds.
    """

    deadline_s: float
    began_s: float
    ended_s: float
    wall_ns: int


@dataclass(slots=True)
class Reading:
    """The result of one call of :meth:`GpuSource.read`.

    Attributes:
        ticks: At most one entry per GPU; a GPU that gave nothing is absent. A tuple, or a :class:`RawTicks` that is
            not looked at yet.
        events: What happened since the previous reading.
        more: True when further ticks are already due and the caller need not wait for the next deadline.
        inventory: What the source gives from this reading's events and ticks on, where that has changed (a GPU that was
            absent has come, MIG instances were made anew); None for what was said before. GPUs that were there keep
            their index.
        missed_ticks: Deadlines missed since the reading before; the sampler counts them.
        tick_count: Ticks of one GPU each, where the source knows it; None: see :meth:`count_ticks`.
        shift_s: By how much later than planned the source is to be read from now on.
        looks: Those that the source took by itself, if these are their ticks; empty for one that it was called for.
        look_ahead: Has the source look by itself at deadlines that follow: given the next one, the seconds between
            them, and when it is to be read again at the latest, it returns how many it sees to; it is to be read at
            the one after those. None where it cannot. Who does not call it reads at each deadline.
    """

    ticks: Sequence[GpuTicks] = ()
    events: tuple[SourceEvent, ...] = ()
    more: bool = False
    inventory: SourceInventory | None = None
    missed_ticks: int = 0
    tick_count: int | None = None
    shift_s: float = 0.0
    looks: Sequence[OwnLook] = ()
    look_ahead: Callable[[float, float, float], int] | None = None

    def count_ticks(self) -> int:
        """Return the number of ticks of one GPU each."""
        if self.tick_count is not None:
            return self.tick_count
        if isinstance(self.ticks, RawTicks):
            return len(self.ticks)
        return sum(ticks.time_unix_nano.size for ticks in self.ticks)


@dataclass
class SourceStatistics:
    """What a source counts about itself; written by its thread, read by any.

    Attributes:
        lag_s: Seconds from measuring the newest value to its arrival here; 0 for a source that measures itself.
        suspect_ticks: Ticks of one GPU whose profiling values were all zero for long while the driver said "busy".
        capped_ratios: Ratios of MIG instances above 1, stored as 1.
        hung_calls: Calls into the vendor's library that did not return in time and were given up.
        reconnects: Connections to a host engine after the first.
        inventories: Changes of the inventory after the first.
        helper_processor_s: Processor time of threads that call the vendor's library for the sampler's one, seconds.
    """

    lag_s: float = 0.0
    suspect_ticks: int = 0
    capped_ratios: int = 0
    hung_calls: int = 0
    reconnects: int = 0
    inventories: int = 0
    helper_processor_s: float = 0.0


class GpuSource(Protocol):
    """Gives readings of the GPUs of this host. Used by one thread at a time."""

    @property
    def name(self) -> str:
        """Short name for logs and the inventory."""
        ...

    @property
    def statistics(self) -> SourceStatistics:
        """What the source counts about itself; one object for the life of the source."""
        ...

    def open(self) -> SourceInventory:
        """Acquire the source and say what it gives.

        Raises:
            SourceUnavailableError: It cannot be used here; the message says what to do.
        """
        ...

    def read(self, deadline_s: float) -> Reading | None:
        """Return what is due at ``deadline_s`` (the sampler's monotonic clock); None at a trace's end.

        Raises:
            SourceError: The source is gone as a whole. One GPU's failure is not: it becomes an event.
        """
        ...

    def progress(self) -> float | None:
        """Return the share of a finite source that was read, 0..1; None for hardware."""
        ...

    def close(self) -> None:
        """Release everything; safe to call twice and before :meth:`open`."""
        ...


class ProcessReader(Protocol):
    """Says which processes compute on which GPU. Used by one thread at a time, which need not be the sampler's."""

    def compute_processes(self) -> dict[str, tuple[int, ...]]:
        """Return the process ids on each GPU by :attr:`GpuDescription.key`, ascending; idle GPUs have an empty tuple.

        The ids are those of the host's PID namespace. A GPU that does not answer, or whose processes this user may not
        see, is absent. A GPU that is split into MIG instances is absent too: its instances are there. One call takes
        milliseconds in the driver: meant for every few seconds, not for every tick.
        """
        ...

    def close(self) -> None:
        """Release everything; safe to call twice and before the first question."""
        ...
