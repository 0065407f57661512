"""``NvmlProcesses``: which processes compute on which GPU or MIG instance."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from gpusonde.agent.sources.nvml.gpu import is_split, mig_instances
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.errors import DriverCallError, SourceError

log = logging.getLogger(__name__)


class NvmlProcesses:
    """Asks the driver, whichever source samples: DCGM has no list of running processes without recording all of them.

    The library is initialised on the first question and apart from the sampler's, which it does not touch: NVML counts
    its users. Each question looks for the GPUs anew, so that nothing has to be told when they come and go.

    Args:
        load: Makes the library.
    """

    def __init__(self, load: Callable[[], Nvml] = Nvml.load) -> None:
        self._load = load
        self._nvml: Nvml | None = None

    def compute_processes(self) -> dict[str, tuple[int, ...]]:
        """See :class:`gpusonde.agent.sources.base.ProcessReader`; empty where there is no driver."""
        try:
            if self._nvml is None:
                self._nvml = self._load()
            return self._ask(self._nvml)
        except SourceError as error:
            log.debug("no processes of GPUs: %s", error)
            self.close()
            return {}

    def close(self) -> None:
        """Release the library; safe to call twice and before the first question."""
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        try:
            nvml.close()
        except SourceError as error:
            log.debug("while closing: %s", error)

    def _ask(self, nvml: Nvml) -> dict[str, tuple[int, ...]]:
        processes: dict[str, tuple[int, ...]] = {}
        for index in range(int(nvml.call("nvmlDeviceGetCount"))):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
                if is_split(nvml, handle):
                    for instance in mig_instances(nvml, handle):
                        _add(nvml, instance.handle, instance.uuid, processes)
                else:
                    _add(nvml, handle, nvml.text("nvmlDeviceGetUUID", handle), processes)
            except DriverCallError as error:
                log.debug("processes of GPU %d: %s", index, error)
        return processes


def _add(nvml: Nvml, handle: Any, key: str, processes: dict[str, tuple[int, ...]]) -> None:
    try:
        running = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    except DriverCallError as error:
        log.debug("processes of %s: %s", key, error)
        return
    processes[key] = tuple(sorted({int(process.pid) for process in running}))
