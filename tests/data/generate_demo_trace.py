"""Generate ``demo_trace.parquet``: what an agent would see of a CNN training on a Tesla T4.

The bundled trace is generated, not recorded, and says so in its attributes. It imitates the traits of recorded traces
that make epochs hard to find: a slow first epoch, a validation phase at another level, a checkpoint now and then, the
ripple of the iterations beating against the 0.1 s sampling, power averaged over one second, a clock that hunts below
the 70 W limit, ``nvidia-smi`` utilisation that repeats between the driver's updates, jitter, lost ticks and idle time
around the job. The levels (clock near 1 GHz, 68 W, utilisation above 90 %) are typical of a T4 at its power limit.

Run ``python tests/data/generate_demo_trace.py`` to write the file again: equal seeds give equal values, which a test
checks. The seed feeds ``numpy.random.RandomState``, whose streams are frozen, and every column is rounded before it is
written, so that the last bits of a platform's mathematical functions do not show.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpusonde.telemetry import Trace, write_trace

FloatArray = npt.NDArray[np.float64]

SEED = 20
EPOCHS = 12
TICK_S = 0.1
STEP_S = 0.005  # resolution of the simulated GPU
GPU_MODEL = "Tesla T4"
GPU_UUID = "GPU-generated-demo-t4"
OUTPUT = Path(__file__).with_name("demo_trace.parquet")

IDLE_BEFORE_S, PREPARE_S, IDLE_AFTER_S = 14.0, 6.0, 12.0
POWER_LIMIT_W = 70.0
CLOCK_STEP_MHZ = 15.0
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Level:
    """What the GPU does in one phase of the job: mean shares of time, and watts above idle at 1 GHz."""

    sm_active: float
    sm_occupancy: float
    tensor_active: float
    dram_active: float
    pcie_rx_bytes_per_second: float
    watts: float
    memory_utilization: float
    busy: float  # share of time in which any kernel runs


IDLE = Level(0.0, 0.0, 0.0, 0.0, 2e5, 0.0, 0.0, 0.0)
# Between phases the host works (data loader start, checkpoint) while the context keeps the clocks up.
WAITING = Level(0.004, 0.001, 0.0, 0.002, 6e5, 6.0, 0.0, 0.02)
WARMING_UP = Level(0.34, 0.16, 0.11, 0.20, 3.5e8, 27.0, 0.21, 0.55)
TRAINING = Level(0.89, 0.41, 0.33, 0.58, 7.6e8, 62.0, 0.53, 0.97)
VALIDATION = Level(0.74, 0.36, 0.26, 0.41, 1.6e9, 47.0, 0.38, 0.86)


@dataclass(frozen=True)
class Phase:
    """One stretch of the job."""

    level: Level
    duration_s: float
    ripple: bool = False  # whether iterations show


def plan(random: np.random.RandomState) -> tuple[list[Phase], list[float], float]:
    """Lay the job out; returns its phases, the true epoch starts and the end of the last epoch, in seconds."""
    phases = [Phase(IDLE, IDLE_BEFORE_S), Phase(WAITING, PREPARE_S)]
    starts: list[float] = []
    for epoch in range(EPOCHS):
        starts.append(sum(phase.duration_s for phase in phases))
        phases.append(Phase(WAITING, 0.35 + 0.10 * random.random_sample()))  # data loader workers start
        if epoch == 0:
            # Library autotuning and a cold page cache.
            phases.append(Phase(WARMING_UP, 4.2, ripple=True))
        train_s = 14.3 * (1.0 + 0.012 * random.standard_normal())
        phases.append(Phase(TRAINING, train_s * (1.14 if epoch == 0 else 1.0), ripple=True))
        phases.append(Phase(WAITING, 0.25 + 0.08 * random.random_sample()))
        phases.append(Phase(VALIDATION, 2.2 * (1.0 + 0.02 * random.standard_normal()), ripple=True))
        if epoch % 4 == 3:
            phases.append(Phase(WAITING, 1.1 + 0.3 * random.random_sample()))  # checkpoint
    end = sum(phase.duration_s for phase in phases)
    phases += [Phase(WAITING, 1.6), Phase(IDLE, IDLE_AFTER_S)]
    return phases, starts, end


def moving_average(values: FloatArray, window_s: float) -> FloatArray:
    """Mean over the past ``window_s`` seconds at every simulation step."""
    width = round(window_s / STEP_S)
    total = np.cumsum(np.concatenate([np.full(width, values[0]), values]))
    return (total[width:] - total[:-width]) / width


def noise(random: np.random.RandomState, size: int, scale: float, smooth_s: float) -> FloatArray:
    """Gaussian noise of standard deviation ``scale`` whose memory is about ``smooth_s`` seconds."""
    white = moving_average(random.standard_normal(size), smooth_s)
    return scale * white / max(float(white.std()), 1e-12)


def simulate(phases: list[Phase], random: np.random.RandomState) -> dict[str, FloatArray]:
    """The GPU's state every ``STEP_S`` seconds."""
    steps = np.diff(np.concatenate([[0], np.round(np.cumsum([p.duration_s for p in phases]) / STEP_S)])).astype(int)

    def levels(attribute: str) -> FloatArray:
        return np.repeat([float(getattr(p.level, attribute)) for p in phases], steps)

    n = int(steps.sum())
    rippling = np.repeat([p.ripple for p in phases], steps)
    on_gpu = np.repeat([p.level is not IDLE for p in phases], steps)

    # One iteration takes about 83 ms; its phase wanders, so that the beat with the 0.1 s ticks never settles.
    iteration_hz = 12.05 + noise(random, n, 0.25, 3.0)
    cycle = np.cumsum(iteration_hz) * STEP_S + np.cumsum(random.standard_normal(n)) * 0.012
    position = cycle % 1.0
    # Forward and backward keep the SMs busy; the optimiser step and the next batch's copy do not.
    working = np.where(rippling, np.where(position < 0.86, 1.10, 0.386), 1.0)
    drift = 1.0 + noise(random, n, 0.012, 6.0)

    # A T4 at its power limit lowers the clock until the one-second average fits: a first-order loop with some hunting.
    demand = levels("watts")
    wanted = np.where(demand > 40.0, 930.0 + 11.0 * (62.0 - demand), 1590.0)
    clock = moving_average(wanted, 0.6) + noise(random, n, 38.0, 0.4) * (demand > 40.0)
    clock = np.clip(np.where(on_gpu, clock, 300.0), 300.0, 1590.0)

    watts = np.where(on_gpu, 27.0, 9.6) + demand * working * drift * 0.66
    watts = np.minimum(watts, POWER_LIMIT_W * 1.25) + random.standard_normal(n) * np.where(on_gpu, 1.2, 0.25)

    # Memory: context, then model and activations from the first batch, then more cache from the first validation.
    first_batch = int(np.argmax(rippling))
    validation = np.repeat([p.level is VALIDATION for p in phases], steps)
    cached = int(np.argmax(validation))
    used = np.where(on_gpu, 390.0, 3.0)
    used[first_batch:] = np.where(on_gpu[first_batch:], 5874.0, 3.0)
    used[cached:] = np.where(on_gpu[cached:], 6610.0, 3.0)

    temperature = np.empty(n)
    heat = 38.0
    averaged = moving_average(watts, 1.0)
    for i in range(n):
        heat += (33.0 + 0.52 * averaged[i] - heat) * STEP_S / 55.0
        temperature[i] = heat

    return {
        "gpu_busy": np.clip(levels("busy") * np.where(rippling & (position > 0.97), 0.4, 1.0), 0.0, 1.0),
        "memory_busy": np.clip(levels("memory_utilization") * working * drift, 0.0, 1.0),
        "power_watts": averaged,
        "sm_clock_mhz": clock,
        "framebuffer_used_bytes": used * MEBIBYTE,
        "sm_active": levels("sm_active") * working * drift,
        "sm_occupancy": levels("sm_occupancy") * working * drift,
        "tensor_active": levels("tensor_active") * working * drift,
        "dram_active": levels("dram_active") * working * drift,
        "pcie_rx_bytes_per_second": levels("pcie_rx_bytes_per_second") * np.where(rippling, 0.5 + position, 1.0),
        "gpu_temperature_celsius": temperature,
    }


def tick_times(duration_s: float, random: np.random.RandomState) -> FloatArray:
    """Times at which a 10 Hz sampler woke up: slightly late, now and then very late, with a few ticks lost."""
    deadlines = np.arange(1, int(duration_s / TICK_S)) * TICK_S
    late = random.exponential(0.0006, deadlines.size)
    late += np.where(random.random_sample(deadlines.size) < 0.01, random.exponential(0.012, deadlines.size), 0.0)
    kept = random.random_sample(deadlines.size) >= 0.003
    hole = int(deadlines.size * 0.61)
    kept[hole : hole + 6] = False  # the host was busy for 0.6 s
    return np.round(deadlines + np.minimum(late, 0.06), 4)[kept]


def sample(state: dict[str, FloatArray], times: FloatArray, random: np.random.RandomState) -> dict[str, FloatArray]:
    """Read the simulated GPU as the driver and DCGM would present it at the given times."""
    index = np.minimum((times / STEP_S).astype(int), state["power_watts"].size - 1)
    begin = np.concatenate([[0], index[:-1]])

    def mean_since_last_tick(name: str) -> FloatArray:
        total = np.concatenate([[0.0], np.cumsum(state[name])])
        return (total[index] - total[begin]) / np.maximum(index - begin, 1)

    def driver_utilization(name: str) -> FloatArray:
        # The driver averages over a sixth of a second and answers with the last whole percent it computed.
        period = round(1 / 6 / STEP_S)
        windows = state[name][: state[name].size // period * period].reshape(-1, period).mean(axis=1)
        return np.round(np.concatenate([[0.0], windows])[np.minimum(index // period, windows.size)], 2)

    def ratio(name: str) -> FloatArray:
        measured = mean_since_last_tick(name)
        measured += random.standard_normal(times.size) * (0.0002 + 0.015 * measured)
        return np.round(np.clip(measured, 0.0, 1.0), 4)

    return {
        "gpu_utilization": driver_utilization("gpu_busy"),
        "memory_utilization": driver_utilization("memory_busy"),
        "power_watts": np.round(state["power_watts"][index], 2),
        "sm_clock_mhz": np.round(state["sm_clock_mhz"][index] / CLOCK_STEP_MHZ) * CLOCK_STEP_MHZ,
        "framebuffer_used_bytes": state["framebuffer_used_bytes"][index],
        "gpu_temperature_celsius": np.round(state["gpu_temperature_celsius"][index]),
        "sm_active": ratio("sm_active"),
        "sm_occupancy": ratio("sm_occupancy"),
        "tensor_active": ratio("tensor_active"),
        "dram_active": ratio("dram_active"),
        "pcie_rx_bytes_per_second": np.round(mean_since_last_tick("pcie_rx_bytes_per_second"), -3),
    }


def generate(seed: int = SEED) -> Trace:
    """Return the demo trace; equal seeds give equal traces, bit for bit."""
    random = np.random.RandomState(seed)
    phases, starts, end = plan(random)
    times = tick_times(sum(phase.duration_s for phase in phases), random)
    values = sample(simulate(phases, random), times, random)
    return Trace(
        time_s=times,
        values=values,
        gpu_uuid=GPU_UUID,
        gpu_model=GPU_MODEL,
        attributes={
            "generated": f"by tests/data/generate_demo_trace.py with seed {seed}; not recorded on a GPU",
            "workload": "convolutional network, mixed precision: training and validation in every epoch",
            "true_epoch_starts_s": json.dumps([round(start, 3) for start in starts]),
            "true_end_s": json.dumps(round(end, 3)),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUTPUT, help="file to write (default: %(default)s)")
    write_trace(generate(), parser.parse_args().out)


if __name__ == "__main__":
    main()
