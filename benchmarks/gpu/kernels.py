"""Kernels whose load is known, beside what the source says of it.

A metric can agree with a kernel in two ways. Its mean over a steady kernel can be compared with the share of the
device's peak that the kernel reached by its own count of operations or bytes. And its course over a kernel that runs
and pauses can be compared with the times at which the device began and finished, which gives the lag.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from gpusonde.agent.sources.base import GpuSource, SourceInventory
from gpusonde.catalog import GpuSpec
from gpusonde.telemetry import FloatArray

_EDGE_S = 0.6  # of a steady window: a tick covers up to an interval before it, and sources lag
_LAGS_S = np.arange(-0.2, 1.01, 0.02)


@dataclass(frozen=True)
class Agreement:
    """One metric beside what is known.

    Attributes:
        kernel: What ran.
        metric: Which metric.
        known: By the kernel's own count: share of the peak, bytes per second, or share of the time.
        measured: Mean of the metric.
        what: How ``known`` came about.
    """

    kernel: str
    metric: str
    known: float
    measured: float
    what: str


class Watch:
    """Reads a source in a thread of its own and keeps one GPU's ticks."""

    def __init__(self, source: GpuSource, interval_s: float) -> None:
        self._source = source
        self._interval_s = interval_s
        self._times: list[float] = []
        self._values: list[FloatArray] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._inventory: SourceInventory | None = None

    def __enter__(self) -> Watch:
        """Open the source and begin."""
        self._inventory = self._source.open()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stop.set()
        self._thread.join()
        self._source.close()

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._stop.is_set():
            next_s += self._interval_s
            time.sleep(max(0.0, next_s - time.monotonic()))
            if (reading := self._source.read(next_s)) is None:
                return
            for ticks in reading.ticks:
                if ticks.gpu == 0:
                    self._times += list(ticks.time_unix_nano / 1e9)
                    self._values += list(ticks.values.T)

    def series(self, metric: str) -> tuple[FloatArray, FloatArray]:
        """Return the times (Unix seconds) and values of a metric so far; all NaN where it is not measured."""
        assert self._inventory is not None
        names = [each.name for each in self._inventory.metrics]
        count = len(self._times)
        times = np.array(self._times[:count])
        if metric not in names:
            return times, np.full(count, np.nan)
        column = names.index(metric)
        return times, np.array([values[column] for values in self._values[:count]])

    def mean(self, metric: str, start_s: float, end_s: float) -> float:
        """Mean of a metric over the ticks of a window without its edges; NaN where there are none."""
        times, values = self.series(metric)
        inside = (times > start_s + _EDGE_S) & (times < end_s - _EDGE_S) & np.isfinite(values)
        return float(values[inside].mean()) if inside.any() else float("nan")


def steady_kernels(watch: Watch, spec: GpuSpec | None, seconds: float, device: torch.device) -> list[Agreement]:
    """Run kernels of known work and compare means with the share of the peak that they reached."""
    rows: list[Agreement] = []
    size = 8192 if device.type == "cuda" else 256
    operations = 2.0 * size**3
    peak = {
        torch.float16: spec.tensor_fp16_tflops if spec else None,
        torch.float32: spec.fp32_tflops if spec else None,
    }
    torch.backends.cuda.matmul.allow_tf32 = False
    for kind, metric in ((torch.float16, "tensor_active"), (torch.float32, "fp32_active")):
        a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
        out = torch.empty_like(a)
        start, end, calls = _run_for(lambda a=a, b=b, out=out: torch.matmul(a, b, out=out), seconds, device)
        known = calls * operations / (end - start) / (peak[kind] * 1e12) if peak[kind] else float("nan")
        name = f"matrix product, {str(kind).removeprefix('torch.')}"
        rows.append(Agreement(name, metric, known, watch.mean(metric, start, end), "share of peak operations"))
        rows.append(Agreement(name, "sm_active", 1.0, watch.mean("sm_active", start, end), "kernel always running"))
    count = 2**28 if device.type == "cuda" else 2**18
    source, target = torch.ones(count, device=device), torch.empty(count, device=device)
    start, end, calls = _run_for(lambda: target.copy_(source), seconds, device)
    rate = calls * 2 * 4 * count / (end - start)
    known = rate / spec.memory_bandwidth_bytes_per_second if spec else float("nan")
    measured = watch.mean("dram_active", start, end)
    rows.append(Agreement("copy on the device", "dram_active", known, measured, "share of peak bandwidth"))
    host = torch.ones(count // 4, pin_memory=device.type == "cuda")
    part = target[: count // 4]
    start, end, calls = _run_for(lambda: part.copy_(host, non_blocking=True), seconds, device)
    name = "pcie_rx_bytes_per_second"
    rows.append(
        Agreement("copy from the host", name, calls * count / (end - start), watch.mean(name, start, end), "bytes/s")
    )
    return rows


def duty_cycle(watch: Watch, cycles: int, device: torch.device) -> tuple[list[Agreement], float]:
    """Run a kernel one second on, one second off; return the agreement and the lag in seconds.

    The lag is the shift of the known course at which it correlates best with ``sm_active``; NaN where that is missing.
    """
    size = 4096 if device.type == "cuda" else 256
    a, b = (torch.randn(size, size, device=device).half().float() for _ in range(2))
    edges: list[tuple[float, float]] = []
    for _ in range(cycles):
        start, end, _calls = _run_for(lambda: torch.matmul(a, b), 1.0, device)
        edges.append((start, end))
        time.sleep(1.0)
    times, values = watch.series("sm_active")
    inside = (times > edges[0][0]) & (times < edges[-1][1] + 1.0) & np.isfinite(values)
    times, values = times[inside], values[inside]
    if times.size < 10 or values.std() == 0:
        return [], float("nan")
    interval_s = float(np.median(np.diff(times)))

    def busy(shift_s: float) -> FloatArray:
        share = np.zeros(times.size)
        for start, end in edges:
            share += np.clip(
                np.minimum(times - shift_s, end) - np.maximum(times - shift_s - interval_s, start), 0, None
            )
        return share / interval_s

    lag_s = float(max(_LAGS_S, key=lambda shift: np.corrcoef(busy(shift), values)[0, 1]))
    known = float(busy(lag_s).mean())
    full = values[busy(lag_s) > 0.99]
    level = float(np.median(full)) if full.size else 0.0
    if level <= 0:
        return [], float("nan")
    row = Agreement(
        "1 s on, 1 s off", "sm_active", known, float(values.mean()) / level, "share of the time, of its level"
    )
    return [row], lag_s


def _run_for(kernel: Callable[[], object], seconds: float, device: torch.device) -> tuple[float, float, int]:
    """Run a kernel again and again; return when the device began and finished (Unix seconds) and how often it ran."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    kernel()
    wait()
    calls = 0
    start = time.time()
    while time.time() - start < seconds:
        for _ in range(4):
            kernel()
        calls += 4
        # Not every call: the queue must neither run dry nor grow.
        wait()
    return start, time.time(), calls
