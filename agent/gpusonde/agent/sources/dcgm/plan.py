"""Opens the watches of a host: what every GPU is asked, at which pace, and what it cannot be asked."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpusonde.agent.sources.dcgm.engine import Engine
from gpusonde.agent.sources.dcgm.errors import PROFILING_MULTI_PASS, DcgmCallError, EngineLostError
from gpusonde.agent.sources.dcgm.fields import (
    FAST_METRICS,
    PROFILING_METRICS,
    SLOW_METRICS,
    XID_FIELD,
    ProfilingChoice,
    choose_profiling,
)
from gpusonde.agent.sources.dcgm.watch import Watch
from gpusonde.telemetry import METRIC_BY_DCGM_FIELD_ID, BlankReason, Metric

log = logging.getLogger(__name__)

FAST, SLOW, XID, PROFILING = "fast", "slow", "xid", "profiling"


@dataclass
class Watches:
    """The open watches of an engine.

    Attributes:
        fast: Watches read every tick; the first one is that of the plain metrics, the others profile.
        slow: Watches read once a second.
        missing: DCGM's id of a GPU -> metrics that cannot be watched on it, and why.
        multiplexed: Names of the metrics that some GPU measures only part of the time.
        refusals: What the engine said where it refused.
    """

    fast: list[Watch] = field(default_factory=list)
    slow: list[Watch] = field(default_factory=list)
    missing: dict[int, dict[str, BlankReason]] = field(default_factory=dict)
    multiplexed: frozenset[str] = frozenset()
    refusals: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Close all watches, the newest first."""
        for watch in reversed([*self.fast, *self.slow]):
            watch.close()
        self.fast, self.slow = [], []


def open_watches(
    engine: Engine,
    gpu_ids: Sequence[int],
    interval_s: float,
    slow_interval_s: float,
    wall_ns: Callable[[], int] = time.time_ns,
) -> Watches:
    """Watch everything that the GPUs have.

    Profiling fields are watched apart from the rest, and apart for each GPU model: one field that a GPU lacks makes the
    engine refuse all fields of all GPUs of that watch.

    Raises:
        DcgmCallError: Not even the plain metrics can be watched.
    """
    watches = Watches(missing={gpu: {} for gpu in gpu_ids})
    try:
        fast = Watch(engine, FAST, gpu_ids, _fields(FAST_METRICS), interval_s, wall_ns)
        fast.open()
        watches.fast.append(fast)
        _open_slow(engine, gpu_ids, slow_interval_s, wall_ns, watches)
        _open_profiling(engine, gpu_ids, interval_s, wall_ns, watches)
    except DcgmCallError:
        watches.close()
        raise
    return watches


def _open_slow(
    engine: Engine, gpu_ids: Sequence[int], slow_interval_s: float, wall_ns: Callable[[], int], watches: Watches
) -> None:
    for name, fields, metrics in (
        (SLOW, _fields(SLOW_METRICS), tuple(m.name for m in SLOW_METRICS)),
        (XID, [XID_FIELD], ("xid_count",)),
    ):
        # XIDs are events: the interval only bounds how long one waits in the engine.
        watch = Watch(engine, name, gpu_ids, fields, slow_interval_s if name == SLOW else 1.0, wall_ns)
        try:
            watch.open()
        except EngineLostError:
            raise
        except DcgmCallError as error:
            _refused(watches, gpu_ids, metrics, error)
            continue
        watches.slow.append(watch)


def _open_profiling(
    engine: Engine, gpu_ids: Sequence[int], interval_s: float, wall_ns: Callable[[], int], watches: Watches
) -> None:
    by_choice: dict[ProfilingChoice, list[int]] = defaultdict(list)
    for gpu in gpu_ids:
        try:
            by_choice[choose_profiling(engine.metric_groups(gpu))].append(gpu)
        except EngineLostError:
            raise
        except DcgmCallError as error:
            _refused(watches, [gpu], tuple(m.name for m in PROFILING_METRICS), error)
    multiplexed: set[int] = set()
    for number, (choice, gpus) in enumerate(by_choice.items()):
        opened = _open_choice(engine, f"{PROFILING}{number}", choice, gpus, interval_s, wall_ns, watches)
        if opened is not None:
            multiplexed |= opened.multiplexed
        absent = [m.name for m in PROFILING_METRICS if opened is None or m.dcgm_field_id not in opened.field_ids]
        for gpu in gpus:
            for name in absent:
                watches.missing[gpu].setdefault(name, BlankReason.NOT_SUPPORTED)
    watches.multiplexed = frozenset(METRIC_BY_DCGM_FIELD_ID[f].name for f in multiplexed)


def _open_choice(
    engine: Engine,
    name: str,
    choice: ProfilingChoice,
    gpus: Sequence[int],
    interval_s: float,
    wall_ns: Callable[[], int],
    watches: Watches,
) -> ProfilingChoice | None:
    """Watch the chosen fields, or those of one pass when the engine does not take turns; None when it refuses both."""
    if not choice.field_ids:
        return None
    watch = Watch(engine, name, gpus, choice.field_ids, interval_s, wall_ns)
    try:
        watch.open()
    except EngineLostError:
        raise
    except DcgmCallError as error:
        if error.code == PROFILING_MULTI_PASS and choice.multiplexed:
            log.warning("%s; watching only what one pass gives", error)
            return _open_choice(engine, name, choice.single_pass(), gpus, interval_s, wall_ns, watches)
        _refused(watches, gpus, tuple(METRIC_BY_DCGM_FIELD_ID[f].name for f in choice.field_ids), error)
        return None
    watches.fast.append(watch)
    return choice


def _refused(watches: Watches, gpus: Sequence[int], metrics: Sequence[str], error: DcgmCallError) -> None:
    for gpu in gpus:
        watches.missing[gpu].update(dict.fromkeys(metrics, error.reason))
    watches.refusals.append(str(error))
    log.warning("%s", error)


def _fields(metrics: Sequence[Metric]) -> list[int]:
    return [m.dcgm_field_id for m in metrics if m.dcgm_field_id is not None]
