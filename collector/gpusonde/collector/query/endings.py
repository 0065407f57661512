"""When a job will be done: by the total that the user gives, or by earlier runs of the same job.

Nobody tells a collector what a job computes. The same job is one of the same name: a pod that Kubernetes made of the
same template, a pod or a container whose name comes again, or the job that the user says it is like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpusonde.collector.query.job_tree import JobTree
from gpusonde.collector.query.runs import counted_epochs, end_estimate, training_spans, tree_parts
from gpusonde.collector.storage.model import CycleRow, CycleTree, JobStateRow, RunRow
from gpusonde.collector.storage.store import ResultStore
from gpusonde.common.v1 import job_pb2
from gpusonde.epoch_detect.progress import EndEstimate, estimate_end, estimate_from_others
from gpusonde.errors import RequestError, TotalEpochsError
from gpusonde.query.v1 import query_pb2
from gpusonde.telemetry import FloatArray

# A job that was put back into the queue goes on under its id; a name that comes again after longer is another job.
_SAME_JOB_NS = 600_000_000_000
_MOST_EARLIER = 16
_MOST_LOOKED_AT = 2000
_SHORTEST_S = 60.0
# Cycles of earlier runs are the same as this one's up to a machine that is so many times as fast.
_SAME_PERIOD = 3.0
# What Kubernetes appends to the name of a template: the minute of a CronJob, the hash of a ReplicaSet, five characters.
_GENERATED = re.compile(r"(-\d{8,10})?(-[bcdfghjklmnpqrstvwxz2456789]{8,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$")


def stays(runs: Sequence[RunRow]) -> list[list[RunRow]]:
    """Return runs under one name as the jobs that they are, oldest first.

    Args:
        runs: Newest first, as a store gives them.
    """
    found: list[list[RunRow]] = []
    reached = 0
    for run in reversed(runs):
        if not found or run.start_unix_nano > reached + _SAME_JOB_NS:
            found.append([])
        found[-1].append(run)
        reached = max(reached, run.end_unix_nano)
    return found


def template_of(scheduler: int, job_id: str) -> str:
    """Return what the jobs that a scheduler made of one template have in common in their names."""
    return _GENERATED.sub("", job_id) if scheduler == job_pb2.SCHEDULER_KUBERNETES else job_id


@dataclass(frozen=True)
class EarlierRun:
    """A job that is over: how long it took, and the level that measured its progress; None where none was found."""

    duration_s: float
    level: CycleRow | None


def earlier_runs(results: ResultStore, members: Sequence[RunRow], like: str) -> list[EarlierRun]:
    """Return what the latest runs of a job took that were over before it began; as of ``earlier_stays``."""
    found = []
    for stay in earlier_stays(results, members, like):
        duration_s = (max(run.end_unix_nano for run in stay) - stay[0].start_unix_nano) / 1e9
        if duration_s >= _SHORTEST_S:
            tree = JobTree.of(tree_parts(results, stay[-1])).listed()
            found.append(EarlierRun(duration_s, None if tree.level is None else tree.cycles[tree.level]))
    return found


def earlier_stays(results: ResultStore, members: Sequence[RunRow], like: str = "") -> list[list[RunRow]]:
    """Return the latest runs of a job that were over before it began, at most 16, oldest first.

    Args:
        results: Where they are.
        members: The runs of the job that goes on, at least one.
        like: Id of a job that it is said to be like; empty means those of its own name.
    """
    first = min(members, key=lambda run: (run.start_unix_nano, run.run_id))
    name = like or first.job_id
    if not name:
        return []
    template = template_of(first.scheduler, name)
    if like or template == name:
        runs = results.runs(job_id=name, limit=_MOST_LOOKED_AT)
    else:
        runs = results.runs(before=(first.start_unix_nano, first.run_id), limit=_MOST_LOOKED_AT)
    named: dict[str, list[RunRow]] = {}
    for run in runs:
        if run.scheduler == first.scheduler and template_of(run.scheduler, run.job_id) == template:
            named.setdefault(run.job_id, []).append(run)
    over = [
        stay
        for of_name in named.values()
        for stay in stays(of_name)
        if all(run.ended and run.end_unix_nano <= first.start_unix_nano for run in stay)
    ]
    return sorted(over, key=lambda stay: stay[-1].start_unix_nano)[-_MOST_EARLIER:]


@dataclass(frozen=True)
class Ending:
    """What is said of a job's end.

    Attributes:
        estimate: When it is; None where nothing is said.
        reason: Why there is none, for a human reader.
        progress: Share of the total that is done; None where no total is known.
    """

    estimate: query_pb2.EndEstimate | None = None
    reason: str = ""
    progress: float | None = None


@dataclass(frozen=True)
class JobProgress:
    """How far a job is.

    Attributes:
        results: Where its epochs are.
        members: Its runs, at least one.
        run: The one whose tree is told.
        tree: The tree.
        level: Index of the level that counts; None where there is none.
        states: What it did, with the end of each.
    """

    results: ResultStore
    members: Sequence[RunRow]
    run: RunRow
    tree: CycleTree
    level: int | None
    states: Sequence[tuple[JobStateRow, int]]

    def with_total(self, total: int) -> Ending:
        """Say when it ends if it has so many cycles.

        Raises:
            RequestError: It is later than a time can be told (``INVALID_ARGUMENT``).
        """
        if self.level is None:
            reason = "the metrics do not tell yet which of its cycles have that role"
            if self.tree.level is not None:
                row = self.tree.cycles[self.tree.level]
                reason += f"; if its cycles of {row.period_s:.3g} s"
                reason += f" ({row.role}) are to be taken for it, say --total-cycles {total}"
            return Ending(reason=reason)
        row = self.tree.cycles[self.level]
        if row.count > total:
            told = "" if row.role == "unknown" else f"{row.role} "
            return Ending(
                reason=f"{row.count} cycles of that level ({told}{row.period_s:.3g} s each) are over, more than the"
                f" {total} that the job is said to have: the level is another one, or the total is"
            )
        progress = row.count / total
        try:
            estimate = self._estimate(row, total)
        except TotalEpochsError as error:
            return Ending(reason=str(error), progress=progress)
        return Ending(self._message(estimate, f"the total that was given; {estimate.basis}"), progress=progress)

    def like(self, earlier: Sequence[EarlierRun], name: str = "") -> Ending:
        """Say when it ends if it does what others did before.

        Args:
            earlier: The others.
            name: Id of a job that was named for that; empty where those of its own name are meant.

        Raises:
            RequestError: It is later than a time can be told (``INVALID_ARGUMENT``).
        """
        if not earlier:
            what = f"run of a job {name[:80]!r} that was over before it began" if name else "earlier run of the job"
            return Ending(reason=f"no total was given, and no {what} is known")
        row = None if self.level is None else self.tree.cycles[self.level]
        totals = sorted(each.level.count for each in earlier if row and each.level and _are_alike(each.level, row))
        runs = f"{len(earlier)} earlier {'run' if len(earlier) == 1 else 'runs'} of the job"
        if row is not None and totals and totals[0] >= row.count:
            try:
                # The one of them that had the most cycles, and the one that had the fewest, bound it.
                few, middle, most = (
                    self._estimate(row, total) for total in (totals[0], totals[len(totals) // 2], totals[-1])
                )
            except TotalEpochsError:
                pass
            else:
                total = totals[len(totals) // 2]
                estimate = replace(middle, end_low_s=few.end_low_s, end_high_s=most.end_high_s)
                basis = f"{total} cycles, as {runs} had; {estimate.basis}"
                return Ending(self._message(estimate, basis), progress=min(row.count / total, 1.0))
        start = min(run.start_unix_nano for run in self.members)
        try:
            estimate = estimate_from_others(
                [each.duration_s for each in earlier], (start - self.run.start_unix_nano) / 1e9, self._now_s
            )
        except TotalEpochsError as error:
            return Ending(reason=str(error))
        if row is not None:
            estimate = replace(estimate, epochs_done=row.count)
        try:
            return Ending(self._message(estimate, estimate.basis))
        except RequestError:
            # Two of a minute and a week say nothing of a third one.
            return Ending(reason=f"earlier runs of it took times that are too unlike: {estimate.basis}")

    @property
    def _now_s(self) -> float:
        return (max(run.end_unix_nano for run in self.members) - self.run.start_unix_nano) / 1e9

    def _estimate(self, row: CycleRow, total: int) -> EndEstimate:
        origin = self.run.start_unix_nano
        starts_s, ends_s, before = self._cycles(row)
        training_s = training_spans(self.states, origin)
        return estimate_end(
            starts_s,
            ends_s,
            total,
            self._now_s,
            training_s=training_s if training_s.size else None,
            epochs_before=before,
        )

    def _cycles(self, row: CycleRow) -> tuple[FloatArray, FloatArray, int]:
        """Starts and ends of the cycles of a level that are kept, and how many are over before them."""
        origin = self.run.start_unix_nano
        if self.level == self.tree.level:
            epochs = counted_epochs(self.results.epochs(self.run.run_id))
            # Where several hosts have one, it may be that of another host.
            if len(epochs) >= row.count:
                starts_s = np.array([(epoch.start_unix_nano - origin) / 1e9 for epoch in epochs])
                return starts_s, np.array([(epoch.end_unix_nano - origin) / 1e9 for epoch in epochs]), 0
        bounds_s = (np.array(row.starts_unix_nano, dtype=np.int64) - origin) / 1e9
        # The last start is that of the cycle under way.
        return bounds_s[:-1], bounds_s[1:], max(row.count - max(bounds_s.size - 1, 0), 0)

    def _message(self, estimate: EndEstimate, basis: str) -> query_pb2.EndEstimate:
        return end_estimate(replace(estimate, basis=basis), self.run.start_unix_nano, "total_cycles")


def _are_alike(one: CycleRow, other: CycleRow) -> bool:
    ratio = one.period_s / other.period_s
    return one.role == other.role and 1 / _SAME_PERIOD < ratio < _SAME_PERIOD
