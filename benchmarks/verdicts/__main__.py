"""Verdicts on jobs against what is true of them: ``python benchmarks/verdicts --out docs/results/verdicts.md``.

Each table is a section of the page. ``--only`` makes some of them anew and keeps the others as they stand there, and
of each what is written from its first ``###`` on. What stands above the first table made here is written by hand.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import eta
import hangs
import numpy as np
import reaper
import recordings
import slow
import slower
import states
import watch_cost
import weeks
from kinds import KINDS
from playing import Told, follow_cycles

_TITLE = "# Verdicts on jobs"

Recorded = list[tuple[recordings.JobRecording, Told]]
_BARE_SHARE = 0.2  # of the weeks, to be watched without marks as well
_ETA_JOBS = 3  # generated of each kind
_GENERATED = {"hangs", "weeks", "slower", "paces", "eta"}
_WITH_RECORDINGS = {"states", "hangs", "healthy", "slower", "slow", "eta"}
_JOBS_PER_KIND = 20  # for what got slower
_PACE_WEEKS = 2.8  # of a seed
_HANGS_PER_KIND = 2  # generated jobs
_TRIALS = 3  # of each kind of hang in each recording


def main() -> None:
    """Make the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--mlperf", type=Path, action="append", metavar="CHECKOUT",
                        help="runs of an MLPerf Training results repository, or a part of it, in the place of those of "
                             "--data (repeatable)")  # fmt: skip
    parser.add_argument("--only", action="append", choices=[*_SECTIONS], help="this table only; may be repeated")
    parser.add_argument("--seed", type=int, action="append", help="generated jobs of it only; may be repeated")
    parser.add_argument("--weeks", type=float, default=30.0, help="job-weeks to generate")
    parser.add_argument("--days", type=int, default=10_000, help="job-days before the reaper")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write into this Markdown page, else print")
    arguments = parser.parse_args()
    chosen = arguments.only or [*_SECTIONS]
    if arguments.seed and {*chosen} - _GENERATED:
        parser.error(f"--seed is for {', '.join(sorted(_GENERATED))}")
    made = {}
    recorded: Recorded = []
    if not arguments.seed and _WITH_RECORDINGS & {*chosen}:
        sources = (recordings.mlperf, recordings.h100_checkpoints, recordings.llm_lora)
        found = (
            map(recordings.mlperf_results, arguments.mlperf)
            if arguments.mlperf
            else (s(arguments.data) for s in sources)
        )
        asks = bool(_WITH_RECORDINGS & {*chosen} - {"slow", "slower"})  # those are asked without what it told
        recorded = [(each, follow_cycles(each) if asks else ()) for each in itertools.chain.from_iterable(found)]
    command = shlex.join(["python", "benchmarks/verdicts", *sys.argv[1:]])
    for name in chosen:
        title, section = _SECTIONS[name]
        lines = section(recorded, arguments)
        origin = f"{datetime.datetime.now(tz=datetime.timezone.utc):%Y-%m-%d}, {platform.machine()}, `{command}`."
        made[title] = "\n".join([f"## {title}", "", origin, "", *lines, ""])
        print(made[title], flush=True)
    if arguments.out:
        page = arguments.out.read_text() if arguments.out.exists() else _TITLE
        head, known = page.partition("\n## ")[0].rstrip() + "\n", _sections(page)
        for title in made.keys() & known.keys():
            _, notes, written = known[title].partition("\n### ")
            made[title] += notes + written
        arguments.out.write_text("\n".join([head, *(known | made).values()]).rstrip() + "\n")


def _sections(page: str) -> dict[str, str]:
    """The sections of a page, by their titles."""
    parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0].removeprefix("## "): part.rstrip() + "\n" for part in parts}


def _states(recorded: Recorded, _: argparse.Namespace) -> list[str]:
    runs = [each for each in recorded if each[0].interval_s >= 1]
    rows = [states.score(*each) for each in runs]
    without = [states.score(*each, liveness=False) for each in runs]
    kinds = sorted({row.kind for row in without})
    mean = np.mean([np.mean([row.right for row in without if row.kind == kind]) for kind in kinds])
    return [
        "Bar: 96 %, evaluations F1 0.85. What is said of a tick three ticks (6 s) after it; states of less than three",
        "ticks are left out. The truth is the log's, but: a job whose power has not left idle is `starting`;",
        "idle power",
        "right before an evaluation is anything but `training`; after the end `ended` and `idle` are right. That the",
        f"processes are gone is told {states.LIVES_ON_S:.0f} s after it; without that it is {mean:.1%}.",
        "",
        *states.table(rows),
    ]


def _tasks(kinds: Iterable[str], seeds: Sequence[int], per_kind: int) -> list[tuple[str, int, int]]:
    """Kinds, seeds and numbers of generated jobs."""
    return list(itertools.product(kinds, seeds, range(per_kind)))


def _hangs(recorded: Recorded, arguments: argparse.Namespace) -> list[str]:
    lines = [
        "Bar: 97 % in 60 s, and in 3 cycles (25 s where those are shorter) once 3 pauses are known. A hang at any time",
        f"from {hangs.EARLIEST_S:.0f} s after the start on, {_TRIALS} times in each recording: power idle",
        "(silent), at a",
        "share of its range (spinning; utilisation, where it is known, 100 %), or 0.17 with the first device idle (one",
        "rank dead). Marks: nothing written, a processor per device that spins, all processes there: made up.",
        "",
    ]
    ways = ((False, "nothing known of processes"), (True, "with marks of processes"))
    for with_marks, title in ways if recorded else ():
        rng = np.random.default_rng(1)
        trials = [
            trial
            for how in hangs.LEVELS
            for _ in range(_TRIALS)
            for recording, told in recorded
            if (trial := hangs.hang(recording, told, how, rng, with_marks=with_marks)) is not None
        ]
        lines += [*hangs.table(trials, title, kinds=with_marks), ""]
    if arguments.mlperf:
        return lines
    with ProcessPoolExecutor(arguments.processes) as pool:
        tasks = _tasks(KINDS, arguments.seed or [hangs.SEED], _HANGS_PER_KIND)
        made = [trial for found in pool.map(hangs.of_generated, tasks) for trial in found]
    return [*lines, "Nothing known of processes, and the tracker goes on:", "", *hangs.generated_table(made)]


def _healthy(recorded: Recorded, _: argparse.Namespace) -> list[str]:
    hours, found, ends = 0.0, [], 0
    for recording, told in recorded:
        exact = recording.interval_s >= 1  # of the others the memory in use tells the end, if anything does
        found += [
            f"| {recording.name} | {at_s:.0f} | {state} | {reason} |"
            for at_s, state, reason in hangs.alarms(
                recording, told, hangs.ends_with_its_log(recording) if exact else None
            )
        ]
        hours += float(recording.time_s[-1] - recording.time_s[0]) / 3600
        ends += exact and recording.log.stop_s + states.LIVES_ON_S < recording.time_s[-1]
    bound = hangs.upper_bound(len(found), hours)
    lines = [
        f"Bar: none. {len(found)} alarms (`stalled` or `hung`) in {hours:.1f} h, which leaves an upper bound (95 %) of",
        f"{bound:.0f} per job and week. The end of {ends} MLPerf jobs is told by their processes.",
    ]
    return [*lines, "", "| recording | s | alarm | reason |", "|---|---|---|---|", *found] if found else lines


def _watched(task: tuple[str, int, int, bool]) -> weeks.Played:
    *made, looks = task
    return weeks.watched(*made, looks=looks)


def _weeks(_: Recorded, arguments: argparse.Namespace) -> list[str]:
    lines = [
        f"Bar: 0.1 per job and week. Jobs of 4 to 48 h, a tick every {weeks.TICK_S:.0f} s; what their processes do is",
        "made up from the script. An alarm in a stall of the script is right; stalls of a minute or longer count. Of a",
        "seed that no rule was chosen by.",
        "",
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        for looks, share in ((True, 1.0), (False, _BARE_SHARE)):
            tasks = [
                (*job, looks)
                for seed in arguments.seed or [weeks.SEED]
                for job in weeks.every_job(share * arguments.weeks * hangs.WEEK_H, seed)
            ]
            lines += ["With marks of processes:" if looks else "Only the end of the processes known:", ""]
            lines += [*weeks.table(list(pool.map(_watched, tasks)), kinds=looks), ""]
    return lines


def _reaper(_: Recorded, arguments: argparse.Namespace) -> list[str]:
    with ProcessPoolExecutor(arguments.processes) as pool:
        days = list(pool.map(reaper.replay, range(arguments.days), chunksize=20))
    return [
        f"Bars: nothing wrong, 95 % of the idle within twice `--for`. {len(days)} days of one job each, drawn by",
        "[reaper.py](../../benchmarks/verdicts/reaper.py) from a seed that no rule was chosen by, `--for 30m`, asked",
        "every five minutes, with the product's runs, jobs and verdicts. In 15 % nothing is known of processes, in",
        "15 % not while none is on the GPUs, in 5 % not the use of the GPUs, in 30 % not PCIe; 5 % have an outage.",
        "Healthy jobs work again after every pause, however long; idle ones begin as healthy ones. Where everything",
        "hangs for longer than `--for` by a generated job's script, and goes on, it is neither. `By itself` leaves",
        f"out those that wait for a person, of whom `--for` speaks ({', '.join(reaper.LEFT_BY_PEOPLE)}: written down",
        "before anything was run); `in time` is within twice `--for`.",
        "",
        *reaper.table(days),
    ]


def _cost(_: Recorded, __: argparse.Namespace) -> list[str]:
    return watch_cost.table()


def _slower(recorded: Recorded, arguments: argparse.Namespace) -> list[str]:
    tasks = _tasks(slower.KINDS, arguments.seed or slower.SEEDS, _JOBS_PER_KIND)
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = [trial for trials in pool.map(slower.of_generated, tasks) for trial in trials]
        of_recordings = [
            trial
            for trials in pool.map(slower.of_recording, [recording for recording, _ in recorded])
            for trial in trials
        ]
    clear = [trial for trial in found if trial.slower == slower.CHANGE]
    lines = [
        "Bars: 5 % in 5 cycles of 10 ticks or more, 10 % where they have 5 to 10; they scatter by a fifth of that at",
        "most. Generated jobs of up to 20 minutes, of kinds that are not set aside, but `warm_up`; of each the",
        "shortest true level of that kind, slower from 0.7 of the job on; a cycle that holds an evaluation counts one.",
        "4 s of ticks come at a time, as agents send them; at best is who knows exactly when three whole cycles are",
        "over, once their ticks have come. 10 ticks or more:",
        "",
        *slower.table(clear),
        "",
        "5 to 10 ticks, of jobs whose shortest even level has so few:",
        "",
        *slower.table([trial for trial in found if trial.slower != slower.CHANGE]),
        "",
    ]
    if of_recordings:
        lines += [
            "Recorded jobs, by those cycles of their logs that the bars speak of, with eight before the fault and five",
            "behind it:",
            "",
            *slower.table(of_recordings, "cycles"),
            "",
        ]
    lines += [
        "Causes, in generated jobs: each cycle of 10 ticks or more takes a tenth longer, since all clocks fall, data",
        "are waited for, or another job is on one device.",
        "",
    ]
    return [*lines, *slower.causes_table(clear)]


def _paces(_: Recorded, arguments: argparse.Namespace) -> list[str]:
    tasks = [
        task
        for seed in arguments.seed or [slower.WEEKS_SEED]
        for task in weeks.every_job(_PACE_WEEKS * hangs.WEEK_H, seed, slower.ONE_TEMPO)
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        played = list(pool.map(slower.of_weeks, tasks))
    return [
        "Bar: one per job and week. Healthy jobs of 4 to 48 h, a tick every 4 s, eight kinds of one tempo; every",
        "beginning of `slower` counts.",
        "",
        *slower.weeks_table(played),
    ]


def _slow(recorded: Recorded, arguments: argparse.Namespace) -> list[str]:
    return [
        "Bars: of 64 nodes 10 % 0.97 in 30 s, 5 % 0.90 in 60 s and 0.99 in 150 s, wrong in 0.03; of 8 GPUs 1.00",
        "and 0.80, none wrong: that was measured with `hot` and power ~ f^2, where the same prototype named 0.21 of",
        "10 % with power ~ f^1 and 0.17 of `data`. Slow from a time on with 100 s of training before it and after",
        "it; that, and the shortest cycle of gpt3, is given. Shares of the trials (their number behind the job) in",
        "which it was named within 30, 60 and 150 s; was first in rank at 60 s; in which a wrong one was named.",
        "`hot` keeps its power, `throttle` loses clocks, `data` waits for input, with `link` all wait alike. Power",
        "alone is given, or utilisation or clocks with it: of the H100 recorded, of others made up; clocks are made",
        "up, with the noise that LoRA's have. What to look for was written down after a look at gpt3, two H100 and",
        "wrong names in llama2; ssd and the other H100 were looked at to leave things out only. Of gpt3's nodes 60, of",
        "llama2 all and of ssd 2 have the very readings of another one: a fault is put into one of the two.",
        "",
        *slow.table([recording for recording, _ in recorded], arguments.processes),
    ]


def _looked_at(task: tuple[str, int, int]) -> list[eta.Look]:
    return eta.of_job(*task)


def _eta(recorded: Recorded, arguments: argparse.Namespace) -> list[str]:
    found = [look for each in recorded for look in eta.of_recording(*each)]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found += [
            look
            for looks in pool.map(_looked_at, _tasks(KINDS, arguments.seed or [eta.SEED], _ETA_JOBS))
            for look in looks
        ]
    return [
        "Bars: median error 3 % and 2 %, 86 to 94 % in the interval, 80 % in every kind. Three looks at 38 to 42 %",
        "of each job and three at 68 to 72 %; errors and widths are relative to the time that is left; the total",
        "is that of the level that is told. Generated jobs of 5 minutes to 2.5 hours, of a seed that nothing was",
        "chosen by; the kinds marked * are set aside.",
        "",
        *eta.table(found),
    ]


_SECTIONS: dict[str, tuple[str, Callable[[Recorded, argparse.Namespace], list[str]]]] = {
    "states": ("State by second", _states),
    "hangs": ("Hangs", _hangs),
    "healthy": ("False alarms in healthy recordings", _healthy),
    "weeks": ("False alarms in weeks of generated jobs", _weeks),
    "slower": ("What got slower", _slower),
    "paces": ("What is called slower falsely", _paces),
    "slow": ("The device that makes the others wait", _slow),
    "eta": ("When a job will be done", _eta),
    "reaper": ("Taking idle GPUs back", _reaper),
    "cost": ("Cost of watching", _cost),
}


if __name__ == "__main__":
    main()
