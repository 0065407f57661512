"""Training jobs simulated step by step, and what the metrics of a GPU tell of them.

A :class:`Timeline` is a job as pieces of constant load: waiting for data, copying, forward, backward, all-reduce,
optimizer; evaluation; checkpoints through host and disk; start-up. It knows when each cycle of each level starts. A
:class:`Recording` is how somebody watches it: GPU type, metrics, rate, late and lost ticks. DCGM's metrics hold exact
integrals over a tick; the driver's utilisation is a share of a window and held until the next one ends; power is an
average over a second or follows with a lag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator

from gpusonde.epoch_detect import CycleRole
from gpusonde.telemetry import Trace

LEAST_TICKS = 8  # per cycle: a level with fewer is not visible
LEAST_CYCLES = 3
_LEAST_F = 6.0  # of the variance between the phases of a cycle over that within; less is not visible

# What a piece of a job does to a GPU, each 0..1 of what the GPU can: SMs with work, tensor pipes, memory traffic, power
# above idle, kernels present (utilisation), host to GPU, GPU to host, traffic to other GPUs.
CHANNELS = ("sm", "tensor", "dram", "power", "busy", "receive", "send", "link")
_SM, _TENSOR, _DRAM, _POWER, _BUSY, _RECEIVE, _SEND, _LINK = range(len(CHANNELS))


def load(
    sm: float = 0.0,
    tensor: float = 0.0,
    dram: float = 0.0,
    power: float = 0.0,
    busy: float = 0.0,
    receive: float = 0.0,
    send: float = 0.0,
    link: float = 0.0,
) -> np.ndarray:
    """Return one load, shape (channels,)."""
    return np.array([sm, tensor, dram, power, busy, receive, send, link])


IDLE = load()
COPY = load(sm=0.02, dram=0.06, power=0.03, busy=0.05, receive=0.6)
TO_HOST = load(sm=0.01, dram=0.05, power=0.04, busy=0.03, send=0.7)


def log_uniform(rng: Generator, low: float, high: float) -> float:
    """One draw, uniform in the logarithm; the lower bound where the bounds cross."""
    return float(np.exp(rng.uniform(np.log(low), np.log(max(low, high)))))


@dataclass(frozen=True)
class Step:
    """One optimizer step, or one batch of an evaluation.

    Attributes:
        seconds: Shape (pieces,), usual duration of each piece.
        loads: Shape (pieces, channels).
        computes: Shape (pieces,), whether a piece is computation of this GPU, which a faster one has done sooner.
        groups: Shape (pieces,), the micro-batch that a piece belongs to.
        scatter: Standard deviation of the logarithm of a micro-batch's duration.
        wander: The same of what moves slowly and all pieces share.
        slow_share: Share of the steps that wait for their data for long.
        slow_s: How long they wait, on average.
    """

    seconds: np.ndarray
    loads: np.ndarray
    computes: np.ndarray
    groups: np.ndarray
    scatter: float = 0.01
    wander: float = 0.003
    slow_share: float = 0.0
    slow_s: float = 0.0

    @property
    def usual_s(self) -> float:
        """Seconds of a step, without what its data make it wait now and then."""
        return float(self.seconds.sum())

    def scaled(self, factor: float) -> Step:
        """Return the same with other durations."""
        return replace(self, seconds=self.seconds * factor)


@dataclass
class _Marks:
    role: CycleRole
    also: tuple[CycleRole, ...]
    starts_s: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class Level:
    """A true level of the tree of cycles.

    Attributes:
        name: What repeats, in the words of the job.
        role: What it is; ``unknown`` for cycles that have no such name (micro-batches, shards of the data).
        also: Other roles that are as right: an evaluation after each epoch has the epoch's period.
        starts_s: Shape (cycles,), those that the recording holds.
        period_s: Median seconds from start to start.
        regimes_s: Other periods that are right, where the tempo changes.
        visible: Whether it has at least 8 ticks a cycle, three cycles, and shows in any metric.
        contrast: By how much the metrics differ between the phases of a cycle (variance ratio F of the best one).
    """

    name: str
    role: CycleRole
    also: tuple[CycleRole, ...]
    starts_s: np.ndarray
    period_s: float
    regimes_s: tuple[float, ...] = ()
    visible: bool = True
    contrast: float = float("nan")


class Timeline:
    """A job as it goes on, piece after piece."""

    def __init__(self, rng: Generator) -> None:
        self.rng = rng
        self.now_s = 0.0
        self._seconds: list[np.ndarray] = []
        self._loads: list[np.ndarray] = []
        self._computes: list[np.ndarray] = []
        self._stretch: list[np.ndarray] = []
        self._states: list[tuple[float, str]] = []
        self._memory: list[tuple[float, float]] = [(0.0, 0.0)]
        self._marks: dict[str, _Marks] = {}

    def mark(
        self, name: str, role: CycleRole, starts_s: np.ndarray | None = None, also: tuple[CycleRole, ...] = ()
    ) -> None:
        """Note that a cycle starts now, or where they do start."""
        marks = self._marks.setdefault(name, _Marks(role, also))
        marks.starts_s.append(np.array([self.now_s]) if starts_s is None else starts_s)

    def hold_memory(self, share: float) -> None:
        """Note how much of the GPU's memory is allocated from now on."""
        self._memory.append((self.now_s, share))

    def stay(self, seconds: float, what: np.ndarray, state: str) -> None:
        """Append one piece."""
        if seconds > 0:
            self._append(np.array([seconds]), what[None, :], np.zeros(1, dtype=bool), 1.0, state)

    def work(self, step: Step, count: int, state: str, *, tempo: float | np.ndarray = 1.0) -> tuple[np.ndarray, ...]:
        """Append steps.

        Args:
            step: What a step is.
            count: How many.
            state: What the job does meanwhile.
            tempo: Factor of the durations; where above 1, this is the straggler's doing, and others wait for it.

        Returns:
            When each step starts, and each micro-batch.
        """
        rng, pieces = self.rng, step.seconds.size
        groups = int(step.groups.max()) + 1
        slow = step.wander * np.cumsum(rng.normal(0, 0.15, count)) if step.wander else np.zeros(count)
        slow = slow - np.linspace(0, slow[-1], count) if count > 1 else slow
        jitter = np.exp(step.scatter * rng.normal(0, 1, (count, groups)) + slow[:, None])
        factor = np.broadcast_to(np.asarray(tempo, dtype=float), count)
        seconds = step.seconds[None, :] * jitter[:, step.groups] * factor[:, None]
        if step.slow_share:
            late = rng.random(count) < step.slow_share
            seconds[late, 0] += rng.exponential(step.slow_s, int(late.sum()))
        begin = self.now_s
        offsets = np.concatenate([[0.0], np.cumsum(seconds.ravel())])[:-1].reshape(count, pieces)
        first_of_group = np.flatnonzero(np.diff(step.groups, prepend=-1))
        loads = np.broadcast_to(step.loads, (count, pieces, len(CHANNELS))).reshape(-1, len(CHANNELS))
        stretch = np.repeat(np.maximum(factor, 1.0) if np.ndim(tempo) else np.ones(count), pieces)
        self._append(seconds.ravel(), loads, np.tile(step.computes, count), stretch, state)
        return begin + offsets[:, 0], begin + offsets[:, first_of_group].ravel()

    def _append(
        self, seconds: np.ndarray, loads: np.ndarray, computes: np.ndarray, stretch: np.ndarray | float, state: str
    ) -> None:
        if not self._states or self._states[-1][1] != state:
            self._states.append((self.now_s, state))
        self._seconds.append(seconds)
        self._loads.append(loads)
        self._computes.append(computes)
        self._stretch.append(np.broadcast_to(np.asarray(stretch, dtype=float), seconds.shape))
        self.now_s += float(seconds.sum())

    def slow_down(self, at_s: float, slower: float) -> None:
        """Let all that comes after a second take longer by a share."""

        def moved(times: np.ndarray | float) -> np.ndarray:
            return np.asarray(times + slower * np.maximum(np.asarray(times) - at_s, 0.0))

        seconds = np.concatenate(self._seconds)
        # To the last bit as long as before: what is read of them is rounded.
        self._seconds = [seconds + slower * np.clip(np.cumsum(seconds) - at_s, 0.0, seconds)]
        self._states = [(float(moved(at)), state) for at, state in self._states]
        self._memory = [(float(moved(at)), share) for at, share in self._memory]
        for marks in self._marks.values():
            marks.starts_s = [moved(starts) for starts in marks.starts_s]
        self.now_s = float(moved(self.now_s))

    def pieces(self) -> Pieces:
        """Return the job as arrays."""
        joined = (np.concatenate(each) for each in (self._seconds, self._loads, self._computes, self._stretch))
        return Pieces(*joined, tuple(self._memory))

    def states(self) -> tuple[tuple[float, str], ...]:
        """When which state begins."""
        return tuple(self._states)

    def levels(self, first_s: float, stop_s: float) -> list[Level]:
        """Levels of a recording, shortest first; one that holds fewer than two starts is left out."""
        found = []
        for name, marks in self._marks.items():
            starts = np.concatenate(marks.starts_s)
            starts = starts[(starts >= first_s) & (starts < stop_s)]
            if starts.size > 1:
                found.append(Level(name, marks.role, marks.also, starts, *_periods(starts)))
        return sorted(found, key=lambda level: level.period_s)


def _periods(starts: np.ndarray) -> tuple[float, tuple[float, ...]]:
    """The median period, and the others that at least an eighth of the cycles (and three) keep.

    Where half of the cycles hold something extra (every second is followed by an evaluation), the others are usual.
    """
    lengths = np.diff(starts)
    usual, lower = float(np.median(lengths)), float(np.quantile(lengths, 0.4, method="lower"))
    usual = usual if lower > 0.97 * usual else lower
    cells = np.round(np.log(lengths / usual) / 0.05).astype(int)
    others = []
    for cell in np.unique(cells):
        inside = lengths[np.abs(cells - cell) <= 1]
        period = float(np.median(inside))
        near = [usual, *others]
        if inside.size >= max(3, lengths.size / 8) and all(abs(np.log(period / p)) > 0.1 for p in near):
            others.append(period)
    return usual, tuple(others)


@dataclass(frozen=True)
class Pieces:
    """A job as arrays: seconds (n,), loads (n, channels), computes (n,), stretch (n,), and the memory it holds."""

    seconds: np.ndarray
    loads: np.ndarray
    computes: np.ndarray
    stretch: np.ndarray
    memory: tuple[tuple[float, float], ...]

    def on_faster_gpu(self, share: float, *, straggler: bool) -> Pieces:
        """Return the same job on a GPU that computes faster, and waits for the slowest one in the all-reduce.

        Args:
            share: Of the slowest GPU's computing time.
            straggler: Whether this GPU is the one that the others wait for where steps are stretched.
        """
        shorter = np.where(self.computes, share / (1.0 if straggler else self.stretch), 1.0)
        seconds = self.seconds * shorter
        waits = np.flatnonzero((self.loads[:, _LINK] > 0) & ~self.computes)
        if not waits.size:
            return self
        saved = np.cumsum(self.seconds - seconds)[waits]
        seconds[waits] += np.diff(saved, prepend=0.0)
        return replace(self, seconds=seconds)


@dataclass(frozen=True)
class Board:
    """A type of GPU.

    Watts when nothing runs, with a context, and at its limit; memory; seconds of the driver's window of utilisation;
    seconds that power is averaged over, or follows with (negative); GB/s of its bus and of its links; clock.
    """

    name: str
    cold_watts: float
    hot_watts: float
    most_watts: float
    memory_gib: float
    window_s: float
    power_s: float
    bus_gb_s: float
    link_gb_s: float
    clock_mhz: float


BOARDS = (
    Board("Tesla T4", 10, 27, 70, 15, 1 / 6, -0.3, 12, 0, 1590),
    Board("Tesla V100-SXM2-16GB", 42, 57, 300, 16, 1 / 6, -0.1, 12, 150, 1530),
    Board("NVIDIA A10G", 16, 57, 300, 23, 1 / 4, 1.0, 22, 0, 1710),
    Board("NVIDIA GeForce RTX 3090", 22, 105, 350, 24, 1 / 6, -0.5, 22, 0, 1900),
    Board("NVIDIA A100-SXM4-80GB", 58, 82, 400, 80, 1 / 4, -0.12, 24, 300, 1410),
    Board("NVIDIA L40S", 36, 88, 350, 45, 1 / 2, 1.0, 24, 0, 2520),
    Board("NVIDIA H100 80GB HBM3", 70, 122, 700, 80, 1 / 2, 1.0, 50, 450, 1980),
    Board("NVIDIA H200", 75, 130, 700, 141, 1.0, 1.0, 50, 450, 1980),
)

_PROFILES = ("dcgm", "smi", "core", "node")


@dataclass(frozen=True)
class Recording:
    """How a job is watched.

    Attributes:
        board: Type of GPU.
        profile: ``dcgm`` (with PCIe and memory), ``smi`` (what nvidia-smi tells), ``core`` (four metrics) or ``node``
            (power of a whole server).
        interval_s: Between ticks.
        noise: Relative noise of the activity metrics.
        lag_s: By which DCGM's values are late.
        lost: Share of ticks that are lost.
        holes: How often the sampler stands still for seconds.
        late_share: Share of ticks that come late, those after them catching up.
    """

    board: Board
    profile: str
    interval_s: float
    noise: float
    lag_s: float
    lost: float
    holes: int
    late_share: float

    @classmethod
    def drawn(cls, rng: Generator, longest_s: float) -> Recording:
        """Draw one; a long job is rarely recorded at the full rate."""
        profile = str(rng.choice(_PROFILES, p=(0.34, 0.28, 0.26, 0.12)))
        rates = (0.1, 0.2, 0.5, 1.0)
        weights = (0.5, 0.15, 0.15, 0.2) if longest_s <= 2400 else (0.2, 0.2, 0.25, 0.35)
        return cls(
            board=BOARDS[rng.integers(len(BOARDS))],
            profile=profile,
            interval_s=float(rng.choice([1.0, 2.0])) if profile == "node" else float(rng.choice(rates, p=weights)),
            noise=log_uniform(rng, 0.002, 0.03),
            lag_s=float(rng.choice([0.0, 0.1, 0.3])),
            lost=float(rng.choice([0.0, 0.0, 0.002, 0.02])),
            holes=int(rng.integers(1, 4)) if rng.random() < 0.15 else 0,
            late_share=float(rng.choice([0.0, 0.002, 0.02])),
        )

    def ticks(self, rng: Generator, first_s: float, stop_s: float) -> np.ndarray:
        """Times of the ticks between two times."""
        step = self.interval_s
        count = int((stop_s - first_s) / step) - 1
        times = first_s + step * np.arange(1, count + 1) + rng.normal(0, 0.02 * step, count)
        late = np.flatnonzero(rng.random(count) < self.late_share)
        for place in late:  # a late tick, and those it pushes on until the sampler has caught up
            delay = step * log_uniform(rng, 0.5, 8)
            pushed = slice(place, min(count, place + int(delay / step) + 1))
            times[pushed] = np.maximum(times[pushed], times[place] + delay + 0.001 * np.arange(pushed.stop - place))
        keep = rng.random(count) >= self.lost
        for _ in range(self.holes):
            begin = rng.uniform(first_s, stop_s)
            keep &= (times < begin) | (times > begin + log_uniform(rng, 0.5, 30))
        times = np.round(times[keep], 3)
        return np.asarray(times[np.concatenate([[True], times[1:] > np.maximum.accumulate(times)[:-1]])])

    def trace(self, pieces: Pieces, rng: Generator, ticks: np.ndarray, gpu: int = 0) -> Trace:
        """What the metrics tell of a job on one GPU."""
        watched = _Watched(self, pieces, rng, ticks)
        made = {
            "dcgm": watched.dcgm,
            "core": watched.core,
            "smi": watched.smi,
            "node": watched.node,
        }[self.profile]()
        uuid = f"GPU-{gpu:08d}"
        return Trace(ticks - ticks[0], made, gpu_uuid=uuid, gpu_model=self.board.name)


class _Watched:
    """One GPU under a job, and every metric of it at the ticks."""

    def __init__(self, recording: Recording, pieces: Pieces, rng: Generator, ticks: np.ndarray) -> None:
        self._recording, self._board, self._rng, self._ticks = recording, recording.board, rng, ticks
        self._memory = pieces.memory
        self._edges = np.concatenate([[0.0], np.cumsum(pieces.seconds)])
        areas = pieces.loads * pieces.seconds[:, None]
        self._sums = np.concatenate([np.zeros((1, len(CHANNELS))), np.cumsum(areas, axis=0)])
        self._gain = rng.uniform(0.95, 1.0)

    def dcgm(self) -> dict[str, np.ndarray]:
        """Profiling metrics with PCIe and memory, utilisation and power."""
        extra = ["sm_occupancy"] if self._rng.random() < 0.4 else []
        found = {**self.core(), "pcie_tx_bytes_per_second": self._bus(_SEND)}
        found["pcie_rx_bytes_per_second"] = self._bus(_RECEIVE)
        if self._board.link_gb_s:
            found["nvlink_tx_bytes_per_second"] = self._bus(_LINK)
            found["nvlink_rx_bytes_per_second"] = self._bus(_LINK)
        if extra:
            found["sm_occupancy"] = self._activity(_SM, self._rng.uniform(0.2, 0.7))
        found["power_watts"] = self._power()
        found["framebuffer_used_bytes"] = self._framebuffer()
        return found

    def core(self) -> dict[str, np.ndarray]:
        """Four metrics."""
        return {
            "sm_active": self._activity(_SM),
            "dram_active": self._activity(_DRAM),
            "tensor_active": self._activity(_TENSOR),
            "gpu_utilization": self._utilization(_BUSY),
        }

    def smi(self) -> dict[str, np.ndarray]:
        """What nvidia-smi tells: two or more of utilisation, power, memory, clock."""
        found = {"gpu_utilization": self._utilization(_BUSY), "power_watts": self._power()}
        if self._rng.random() < 0.6:
            found["memory_utilization"] = self._utilization(_DRAM)
        if self._rng.random() < 0.6:
            found["framebuffer_used_bytes"] = self._framebuffer()
        if self._rng.random() < 0.3:
            found["sm_clock_mhz"] = self._clock(found["power_watts"])
        return found

    def node(self) -> dict[str, np.ndarray]:
        """Power of a server of eight such GPUs: processors, fans that follow slowly, losses."""
        board = self._power(average_s=1.0)
        slow = _smoothed(board, 20.0 / self._recording.interval_s)
        base = self._rng.uniform(700, 1800)
        noise = self._rng.normal(0, self._rng.uniform(4, 25), board.size)
        return {"power_watts": np.round(base + 8.4 * board + 0.6 * slow + noise, 1)}

    def _mean(self, channel: int, ends: np.ndarray, width: np.ndarray | float) -> np.ndarray:
        upper = np.interp(ends, self._edges, self._sums[:, channel])
        lower = np.interp(ends - width, self._edges, self._sums[:, channel])
        return np.asarray((upper - lower) / width)

    def _per_tick(self, channel: int) -> np.ndarray:
        widths = np.diff(self._ticks, prepend=self._ticks[0] - self._recording.interval_s)
        widths = np.minimum(widths, 4 * self._recording.interval_s)
        return self._mean(channel, self._ticks - self._recording.lag_s, widths)

    def _activity(self, channel: int, scale: float = 1.0) -> np.ndarray:
        value = self._per_tick(channel) * self._gain * scale
        noisy = value * (1 + self._recording.noise * self._rng.normal(0, 1, value.size))
        noisy += (value > 0.01) * 0.002 * self._rng.normal(0, 1, value.size)
        return np.clip(noisy, 0, 1).round(4)

    def _bus(self, channel: int) -> np.ndarray:
        most = self._board.link_gb_s if channel == _LINK else self._board.bus_gb_s
        value = self._per_tick(channel)
        chatter = 2e5 + 3e6 * self._per_tick(_BUSY)  # launches and polling are seen on the bus as well
        rate = 1e9 * most * value * (1 + 0.03 * self._rng.normal(0, 1, value.size))
        if channel != _LINK:
            rate += chatter * np.exp(0.2 * self._rng.normal(0, 1, value.size))
        return np.asarray(np.maximum(rate, 0).round(-2))

    def _utilization(self, channel: int) -> np.ndarray:
        window = self._board.window_s
        offset = self._rng.uniform(0, window)
        ends = np.floor((self._ticks - offset) / window) * window + offset
        value = self._mean(channel, ends, window)
        value = value * (0.7 if channel == _DRAM else 1.0)
        # Windows that end at one time share one value, noise included.
        _, which = np.unique(ends, return_inverse=True)
        noise = self._rng.normal(0, 0.012, int(which.max()) + 1)[which] * (value > 0.02)
        return np.clip(value + noise * (value < 0.985), 0, 1).round(2)

    def _power(self, average_s: float | None = None) -> np.ndarray:
        board, rng = self._board, self._rng
        width = board.power_s if average_s is None else average_s
        if width > 0:
            level = self._mean(_POWER, self._ticks, width)
        else:
            cells = np.arange(self._edges[0] - 6, self._edges[-1] + 1, 0.04)
            fine = self._mean(_POWER, cells, 0.04)
            lag = np.exp(-np.arange(0, 6 * -width, 0.04) / -width)
            follow = np.convolve(fine, lag / lag.sum())[: fine.size]
            level = np.interp(self._ticks, cells, follow)
        busy_s = np.clip(self._ticks - self._edges[0], 0, None)
        warmth = 1 + 0.035 * (1 - np.exp(-busy_s / 150))
        hot = np.where(self._ticks < self._started_s(), board.cold_watts, board.hot_watts)
        watts = (hot + (board.most_watts * 1.04 - board.hot_watts) * level * self._gain) * warmth
        watts = np.minimum(watts, board.most_watts * (1 + 0.006 * rng.normal(0, 1, watts.size)))
        return np.asarray((watts * (1 + 0.003 * rng.normal(0, 1, watts.size))).round(2))

    def _started_s(self) -> float:
        held = [at for at, share in self._memory if share > 0]
        return held[0] if held else float("inf")

    def _framebuffer(self) -> np.ndarray:
        at, share = (np.array(each) for each in zip(*self._memory, strict=True))
        held = share[np.clip(np.searchsorted(at, self._ticks, side="right") - 1, 0, None)]
        mib = 1024 * self._board.memory_gib * held + 3
        return np.asarray(np.round(mib) * 2.0**20)

    def _clock(self, watts: np.ndarray) -> np.ndarray:
        board = self._board
        running = watts > 0.5 * (board.cold_watts + board.hot_watts)
        limited = np.clip((watts - 0.93 * board.most_watts) / (0.07 * board.most_watts), 0, 1)
        clock = np.where(running, board.clock_mhz * (1 - 0.12 * limited), 210.0)
        noise = self._rng.normal(0, 8, clock.size) * (limited > 0)
        return np.asarray(np.round((clock + noise) / 15) * 15)


def _smoothed(values: np.ndarray, width: float) -> np.ndarray:
    kernel = np.exp(-np.arange(0, 4 * width) / width)
    padded = np.concatenate([np.full(kernel.size - 1, values[0]), values])
    return np.convolve(padded, kernel / kernel.sum(), mode="valid")


def seen(level: Level, traces: Sequence[Trace], interval_s: float, first_s: float) -> Level:
    """Return the level in the time of the traces, and whether they show it."""
    starts = level.starts_s - first_s
    contrast = max((_contrast(starts, level.period_s, trace) for trace in traces), default=0.0)
    enough = level.period_s >= LEAST_TICKS * interval_s and starts.size >= LEAST_CYCLES
    return replace(level, starts_s=starts, visible=enough and contrast >= _LEAST_F, contrast=contrast)


def _contrast(starts: np.ndarray, period_s: float, trace: Trace) -> float:
    """Variance between the phases of the cycles over that between cycles, of the metric that shows it best."""
    time = trace.time_s
    which = np.searchsorted(starts, time, side="right") - 1
    phase = (time - starts[np.clip(which, 0, None)]) / period_s
    inside = (which >= 0) & (phase < 1)
    bins = int(min(24, max(6, period_s / max(float(np.median(np.diff(time))), 1e-9) / 1.5)))
    cell = which[inside] * bins + np.minimum((phase[inside] * bins).astype(int), bins - 1)
    shape = (starts.size, bins)
    count = np.bincount(cell, minlength=starts.size * bins).reshape(shape)
    full = (count > 0).all(axis=1)
    if full.sum() < LEAST_CYCLES - 1:
        return 0.0
    best = 0.0
    for values in trace.values.values():
        cells = np.bincount(cell, values[inside], starts.size * bins).reshape(shape)[full] / count[full]
        cells = cells - cells.mean(axis=1, keepdims=True)
        between = float(full.sum() * (cells.mean(axis=0) ** 2).sum() / (bins - 1))
        within = float(cells.var(axis=0, ddof=1).mean())
        best = max(best, between / max(within, 1e-12 + 1e-4 * between))
    return best
