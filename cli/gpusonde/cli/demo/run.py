"""The course of the demo: collector and agent in processes of their own, everything through gRPC and the store on disk.

A GPU of this host is watched if there is one; else, or if no training shows on it, a trace is replayed fast: the
bundled one, which lies inside an installed wheel, or in the tests of the repository.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from gpusonde import formatting
from gpusonde.catalog import GpuCatalog, UnknownGpuError, load_gpus, load_offers
from gpusonde.cli.demo.processes import DemoProcess, stopped_by_signals
from gpusonde.cli.demo.report import DemoReport, Observation, rank, render_run
from gpusonde.cli.measuring import from_answer
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.picture import EpochMarks, draw
from gpusonde.cli.runs_view import headline, noun_of
from gpusonde.collector.client import Client, RunInfo
from gpusonde.errors import CommandError
from gpusonde.telemetry import FloatArray, Trace, read_traces

NAME = "demo_trace.parquet"


def bundled_trace() -> Path:
    """Path of the bundled trace.

    Raises:
        CommandError: This installation has none.
    """
    packaged = Path(str(files("gpusonde.cli").joinpath(NAME)))
    repository = Path(__file__).parents[4] / "tests" / "data" / NAME
    for candidate in (packaged, repository):
        if candidate.is_file():
            return candidate
    raise CommandError(f"this installation has no {NAME}; name a trace of your own: gpusonde demo --trace FILE")


# Both daemons are the demo's own: no address of this host's is taken for their metrics, nor for a page.
_UNSEEN = ("--set", "metrics.listen=")
_NO_PAGE = ("--set", "web.listen=")
_START_TIMEOUT_S = 60.0
_TRACKED_TIMEOUT_S = 60.0
# The collector looks for runs twice a second, but a busy host may make it wait. Nobody waits for the end of the long
# time unless the trace shows a GPU that never works.
_FIRST_RUN_TIMEOUT_S = 20.0
_LIVE_RUN_TIMEOUT_S = 5.0
_LIVE_VERDICT_TIMEOUT_S = 15.0
_POLL_S = 0.1
_PICTURE_MARGIN_NS = 15 * 10**9
PICTURE = "epochs.png"


@dataclass(frozen=True)
class DemoOptions:
    """What the user may choose.

    Attributes:
        out: Folder for the picture.
        trace: Trace to replay; the bundled one if None.
        speed: How many times faster than recorded.
        watch_s: Seconds to watch a live GPU.
        replay_only: Do not look for a live GPU.
    """

    out: Path
    trace: Path | None = None
    speed: float = 25.0
    watch_s: float = 45.0
    replay_only: bool = False


def play_demo(options: DemoOptions, output: Output) -> DemoReport:
    """Run the demo from start to clean end.

    Raises:
        CommandError: A process failed, or there is nothing to show.
        OSError: The picture's folder cannot be written.
        gpusonde.telemetry.TraceError: The trace cannot be read.
    """
    started_s = time.monotonic()
    check_folder(options.out)
    with contextlib.ExitStack() as stack:
        stack.enter_context(stopped_by_signals())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpusonde-demo-")))
        demo = _Demo(options, output, directory, stack)
        demo.start_collector()
        observation, live_note = demo.observe()
        render_run(demo.screen, observation)
        return demo.conclude(observation, live_note, started_s)


def check_folder(folder: Path) -> None:
    """See before a minute's work whether its result can be put where the user wants it.

    Raises:
        OSError: The folder cannot be written or made.
    """
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(place))
    if not existing.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(existing))
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(existing))


class _Demo:
    def __init__(self, options: DemoOptions, output: Output, directory: Path, stack: contextlib.ExitStack) -> None:
        self.screen: Screen = output.screen()
        self._options = options
        self._output = output
        self._directory = directory
        self._stack = stack
        self._address = ""

    def start_collector(self) -> None:
        """Start the collector on a free port and connect to it."""
        store = self._directory / "store"
        collector = DemoProcess(
            "collector",
            ["collector", "--listen", "127.0.0.1:0", "--store", str(store), *_UNSEEN, *_NO_PAGE],
            self._directory,
        )
        self._stack.callback(collector.stop)
        collector.start()
        with self._output.progress("starting the collector"):
            collector.wait_until((store / "address").is_file, "the start of the collector", _START_TIMEOUT_S)
        self._address = (store / "address").read_text(encoding="utf-8").strip()
        self._client = self._stack.enter_context(Client(self._address))
        self.screen.line(
            f"collector at {self._address} and agent, in processes of their own; data in {self._directory}"
        )

    def observe(self) -> tuple[Observation, str | None]:
        """Watch a live GPU if there is one with training on it, else replay a trace."""
        if self._options.replay_only or self._options.trace is not None:
            return self._replay(), None
        names, reason = find_live_gpus()
        if not names:
            note = f"no live GPU here: {reason}"
        else:
            observation, reason = self._watch(names)
            if observation is not None:
                return observation, None
            note = f"no training epochs on {', '.join(names)} in {self._options.watch_s:.0f} s: {reason}"
        self.screen.note(note)
        return self._replay(), note

    def conclude(self, seen: Observation, live_note: str | None, started_s: float) -> DemoReport:
        """Ask for predictions, rank the offers and draw the picture."""
        run = seen.run
        if run.verdict != "epochs":
            raise CommandError(f"there are no epochs to predict from: {seen.epochs.reason}")
        with self._output.progress("predicting"):
            predictions = from_answer(self._client.predict_run(run.run_id))
        picture = self._options.out / PICTURE
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw_run(picture, self._client, seen)
        return DemoReport(
            observation=seen,
            live_note=live_note,
            predictions=predictions,
            offers=rank(predictions, load_offers().offers()),
            picture=picture,
            elapsed_s=time.monotonic() - started_s,
        )

    def _replay(self) -> Observation:
        path = self._options.trace or bundled_trace()
        traces = read_traces(path)
        _check_replayable(path, traces)
        generated = traces[0].attributes.get("generated")
        if generated is not None:
            self.screen.note(f"THE TRACE IS GENERATED {generated}")
        longest = max(traces, key=lambda trace: trace.duration_s)
        self.screen.line(
            f"replaying {path.name}: {formatting.seconds(longest.duration_s)} of {longest.gpu_model}, "
            f"{self._options.speed:g} times faster than it would be recorded"
        )
        replay = ("--replay", str(path), "--speed", repr(self._options.speed))
        agent = self._start_agent("replay-agent", replay)
        ticks = sum(len(trace) for trace in traces)
        timeout_s = longest.duration_s / self._options.speed + _START_TIMEOUT_S
        with self._output.progress("sampling, streaming, storing", total=ticks) as show:
            agent.wait_until(
                lambda: self._has_ended(agent, show), "the end of the replay", timeout_s + _TRACKED_TIMEOUT_S
            )
        report = json.loads(agent.stdout)
        with self._output.progress("finding epochs"):
            runs = self._analysed_runs(report["gpu_uuids"], must_be_over=True)
        if not runs:
            raise CommandError(f"{path}: no run in it: the GPU never works")
        return self._observation("replay", runs, report, trace=path, generated=generated, speed=self._options.speed)

    def _watch(self, names: Sequence[str]) -> tuple[Observation | None, str]:
        watch_s = self._options.watch_s
        self.screen.line(f"watching {', '.join(names)} for {watch_s:.0f} s; train something on it meanwhile")
        # Who watches sees every second of it: four records travel together.
        agent = self._start_agent("live-agent", ("--set", "source.kind=nvml", "--set", "uplink.batch_interval=250ms"))
        with self._output.progress("starting the agent"):
            # A busy host takes seconds to start a process: they are not part of the watch.
            agent.wait_until(lambda: agent.has_logged("connected to collector"), "its connection", _START_TIMEOUT_S)
        end_s = time.monotonic() + watch_s
        with self._output.progress("sampling, streaming, storing", total=watch_s) as show:

            def is_over() -> bool:
                show(watch_s - (end_s - time.monotonic()))
                return time.monotonic() >= end_s

            agent.wait_until(is_over, "the end of the watch", watch_s + 1.0)
        agent.stop()
        agent.check()
        report = json.loads(agent.stdout)
        with self._output.progress("finding epochs"):
            # A job that is watched goes on after the demo: its run stays open.
            runs = self._analysed_runs(report["gpu_uuids"], must_be_over=False)
        if not runs:
            return None, "nothing ran long enough"
        observation = self._observation("live", runs, report)
        return (observation, "") if observation.run.verdict == "epochs" else (None, observation.epochs.reason)

    def _start_agent(self, name: str, arguments: Sequence[str]) -> DemoProcess:
        spool = str(self._directory / f"{name}-spool")
        agent = DemoProcess(
            name,
            ["agent", "--json", "--collector", self._address, "--spool", spool, "--id", name, *_UNSEEN, *arguments],
            self._directory,
        )
        # Stopped before the collector: the stack unwinds backwards.
        self._stack.callback(agent.stop)
        agent.start()
        return agent

    def _has_ended(self, agent: DemoProcess, show: Callable[[float], None]) -> bool:
        show(sum(run.tick_count for run in self._client.list_runs()))
        return agent.exit_code == 0

    def _analysed_runs(self, gpu_uuids: Sequence[str], *, must_be_over: bool) -> list[RunInfo]:
        """The analysed runs on these GPUs; none if none shows up for a while.

        Raises:
            CommandError: A run that must be over and analysed is not.
        """
        begin_s = time.monotonic()
        patience_s = _FIRST_RUN_TIMEOUT_S if must_be_over else _LIVE_RUN_TIMEOUT_S
        verdict_patience_s = math.inf if must_be_over else _LIVE_VERDICT_TIMEOUT_S
        while True:
            waited_s = time.monotonic() - begin_s
            runs = [run for run in self._client.list_runs() if run.gpu_uuid in gpu_uuids]
            analysed = [run for run in runs if run.verdict and not (must_be_over and run.active)]
            if len(analysed) == len(runs) > 0 or waited_s > (verdict_patience_s if runs else patience_s):
                return analysed
            if waited_s > _TRACKED_TIMEOUT_S:
                raise CommandError(f"the collector did not analyse the run within {_TRACKED_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _observation(
        self,
        mode: str,
        runs: Sequence[RunInfo],
        report: dict[str, int],
        *,
        trace: Path | None = None,
        generated: str | None = None,
        speed: float | None = None,
    ) -> Observation:
        run = max(runs, key=lambda candidate: (candidate.verdict == "epochs", candidate.epoch_count))
        gpus = {candidate.gpu_uuid for candidate in runs}
        stored = sum(len(self._client.read_samples(gpu_uuid)) for gpu_uuid in gpus)
        observation = Observation(
            mode=mode,
            trace=trace,
            generated=generated,
            speed=speed,
            run=run,
            epochs=self._client.list_epochs(run.run_id, include_provisional=True),
            ticks_sampled=report["ticks"],
            ticks_stored=stored,
            missed_ticks=report["missed_ticks"],
        )
        self.screen.line(
            f"{formatting.count(observation.ticks_sampled, 'tick')} sampled, {observation.missed_ticks:,} missed, "
            f"{observation.ticks_stored:,} stored once each"
        )
        return observation


def find_live_gpus() -> tuple[list[str], str]:
    """Names of the GPUs here that can be sampled and predicted from, and why there are none."""
    from gpusonde.agent import make_source
    from gpusonde.agent.config import SourceConfig
    from gpusonde.errors import SourceError

    catalog = load_gpus()
    try:
        source = make_source(SourceConfig(kind="nvml"))
        try:
            names = [gpu.product_name or gpu.gpu_uuid for gpu in source.open().gpus]
        finally:
            source.close()
    except SourceError as error:
        return [], str(error)
    known = [name for name in names if _is_known(name, catalog)]
    return (
        known,
        "" if known else f"{', '.join(names) or 'none'} listed by the driver, and the catalogue knows no such GPU",
    )


def _is_known(name: str, catalog: GpuCatalog) -> bool:
    try:
        catalog.resolve(name)
    except UnknownGpuError:
        return False
    return True


def draw_run(path: Path, client: Client, seen: Observation) -> None:
    """Draw a run, as the collector stored it, with some idle time around it and its epochs marked."""
    run = seen.run
    trace = client.read_samples(
        run.gpu_uuid,
        start_unix_nano=run.start_unix_nano - _PICTURE_MARGIN_NS,
        end_unix_nano=run.end_unix_nano + _PICTURE_MARGIN_NS,
    )
    origin_ns = round((trace.origin_unix_s or 0.0) * 1e9)
    epochs = seen.epochs.epochs
    facts = ["generated trace" if seen.generated else f"{seen.mode} of {run.product_name}"]
    if seen.speed is not None:
        facts.append(f"replayed {seen.speed:g} times faster")
    facts.append(f"run {run.run_id}, out of the collector's store")
    draw(
        path,
        trace,
        EpochMarks(
            starts_s=_seconds([epoch.start_unix_nano - origin_ns for epoch in epochs]),
            ends_s=_seconds([epoch.end_unix_nano - origin_ns for epoch in epochs]),
            headline=f"{run.product_name or run.gpu_uuid}: {headline(run, seen.epochs.role)}",
            detail=" · ".join(facts),
            noun=noun_of(seen.epochs.role),
        ),
    )


def _seconds(nanoseconds: Sequence[int]) -> FloatArray:
    return np.array(nanoseconds, dtype=np.float64) / 1e9


def _check_replayable(path: Path, traces: Sequence[Trace]) -> None:
    if not all(trace.gpu_model for trace in traces):
        raise CommandError(
            f"{path}: the trace does not say which GPU it was recorded on, so nothing can be predicted from it; use "
            "'gpusonde predict --trace FILE --gpu-model NAME'"
        )
