"""``JobRuns``: the runs of one job over all GPUs and hosts, and what its scheduler still gives to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpusonde.collector.query.endings import stays
from gpusonde.collector.query.runs import MOST_RUNS_OF_A_JOB, Chosen
from gpusonde.collector.storage.model import RunRow
from gpusonde.collector.storage.store import ResultStore, Store
from gpusonde.collector.tracking.jobs import NO_JOBS, job_of
from gpusonde.service.wire import Binding

_PAGE = 1000
_MOST_OPEN_RUNS = 100_000
_DAY_NS = 86_400_000_000_000
SILENT_NS = 300_000_000_000


@dataclass(frozen=True)
class Hold:
    """What a scheduler still gives to a job: a GPU of an agent, since when, and whether that agent is heard."""

    agent_id: str
    binding: Binding
    is_heard: bool

    @property
    def gpu(self) -> tuple[str, str]:
        """Agent and UUID."""
        return self.agent_id, self.binding.gpu_uuid


_Named = tuple[int, str]  # scheduler, job
Held = Mapping[_Named, Sequence[Hold]]


@dataclass(frozen=True)
class JobRuns:
    """The runs of a job, newest first, and what its scheduler still gives to it; one of them may be empty."""

    runs: Sequence[RunRow]
    held: Sequence[Hold]

    @property
    def place(self) -> tuple[int, str]:
        """Its place in the list."""
        if self.runs:
            return self.runs[0].start_unix_nano, self.runs[0].run_id
        return self.held[-1].binding.start_unix_nano, self.held[-1].binding.job_id

    @property
    def open_runs(self) -> list[RunRow]:
        """Those that go on."""
        return [run for run in self.runs if not run.ended]

    @property
    def active(self) -> bool:
        """Whether a run goes on, or GPUs are still given to it."""
        return bool(self.held or self.open_runs)

    @property
    def agents_now(self) -> set[str]:
        """Those on which it has GPUs: one that was put back into the queue may have left others."""
        return {run.agent_id for run in self.open_runs} | {hold.agent_id for hold in self.held}

    @property
    def start_unix_nano(self) -> int:
        """Its first activity; of one that has never worked, when it got its first GPU."""
        return min([run.start_unix_nano for run in self.runs] or self._given)

    @property
    def reached_unix_nano(self) -> int:
        """Its last activity; of one that has never worked, its start."""
        return max((run.end_unix_nano for run in self.runs), default=self.start_unix_nano)

    @property
    def _given(self) -> list[int]:
        return [hold.binding.start_unix_nano for hold in self.held]

    def are(self, chosen: Chosen, now: int) -> bool:
        """Return whether the job is one of those that are asked for."""
        start = min([run.start_unix_nano for run in self.runs] + self._given)
        end = now if self.held else self.reached_unix_nano
        gpus = [(run.agent_id, run.gpu_uuid) for run in self.runs] + [hold.gpu for hold in self.held]
        return chosen.has_time(start, end) and any(chosen.has_gpu(*gpu) for gpu in gpus)


def held_by_jobs(store: Store, job_id: str, now: int) -> Held:
    """Return what schedulers give to jobs, without what agents say of whom nothing was heard for a day.

    Args:
        store: Where bindings and ticks are.
        job_id: Only to jobs of this name; empty means to all.
        now: Unix nanoseconds.
    """
    held: dict[_Named, list[Hold]] = {}
    for agent_id, binding in store.facts.open_bindings():
        if binding.scheduler in NO_JOBS or not binding.job_id or (job_id and binding.job_id != job_id):
            continue
        tick = store.samples.next_tick(binding.gpu_uuid, now - _DAY_NS)
        if tick is not None:
            is_heard = store.samples.next_tick(binding.gpu_uuid, now - SILENT_NS) is not None
            held.setdefault((binding.scheduler, binding.job_id), []).append(Hold(agent_id, binding, is_heard))
    return held


def active_jobs(results: ResultStore, job_id: str, held: Held) -> list[JobRuns]:
    """Return the jobs that go on, newest first."""
    found: list[JobRuns] = []
    seen: set[str] = set()
    for run in results.runs(job_id=job_id, open_only=True, limit=_MOST_OPEN_RUNS):
        if run.run_id not in seen:
            members = runs_of_job(results, run, held)
            seen.update(member.run_id for member in members)
            found.append(JobRuns(members, held.get((run.scheduler, run.job_id), [])))
    alone = results.run(job_id) if job_id and not found else None
    if alone is not None and not alone.ended and job_of(alone) is None:
        found.append(JobRuns([alone], []))
    named = {(each.runs[0].scheduler, each.runs[0].job_id) for each in found}
    for key in held.keys() - named:
        newest = [run for run in results.runs(job_id=key[1], limit=_PAGE) if run.scheduler == key[0]][:1]
        # Those before the binding were of another job of that name.
        since = min(hold.binding.start_unix_nano for hold in held[key])
        members = runs_of_job(results, newest[0], held) if newest else []
        lasts = any(run.end_unix_nano >= since for run in members)
        found.append(JobRuns(members if lasts else [], held[key]))
    return sorted(found, key=lambda each: each.place, reverse=True)


def all_jobs(results: ResultStore, job_id: str, before: tuple[int, str] | None, held: Held) -> Iterator[JobRuns]:
    """Yield all jobs that have worked, newest first, behind a place in that order."""
    if job_id and not results.runs(job_id=job_id, limit=1):
        run = results.run(job_id)
        if run is not None and job_of(run) is None:
            yield JobRuns([run], [])
        elif of_name := [hold for key, holds in held.items() if key[1] == job_id for hold in holds]:
            yield JobRuns([], of_name)
        return
    seen: set[str] = set()
    while True:
        page = results.runs(job_id=job_id, before=before, limit=_PAGE)
        for run in page:
            if run.run_id in seen:
                continue
            members = runs_of_job(results, run, held)
            seen.update(member.run_id for member in members)
            # One whose newest run came before belongs to an earlier page.
            if members[0].run_id == run.run_id:
                yield JobRuns(members, _still_held(results, run, members, held))
        if len(page) < _PAGE:
            return
        before = (page[-1].start_unix_nano, page[-1].run_id)


def _still_held(results: ResultStore, newest: RunRow, members: Sequence[RunRow], held: Held) -> Sequence[Hold]:
    """Return what a scheduler still gives to a job of these runs: to the last of its name, if it has begun by then."""
    holds = held.get((newest.scheduler, newest.job_id), []) if job_of(newest) is not None else []
    if not holds or max(run.end_unix_nano for run in members) < min(hold.binding.start_unix_nano for hold in holds):
        return []
    same = results.runs(job_id=newest.job_id, limit=MOST_RUNS_OF_A_JOB)
    last = next((run.run_id for run in same if run.scheduler == newest.scheduler), newest.run_id)
    return holds if last == newest.run_id else []


def runs_of_job(results: ResultStore, run: RunRow, held: Held = MappingProxyType({})) -> list[RunRow]:
    """Return the runs of a run's job, newest first; without what schedulers give now, up to a pause of hours."""
    if job_of(run) is None:
        return [run]
    same = [
        other for other in results.runs(job_id=run.job_id, limit=MOST_RUNS_OF_A_JOB) if other.scheduler == run.scheduler
    ]
    found = stays(same)
    if holds := held.get((run.scheduler, run.job_id)):
        # However long it paused since then: the scheduler has not taken the GPUs away in between.
        since = min(hold.binding.start_unix_nano for hold in holds)
        lasting = [stay for stay in found if max(each.end_unix_nano for each in stay) >= since]
        found = [*found[: len(found) - len(lasting)], [each for stay in lasting for each in stay]]
    (members,) = [stay for stay in found if any(other.run_id == run.run_id for other in stay)] or [[run]]
    return members[::-1]
