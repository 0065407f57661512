"""``JobLooks``: what the processes of a job did beside its GPUs, on all its hosts, and in its pauses."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from gpusonde.collector.storage.store import FactStore
from gpusonde.epoch_detect.progress.idleness import MOST_BYTES_PER_S, MOST_PROCESSORS
from gpusonde.query.v1 import query_pb2
from gpusonde.service.wire import ACTIVITY_COLUMNS

_SECOND_NS, _MINUTE_NS, _DAY_NS = 1_000_000_000, 60_000_000_000, 86_400_000_000_000
# A record of an agent holds half a minute's looks; who has said nothing for longer than this says nothing of now.
_OLD_NS = 90_000_000_000
_PROCESSORS, _READ, _WRITTEN = map(ACTIVITY_COLUMNS.index, ("processor_s", "read_bytes", "written_bytes"))


class JobLooks:
    """Looks at the processes of a job, added up over its hosts by the minute.

    Args:
        facts: Where they are.
        gpus: Agents and GPUs of the job. What is not known of one of them is not known of the job.
        window_ns: How long before now is asked for.
        now: Unix nanoseconds.
        since: Since when it has paused; looks a day ago at most are read.
    """

    def __init__(
        self, facts: FactStore, gpus: Collection[tuple[str, str]], window_ns: int, now: int, since: int
    ) -> None:
        self._since = max(min(since, now - window_ns), now - _DAY_NS)
        self._window = max(now - window_ns - self._since, 0) // _MINUTE_NS
        minutes = (now - self._since) // _MINUTE_NS + 1
        # Seconds of processors, and bytes.
        self._sums = np.zeros((2, minutes))
        self._seen_s = np.full(minutes, np.inf if gpus else 0.0)
        self._held = np.zeros(minutes, dtype=bool)
        self._is_old = not gpus
        self._on_gpus = False
        # The newest record may be as old as this, and nobody knows who has come since.
        recent = now - max(window_ns, _OLD_NS)
        of_agents: dict[str, list[str]] = {}
        for agent_id, gpu_uuid in gpus:
            of_agents.setdefault(agent_id, []).append(gpu_uuid)
        for agent_id, uuids in of_agents.items():
            seen_s = {gpu_uuid: np.zeros(minutes) for gpu_uuid in uuids}
            newest = dict.fromkeys(uuids, 0)
            for activity in facts.recent_activity(agent_id, uuids, self._since):
                times = activity.time_unix_nano
                inside = times >= self._since
                if not inside.any():
                    continue
                # The clock of a host may be ahead.
                at = np.minimum((times[inside] - self._since) // _MINUTE_NS, minutes - 1)
                # Each says what came since the one before; looks are a second apart.
                passed_s = np.diff(times, prepend=times[0] - _SECOND_NS)[inside] / 1e9
                for gpu_uuid in seen_s.keys() & set(activity.gpu_uuids):
                    np.add.at(seen_s[gpu_uuid], at, passed_s)
                    newest[gpu_uuid] = max(newest[gpu_uuid], int(times[-1]))
                # Who does not tell may have some.
                if activity.holders != 0:
                    self._held[at] = True
                    self._on_gpus |= bool(times[-1] >= recent)
                values = activity.values[:, inside]
                for i, one in enumerate((values[_PROCESSORS], values[_READ] + values[_WRITTEN])):
                    np.add.at(self._sums[i], at, one)
            self._seen_s = np.minimum.reduce([self._seen_s, *seen_s.values()])
            self._is_old |= now - min(newest.values()) > _OLD_NS

    def processes(self) -> query_pb2.JobProcesses | None:
        """Return what they did in the time that is asked for; None where that is not known up to now."""
        seen_s = float(self._seen_s[self._window :].sum())
        if self._is_old or not seen_s:
            return None
        found = query_pb2.JobProcesses(on_gpus=self._on_gpus)
        found.seen.FromNanoseconds(round(seen_s * 1e9))
        # A look of which one thing is not known makes it unknown: it is never taken for nothing.
        processors, moved = (self._sums[:, self._window :].sum(axis=1) / seen_s).tolist()
        if math.isfinite(processors):
            found.processors = processors
        if math.isfinite(moved):
            found.bytes_per_second = moved
        return found

    def longest_rest(self, pauses: Sequence[tuple[int, int]]) -> int:
        """Return for how long, in nanoseconds, as much rested in one of the job's pauses as rests now.

        Pauses in which its processes worked tell nothing of one in which they rest, nor do those in which they stayed
        on its GPUs of one in which none is there any more. What is not known of a pause is taken for rest.

        Args:
            pauses: Beginnings and ends of those after which the job went on.
        """
        most = np.array([[MOST_PROCESSORS], [MOST_BYTES_PER_S]])
        works = (self._sums / np.maximum(self._seen_s, 1.0) > most).any(axis=0)
        if not self._on_gpus:
            works |= self._held
        longest = 0
        for begin, end in pauses:
            first, last = ((at - self._since) // _MINUTE_NS for at in (begin, end))
            at = max(first, 0) + np.flatnonzero(works[max(first, 0) : max(last + 1, 0)])
            stops = [*(self._since + at * _MINUTE_NS).tolist(), end]
            starts = [begin, *(self._since + (at + 1) * _MINUTE_NS).tolist()]
            longest = max(longest, *(stop - start for start, stop in zip(starts, stops, strict=True)))
        return longest
