"""What a GPU is, beside what it does: figures that do not change while the driver is loaded.

Names and units are those of ``gpusonde.catalog.GpuSpec`` where it has the figure.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gpusonde.agent import cuda_attributes
from gpusonde.agent.sources.base import GpuDescription, StaticAttribute, StaticOrigin
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.errors import DriverCallError
from gpusonde.telemetry import MissingReason

log = logging.getLogger(__name__)

CudaAttributes = Mapping[str, Mapping[str, float]]

_CUDA_TIMEOUT_S = 10.0


# Name, pynvml function, arguments after the handle, conversion. Clocks: 0 graphics, 1 SM, 2 memory.
_NVML_FIGURES: tuple[tuple[str, str, tuple[Any, ...], Callable[[Any], float]], ...] = (
    ("compute_capability", "nvmlDeviceGetCudaComputeCapability", (), lambda pair: float(f"{pair[0]}.{pair[1]}")),
    ("cuda_cores", "nvmlDeviceGetNumGpuCores", (), float),
    ("memory_bytes", "nvmlDeviceGetMemoryInfo", (), lambda memory: float(memory.total)),
    ("memory_bus_bits", "nvmlDeviceGetMemoryBusWidth", (), float),
    ("bar1_bytes", "nvmlDeviceGetBAR1MemoryInfo", (), lambda memory: float(memory.bar1Total)),
    ("max_graphics_clock_mhz", "nvmlDeviceGetMaxClockInfo", (0,), float),
    ("max_sm_clock_mhz", "nvmlDeviceGetMaxClockInfo", (1,), float),
    ("max_memory_clock_mhz", "nvmlDeviceGetMaxClockInfo", (2,), float),
    ("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", (), lambda milliwatts: milliwatts * 1e-3),
    ("default_power_limit_watts", "nvmlDeviceGetPowerManagementDefaultLimit", (), lambda milliwatts: milliwatts * 1e-3),
    ("shutdown_temperature_celsius", "nvmlDeviceGetTemperatureThreshold", (0,), float),
    ("pcie_generation", "nvmlDeviceGetMaxPcieLinkGeneration", (), float),
    ("pcie_lanes", "nvmlDeviceGetMaxPcieLinkWidth", (), float),
    # The link trains down when idle, so this says how it was at the start, not what the board can do.
    ("current_pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", (), float),
    ("current_pcie_lanes", "nvmlDeviceGetCurrPcieLinkWidth", (), float),
)


def describe_gpu(
    nvml: Nvml,
    handle: Any,
    gpu_uuid: str,
    index: int,
    driver_version: str,
    cuda: Mapping[str, float],
    missing_metrics: Mapping[str, MissingReason],
) -> GpuDescription:
    """Return everything static about one GPU.

    Args:
        nvml: The library.
        handle: The device.
        gpu_uuid: Its UUID.
        index: Its index on the host.
        driver_version: Version of the driver.
        cuda: Its attributes from the CUDA driver.
        missing_metrics: What it cannot give, and why.
    """
    figures = [
        StaticAttribute(name, value, StaticOrigin.NVML)
        for name, function, arguments, convert in _NVML_FIGURES
        if (value := _figure(nvml, handle, function, arguments, convert)) is not None
    ]
    figures += [StaticAttribute(name, value, StaticOrigin.CUDA_DRIVER) for name, value in cuda.items()]
    known = {figure.name: figure.value for figure in figures}
    if known.get("sm_count") and "cuda_cores" in known:
        per_sm = known["cuda_cores"] / known["sm_count"]
        figures.append(StaticAttribute("cores_per_sm", per_sm, StaticOrigin.CUDA_DRIVER))
    return GpuDescription(
        gpu_uuid=gpu_uuid,
        gpu_index=index,
        product_name=_text(lambda: nvml.text("nvmlDeviceGetName", handle)),
        pci_bus_id=_text(lambda: _decoded(nvml.call("nvmlDeviceGetPciInfo", handle).busId)),
        framebuffer_bytes=round(known.get("memory_bytes", 0.0)),
        driver_version=driver_version,
        static_attributes=tuple(figures),
        missing_metrics=missing_metrics,
    )


def read_cuda_attributes(
    command: tuple[str, ...] = (sys.executable, "-I", cuda_attributes.__file__), timeout_s: float = _CUDA_TIMEOUT_S
) -> CudaAttributes:
    """Ask the CUDA driver in a process of its own; nothing when it does not answer in time.

    The driver sees all GPUs there, whatever CUDA_VISIBLE_DEVICES says in this process: they are matched by UUID.
    """
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        answer = json.loads(done.stdout)
        return {str(gpu): {str(k): float(v) for k, v in figures.items()} for gpu, figures in answer.items()}
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError, TypeError, RecursionError) as error:
        log.warning("the CUDA driver does not tell its attributes (%s); SM count and caches stay unknown", error)
        return {}


def _figure(
    nvml: Nvml, handle: Any, function: str, arguments: tuple[Any, ...], convert: Callable[[Any], float]
) -> float | None:
    try:
        return convert(nvml.call(function, handle, *arguments))
    except DriverCallError as error:
        log.debug("%s: %s", function, error)
        return None


def _text(read: Callable[[], str]) -> str:
    try:
        return read()
    except DriverCallError as error:
        log.debug("%s", error)
        return ""


def _decoded(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
