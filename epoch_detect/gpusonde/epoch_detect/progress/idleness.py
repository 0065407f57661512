"""``judge_idleness``: may a job's GPUs be taken away? Only where two witnesses that do not hang together say so.

What wrongly takes GPUs away costs more than what leaves them: a pause that the job has made before is waited out, what
is not known counts as work, and a single metric, which may stick or be spoofed, is never enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from gpusonde.formatting import count, percent
from gpusonde.telemetry import FloatArray

# The most that a GPU shows without work, in 999 of 1,000 ticks: a desktop draws, a monitor looks.
_MOST_USE = 0.03
_MOST_BUS = 1e6  # bytes per second, both ways
# Power without work is flat; its spread, and the same as a share of it. Clocks and fans take it from one idle level to
# another, which says nothing; work takes it further.
_MOST_SPREAD_W, _MOST_SPREAD = 12.0, 0.12
_WORKS_FROM = 2.0  # times the lowest
# Share of the time that ticks must speak for, and the longest without any: work may have come and gone in it.
_LEAST_SEEN, _LONGEST_GAP_S = 0.9, 60.0
# So many times what is asked for: many a first long rest ends by then, and who asks every few minutes still gets its
# answer within twice.
_LEAST_PATIENCE = 1.75
# A pause is waited out for so many times the longest one before.
_PATIENCE = 6.0
# And so many times what is asked for, where a job is over and nobody knows whether others work on its host, or where it
# has not been known for as long: what its pauses are like is not known either. But who works now and then rests for a
# few times as long as it works, so that one that has hardly begun need not be waited for beyond so many times of that.
_BLIND_PATIENCE, _NEW_PATIENCE = 4.0, 10.0
_LONGEST_LOOK_S = 86_400.0  # that is asked for
# Of processes that rest: a notebook saves itself now and then, a monitor counts.
MOST_PROCESSORS, MOST_BYTES_PER_S = 0.2, 1e6
_USE = ("sm_active", "graphics_active", "gpu_utilization")
_BUS = ("pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second")
_NOT_IN_USE = "it is not in use"
_POWER = "power_watts"
METRICS = (*_USE, *_BUS, _POWER)


@dataclass(frozen=True)
class ProcessUse:
    """What the processes of a job did, on its GPUs or not.

    Attributes:
        seen_s: In so many seconds.
        processors: Mean number of processors that they took; NaN where it cannot be read.
        bytes_per_s: Mean of what they read and wrote; NaN likewise.
        on_gpus: Whether any was on its GPUs, or may have been.
    """

    seen_s: float
    processors: float
    bytes_per_s: float
    on_gpus: bool = True


@dataclass(frozen=True)
class IdlenessVerdict:
    """Whether a job is idle beyond doubt, as far as metrics can tell.

    Attributes:
        idle: Whether its GPUs may be taken away.
        evidence: What says so; or what speaks against it, or is missing.
    """

    idle: bool
    evidence: tuple[str, ...]


def judge_idleness(
    idle_s: float,
    wanted_s: float,
    longest_pause_s: float,
    gpus: Mapping[str, tuple[FloatArray, Mapping[str, FloatArray]]],
    processes: ProcessUse | None = None,
    *,
    known_s: float = math.inf,
    is_over: bool = False,
) -> IdlenessVerdict:
    """Judge a job that seems to be idle.

    Args:
        idle_s: For how long.
        wanted_s: How long is long enough.
        longest_pause_s: For how long as much of the job has rested at most, and gone on; 0 for never.
        gpus: Each of its GPUs -> times in seconds, shape (n,), increasing, over the last ``wanted_s`` or more, and by
            metric (those of ``METRICS`` that it has) values of shape (n,), NaN where there is none.
        processes: What its processes did in that time; None where nobody knows.
        known_s: For how long the job had gone on by then; infinite where nobody has ever been on its GPUs.
        is_over: Whether the job has ended, and what is asked is whether its GPUs have done nothing since.
    """
    patience_s = max(_LEAST_PATIENCE * wanted_s, _PATIENCE * longest_pause_s)
    resting, working = _judge_processes(processes, wanted_s)
    is_new = known_s < _BLIND_PATIENCE * wanted_s
    if is_new:
        patience_s = max(patience_s, min(_BLIND_PATIENCE * wanted_s, _NEW_PATIENCE * known_s))
    if is_over and not resting:
        patience_s = max(patience_s, _BLIND_PATIENCE * wanted_s)
    if idle_s < patience_s:
        why = f"; it paused for {longest_pause_s:.0f} s before and went on" if longest_pause_s else ""
        why += f"; it had gone on for {known_s:.0f} s only, and its pauses are not known yet" if is_new else ""
        return IdlenessVerdict(False, (f"idle for {idle_s:.0f} s of {patience_s:.0f} s{why}",))
    if not gpus:
        return IdlenessVerdict(False, ("no GPU of it is known",))
    against: list[str] = []
    witnesses: list[set[str]] = []
    for name, (time_s, values) in gpus.items():
        seen_s, gap_s = _seen(time_s)
        if seen_s < _LEAST_SEEN * wanted_s:
            against.append(f"GPU {name}: metrics of {seen_s:.0f} s of {wanted_s:.0f} s only")
            continue
        if gap_s > _LONGEST_GAP_S:
            against.append(f"GPU {name}: no metrics for {gap_s:.0f} s of that")
            continue
        quiet, loud = _witnesses(time_s, values, wanted_s)
        against += [f"GPU {name}: {each}" for each in loud]
        witnesses.append(quiet)
    against += working
    if not resting and not working and not is_over:
        against.append("what its processes do is not known, which counts as work")
    if against:
        return IdlenessVerdict(False, tuple(against))
    agreed = set.intersection(*witnesses)
    # Power and PCIe rest, too, while a kernel computes the same all the time: without its use nothing tells. What a
    # host counts of processes is no metric of a GPU's: they and its use do not hang together.
    if _NOT_IN_USE not in agreed or len(agreed) + bool(resting) < 2:
        said = " and ".join(filter(None, [*sorted(agreed), resting])) or "nothing"
        return IdlenessVerdict(False, (f"on every GPU its use and one more witness are wanted; there is: {said}",))
    evidence = [f"idle for {idle_s:.0f} s on {count(len(gpus), 'GPU')}", *sorted(agreed)]
    evidence.append(resting or "it is over, and was waited for longer, as other processes may work there")
    if longest_pause_s:
        evidence.append(f"its longest pause before took {longest_pause_s:.0f} s")
    return IdlenessVerdict(True, tuple(evidence))


def _judge_processes(processes: ProcessUse | None, wanted_s: float) -> tuple[str, list[str]]:
    """Return that processes rest in words, nothing where that is not known, and what says that they work."""
    if processes is None:
        return "", []
    working = []
    if processes.processors > MOST_PROCESSORS:
        working.append(f"its processes take {processes.processors:.2f} processors")
    if processes.bytes_per_s > MOST_BYTES_PER_S:
        working.append(f"its processes read and write {processes.bytes_per_s / 1e6:.1f} MB/s")
    if working:
        return "", working
    # Time is what somebody computes in, bytes what somebody fetches or saves: one says nothing of the other.
    both = math.isfinite(processes.processors) and math.isfinite(processes.bytes_per_s)
    whole = processes.seen_s >= _LEAST_SEEN * min(wanted_s, _LONGEST_LOOK_S)
    return "its processes rest" if both and whole else "", []


def _seen(time_s: FloatArray) -> tuple[float, float]:
    """Return for how many seconds times speak, and the longest time between two of them."""
    apart = np.diff(time_s)
    return float(np.minimum(apart, 10.0).sum()), float(apart.max(initial=0.0))


def _witnesses(time_s: FloatArray, values: Mapping[str, FloatArray], wanted_s: float) -> tuple[set[str], list[str]]:
    """Return what says that a GPU rests, one witness per kind of metric, and what says that it works.

    A metric that is missing for a while may have missed the work: it says that a GPU works, and never that it rests.
    """
    known = {name: column[np.isfinite(column)] for name, column in values.items()}
    whole = set()
    for name, column in values.items():
        seen_s, gap_s = _seen(time_s[np.isfinite(column)])
        if seen_s >= _LEAST_SEEN * wanted_s and gap_s <= _LONGEST_GAP_S:
            whole.add(name)
    quiet, loud = set(), []

    def judge(rests: bool, names: Collection[str], said: str, against: str, *, works: bool = True) -> None:
        if rests and names:
            quiet.add(said)
        elif not rests and works:
            loud.append(against)

    use = [known[name] for name in _USE if name in known and known[name].size]
    if use:
        most = max(float(np.quantile(column, 0.999)) for column in use)
        judge(most <= _MOST_USE, whole.intersection(_USE), _NOT_IN_USE, f"in use by up to {percent(most)}")
    bus = [known[name] for name in _BUS if name in known and known[name].size]
    if bus:
        most = sum(float(np.quantile(column, 0.99)) for column in bus)
        both = whole if whole.issuperset(_BUS) else ()
        judge(most <= _MOST_BUS, both, "nothing moves over PCIe", f"{most / 1e6:.0f} MB/s over PCIe")
    power = known.get(_POWER, np.empty(0))
    if power.size:
        low, middle, high = np.quantile(power, [0.01, 0.5, 0.99])
        flat = high - low <= max(_MOST_SPREAD_W, _MOST_SPREAD * middle)
        told = f"power between {low:.0f} and {high:.0f} W"
        judge(flat, whole & {_POWER}, "its power is flat", told, works=high > _WORKS_FROM * low)
    return quiet, loud
