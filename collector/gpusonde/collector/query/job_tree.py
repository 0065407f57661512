"""``JobTree``: the tree of cycles of a job, of the trees that its hosts have in the store.

Each agent's GPUs of a job are followed as one, by whichever collector has the agent, and have a tree of their own. What
is told of the job follows from these parts alone, so every collector with the store tells the same, in the name of the
agent whose run began first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpusonde.collector.storage.model import CycleRow, CycleTree, RunRow
from gpusonde.epoch_detect import Cycle, CycleRole
from gpusonde.epoch_detect.cycles.tree import LEAST_TOLD, MOST_LEVELS, nest
from gpusonde.epoch_detect.result import RunState

# Of the logarithm of a period. Levels of two parts are one where their intervals meet, but for what no interval says.
_ALWAYS_SAME, _NEVER_SAME = 0.05, 0.14
_OTHER_PERIOD = 0.1
_LEAST_HALF = 0.002
# Periods that a part has to last before it counts that it has not found a level: a run that goes on was looked at when
# it was shorter.
_SEEN_ENDED, _SEEN_RUNNING = 6.0, 15.0
_UNSEEN = 0.07  # confidence of a level that a part has not found: less than that of one that is told
_LEAST_SURE = 0.5  # from which on a role is told
_SURE = 0.8  # from which on a host is named that lacks a level
_LEAST_STARTS = 6
# Where in a cycle it begins is read a little differently from host to host.
_LEAST_LAG_S, _LAG_SHARE = 1.0, 0.15
_UNSTEADY = 0.05  # of a period, by which a lag may vary


@dataclass(frozen=True)
class TreePart:
    """What the GPUs of a job on one agent's host have.

    Attributes:
        run: The one that began first of those on the host.
        tree: Their tree.
    """

    run: RunRow
    tree: CycleTree

    @property
    def order(self) -> tuple[int, str, str]:
        """The first one owns the job's answer."""
        return self.run.start_unix_nano, self.run.gpu_uuid, self.run.run_id

    def could_see(self, period_s: float) -> bool:
        """Say whether it has lasted for long enough, and was looked at, to find a level of this period."""
        least = _SEEN_ENDED if self.run.ended else _SEEN_RUNNING
        length_s = (self.run.end_unix_nano - self.run.start_unix_nano) / 1e9
        return bool(self.tree.cycles or self.tree.run_state) and length_s >= least * period_s

    def is_settled(self, index: int) -> bool:
        """Say whether a level is more than provisional."""
        return self.run.ended or self.tree.cycles[index].confirmed or index == self.tree.level


@dataclass(frozen=True)
class HostDeviationRow:
    """What the GPUs on one host of a job do otherwise than those on the others.

    Attributes:
        agent_id: The host's agent.
        kind: ``period``, another one than the job's; ``missing``, a level that the others have; or ``lag``.
        amount: Its own period in seconds; that of the level; or the seconds that it is behind.
    """

    agent_id: str
    kind: str
    amount: float


@dataclass(frozen=True)
class JobTree:
    """The tree of a job.

    Attributes:
        agent_id: In whose name it is told.
        tree: The levels, ``confirmed`` where they are more than provisional, and the deviations of all GPUs.
        host_deviations: Hosts that do otherwise, by agent.
    """

    agent_id: str
    tree: CycleTree
    host_deviations: tuple[HostDeviationRow, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[TreePart]) -> JobTree:
        """Merge the trees of at least one part, each of another agent."""
        parts = sorted(parts, key=lambda part: part.order)
        owner = parts[0]
        deviations = tuple(each for part in parts for each in part.tree.deviations)
        if len(parts) == 1:
            rows = (replace(row, confirmed=owner.is_settled(i)) for i, row in enumerate(owner.tree.cycles))
            return cls(owner.run.agent_id, replace(owner.tree, cycles=tuple(rows)))
        groups = _match(parts)
        told = Counter(
            i for i, group in enumerate(groups) for part, index in group.items() if parts[part].tree.level == index
        )
        # Of as many votes the one that was matched first counts, and the owner's levels are.
        level = groups[told.most_common(1)[0][0]] if told else None
        merged = [(_merge(parts, group), group) for group in groups]
        merged = [pair for pair in merged if pair[0].confidence >= LEAST_TOLD]
        merged.sort(key=lambda pair: (pair[1] is not level, -pair[0].confidence))
        merged = sorted(merged[:MOST_LEVELS], key=lambda pair: pair[0].period_s)
        state = _pool(
            [{part.tree.run_state: part.tree.run_state_confidence} for part in parts if part.tree.run_state],
            [str(each) for each in RunState],
        )
        tree = CycleTree(
            tuple(
                _row(parts, group, cycle)
                for cycle, (_, group) in zip(nest(cycle for cycle, _ in merged), merged, strict=True)
            ),
            next((i for i, (_, group) in enumerate(merged) if group is level), None),
            deviations,
            *state,
        )
        return cls(owner.run.agent_id, tree, _find_deviating(parts, tree, [group for _, group in merged]))

    def listed(self) -> CycleTree:
        """Return the tree without the levels that are provisional."""
        cycles = self.tree.cycles
        places = {old: new for new, old in enumerate(i for i, cycle in enumerate(cycles) if cycle.confirmed)}

        def find(index: int | None) -> int | None:
            while index is not None and index not in places:
                index = cycles[index].parent
            return None if index is None else places[index]

        kept = tuple(replace(cycles[i], parent=find(cycles[i].parent)) for i in places)
        level = self.tree.level
        return replace(self.tree, cycles=kept, level=None if level is None else places.get(level))


def _half(row: CycleRow) -> float:
    """Return half of the interval of the logarithm of a period."""
    if not 0 < row.period_low_s < row.period_high_s:
        return _NEVER_SAME
    return min(max(0.5 * math.log(row.period_high_s / row.period_low_s), _LEAST_HALF), _NEVER_SAME)


def _match(parts: Sequence[TreePart]) -> list[dict[int, int]]:
    """Say which levels of the parts are one: part -> index of its level, for each level of the job."""
    groups: list[dict[int, int]] = []
    for number, part in enumerate(parts):
        near = []
        for index, row in enumerate(part.tree.cycles):
            for i, group in enumerate(groups):
                known = [parts[other].tree.cycles[place] for other, place in group.items()]
                apart = abs(math.log(row.period_s) - float(np.mean([math.log(each.period_s) for each in known])))
                reach = _half(row) + min(map(_half, known))
                if apart <= min(max(reach, _ALWAYS_SAME), _NEVER_SAME):
                    near.append((apart, i, index))
        placed: set[int] = set()
        for _, i, index in sorted(near):
            if index not in placed and number not in groups[i]:
                groups[i][number] = index
                placed.add(index)
        groups += [{number: index} for index in range(len(part.tree.cycles)) if index not in placed]
    return groups


def _merge(parts: Sequence[TreePart], group: Mapping[int, int]) -> Cycle:
    """Make one level of those that the parts have."""
    rows = [parts[part].tree.cycles[index] for part, index in group.items()]
    logs, halves = np.log([row.period_s for row in rows]), np.array([_half(row) for row in rows])
    weights = halves**-2.0
    mean = float(np.average(logs, weights=weights))
    # The hosts see the same cycles, so many of them do not make the interval narrower; that they disagree widens it.
    spread = math.sqrt(float((((logs - mean) / halves) ** 2).sum()) / max(1, len(rows) - 1))
    half = float(halves.min()) * max(1.0, spread)
    period_s = math.exp(mean)
    blind = sum(part.could_see(period_s) for i, part in enumerate(parts) if i not in group)
    odds = [_log_odds(row.confidence) for row in rows] + [_log_odds(_UNSEEN)] * blind
    named = [{row.role: row.role_confidence} for row in rows if row.role != CycleRole.UNKNOWN]
    role, role_confidence = _pool(named, [str(each) for each in CycleRole if each != CycleRole.UNKNOWN])
    longest = max(rows, key=lambda row: row.count * row.period_s)
    return Cycle(
        period_s,
        period_s * math.exp(-half),
        period_s * math.exp(half),
        longest.count,
        np.array(longest.starts_unix_nano, dtype=np.float64),
        1.0 / (1.0 + math.exp(-float(np.mean(odds)))),
        CycleRole(role) if role_confidence > _LEAST_SURE else CycleRole.UNKNOWN,
        role_confidence if role_confidence > _LEAST_SURE else 0.0,
    )


def _row(parts: Sequence[TreePart], group: Mapping[int, int], cycle: Cycle) -> CycleRow:
    longest = max((parts[part].tree.cycles[i] for part, i in group.items()), key=lambda row: row.count * row.period_s)
    settled = any(parts[part].is_settled(index) for part, index in group.items())
    return CycleRow.of(cycle, longest.starts_unix_nano, confirmed=settled)


def _log_odds(probability: float) -> float:
    inside = min(max(probability, 0.01), 0.99)
    return math.log(inside / (1.0 - inside))


def _pool(told: Iterable[Mapping[str, float]], choices: Sequence[str]) -> tuple[str, float]:
    """Return the likeliest of several choices, and its probability, by the mean of what each said; nothing if none did.

    Args:
        told: Of each who said something what it chose, and how sure it was.
        choices: What there is to choose from.
    """
    logs = [
        [math.log(sure if each in one else (1.0 - sure) / (len(choices) - 1)) for each in choices]
        for one in told
        for sure in [min(max(next(iter(one.values())), 0.01), 0.99)]
    ]
    if not logs:
        return "", 0.0
    likely = np.exp(np.mean(logs, axis=0))
    best = int(np.argmax(likely))
    return choices[best], float(likely[best] / likely.sum())


def _find_deviating(
    parts: Sequence[TreePart], tree: CycleTree, groups: Sequence[Mapping[int, int]]
) -> tuple[HostDeviationRow, ...]:
    """Name the hosts that do otherwise than the job as a whole."""
    settled = [i for i, cycle in enumerate(tree.cycles) if cycle.confirmed]
    compared = tree.level if tree.level is not None else max(settled, default=None)
    if compared is None:
        return ()
    lags = _find_lags(parts, groups[compared], tree.cycles[compared].period_s)
    for i in settled:
        # What is late is so at every level; else one host reads another moment as the beginning of a cycle.
        period_s, others = tree.cycles[i].period_s, _measure_lags(parts, groups[i], tree.cycles[i].period_s)
        for number in [n for n in lags if n in others]:
            apart = (lags[number] - others[number]) / period_s
            if abs(apart - round(apart)) > _LAG_SHARE:
                del lags[number]
    found: list[HostDeviationRow] = []
    for number, part in enumerate(parts):
        agent_id, own = part.run.agent_id, part.tree.level
        own_s = part.run.period_s if own is None else part.tree.cycles[own].period_s
        if tree.level is not None and abs(math.log(own_s / tree.cycles[compared].period_s)) > _OTHER_PERIOD:
            found.append(HostDeviationRow(agent_id, "period", own_s))
            continue
        found += [
            HostDeviationRow(agent_id, "missing", tree.cycles[i].period_s)
            for i in settled
            if number not in groups[i]
            and tree.cycles[i].confidence >= _SURE
            and part.could_see(tree.cycles[i].period_s)
        ]
        if number in lags:
            found.append(HostDeviationRow(agent_id, "lag", lags[number]))
    return tuple(found)


def _find_lags(parts: Sequence[TreePart], group: Mapping[int, int], period_s: float) -> dict[int, float]:
    """Return part -> seconds by which its cycles begin later than those of most others, where that is clear."""
    least = max(_LEAST_LAG_S, _LAG_SHARE * period_s)
    return {part: by_s for part, by_s in _measure_lags(parts, group, period_s).items() if abs(by_s) > least}


def _measure_lags(parts: Sequence[TreePart], group: Mapping[int, int], period_s: float) -> dict[int, float]:
    """Return part -> seconds by which its cycles begin later than those of most others, 0 for these."""
    starts = {part: np.array(parts[part].tree.cycles[i].starts_unix_nano, dtype=np.int64) for part, i in group.items()}
    first = next(iter(starts))
    behind = {first: 0.0}
    for part, own in starts.items():
        common = starts[first]
        if part == first or min(own.size, common.size) < _LEAST_STARTS:
            continue
        apart_s = (own[:, None] - common) / 1e9
        nearest_s = apart_s[np.arange(own.size), np.abs(apart_s).argmin(axis=1)]
        nearest_s = nearest_s[np.abs(nearest_s) <= 0.5 * period_s]
        if nearest_s.size < _LEAST_STARTS:
            continue
        usual_s = float(np.median(nearest_s))
        if np.median(np.abs(nearest_s - usual_s)) <= _UNSTEADY * period_s:
            behind[part] = usual_s
    # Of two the earlier one.
    usual_s = sorted(behind.values())[(len(behind) - 1) // 2]
    return {part: by_s - usual_s for part, by_s in behind.items()}
