"""``Nvml``: the pynvml module behind one call that speaks our exceptions.

pynvml is the module of NVIDIA's ``nvidia-ml-py``. A stale package named ``pynvml`` installs a module of the same name,
which knows nothing of GPM; it is recognised and refused, because half of the metrics would silently be missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from gpusonde.errors import CallRefusedError, DriverCallError, GpuLostError, SourceError, SourceUnavailableError
from gpusonde.telemetry import MissingReason

_F = TypeVar("_F", bound=Callable[..., Any])

# nvmlReturn_t, nvml.h
SUCCESS = 0
_UNINITIALIZED = 1
_NOT_SUPPORTED = 3
_NO_PERMISSION = 4
_NOT_FOUND = 6
_DRIVER_NOT_LOADED = 9
TIMEOUT = 10
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
_LIB_RM_VERSION_MISMATCH = 18
_NO_DATA = 21
_ARGUMENT_VERSION_MISMATCH = 25
_DEPRECATED = 26
_NOT_READY = 27
_GPU_NOT_FOUND = 28

_REASONS = {
    _NOT_SUPPORTED: MissingReason.NOT_SUPPORTED,
    _FUNCTION_NOT_FOUND: MissingReason.NOT_SUPPORTED,  # the driver is older than the function
    _ARGUMENT_VERSION_MISMATCH: MissingReason.NOT_SUPPORTED,
    _DEPRECATED: MissingReason.NOT_SUPPORTED,
    _NO_PERMISSION: MissingReason.NO_PERMISSION,
    _NOT_FOUND: MissingReason.NOT_FOUND,
    _GPU_NOT_FOUND: MissingReason.NOT_FOUND,
    _NO_DATA: MissingReason.NO_DATA,
    _NOT_READY: MissingReason.NO_DATA,
    TIMEOUT: MissingReason.NO_DATA,
    _GPU_IS_LOST: MissingReason.GPU_LOST,
}
_LIBRARY_GONE = (_UNINITIALIZED, _DRIVER_NOT_LOADED, _LIB_RM_VERSION_MISMATCH)
_ADVICE = {
    _LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 is not installed: there is no NVIDIA driver here, or the container does not get it "
        "(start it with --gpus all and the capability 'utility'). Install the driver, or replay a trace instead"
    ),
    _DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded: run nvidia-smi, or 'modprobe nvidia', as root",
    _LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated under the running kernel module: reboot the host",
    _NO_PERMISSION: "this user may not open /dev/nvidiactl: add it to the groups video and render",
}


def call_error(function: str, code: int, text: str) -> DriverCallError:
    """Return the error of a call that answered with an ``nvmlReturn_t``."""
    kind = GpuLostError if code == _GPU_IS_LOST else CallRefusedError
    return kind(f"{function}: {text} (NVML error {code})", code)


def blank_reason(code: int) -> MissingReason:
    """Return why a value is blank that NVML answered with an error code."""
    return _REASONS.get(code, MissingReason.READ_ERROR)


def _translate(function: _F) -> _F:
    """Turn NVML's errors into ours. The only place that knows pynvml's exception."""

    @functools.wraps(function)
    def translated(self: Nvml, name: str, *arguments: Any) -> Any:
        try:
            return function(self, name, *arguments)
        except self.module.NVMLError as error:
            code = int(error.value)
            if code in _LIBRARY_GONE:
                raise SourceError(f"{name}: {_ADVICE.get(code, str(error))}") from error
            raise call_error(name, code, str(error)) from error

    return cast(_F, translated)


class Nvml:
    """An initialised NVML.

    Args:
        module: The pynvml module.
    """

    def __init__(self, module: Any) -> None:
        self.module = module

    @classmethod
    def load(cls) -> Nvml:
        """Import pynvml and initialise the driver's library.

        Raises:
            SourceUnavailableError: No driver, no permission, or a pynvml that is not NVIDIA's.
        """
        try:
            # Only hosts that sample hardware need it.
            import pynvml  # noqa: PLC0415
        except ImportError as error:
            raise SourceUnavailableError(
                "the Python package nvidia-ml-py is missing: pip install nvidia-ml-py"
            ) from error
        if not hasattr(pynvml, "nvmlGpmMetricsGet"):
            raise SourceUnavailableError(
                f"{pynvml.__file__} is not the module of nvidia-ml-py but an old package of the same name: "
                "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"
            )
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            advice = _ADVICE.get(int(error.value), "run nvidia-smi to see what is wrong with the driver")
            raise SourceUnavailableError(f"NVML cannot be initialised ({error}): {advice}") from error
        return cls(pynvml)

    @_translate
    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of pynvml.

        Raises:
            CallRefusedError: It failed.
            GpuLostError: The GPU is gone.
            SourceError: The driver is gone as a whole.
        """
        return getattr(self.module, name)(*arguments)

    @_translate
    def function(self, name: str) -> Callable[..., int]:
        """Return a function of the library itself, for what is called every tick: it returns a ``nvmlReturn_t``.

        Raises:
            CallRefusedError: The driver is older than the function.
        """
        return cast(Callable[..., int], self.module._nvmlGetFunctionPointer(name))

    def refusal(self, name: str, code: int) -> MissingReason:
        """Return why a value is blank whose function answered with an error code.

        Raises:
            GpuLostError: The code says that the GPU is gone.
            SourceError: The code says that the driver is gone as a whole.
        """
        if code == _GPU_IS_LOST:
            raise call_error(name, code, "GPU is lost")
        if code in _LIBRARY_GONE:
            raise SourceError(f"{name}: {_ADVICE.get(code, f'NVML error {code}')}")
        return blank_reason(code)

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function that returns text."""
        value = self.call(name, *arguments)
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    def close(self) -> None:
        """Shut the library down.

        Raises:
            DriverCallError: It refused.
        """
        self.call("nvmlShutdown")
