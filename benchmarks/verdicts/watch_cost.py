"""What a ``StateWatch`` costs a second, on top of what finds the cycles."""

from __future__ import annotations

import time

import numpy as np

from gpusonde.epoch_detect.progress import StateWatch

_SECONDS, _REPEATS, _TICKS = 600, 5, 10
_METRICS = (
    "gpu_utilization", "sm_active", "tensor_active", "dram_active", "pcie_tx_bytes_per_second",
    "pcie_rx_bytes_per_second", "framebuffer_used_bytes", "power_watts",
)  # fmt: skip


def _seconds_of_processor(gpus: int) -> tuple[float, int]:
    """Processor seconds per second of a job, best of some, and bytes of its state."""
    rng = np.random.default_rng(0)
    watch = StateWatch(gpus)
    made = []
    for second in range(60):
        values = {name: rng.random((gpus, _TICKS)) for name in _METRICS}
        values["power_watts"] = (70 + 480 * (second > 15)) * (1 + 0.01 * rng.normal(size=(gpus, _TICKS)))
        made.append(values)
    best, now_s = np.inf, 0
    for _ in range(_REPEATS):
        begin = time.process_time()
        for _ in range(_SECONDS):
            watch.note_marks(now_s, written_bytes_per_s=0.0, processors=float(gpus), processes=gpus)
            watch.update(now_s + np.arange(_TICKS) / _TICKS, made[now_s % 60])
            now_s += 1
        best = min(best, (time.process_time() - begin) / _SECONDS)
    return best, len(watch.state())


def table() -> list[str]:
    """Lines of a Markdown table, one size of job each."""
    lines = [
        f"{_TICKS} Hz, {len(_METRICS)} metrics, a second at a time, and marks; best of {_REPEATS} times {_SECONDS} s.",
        "",
        "| GPUs of the job | us a second | share of a core per GPU | state |",
        "|---|---|---|---|",
    ]
    for gpus in (1, 8, 64):
        seconds, size = _seconds_of_processor(gpus)
        lines.append(f"| {gpus} | {1e6 * seconds:.0f} | {seconds / gpus:.5%} | {size / 1000:.1f} kB |")
    return lines
