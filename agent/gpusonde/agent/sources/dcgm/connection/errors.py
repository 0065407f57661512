"""DCGM's return codes as our exceptions and reasons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpusonde.agent.sources.base import SourceError
from gpusonde.telemetry import BlankReason

# dcgmReturn_t, dcgm_structs.h
NOT_SUPPORTED = -6
TIMED_OUT = -11
NO_DATA = -14
GPU_IS_LOST = -18
FUNCTION_NOT_FOUND = -20
CONNECTION_NOT_VALID = -21
MODULE_NOT_LOADED = -33
PROFILING_NOT_SUPPORTED = -36
PROFILING_MULTI_PASS = -38

_REASONS = {
    NOT_SUPPORTED: BlankReason.NOT_SUPPORTED,
    -12: BlankReason.NOT_SUPPORTED,  # version mismatch
    -13: BlankReason.NOT_SUPPORTED,  # unknown field
    NO_DATA: BlankReason.NO_DATA,
    -15: BlankReason.NO_DATA,  # stale
    -16: BlankReason.NO_DATA,  # not watched
    -17: BlankReason.NO_PERMISSION,
    GPU_IS_LOST: BlankReason.GPU_LOST,
    FUNCTION_NOT_FOUND: BlankReason.NOT_SUPPORTED,  # function not found: the driver is older than the field
    -22: BlankReason.NOT_SUPPORTED,  # GPU not supported
    -29: BlankReason.NO_PERMISSION,  # requires root
    -32: BlankReason.NOT_SUPPORTED,  # field not supported by this call
    MODULE_NOT_LOADED: BlankReason.NOT_SUPPORTED,
    PROFILING_NOT_SUPPORTED: BlankReason.NOT_SUPPORTED,  # profiling not supported
    -44: BlankReason.NOT_SUPPORTED,  # driver too old
    -54: BlankReason.NO_DATA,  # paused
}
_ADVICE = {
    -7: "the engine could not start: see its log, and whether nvidia-smi works",
    TIMED_OUT: (
        "the host engine did not answer in time: 'systemctl status nvidia-dcgm', then 'systemctl restart nvidia-dcgm'"
    ),
    -12: "bindings and host engine are of different DCGM versions: install the same major version of both",
    -17: (
        "profiling is reserved for root: run the host engine as root (in a container with CAP_SYS_ADMIN), or load the "
        "driver with NVreg_RestrictProfilingToAdminUsers=0"
    ),
    -25: "a library of DCGM is missing: install the whole package of this version",
    -29: "profiling is reserved for root: run the host engine as root (the unit nvidia-dcgm does)",
    MODULE_NOT_LOADED: (
        "the engine's profiling module is not loaded: install datacenter-gpu-manager-4-proprietary (DCGM 4), see "
        "'dcgmi modules -l', and restart the host engine"
    ),
    PROFILING_NOT_SUPPORTED: (
        "this GPU has no profiling metrics (they need Volta or newer, a data centre board before Hopper)"
    ),
    -37: "the profiling library failed: look for another profiler or a second host engine, then restart nvidia-dcgm",
    -44: "the driver is older than this DCGM needs: update the driver",
    -56: "the engine finds no NVIDIA driver: install it, and in a container pass the GPUs through",
    CONNECTION_NOT_VALID: (
        "no host engine listens there: start it with 'systemctl start nvidia-dcgm', or set source.dcgm_address"
    ),
}


class DcgmCallError(SourceError):
    """One call of DCGM failed.

    Attributes:
        code: The ``dcgmReturn_t``.
        reason: Why values that depend on the call are blank.
    """

    def __init__(self, what: str, code: int, text: str) -> None:
        """Keep the code, what it means for values, and say what to do."""
        advice = _ADVICE.get(code)
        super().__init__(f"{what}: {text} (DCGM error {code})" + (f": {advice}" if advice else ""))
        self.code = code
        self.reason = status_reason(code)


class EngineLostError(DcgmCallError):
    """The connection to the host engine is gone."""


class EngineHungError(EngineLostError):
    """A call did not return in time: the engine hangs, or the library does."""

    def __init__(self, what: str) -> None:
        """Keep what was tried."""
        super().__init__(what, TIMED_OUT, "no answer")


def status_reason(code: int) -> BlankReason:
    """Return why a value is blank that carries this status."""
    return _REASONS.get(code, BlankReason.READ_ERROR)


@contextmanager
def translated(structs: Any, what: str) -> Iterator[None]:
    """Turn the errors of DCGM's bindings into ours.

    Args:
        structs: The module ``dcgm_structs``.
        what: What was tried, for the message.

    Raises:
        DcgmCallError: The call failed; :class:`EngineLostError` when there is no connection any more.
    """
    try:
        yield
    except structs.DCGMError as error:
        code = int(error.value)
        kind = EngineLostError if code == CONNECTION_NOT_VALID else DcgmCallError
        raise kind(what, code, str(error)) from error
