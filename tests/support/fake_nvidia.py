"""Compiles the stand-ins for NVIDIA's libraries and hands them to a private copy of pynvml."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.agent.sources.nvml.source import NvmlSource

_SOURCES = Path(__file__).parent


def compile_library(name: str, soname: str, folder: Path) -> Path:
    """Compile ``tests/support/<name>.c``; skip the test where no C compiler is."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc or gcc) to build the stand-in for NVIDIA's library")
    target = folder / soname
    command = [compiler, "-O1", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(target)]
    subprocess.run([*command, str(_SOURCES / f"{name}.c")], check=True)
    return target


class FakeNvml:
    """The compiled stand-in and a copy of pynvml that uses it, invisible to the rest of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        for name in ("fake_level", "fake_integral"):
            function = getattr(self.library, name)
            function.restype, function.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_double]
        self.library.fake_reset.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_double]
        self.library.fake_set_time.argtypes = [ctypes.c_double]
        self.library.fake_set_excess.argtypes = [ctypes.c_double]
        self.library.fake_calls.restype = ctypes.c_long
        self.pynvml = _private_copy("pynvml")
        self.pynvml.nvmlLib = self.library
        self.time_s = 1_000_000.0

    def reset(self, gpus: int = 2, *, gpm: bool = True, period_s: float = 10.0) -> None:
        self.library.fake_reset(gpus, int(gpm), period_s)
        self.set_time(1_000_000.0)

    def set_time(self, seconds: float) -> None:
        self.time_s = seconds
        self.library.fake_set_time(seconds)

    def advance(self, seconds: float) -> None:
        self.set_time(self.time_s + seconds)

    @property
    def monotonic_s(self) -> float:
        """The stand-in's clock is never set back."""
        return self.time_s

    def fail(self, function: str, code: int, gpu: int = -1) -> None:
        self.library.fake_fail(function.encode(), gpu, code)

    def heal(self) -> None:
        self.library.fake_heal()

    def set_mig(
        self, gpu: int, slot: int, slices: int, gpu_instance: int, compute_instance: int = 0, made: int = 1
    ) -> str:
        """Put a MIG instance into a slot (no slices: empty it) and return its UUID."""
        self.library.fake_set_mig(gpu, slot, slices, gpu_instance, compute_instance, made)
        return f"MIG-fa4e0000-0000-0000-{made:04x}-{gpu:08x}{slot:04x}"

    def add_process(self, pid: int, gpu: int, slot: int = -1) -> None:
        self.library.fake_add_process(gpu, slot, pid)

    def push_xid(self, gpu: int, code: int, gpu_instance: int = 0xFFFFFFFF) -> None:
        self.library.fake_push_xid(gpu, code, gpu_instance)

    def uuid(self, gpu: int) -> str:
        return f"GPU-fa4e0000-0000-0000-0000-{gpu:012x}"

    def loader(self) -> Callable[[], Nvml]:
        """Makes the library as a source does."""

        def load() -> Nvml:
            self.pynvml.nvmlInit()
            return Nvml(self.pynvml)

        return load

    def source(self, **options: Any) -> NvmlSource:
        """A source on the stand-in's own clock."""
        options = {"load": self.loader(), "cuda_attributes": dict, "sleep": self.advance, **options}
        return NvmlSource(wall_ns=lambda: round(self.time_s * 1e9), monotonic=lambda: self.time_s, **options)

    def level(self, gpu: int, seconds: float) -> float:
        return float(self.library.fake_level(gpu, seconds))

    def mean(self, gpu: int, start_s: float, end_s: float) -> float:
        """The true mean of the level between two times."""
        integral = self.library.fake_integral
        return float((integral(gpu, end_s) - integral(gpu, start_s)) / (end_s - start_s))


def _private_copy(name: str) -> ModuleType:
    original = importlib.util.find_spec(name)
    assert original is not None
    assert original.origin is not None
    spec = importlib.util.spec_from_file_location(f"{name}_of_the_fake", original.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The module looks itself up while it runs.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
