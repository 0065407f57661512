"""``JobPart``: what the GPUs of a job on one host did, and which of them were the job's at what time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpusonde.collector.query.job_runs import JobRuns
from gpusonde.collector.query.runs import with_ends
from gpusonde.collector.storage.model import JobStateRow, RunRow
from gpusonde.collector.storage.store import FactStore, Store
from gpusonde.collector.tracking.jobs import job_of

# GPUs of a job that begin to work within so long of each other are its own since it began.
_TOGETHER_NS = 60_000_000_000
# In which a job gets on. A checkpoint is not progress: it is what a failure would have cost, paid in advance.
_PROGRESS = frozenset({"training", "evaluating", "slower"})
_PAUSES = frozenset({"idle", "stalled", "hung", "checkpointing"})
_RESTS = _PAUSES | {"ended", "unknown"}

Span = tuple[int, int]  # Unix nanoseconds
StateSpan = tuple[JobStateRow, int]  # a state and its end


@dataclass(frozen=True)
class JobPart:
    """What one agent's GPUs of a job did.

    Attributes:
        states: One after another, at least one.
        gpus: Of each GPU the times that it was the job's.
    """

    states: Sequence[StateSpan]
    gpus: Sequence[Sequence[Span]]

    @property
    def state(self) -> str:
        """The latest one."""
        return self.states[-1][0].state

    def gpu_time(self, states: Iterable[StateSpan]) -> int:
        """Return for how long GPUs were the job's in some of its states, nanoseconds."""
        # Most often all GPUs were its own at the same time.
        mine = Counter(span for spans in self.gpus for span in spans).items()
        return sum(
            count * max(0, min(end, until) - max(row.start_unix_nano, since))
            for row, end in states
            for (since, until), count in mine
        )


def job_parts(store: Store, of: JobRuns) -> dict[str, JobPart]:
    """Return the parts of a job by agent; those of which nothing is known are left out."""
    known = store.results.states([run.run_id for run in of.runs])
    parts = {}
    for agent_id in sorted({run.agent_id for run in of.runs}):
        runs = [run for run in reversed(of.runs) if run.agent_id == agent_id]
        rows = sorted((row for run in runs for row in known.get(run.run_id, ())), key=lambda row: row.start_unix_nano)
        if told := with_ends(rows, max(run.end_unix_nano for run in runs)):
            held = {hold.binding.gpu_uuid for hold in of.held if hold.agent_id == agent_id}
            whole = (told[0][0].start_unix_nano, told[-1][1])
            parts[agent_id] = JobPart(_while_it_ran(runs, told), _gpu_spans(store.facts, runs, held, whole))
    return parts


def _while_it_ran(runs: Sequence[RunRow], told: Sequence[StateSpan]) -> list[StateSpan]:
    """Return states, work of them only as long as there were runs: one that was requeued did none in between."""
    found = []
    for row, end in told:
        begun = [run.end_unix_nano for run in runs if run.start_unix_nano < end]
        # Rests begin where work ended, and go on without a run.
        work_end = end if row.state in _RESTS else max(begun, default=end)
        found.append((row, max(min(end, work_end), row.start_unix_nano)))
    # Of one second two runs that led the job one after the other may both tell the state.
    return [(row, end) for row, end in found[:-1] if end > row.start_unix_nano] + found[-1:]


def _gpu_spans(facts: FactStore, runs: Sequence[RunRow], held: set[str], whole: Span) -> list[list[Span]]:
    """Return when each GPU of one agent was the job's.

    It is from the GPU's first run on until none of the job's runs there goes on any more, as one that ended early was
    not given back. Where the job was put back into the queue that is so anew for those GPUs that it got then.

    Args:
        facts: Where bindings are.
        runs: Those of the job there, in order of their start.
        held: The GPUs that the scheduler still gives to it.
        whole: From when to when states of it are known.
    """
    stints = _stints(runs)
    taken = _taken(facts, runs[0]) if len(stints) > 1 else {}
    found = []
    for gpu_uuid in sorted({run.gpu_uuid for run in runs}):
        spans: list[Span] = []
        for stint in stints:
            if own := [run.start_unix_nano for run in stint if run.gpu_uuid == gpu_uuid]:
                # GPUs begin to work one after the other.
                first = stint[0].start_unix_nano
                begin = first if own[0] - first < _TOGETHER_NS else own[0]
                spans.append((begin, max(run.end_unix_nano for run in stint)))
        if spans[0][0] == runs[0].start_unix_nano:
            spans[0] = (whole[0], spans[0][1])  # a job starts before its GPUs work
        if gpu_uuid in held or any(run.gpu_uuid == gpu_uuid for run in stints[-1]):
            spans[-1] = (spans[-1][0], whole[1])
        found.append(_with_pauses(spans, taken.get(gpu_uuid, ())))
    return found


def _stints(runs: Sequence[RunRow]) -> list[list[RunRow]]:
    """Return runs, in order of their start, as those between which none went on."""
    stints: list[list[RunRow]] = []
    reached = 0
    for run in runs:
        if not stints or run.start_unix_nano > reached:
            stints.append([])
        stints[-1].append(run)
        reached = max(reached, run.end_unix_nano)
    return stints


def _taken(facts: FactStore, run: RunRow) -> dict[str, list[int]]:
    """Return when the scheduler took the GPUs of a run's agent away from the job, by GPU."""
    taken: dict[str, list[int]] = {}
    for gpu_uuid, _, binding in facts.job_bindings(run.agent_id, run.job_id) if job_of(run) is not None else ():
        if binding.scheduler == run.scheduler and binding.end_unix_nano:
            taken.setdefault(gpu_uuid, []).append(binding.end_unix_nano)
    return taken


def _with_pauses(spans: Sequence[Span], taken: Sequence[int]) -> list[Span]:
    """Return the times of a GPU, joined where it is not known to have been taken away in between."""
    found = list(spans[:1])
    for begin, end in spans[1:]:
        if any(found[-1][1] <= at <= begin for at in taken):
            found.append((begin, end))
        else:
            found[-1] = (found[-1][0], end)
    return found


def goodput(parts: Iterable[JobPart]) -> tuple[int, int]:
    """Return the GPU time in which a job got on, and all that is known, nanoseconds."""
    good = total = 0
    for part in parts:
        good += part.gpu_time((row, end) for row, end in part.states if row.state in _PROGRESS)
        total += part.gpu_time(part.states)
    return good, total


def pauses(parts: Mapping[str, JobPart], runs: Sequence[RunRow]) -> list[Span]:
    """Return the pauses after which a job went on; ``runs`` are all of it, newest first."""
    found = []
    for part in parts.values():
        begin: int | None = None
        for row, _ in part.states:
            if row.state in _PAUSES:
                begin = row.start_unix_nano if begin is None else begin
            elif begin is not None:
                found.append((begin, row.start_unix_nano))
                begin = None
    # Runs end with the last activity; of a job on several GPUs the one that works longest counts.
    reached: int | None = None
    for run in reversed(runs):
        if reached is not None and run.start_unix_nano > reached:
            found.append((reached, run.start_unix_nano))
        reached = max(reached or 0, run.end_unix_nano)
    return found


def slower_since(states: Sequence[StateSpan]) -> int:
    """Return when a job that is slower became so: evaluations and checkpoints since then are no end of it."""
    since = states[-1][0].start_unix_nano
    for row, _ in reversed(states):
        if row.state == "training":
            break
        if row.state == "slower":
            since = row.start_unix_nano
    return since
