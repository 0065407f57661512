"""A collector in a process of its own, and what it costs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

GPUSONDE = (sys.executable, "-m", "gpusonde.cli")
_LIMITED = """
import os, resource, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), hard))
os.execv(sys.executable, [sys.executable, "-m", "gpusonde.cli", *sys.argv[2:]])
"""
_START_S = 300.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What a process has used up to a moment.

    Attributes:
        wall_s: Monotonic seconds.
        cpu_s: User and system time, its ended children included.
        rss_bytes: Resident memory.
        peak_bytes: The most it ever was.
    """

    wall_s: float
    cpu_s: float
    rss_bytes: int
    peak_bytes: int


def usage(pid: int) -> Usage:
    """Look at a process and all of its descendants."""
    cpu, rss, peak = 0.0, 0, 0
    for number in (pid, *_descendants(pid)):
        try:
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{number}/status").read_text()
        except OSError:
            continue
        cpu += sum(int(x) for x in fields[11:15]) * _TICK_S
        rss += _kib(status, "VmRSS:")
        peak += _kib(status, "VmHWM:")
    return Usage(time.monotonic(), cpu, rss * 1024, peak * 1024)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, to the nanosecond: /proc counts hundredths, a short window is 0.07."""
    # clock_getcpuclockid(3), which Python has not: the clock of a process is made of its number.
    return time.clock_gettime(~pid << 3 | 2)


def thread_seconds(pid: int) -> dict[str, float]:
    """Return CPU seconds by thread, in the order in which they were made."""
    spent: dict[str, float] = {}
    for number, task in enumerate(sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name))):
        with contextlib.suppress(OSError):
            name = (task / "comm").read_text().strip()
            spent[f"{number} {name}"] = int((task / "schedstat").read_text().split()[0]) * 1e-9
    return spent


def _descendants(pid: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in children.read_text().split()]
    return found + [deeper for child in found for deeper in _descendants(child)]


def _kib(status: str, name: str) -> int:
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith(name)), 0)


@dataclass
class Meter:
    """Looks at a process every few seconds from a thread."""

    pid: int
    interval_s: float = 5.0
    seen: list[Usage] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Meter:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self.seen.append(usage(self.pid))
            if self._stop.wait(self.interval_s):
                self.seen.append(usage(self.pid))
                return

    def cpu_per_s(self, first: float = 0.0, last: float = 1.0) -> float:
        """CPU seconds per wall second between two shares of the time."""
        a, b = (self.seen[min(len(self.seen) - 1, round(share * (len(self.seen) - 1)))] for share in (first, last))
        return (b.cpu_s - a.cpu_s) / max(b.wall_s - a.wall_s, 1e-9)


class CollectorProcess:
    """``gpusonde collector`` on a free port of loopback, which it keeps when it is started again.

    Args:
        directory: Its store and its log.
        settings: ``section.name=value`` to override.
        open_files: Its soft limit on open files; None for that of this process.
    """

    def __init__(self, directory: Path, *settings: str, open_files: int | None = None) -> None:
        self._command = GPUSONDE if open_files is None else (sys.executable, "-c", _LIMITED, str(open_files))
        self.directory = directory
        self.store = directory / "store"
        self.settings = settings
        self.address = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it; return the seconds until it served."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.store / "address").unlink(missing_ok=True)
        # Another collector's self metrics may have the usual port.
        settings = [word for setting in ("metrics.listen=", *self.settings) for word in ("--set", setting)]
        listen = self.address or "127.0.0.1:0"
        began = time.monotonic()
        with (self.directory / "collector.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self._command,
                    "collector",
                    "--listen",
                    listen,
                    "--store",
                    str(self.store),
                    *settings,
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        while not (self.store / "address").is_file():
            if self.process.poll() is not None or time.monotonic() > began + _START_S:
                raise SystemExit((self.directory / "collector.log").read_text()[-4000:])
            time.sleep(0.01)
        self.address = (self.store / "address").read_text().strip()
        return time.monotonic() - began

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self.process is not None
        return self.process.pid

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Send a signal; return the seconds until the process was gone."""
        if self.process is None or self.process.poll() is not None:
            return 0.0
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait()
        return time.monotonic() - began

    def __enter__(self) -> CollectorProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def run_fleet(target: str, *options: object) -> subprocess.Popen[bytes]:
    """Start the load generator; its standard output is JSON."""
    script = Path(__file__).with_name("fleet.py")
    return subprocess.Popen(
        [sys.executable, str(script), target, *map(str, options)],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
