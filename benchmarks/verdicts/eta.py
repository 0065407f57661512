"""When a job will be done: estimates at 40 and 70 % of it, its total given, from cycles as they had been told by then.

The total is that of the level that is told: a user sees its period and its count, and knows how many of it his job has.
Where what is told is none of the levels that the job has, he can give none, and there is no estimate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from playing import Told, follow_cycles, is_held_back, play
from recordings import JobRecording, generated, jobs

from gpusonde.epoch_detect import CycleRole
from gpusonde.epoch_detect.progress import FEWEST_EPOCHS, EndEstimate, JobState, estimate_end
from gpusonde.errors import TotalEpochsError
from gpusonde.telemetry import FloatArray

SHARES = (0.4, 0.7)
_JITTER, _LOOKS = 0.02, 3  # of the job, either way of a share; looks at each
_SAME_PERIOD = 0.15
_FEWEST = 4  # cycles of a job, for its end to be asked for
_WHOLE_S = 2.0
_IN_EVERY_KIND, _LARGE = 0.8, 0.05
_LONGEST_S = 3600.0  # of generated jobs, as planned
_TRAINS = frozenset({JobState.TRAINING, JobState.SLOWER})
_TILING = frozenset({CycleRole.EPOCH, CycleRole.STEP, CycleRole.TRIAL})
# What is said was chosen on jobs 0 to 39 of 4,101, 0 to 5 of 22,013 and 0 to 39 of 22,014 (at most 20 minutes), none of
# a kind that is set aside, and half of the recordings, of which the others were seen, too. Of 907, 7,307, 8,311,
# 9,467, 12,011, 13,577, 15,101 and 17,203 there were tables; what came of them was chosen on others again, of the last
# and of 907 on these, too. Which cycles are none was chosen by jobs 0 to 39 of 41,031, 41,033 and 41,037, of
# input_shards, k_fold and gan_evaluation_every_k, and by 0 to 14 of 41,035 of every kind that is not set aside.
SEED = 1_009


@dataclass(frozen=True)
class Unit:
    """What the progress of a job can be counted in: seconds that one usually takes, how many, when the last ends."""

    period_s: float
    total: int
    end_s: float


@dataclass(frozen=True)
class Look:
    """What was known of a job at some time.

    Attributes:
        kind: Of the job.
        name: Of the job.
        held_back: Whether nothing was chosen by it.
        share: Of the job that was over, about.
        now_s: When.
        starts_s: Of what was told; empty where nothing was.
        ends_s: Likewise.
        training_s: Shape (spans, 2), when it was known to have trained.
        unit: Of what was told; None where nothing was, or the job has no such level.
    """

    kind: str
    name: str
    held_back: bool
    share: float
    now_s: float
    starts_s: FloatArray
    ends_s: FloatArray
    training_s: FloatArray
    unit: Unit | None

    def estimate(self) -> EndEstimate | None:
        """What is said of its end; None where nothing is."""
        if self.unit is None or self.starts_s.size < FEWEST_EPOCHS:
            return None
        try:
            return estimate_end(self.starts_s, self.ends_s, self.unit.total, self.now_s, training_s=self.training_s)
        except TotalEpochsError:
            return None


def looks(
    recording: JobRecording, told: Told, first_s: float, units: Sequence[Unit], *, held_back: bool
) -> Iterator[Look]:
    """Look at a job a few times, while it is followed second by second."""
    rng = np.random.default_rng(sum(recording.name.encode()))
    whole_s = max(unit.end_s for unit in units) - first_s
    waiting = sorted(
        (first_s + (share + rng.uniform(-_JITTER, _JITTER)) * whole_s, share) for share in SHARES for _ in range(_LOOKS)
    )
    known: dict[float, tuple[float, str]] = {}
    for now_s, watch in play(recording, told):
        spans = watch.spans[-4:]
        # What was thought of the newest ones before does not count any more.
        for start_s in [start_s for start_s in reversed(known) if spans and start_s >= spans[0].start_s]:
            del known[start_s]
        known.update((span.start_s, (span.end_s, span.state)) for span in spans)
        while waiting and waiting[0][0] <= now_s:
            _, share = waiting.pop(0)
            trained = [(start_s, end_s) for start_s, (end_s, state) in known.items() if state in _TRAINS]
            found = next((each for at_s, each in reversed(told) if at_s <= now_s), None)
            unit, starts_s, ends_s = None, np.empty(0), np.empty(0)
            if found is not None and found.level is not None:
                period_s = found.cycles[found.level].period_s
                starts_s, ends_s = found.epoch_starts_s, found.epoch_ends_s
                near = min(units, key=lambda unit: abs(unit.period_s / period_s - 1))
                if abs(near.period_s / period_s - 1) < _SAME_PERIOD and near.end_s > now_s:
                    unit = near
            yield Look(
                recording.kind, recording.name, held_back, share, now_s, starts_s, ends_s,
                np.array(trained).reshape(-1, 2), unit,
            )  # fmt: skip


def of_recording(recording: JobRecording, told: Told) -> list[Look]:
    """Looks at a recorded job whose log has its cycles; none at others."""
    log = recording.log
    units = [
        Unit(float(np.median(np.diff(ends))), len(ends), float(ends[-1]))
        for ends in (log.cycle_ends_s, log.epochs_s[:, 1])
        if len(ends) >= _FEWEST
    ]
    # What the H100 do after their checkpoints have become regular, and before, is counted in nothing.
    if not units or recording.kind == "h100 checkpoints":
        return []
    held_back = is_held_back(recording.name, recording.kind)
    return list(looks(recording, told, log.start_s, units, held_back=held_back))


def of_job(kind: str, seed: int, number: int) -> list[Look]:
    """Looks at a generated job; none at one that does not train, or was not recorded from its beginning to its end."""
    job = jobs.job(kind, seed, number, blind=True, longest_s=_LONGEST_S)
    recording = generated(job)
    at = [at_s for at_s, _ in job.states]
    began = next((at_s for at_s, state in job.states if state not in ("starting", "idle")), 0.0)
    if job.run_state != "training" or began == 0 or recording.time_s[-1] < job.end_s - _WHOLE_S:
        return []
    units = []
    for level in job.levels:
        last_s = float(level.starts_s[-1]) if len(level.starts_s) >= _FEWEST else np.inf
        # What does not fill the job ends with the evaluation, or whatever it is, that begins there.
        over = job.end_s if level.role in _TILING else next((at_s for at_s in at if at_s > last_s + 1e-3), job.end_s)
        if level.role == CycleRole.STEP:
            over = last_s + level.period_s
        if np.isfinite(last_s):
            units.append(Unit(level.period_s, len(level.starts_s), over))
    if not units:
        return []
    if kind in jobs.BLIND:
        recording = replace(recording, kind=f"{recording.kind} *")
    return list(looks(recording, follow_cycles(recording), began, units, held_back=True))


def table(found: Sequence[Look]) -> list[str]:
    """Lines of a Markdown table: jobs, looks at which there was an estimate, errors and intervals; what falls short."""
    cells = " | ".join(f"{share:.0%}: estimates | median error | p90 | in the interval | its width" for share in SHARES)
    lines = [f"| jobs | | {cells} |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    kinds: dict[str, list[Look]] = defaultdict(list)
    seeds: dict[str, list[Look]] = defaultdict(list)
    for look in found:
        kinds[look.kind].append(look)
        if look.kind.startswith("generated"):
            seeds[f"**generated, seed {look.name.split('-')[-2]}**"].append(look)
    rows = [
        *sorted((kind, mine) for kind, mine in kinds.items() if not kind.startswith("generated")),
        *sorted(seeds.items()),
    ]
    for name, mine in rows:
        if any(look.estimate() is not None for look in mine):
            cells = " | ".join(_cells([look for look in mine if look.share == share]) for share in SHARES)
            lines.append(f"| {name} | {len({look.name for look in mine})} | {cells} |")
    lines.append("")
    for share in SHARES:
        told = {kind: _errors([look for look in mine if look.share == share]) for kind, mine in sorted(kinds.items())}
        told = {kind: each for kind, each in told.items() if each[0].size}
        fewer = [f"{kind} {inside.mean():.0%}" for kind, (_, inside) in told.items() if inside.mean() < _IN_EVERY_KIND]
        worse = [f"{kind} {np.median(error):.0%}" for kind, (error, _) in told.items() if np.median(error) > _LARGE]
        lines += [
            f"At {share:.0%}, of {len(told)} kinds, in the interval less than {_IN_EVERY_KIND:.0%}:",
            f"{', '.join(fewer) or 'none'}. Median error over {_LARGE:.0%}: {', '.join(worse) or 'none'}.",
        ]
    return lines


def _errors(mine: Sequence[Look]) -> tuple[FloatArray, FloatArray]:
    """Relative errors of the estimates, and which of their intervals hold the end."""
    told = [(look.unit.end_s, look.now_s, estimate) for look in mine if look.unit and (estimate := look.estimate())]
    errors = [abs((estimate.end_s - now_s) / (end_s - now_s) - 1) for end_s, now_s, estimate in told]
    inside = [estimate.end_low_s <= end_s <= estimate.end_high_s for end_s, _, estimate in told]
    return np.array(errors), np.array(inside)


def _cells(mine: Sequence[Look]) -> str:
    told = [(look, estimate) for look in mine if (estimate := look.estimate()) is not None]
    if not told:
        return f"0 of {len(mine)} | - | - | - | -"
    true = np.array([look.unit.end_s - look.now_s for look, _ in told if look.unit])
    middle, low, high = (
        np.array([getattr(estimate, name) - look.now_s for look, estimate in told])
        for name in ("end_s", "end_low_s", "end_high_s")
    )
    error, inside = np.abs(middle / true - 1), (low <= true) & (true <= high)
    return (
        f"{len(told)} of {len(mine)} | {np.median(error):.1%} | {np.quantile(error, 0.9):.0%} | {inside.mean():.0%} | "
        f"{np.median((high - low) / true):.0%}"
    )
