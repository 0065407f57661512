"""The collector from start to a clean end: its threads, what tells it to stop, the file with its address."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from prometheus_client.registry import Collector

from gpusonde.collector.build import THREADS, CollectorParts, build_parts, make_store
from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.ingest.service import AdminService
from gpusonde.collector.metrics import CollectorMetrics, JobMetrics, StoreFigures
from gpusonde.collector.push.outgoing import Pusher
from gpusonde.collector.server import bind, build_server, private_socket
from gpusonde.collector.tracking.epochs import TrackerFactory, TrackerRestorer
from gpusonde.collector.tracking.remote import TrackerProcesses
from gpusonde.epoch_detect import EpochTracker
from gpusonde.errors import GpusondeError, MissingExtraError, StoreError
from gpusonde.service.durable_files import FileLayer, write_durably
from gpusonde.service.health import notify
from gpusonde.service.process import Shutdown, allow_open_files, end, release_free_memory
from gpusonde.service.reload import ConfigSource
from gpusonde.service.supervisor import Supervisor
from gpusonde.service.tls import is_loopback
from gpusonde.service.tls.certificates import locate

_ADDRESS_FILE = "address"
_WEB_ADDRESS_FILE = "web_address"
_COMMIT_BEAT_S = 1.0
_STORE_SIZES_S = 15.0
_RELEASE_MEMORY_S = 30.0


@contextlib.contextmanager
def executors(*names: str) -> Iterator[dict[str, Executor]]:
    """Make one thread per name: each kind of work is done in order and does not wait for the others."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix=name)) for name in names}


@contextlib.contextmanager
def trackers(config: CollectorConfig, make_tracker: TrackerFactory) -> Iterator[tuple[TrackerFactory, TrackerRestorer]]:
    """Say where trackers come from: this process, or others."""
    if not config.runs.processes:
        yield make_tracker, EpochTracker.restore
        return
    with contextlib.closing(TrackerProcesses(config.runs.processes)) as processes:
        yield processes.make, processes.restore


@contextlib.contextmanager
def address_file(directory: Path) -> Iterator[Path]:
    """Yield the path of the file with the collector's address, and remove it in the end; ``announce`` writes it."""
    path = directory / _ADDRESS_FILE
    path.unlink(missing_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def announce(path: Path, address: str) -> None:
    """Write the file as a whole: who finds it finds an address."""
    write_durably(path, f"{address}\n".encode())


_LOG = logging.getLogger(__name__)
_READERS = 512  # connections beside those of agents
_OWN_FILES = 256  # log, segments being read, catalogue, libraries
_WEB_FILES = 256  # as many connections as WebServer holds at most


@dataclass(frozen=True)
class CollectorReport:
    """How a collector ended.

    Attributes:
        address: Where it listened.
        counts: What happened, by name: records, repetitions, refusals, gaps, quarantined.
    """

    address: str
    counts: dict[str, int]


def run_collector(
    config: CollectorConfig,
    *,
    on_ready: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    files: FileLayer | None = None,
    make_tracker: TrackerFactory = EpochTracker,
    config_source: ConfigSource[CollectorConfig] | None = None,
) -> CollectorReport:
    """Run a collector until it is told to stop (SIGTERM, SIGINT or ``stop``).

    It then asks its agents to go elsewhere, makes everything received durable and ends; a second signal gives the
    agents no more time. While it serves, the file ``address`` in the data directory holds its address.

    Args:
        config: Where to listen and what to keep.
        on_ready: Called with the address once it serves.
        stop: Stops the collector like a signal, for callers outside of the main thread.
        files: The file operations of the store.
        make_tracker: Makes epoch trackers.
        config_source: Where SIGHUP finds a new configuration; None leaves that signal alone.

    Raises:
        DirectoryLockedError: Another collector uses the data directory.
        StoreError: The data directory cannot be used.
        GpusondeError: The address is taken.
        TlsError: Certificate, key, authority or tokens cannot be used.
        ModelFileError: A configured model cannot be used, or lacks its encoder.
        MissingExtraError: Series are to be sent to others, and what that takes is not installed.
    """
    store = make_store(config, files)
    store.open()
    try:
        with (
            executors(*THREADS) as threads,
            trackers(config, make_tracker) as (make, restore),
        ):
            collector = _Collector(build_parts(config, store, threads, make, restore), config_source, Shutdown(stop))
            return asyncio.run(collector.run(on_ready))
    finally:
        store.close()


class _Collector:
    """One running collector: its parts, from start to end."""

    def __init__(
        self, parts: CollectorParts, config_source: ConfigSource[CollectorConfig] | None, shutdown: Shutdown
    ) -> None:
        self._parts = parts
        self._store = parts.store
        self._shutdown = shutdown
        self._supervisor = Supervisor(parts.config, config_source, self, parts.config.directory)
        self._commit_heartbeat = self._supervisor.heartbeat("the thread that writes records")
        self._held = StoreFigures()

    @property
    def _config(self) -> CollectorConfig:
        return self._parts.config

    def status(self) -> str:
        """Return one line for ``systemctl status``."""
        rejection = self._parts.admission.rejection
        taken = f"{self._parts.counters.ingest['records']} records taken"
        return f"{len(self._parts.agents.sessions())} agents stream; " + (
            f"no records are taken: {rejection.text}" if rejection else taken
        )

    def error(self) -> str | None:
        """Return None: with a full disk the collector still answers, and it takes records again by itself."""
        return None

    def unready(self) -> str | None:
        """Return why no records are taken now, or None."""
        rejection = self._parts.admission.rejection
        return rejection.text if rejection else None

    async def apply(self, config: CollectorConfig, changed: frozenset[str]) -> None:
        """Make the parts as a new configuration says."""
        await self._parts.configure(config, changed)

    async def run(self, on_ready: Callable[[str], None] | None) -> CollectorReport:
        """Serve until told to stop."""
        parts = self._parts
        with (
            contextlib.ExitStack() as stack,
            self._shutdown.handle_signals(),
            address_file(self._config.directory) as path,
        ):
            await parts.check_models()
            shown: list[Collector] = [self._make_metrics(), JobMetrics(parts.alerts, self._config.metrics.job_gpus)]
            pushers = list(self._make_pushers(shown))
            parts.agents.restore(parts.store.facts.agents())
            loop = asyncio.get_running_loop()
            parts.store.subscribe_to_owners(functools.partial(self._owners_changed, loop))
            if self._config.runs.track:
                parts.store.samples.subscribe(parts.pipeline.notify)
                parts.pipeline.restore(parts.store.followed())
            listen = self._config.server.listen
            reflect = self._config.server.reflection
            most_connections = self._most_connections()
            server = build_server(
                parts.ingest,
                parts.query,
                AdminService(parts.agents),
                parts.planning_service,
                parts.workload,
                parts.health,
                [parts.access.interceptor],
                max_record_bytes=self._config.ingest.max_record_bytes,
                max_question_bytes=self._config.workload.max_request_bytes,
                most_connections=most_connections,
                with_reflection=reflect == "on" or (reflect == "loopback" and is_loopback(listen)),
            )
            address = bind(server, listen, parts.access.open())
            serve_pages = stack.enter_context(self._open_pages(server))
            parts.access.warn_of_openness(address)
            parts.access.connections.watch(int(address.rpartition(":")[2]), most_connections)
            committing = asyncio.ensure_future(parts.committer.run())
            others = [
                asyncio.ensure_future(parts.admission.run()),
                *map(asyncio.ensure_future, parts.store.run_in_background(parts.executors)),
                asyncio.ensure_future(parts.access.watch_streams(parts.ingest.end_revoked, parts.ingest.rebalance)),
                asyncio.ensure_future(parts.access.connections.run()),
                asyncio.ensure_future(parts.workload.run()),
            ]
            if self._config.runs.track:
                others.append(asyncio.ensure_future(parts.pipeline.run()))
                others.append(asyncio.ensure_future(parts.alerts.run()))
            await server.start()
            await parts.health.set_ingest(True)
            await parts.health.set_query(True)
            serving_pages = asyncio.ensure_future(serve_pages())
            background: list[Coroutine[Any, Any, None]] = [
                self._beat_for_commits(),
                self._measure_store_for_ever(),
                _release_memory_for_ever(),
            ]
            background += [pusher.run() for pusher in pushers]
            supervising = asyncio.ensure_future(self._supervisor.run(shown, background))
            # It begins now: a SIGHUP that follows the news of the start is heard.
            await asyncio.sleep(0)
            announce(path, address)
            _LOG.info("collecting on %s into %s", address, parts.store.place)
            notify("READY=1", f"STATUS={self.status()}")
            if on_ready:
                on_ready(address)
            told = asyncio.ensure_future(self._shutdown.wait())
            done, _ = await asyncio.wait({told, committing, *others}, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            notify("STOPPING=1", "STATUS=asking agents to go elsewhere, making everything durable")
            parts.pipeline.set_deadline(self._config.server.drain_grace_s)
            parts.ingest.drain()
            parts.query.drain()
            parts.planning_service.drain()
            await parts.health.set_query(False)
            await asyncio.gather(end(serving_pages), self._stop_serving(server))
            await parts.planning.close()
            await parts.workload.close()
            parts.committer.close()
            for task in others:
                task.cancel()
            await asyncio.wait([committing, *others])
            await self._finish()
            await end(supervising)
            for task in done:
                if not task.cancelled() and (fault := task.exception()):
                    raise fault
        _LOG.info("stopped; everything received is durable")
        refused = {f"refused_{reason}": count for reason, count in parts.counters.refused.items()}
        return CollectorReport(address, {**+parts.counters.ingest, **refused})

    async def _stop_serving(self, server: grpc.aio.Server) -> None:
        """Give open streams their time to end, or none after a second signal."""
        stopping = asyncio.ensure_future(server.stop(self._config.server.drain_grace_s))
        forced = asyncio.ensure_future(self._shutdown.forced.wait())
        await asyncio.wait({stopping, forced}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            _LOG.warning("a second signal: open streams are cut")
            self._parts.pipeline.set_deadline(0.0)
            await server.stop(0)
        await stopping
        forced.cancel()

    @contextlib.contextmanager
    def _open_pages(self, server: grpc.aio.Server) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
        """Take the address of HTTP, and yield what serves there; that it cannot be served is no reason to stop."""
        listen, security = self._config.web.listen, self._config.security
        path = self._config.directory / _WEB_ADDRESS_FILE
        path.unlink(missing_ok=True)
        if not listen:
            yield _nothing
            return
        try:
            # An extra that a collector can do without.
            from gpusonde.collector.web.server import WebServer  # noqa: PLC0415
        except ImportError as error:
            _LOG.warning("no page and no HTTP: %s; pip install 'gpusonde[web]', or set web.listen to nothing", error)
            yield _nothing
            return
        with contextlib.ExitStack() as stack:
            try:
                target = stack.enter_context(private_socket())
                server.add_insecure_port(target)
            except (OSError, RuntimeError) as error:
                _LOG.warning(
                    "no page and no HTTP: a socket in the folder for temporary files cannot be used: %s", error
                )
                yield _nothing
                return
            files = [str(locate(name)) if name else "" for name in (security.tls_certificate, security.tls_key)]
            web = WebServer(listen, target, self._parts.access.interceptor.admit, *files)
            try:
                listener, address = web.bind()
            except GpusondeError as error:
                _LOG.warning("%s", error)
                yield _nothing
                return
            stack.callback(listener.close)
            announce(path, address)
            stack.callback(path.unlink, missing_ok=True)
            _LOG.info("the page is at http%s://%s", "s" if security.tls_certificate else "", address)
            yield lambda: _go_on_without(web.run(listener))

    def _make_metrics(self) -> CollectorMetrics:
        parts, store_counters = self._parts, self._store.counters
        store_counters.on_log_sync = parts.counters.log_sync.observe
        store_counters.on_segment = parts.counters.segment_write.observe
        store_counters.on_compaction = parts.counters.compaction.observe
        return CollectorMetrics(
            counters=parts.counters,
            store=store_counters,
            held=self._held,
            reloads=self._supervisor.reloads,
            version=importlib.metadata.version("gpusonde"),
            engine=self._config.store.engine,
            streams=lambda: len(parts.agents.sessions()),
            ingest_lag_s=self._ingest_lag_s,
            taking_records=lambda: parts.admission.rejection is None,
            tracking_backlog=lambda: parts.pipeline.backlog,
            certificate_expiry_unix_s=lambda: parts.access.tls.expiry_unix_s if parts.access.tls else None,
        )

    def _make_pushers(self, shown: Sequence[Collector]) -> Iterator[Pusher]:
        """Make what sends the shown metrics to others, where that is configured.

        Raises:
            MissingExtraError: What it takes is not installed.
        """
        config, counters = self._config, self._parts.counters
        otlp, write = config.otlp, config.remote_write
        try:
            if otlp.endpoint:
                # Extras that a collector can do without.
                from gpusonde.collector.push.otlp import Otlp  # noqa: PLC0415

                version = importlib.metadata.version("gpusonde")
                form = Otlp(
                    otlp.endpoint,
                    otlp.headers_file,
                    self._store,
                    otlp.interval_s,
                    config.collector_id,
                    version,
                    time.time_ns(),
                )
                yield Pusher(otlp.endpoint, form, shown, otlp.interval_s, counters.otlp)
            if write.url:
                from gpusonde.collector.push.remote_write import RemoteWrite  # noqa: PLC0415

                remote = RemoteWrite(write.url, write.headers_file, config.collector_id)
                yield Pusher(write.url, remote, shown, write.interval_s, counters.remote_write)
        except ImportError as error:
            raise MissingExtraError(error.name or "a library", "collector", "push") from error

    async def _beat_for_commits(self) -> None:
        """Pass through the thread that commits now and then: a full disk does not stop it, a hanging one does."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(self._parts.executors["commit"], lambda: None)
            self._commit_heartbeat.beat(_COMMIT_BEAT_S)
            await asyncio.sleep(_COMMIT_BEAT_S)

    async def _measure_store_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(self._parts.executors["control"], self._measure_store)
            except StoreError as error:
                _LOG.warning("sizes of the store cannot be looked up now: %s", error)
            await asyncio.sleep(_STORE_SIZES_S)

    def _measure_store(self) -> None:
        store, held = self._store, self._held
        held.agents, held.gpus = len(store.facts.agents()), len(store.facts.gpus())
        held.usage = store.usage()

    def _ingest_lag_s(self) -> float | None:
        newest = [s.newest_tick_unix_nano for s in self._parts.agents.sessions() if s.newest_tick_unix_nano]
        return max(0.0, (time.time_ns() - min(newest)) / 1e9) if newest else None

    def _most_connections(self) -> int:
        """Make room for a connection per agent and as many readers as may be; warn where the system gives less."""
        agents = self._config.ingest.max_agents
        own = _OWN_FILES + (_WEB_FILES if self._config.web.listen else 0)
        limit = allow_open_files(agents + _READERS + own)
        most = max(limit - own, limit // 2)
        if most < agents:
            _LOG.warning(
                "the limit of %d open files leaves room for %d connections, ingest.max_agents is %d: raise LimitNOFILE"
                " of the unit (or 'ulimit -Hn')", limit, most, agents,
            )  # fmt: skip
        return most

    async def _finish(self) -> None:
        """Bring runs up to date and have the engine do what makes the next start quick."""
        loop = asyncio.get_running_loop()
        if self._config.runs.track:
            await loop.run_in_executor(self._parts.executors["track"], self._parts.pipeline.finish)
        try:
            await loop.run_in_executor(self._parts.executors["flush"], self._store.flush)
        except StoreError as error:
            _LOG.error("the log stays as it is, the next start reads it: %s", error)

    def _owners_changed(self, loop: asyncio.AbstractEventLoop, agents: frozenset[str], came: bool) -> None:
        """Forget what was known of agents that another collector has followed or does now; runs on any thread."""
        self._parts.pipeline.move(agents, came)
        if not came:
            loop.call_soon_threadsafe(self._parts.ingest.end_moved, agents)


async def _nothing() -> None:
    """Serve nothing."""


async def _go_on_without(serving: Coroutine[Any, Any, None]) -> None:
    try:
        await serving
    except Exception:  # agents are served all the same
        _LOG.exception("the page and HTTP have ended; the collector goes on")


async def _release_memory_for_ever() -> None:
    """Give back now and then what thousands of connections that came and went have left in pieces."""
    while True:
        await asyncio.sleep(_RELEASE_MEMORY_S)
        await asyncio.to_thread(release_free_memory)
