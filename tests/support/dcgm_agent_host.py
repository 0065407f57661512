"""A host with the stand-in for DCGM: makes sources over it and steps its clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from support.fake_dcgm import engine as fake
from support.fake_dcgm.engine import FakeEngine

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.sources.base import Clocks, SourceEvent, SourceInventory
from gpusonde.agent.sources.dcgm.bindings import load_bindings
from gpusonde.agent.sources.dcgm.calls import CallGuard
from gpusonde.agent.sources.dcgm.source import DcgmSource, HostProbes
from gpusonde.errors import SourceUnavailableError
from gpusonde.telemetry import MissingReason

BINDINGS = Path(fake.__file__).parent / "bindings"
_MODULES = ("pydcgm", "dcgm_agent", "dcgm_structs", "dcgm_fields")


def no_nvml():
    raise SourceUnavailableError("no NVML in this test")


def forget_bindings() -> None:
    """Let the next test import its own."""
    for name in _MODULES:
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if entry != str(BINDINGS)]


class PatientGuard(CallGuard):
    """Gives up calls that the engine holds, and waits for those that a busy machine has not come to."""

    def __init__(self, engine: FakeEngine, guard: CallGuard) -> None:
        super().__init__(guard._limit_s, guard._on_cost)
        self._engine = engine

    def _wait_for(self, call, patience: float) -> None:
        hung = self.hung
        while self._engine.held <= hung:
            if call.running.acquire(timeout=0.02):
                call.running.release()
                break
        super()._wait_for(call, patience)


class DcgmHost:
    """An engine, a source over it and the ticks it gave."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.monotonic_s = 100.0
        self.names: list[str] = []
        self.inventory: SourceInventory | None = None
        self.ticks: dict[int, list[tuple[float, Mapping[str, float], Mapping[str, MissingReason]]]] = {}
        self.events: list[SourceEvent] = []
        self.reads = 0
        self._shift_s = 0.0
        # Whether the source may look by itself, as the sampler lets it, and how often it did.
        self.looks_ahead = False
        self.looks = 0
        fake.install(engine)

    def advance(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.engine.advance(seconds)

    def source(self, **options) -> DcgmSource:
        """A source of this host; options are fields of ``[source]``, of ``HostProbes`` and of the source itself."""
        section = {"dcgm_bindings": str(BINDINGS)}
        found = {"load_bindings": load_bindings, "load_nvml": no_nvml, "cuda_attributes": dict}
        own = {}
        for name, value in options.items():
            part = found if name in found else own if name in ("patience_s", "call_limit_s") else section
            part[name] = value
        clocks = Clocks(
            wall_ns=lambda: round(self.engine.time_s * 1e9),
            monotonic=lambda: self.monotonic_s,
            sleep=self.advance,
        )
        source = DcgmSource(SourceConfig(**section), probes=HostProbes(**found), clocks=clocks, **own)
        source._link._guard = PatientGuard(self.engine, source._link._guard)
        return source

    def open(self, source: DcgmSource) -> SourceInventory:
        self._take(source.open())
        assert self.inventory is not None
        return self.inventory

    def _take(self, inventory: SourceInventory) -> None:
        self.inventory = inventory
        self.names = [m.name for m in inventory.metrics]

    def keys(self) -> list[str]:
        assert self.inventory is not None
        return [gpu.key for gpu in self.inventory.gpus]

    def run(self, source: DcgmSource, seconds: float, step_s: float = 0.1) -> None:
        """Read for so long, moved as the source wants it; what came is kept, later ticks behind earlier ones."""
        left = round(seconds / step_s)
        while left > 0:
            self.advance(step_s + self._shift_s)
            self._shift_s = 0.0
            left -= 1
            more = True
            while more:
                reading = source.read(self.monotonic_s)
                self.reads += 1
                self.looks += len(reading.looks)
                self._shift_s += reading.shift_s
                more = reading.more
                if reading.inventory is not None:
                    self._take(reading.inventory)
                self.events += reading.events
                for part in reading.ticks:
                    blanks = {self.names[column]: reason for column, reason in part.blanks.items()}
                    for i, time_ns in enumerate(part.time_unix_nano.tolist()):
                        values = dict(zip(self.names, part.values[:, i].tolist(), strict=True))
                        self.ticks.setdefault(part.gpu, []).append((time_ns / 1e9, values, blanks))
            if self.looks_ahead and reading.look_ahead is not None and left > 1:
                left -= self._leave_alone(source, reading.look_ahead, step_s, left - 1)

    def _leave_alone(
        self, source: DcgmSource, look_ahead: Callable[[float, float, float], int], step_s: float, most: int
    ) -> int:
        """Let the source look by itself, which moves the clock, and wait for it; return how many looks it takes."""
        next_s = self.monotonic_s + step_s + self._shift_s
        count = look_ahead(next_s, step_s, next_s + (most - 0.5) * step_s)
        if count:
            while source._series.running.locked() and not self.engine.held:
                time.sleep(1e-4)
            self._shift_s = 0.0
            # Of a call that hangs the clock knows nothing.
            self.advance(max(0.0, next_s + (count - 1) * step_s - self.monotonic_s))
        return count

    def column(self, name: str, gpu: int = 0) -> list[float]:
        return [values[name] for _, values, _ in self.ticks.get(gpu, [])]
