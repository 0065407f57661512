"""The agent: source, sampler, writer, spool and uplink wired together, from start to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from gpusonde.agent.batch import inventory_record
from gpusonde.agent.config import AgentConfig
from gpusonde.agent.host import HostLoadReader, describe_host
from gpusonde.agent.jobs import JobParts, JobWatcher, make_watcher
from gpusonde.agent.metrics import AgentMetrics, RecordAges, SelfCounters
from gpusonde.agent.pace import AdaptivePace
from gpusonde.agent.sampler import Sampler
from gpusonde.agent.sources.base import GpuSource, SourceInventory
from gpusonde.agent.sources.select import make_process_reader, make_source
from gpusonde.agent.spool import Spool
from gpusonde.agent.uplink import AgentFacts, Uplink
from gpusonde.agent.writer import SpoolWriter
from gpusonde.formatting import count
from gpusonde.service.config import format_duration
from gpusonde.service.durable_files import FileLayer
from gpusonde.service.health import notify
from gpusonde.service.process import Shutdown, end, release_startup_memory
from gpusonde.service.reload import ConfigSource
from gpusonde.service.supervisor import Supervisor
from gpusonde.service.tls import warn_of_exposed_files


@dataclass(frozen=True)
class AgentReport:
    """How an agent ended.

    Attributes:
        agent_id: Its name at the collector.
        spool_id: The last run of sequence numbers.
        source: Name of the source.
        gpu_uuids: The sampled GPUs.
        counters: Everything counted.
        source_ended: A finite source was played to its end.
        drained: The collector acknowledged every record on disk.
    """

    agent_id: str
    spool_id: str
    source: str
    gpu_uuids: tuple[str, ...]
    counters: SelfCounters
    source_ended: bool
    drained: bool

    def as_json(self) -> dict[str, object]:
        """Return the report ready for ``json.dumps``."""
        return {
            "agent_id": self.agent_id,
            "spool_id": self.spool_id,
            "source": self.source,
            "gpu_uuids": list(self.gpu_uuids),
            "source_ended": self.source_ended,
            "drained": self.drained,
            **self.counters.as_json(),
        }


_T = TypeVar("_T")


def in_thread(name: str, work: Callable[[], _T]) -> asyncio.Future[_T]:
    """Run ``work`` in a daemon thread: one that hangs in a driver call must not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: _T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as caught:
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


log = logging.getLogger(__name__)

_PROGRESS_INTERVAL_S = 0.25
# No value of any GPU for so long, and the agent is not ready; a source takes a GPU for lost after half of it.
_SILENCE_S, _SILENCE_INTERVALS = 10.0, 5.0
# Sources that are simply asked at every tick; others prepare for one interval when they are opened.
_ASKED_AT_EVERY_TICK = ("nvml", "gpm")
_POLL_S = 0.05
# A reading that hangs in the driver must not keep the process from ending.
_SAMPLER_GRACE_S = 5.0
_JOBS_GRACE_S = 3.0


def run_agent(
    config: AgentConfig,
    *,
    source: GpuSource | None = None,
    exit_when_acked: bool = False,
    ack_timeout_s: float = 60.0,
    stop: threading.Event | None = None,
    on_progress: Callable[[SelfCounters], None] | None = None,
    files: FileLayer | None = None,
    config_source: ConfigSource[AgentConfig] | None = None,
) -> AgentReport:
    """Run an agent until it is told to stop (SIGTERM, SIGINT or ``stop``).

    On the first signal it stops sampling, writes everything to the spool and gives the collector
    ``uplink.drain_timeout`` to take it; a second signal ends that wait. What is then left stays in the spool for the
    next start.

    Args:
        config: What to sample and where to send it.
        source: The source; None for the configured one.
        exit_when_acked: End by itself once a finite source is exhausted and every record acknowledged, or when the
            collector refuses the agent for what only a person can change.
        ack_timeout_s: With ``exit_when_acked``: give up after so long without an acknowledgement.
        stop: Stops the agent like a signal, for callers outside the main thread.
        on_progress: Called four times a second with the counters.
        files: The file operations of the spool.
        config_source: Where SIGHUP finds a new configuration; None leaves that signal alone.

    Raises:
        gpusonde.agent.sources.base.SourceError: The source cannot be used, or is gone.
        gpusonde.agent.spool.SpoolError: The spool cannot be used.
        gpusonde.telemetry.TraceError: The trace to replay cannot be read.
        gpusonde.errors.CollectorError: With ``exit_when_acked``: a collector refuses this agent.
    """
    counters = SelfCounters()
    source = source or make_source(config.source)
    spool = Spool(
        config.spool.path,
        max_bytes=config.spool.max_bytes,
        agent_id=config.agent.id,
        counters=counters,
        files=files,
    )
    spool.open()
    try:
        inventory = source.open()
        try:
            agent = Agent(config, source, inventory, spool, counters, files, config_source, Shutdown(stop))
            return asyncio.run(agent.run(exit_when_acked, ack_timeout_s, on_progress))
        finally:
            source.close()
    finally:
        spool.close()


class Agent:
    """The parts of a running agent.

    Args:
        config: What to sample and where to send it.
        source: An open source.
        inventory: What the source gives.
        spool: An open spool.
        counters: Shared by all parts.
        files: The file operations beside the spool.
        config_source: Where SIGHUP finds a new configuration.
        shutdown: Tells the agent to stop.
    """

    def __init__(
        self,
        config: AgentConfig,
        source: GpuSource,
        inventory: SourceInventory,
        spool: Spool,
        counters: SelfCounters,
        files: FileLayer | None,
        config_source: ConfigSource[AgentConfig] | None,
        shutdown: Shutdown,
    ) -> None:
        self._shutdown = shutdown
        live = config.live_keys() - (set() if inventory.source in _ASKED_AT_EVERY_TICK else {"source.interval"})
        self._supervisor = Supervisor(config, config_source, self, spool.directory, live)
        self._sampler_heartbeat = self._supervisor.heartbeat("the sampler")
        self._writer_heartbeat = self._supervisor.heartbeat("the spool's writer")
        self._source = source
        self._inventory = inventory
        self._spool = spool
        self._counters = counters
        self._files = files
        self._ages = RecordAges()
        self._writer = SpoolWriter(
            spool,
            inventory,
            counters,
            config.spool,
            config.uplink,
            on_commit=self._committed,
            heartbeat=self._writer_heartbeat,
        )
        self._uplink = Uplink(
            spool,
            config.uplink,
            AgentFacts(
                host=describe_host(files=spool.directory),
                agent_version=importlib.metadata.version("gpusonde"),
                start_time_unix_nano=time.time_ns(),
                instance_id=uuid.uuid4().hex,
                read_load=HostLoadReader(spool.directory).read,
            ),
            counters,
            on_batch_interval=self._writer.request_batch_interval,
        )
        self._pace = AdaptivePace(config.source, inventory.metrics, len(inventory.gpus), counters)

    @property
    def _config(self) -> AgentConfig:
        return self._supervisor.config

    def status(self) -> str:
        """Return one line for ``systemctl status``."""
        return (
            f"sampling {count(self._counters.gpus, 'GPU')} every "
            f"{format_duration(self._counters.sampling_interval_s)}; "
            f"{self._counters.unacked_records} records wait for {self._config.uplink.collector}"
        )

    def error(self) -> str | None:
        """Return why the agent should be restarted although all of its parts move, or None.

        A full disk ends the agent with SIGTERM (see the unit), so that it can still send what it has.
        """
        return None if self._spool.accepts_writes else f"the spool {self._spool.directory} cannot be written"

    def unready(self) -> str | None:
        """Return why samples are not taken and kept now, or None."""
        counters = self._counters
        if not counters.deadlines:
            return "nothing was sampled yet"
        silent_s = time.monotonic() - counters.last_tick_s
        allowed_s = max(_SILENCE_S, _SILENCE_INTERVALS * counters.sampling_interval_s)
        # A trace is read as fast as the spool has room.
        if counters.source_progress is not None or silent_s <= allowed_s:
            return None
        for_s = "so far" if math.isinf(silent_s) else f"for {silent_s:.0f} s"
        gpus = count(counters.gpus, "GPU")
        return f"none of {gpus} gave a value {for_s}: see the log for lost GPUs or a lost engine"

    async def apply(self, config: AgentConfig, changed: frozenset[str]) -> None:
        """Make the parts as a new configuration says."""
        self._spool.set_max_bytes(config.spool.max_bytes)
        self._writer.configure(config.spool, config.uplink)
        self._pace.configure(config.source)
        self._uplink.configure(config.uplink)

    async def run(
        self,
        exit_when_acked: bool,
        ack_timeout_s: float,
        on_progress: Callable[[SelfCounters], None] | None,
    ) -> AgentReport:
        """Run to the end; see :func:`run_agent`."""
        writer = self._writer
        sampler = Sampler(
            self._source,
            self._inventory,
            self._pace,
            writer,
            self._counters,
            heartbeat=self._sampler_heartbeat,
            ahead_s=lambda: writer.step_interval_s,
        )
        self._spool.append(inventory_record(self._inventory))
        self._spool.commit()
        self._log_start()
        jobs = make_watcher(
            self._config.jobs,
            JobParts(
                self._inventory,
                self._spool.directory,
                writer.put_record,
                self._counters,
                processes=make_process_reader(self._config.source),
                files=self._files,
            ),
        )
        if jobs:
            writer.on_inventory(lambda inventory: jobs.inventory_changed(inventory.gpus))
        # Before the first tick: the pages that are used come back at their first use, which takes time.
        release_startup_memory()
        with contextlib.suppress(OSError):
            self._ages.restore(self._spool.written())
        signals = contextlib.ExitStack()
        signals.enter_context(self._shutdown.handle_signals())
        sending = asyncio.ensure_future(self._uplink.run(until_refused=exit_when_acked))
        supervising = asyncio.ensure_future(self._supervisor.run([self._make_metrics()]))
        others = [asyncio.ensure_future(self._shutdown.wait())]
        if on_progress is not None:
            others.append(asyncio.ensure_future(self._report_progress(on_progress)))
        try:
            writing = in_thread("gpusonde-writer", writer.run)
            sampling = in_thread("gpusonde-sampler", sampler.run)
            finding_jobs = in_thread("gpusonde-jobs", jobs.run) if jobs else None
            sampling.add_done_callback(lambda _: self._sampler_heartbeat.disarm())
            writing.add_done_callback(lambda _: self._writer_heartbeat.disarm())
            # The supervisor begins now: a SIGHUP that follows the news of the start is heard.
            await asyncio.sleep(0)
            notify("READY=1", f"STATUS={self.status()}")
            await self._until_done(sampling, writing, sending)
            if self._shutdown.requested.is_set():
                notify("STOPPING=1", "STATUS=giving the collector what it does not have yet")
            await _stop_jobs(jobs, finding_jobs)
            ended = await self._stop_sampling(sampler, sampling, writer, writing)
            if ended and not exit_when_acked:
                await self._until_done(sending)
            patient = exit_when_acked and ended
            drained = await self._drain(sending, ack_timeout_s if patient else None)
            self._log_end(drained)
            return AgentReport(
                agent_id=self._spool.agent_id,
                spool_id=self._spool.spool_id,
                source=self._inventory.source,
                gpu_uuids=tuple(gpu.key for gpu in self._inventory.gpus),
                counters=self._counters,
                source_ended=ended,
                drained=drained,
            )
        finally:
            signals.close()
            sampler.stop()
            if jobs:
                jobs.stop()
            writer.finish()
            await end(*others, supervising, sending)
            if on_progress is not None:
                on_progress(self._counters)

    def _make_metrics(self) -> AgentMetrics:
        return AgentMetrics(
            counters=self._counters,
            source=self._source.statistics,
            ages=self._ages,
            reloads=self._supervisor.reloads,
            version=importlib.metadata.version("gpusonde"),
            source_name=self._inventory.source,
            spool_max_bytes=lambda: self._spool.max_bytes,
        )

    def _committed(self) -> None:
        self._ages.note(self._spool.committed_sequence)
        self._uplink.notify()

    async def _until_done(self, *parts: asyncio.Future[Any]) -> None:
        """Return once one of the parts has ended or the agent is to stop."""
        stopping = asyncio.ensure_future(self._shutdown.requested.wait())
        try:
            await asyncio.wait({*parts, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(stopping)

    async def _stop_sampling(
        self, sampler: Sampler, sampling: asyncio.Future[bool], writer: SpoolWriter, writing: asyncio.Future[None]
    ) -> bool:
        """Stop sampler and writer, in this order; return whether the source had ended by itself."""
        sampler.stop()
        await asyncio.wait({sampling}, timeout=_SAMPLER_GRACE_S)
        if not sampling.done():
            log.error("the source does not answer; ending without it")
        ended = sampling.done() and sampling.exception() is None and sampling.result()
        writer.finish()
        await writing
        if ended:
            writer.end_source()
            log.info("the source has ended after %d ticks", self._counters.ticks)
        if sampling.done():
            sampling.result()
        return ended

    async def _drain(self, sending: asyncio.Future[None], ack_timeout_s: float | None) -> bool:
        """Wait until the collector has everything; False when it does not come to that.

        Args:
            sending: The uplink's task.
            ack_timeout_s: Longest wait without any progress; None for ``uplink.drain_timeout`` in all.
        """
        draining = asyncio.ensure_future(self._uplink.wait_drained())
        give_up = self._shutdown.forced if ack_timeout_s is None else self._shutdown.requested
        limit_s = self._config.uplink.drain_timeout_s if ack_timeout_s is None else ack_timeout_s
        loop = asyncio.get_running_loop()
        acked, since_s = self._counters.acked_sequence, loop.time()
        try:
            while not draining.done():
                await asyncio.wait({draining, sending}, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
                if ack_timeout_s is not None and self._counters.acked_sequence > acked:
                    acked, since_s = self._counters.acked_sequence, loop.time()
                if give_up.is_set() or loop.time() - since_s > limit_s:
                    break
            return draining.done()
        finally:
            draining.cancel()

    async def _report_progress(self, on_progress: Callable[[SelfCounters], None]) -> None:
        while True:
            on_progress(self._counters)
            await asyncio.sleep(_PROGRESS_INTERVAL_S)

    def _log_start(self) -> None:
        log.info(
            "agent %s samples %d GPUs every %s (source %s, %d metrics); spool %s",
            self._spool.agent_id,
            len(self._inventory.gpus),
            format_duration(self._config.source.interval_s),
            self._inventory.source,
            len(self._inventory.metrics),
            self._spool.directory,
        )
        warn_of_exposed_files(self._config.uplink.tls_key, self._config.uplink.token_file)

    def _log_end(self, drained: bool) -> None:
        if drained:
            log.info("stopped; the collector has every record")
        else:
            log.warning(
                "stopped; %d records stay in %s for the next start",
                self._counters.unacked_records,
                self._spool.directory,
            )


async def _stop_jobs(jobs: JobWatcher | None, finding: asyncio.Future[None] | None) -> None:
    """Stop looking for jobs before the spool and the driver's library are given back."""
    if jobs is None or finding is None:
        return
    jobs.stop()
    await asyncio.wait({finding}, timeout=_JOBS_GRACE_S)
    if finding.done() and (error := finding.exception()) is not None:
        log.error("jobs are no longer looked for", exc_info=error)
