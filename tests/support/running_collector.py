"""Collectors for tests: in a thread of this process, or in a process of its own that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from support.own_port import own_port
from support.wire_agent import wait_until

from gpusonde.collector import CollectorConfig, run_collector

QUICK = {
    "server.listen": "127.0.0.1:0",
    "server.drain_grace": "2s",
    "ingest.commit_interval": "10ms",
    "store.reserve_bytes": "1MiB",
    "runs.track_interval": "20ms",
    # Tests run beside each other, and beside a collector of this host.
    "metrics.listen": "",
    "web.listen": "",
}


class ThreadCollector:
    """``run_collector`` in a thread; one at a time, because grpc.aio has one poller per process.

    ``adapt`` makes another configuration of that of the ``settings``, to choose what is no key.
    """

    def __init__(self, directory: Path, files=None, make_tracker=None, adapt=lambda config: config, **settings):
        overrides = QUICK | {"store.directory": str(directory)} | {k.replace("__", "."): v for k, v in settings.items()}
        self._config = adapt(CollectorConfig.load(overrides=overrides))
        self._more = {"files": files} | ({"make_tracker": make_tracker} if make_tracker else {})
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.report = None
        self.error = None
        self.target = ""

    def _run(self):
        try:
            self.report = run_collector(self._config, on_ready=self._set_ready, stop=self._stop, **self._more)
        except Exception as error:
            self.error = error
        self._ready.set()

    def _set_ready(self, address):
        self.target = address
        self._ready.set()

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(120)
        if self.error:
            raise self.error
        return self

    def __exit__(self, *_):
        self.stop()
        if self.error:
            raise self.error

    def stop(self):
        self._stop.set()
        self._thread.join(240)
        assert not self._thread.is_alive()
        return self.report


_MAIN = """
import logging, sys
logging.basicConfig(level=logging.INFO)
from gpusonde.collector import CollectorConfig, run_collector
run_collector(CollectorConfig.load(overrides=dict(a.split("=", 1) for a in sys.argv[1:])))
"""


class ProcessCollector:
    """A collector in a process of its own. The port is kept over restarts. ``open_files`` is its hard limit."""

    def __init__(self, directory: Path, open_files=None, **settings):
        limit = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({open_files}, {open_files}))"
        self._main = _MAIN if open_files is None else f"import resource\n{limit}\n{_MAIN}"
        self.directory = directory
        self.log_path = directory.with_suffix(".log")
        self._settings = QUICK | {"store.directory": str(directory), "server.listen": f"127.0.0.1:{own_port()}"}
        self._settings |= {k.replace("__", "."): v for k, v in settings.items()}
        self._process = None
        self.target = ""

    def start(self):
        address = self.directory / "address"
        address.unlink(missing_ok=True)
        arguments = [f"{key}={value}" for key, value in self._settings.items()]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-c", self._main, *arguments], stderr=log, env=os.environ)
        try:
            wait_until(lambda: address.exists() or self._process.poll() is not None, 120, "start of the collector")
        except AssertionError:
            self.kill()
            raise
        assert self._process.poll() is None, self.log_path.read_text()[-2000:]
        self.target = address.read_text().strip()
        return self

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def terminate(self):
        """SIGTERM; return the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(120)

    def wait(self, timeout_s):
        """Return the exit code."""
        return self._process.wait(timeout_s)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self._process and self._process.poll() is None:
            self.kill()
