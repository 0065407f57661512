"""What processes of jobs do, as the agent counts it: of real processes, and of a procfs that refuses or overflows."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

from gpusonde.agent.config import JobsConfig
from gpusonde.agent.jobs import JobParts, activity, make_watcher
from gpusonde.agent.jobs.activity import ActivityReader, SharedProcessIds
from gpusonde.agent.jobs.ownership import Owner, Scheduler
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.sources.base import GpuDescription, SourceInventory
from gpusonde.agent.sources.nvml.gpu import NvmlProcesses

SECOND = 10**9
START = 1_700_000_000 * SECOND

# Forks, writes and lets a child end when it is told to, and says when that is done.
_JOB = """
import os, sys, time
path, child = sys.argv[1], 0
for line in sys.stdin:
    if line == "fork\\n":
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    elif line == "end\\n":
        os.kill(child, 9)
        os.waitpid(child, 0)
    else:
        with open(path, "wb", buffering=0) as file:
            file.write(bytes(int(line)))
    print("done", flush=True)
"""


@pytest.fixture
def job(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", _JOB, str(tmp_path / "written")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def tell(line):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"

    process.tell = tell
    tell(1)
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()
    process.stdin.close()
    process.stdout.close()


@pytest.fixture
def reader():
    made = []

    def make(*args, **more):
        made.append(ActivityReader(*args, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def look(reader, count=1, begin=0):
    return [record for i in range(count) for record in reader.look(START + (begin + i) * SECOND)]


def the_group(records):
    (record,) = records
    (group,) = record.job_activity.groups
    return group


def write_process(proc, pid, parent=1, group=None, ticks=0, start=100, name="python", status=True):
    """A process in a procfs of files."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    zeros = " 0" * 8
    fields = f"{parent} {group or pid} 0 0 0{zeros[: 2 * 5]} {ticks} 0 0 0 0 0 1 0 {start} 0"
    (folder / "stat").write_text(f"{pid} ({name}) S {fields}")
    if status:
        (folder / "status").write_text(f"Name:\t{name}\nTgid:\t{pid}\nPid:\t{pid}\n")
    return folder


def newest(proc, pid):
    (proc / "loadavg").write_text(f"0.00 0.00 0.00 1/100 {pid}\n")


def test_forks_ends_and_written_bytes_of_a_real_process_are_counted_in_the_look_after_them(job, reader):
    counters = SelfCounters()
    watched = reader(counters)
    watched.follow({"GPU-a": (job.pid,)}, {})
    look(watched)
    job.tell("fork")
    look(watched, begin=1)
    job.tell(1_000_000)
    look(watched, begin=2)
    job.tell("end")
    look(watched, begin=3)
    group = the_group(watched.take())
    assert list(group.gpu_uuids) == ["GPU-a"]
    assert list(group.forks) == [0, 1, 0, 0]
    assert list(group.exits) == [0, 0, 0, 1]
    assert group.lifetime_ms[3] < 60_000
    assert [count >= 1_000_000 for count in group.written_bytes] == [False, False, True, False]
    assert group.processes == 2
    assert counters.job_activity_records == 1


def test_a_child_that_was_there_before_is_followed_to_its_end(job, reader):
    job.tell("fork")
    watched = reader(SelfCounters())
    watched.follow({"GPU-a": (job.pid,)}, {})
    look(watched)
    job.tell("end")
    look(watched, begin=1)
    group = the_group(watched.take())
    assert (list(group.forks), list(group.exits)) == ([0, 0], [0, 1])


def test_a_record_is_complete_after_thirty_looks_and_says_when_each_was(job, reader):
    watched = reader(SelfCounters())
    watched.follow({"GPU-a": (job.pid,)}, {})
    (record,) = look(watched, 31)
    assert record.job_activity.start_time_unix_nano == START
    assert list(record.job_activity.offsets_ms) == [1000 * i for i in range(30)]
    assert len(record.job_activity.groups[0].processor_ms) == 30


def test_a_clock_that_goes_back_begins_another_record(job, reader):
    watched = reader(SelfCounters())
    watched.follow({"GPU-a": (job.pid,)}, {})
    look(watched, 3)
    (before,) = watched.look(START - 3600 * SECOND)
    (after,) = watched.take()
    assert len(before.job_activity.offsets_ms) == 3
    assert after.job_activity.start_time_unix_nano == START - 3600 * SECOND


def test_gpus_of_a_process_or_of_a_schedulers_job_are_one_and_others_are_not(job, reader, tmp_path):
    newest(tmp_path, 500)
    for pid, group in ((10, 10), (11, 11), (12, 12), (13, 12)):
        write_process(tmp_path, pid, group=group)
    watched = reader(SelfCounters(), tmp_path)
    slurm = (Owner(Scheduler.SLURM, "7"),)
    user = (Owner(Scheduler.USER, "uid-1"),)
    held = {"a": (10,), "b": (11,), "c": (12,), "d": (13,), "e": ()}
    watched.follow(held, {"a": slurm, "b": slurm, "c": user, "d": user})
    look(watched)
    (record,) = watched.take()
    assert sorted(tuple(group.gpu_uuids) for group in record.job_activity.groups) == [("a", "b"), ("c", "d")]


def test_a_process_that_vanishes_is_left_out_from_then_on(job, reader):
    watched = reader(SelfCounters())
    watched.follow({"GPU-a": (job.pid,)}, {})
    look(watched)
    os.killpg(job.pid, 9)
    job.wait()
    look(watched, 2, begin=1)
    group = the_group(watched.take())
    assert list(group.forks) == [0, 0, 0]
    watched.follow({"GPU-a": (job.pid,)}, {})
    assert look(watched, 40) == []


def test_bytes_that_may_not_be_read_are_left_out_and_that_is_said_once(reader, tmp_path, caplog):
    newest(tmp_path, 500)
    folder = write_process(tmp_path, 10)
    (folder / "io").mkdir()  # opens, and refuses to be read
    counters = SelfCounters()
    watched = reader(counters, tmp_path, tmp_path / "cgroup")
    for _ in range(3):
        watched.follow({"GPU-a": (10,)}, {})
        look(watched)
        watched.follow({}, {})
    watched.follow({"GPU-a": (10,)}, {})
    look(watched)
    group = the_group(watched.take())
    assert (list(group.forks), list(group.read_bytes), list(group.written_bytes)) == ([0], [], [])
    assert len([r for r in caplog.records if "CAP_SYS_PTRACE" in r.message]) == 1


def test_bytes_come_from_the_cgroup_where_those_of_the_process_may_not_be_read(reader, tmp_path):
    newest(tmp_path, 500)
    folder = write_process(tmp_path, 10)
    (folder / "io").mkdir()
    (folder / "cgroup").write_text("0::/jobs/job_7\n")
    io_stat = tmp_path / "cgroup" / "jobs" / "job_7" / "io.stat"
    io_stat.parent.mkdir(parents=True)
    io_stat.write_text("8:0 rbytes=1000 wbytes=500 rios=3\n259:0 rbytes=1 wbytes=2\n")
    watched = reader(SelfCounters(), tmp_path, tmp_path / "cgroup")
    watched.follow({"GPU-a": (10,)}, {})
    look(watched)
    io_stat.write_text("8:0 rbytes=1100 wbytes=900 rios=3\n259:0 rbytes=1 wbytes=3\n")
    look(watched, begin=1)
    group = the_group(watched.take())
    assert (list(group.read_bytes), list(group.written_bytes)) == ([0, 100], [0, 401])


SLURM_7 = (Owner(Scheduler.SLURM, "7"),)


def slurm_cgroup(root, job="7", usec=5_000_000, pids=()):
    """The cgroup of a job, as Slurm makes it, and how its processor time is written."""
    folder = root / "system.slice" / "slurmstepd.scope" / f"job_{job}"
    task = folder / "step_0" / "user" / "task_0"
    task.mkdir(parents=True, exist_ok=True)
    (task / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def write(usec):
        (folder / "cpu.stat").write_text(f"usage_usec {usec}\nuser_usec {usec}\nsystem_usec 0\n")

    write(usec)
    return write


def test_a_job_whose_processes_have_left_its_gpus_is_looked_at_by_its_cgroup(reader, tmp_path):
    newest(tmp_path, 500)
    folder = write_process(tmp_path, 10)
    (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n")
    (folder / "io").write_text("rchar: 0\nwchar: 0\n")
    prepares = write_process(tmp_path, 20)
    (prepares / "io").write_text("rchar: 1000\nwchar: 0\n")
    ran = slurm_cgroup(tmp_path / "cgroup", pids=(10, 20))
    watched = reader(SelfCounters(), tmp_path, tmp_path / "cgroup")
    watched.follow({"GPU-a": (10,), "GPU-b": ()}, {"GPU-a": SLURM_7, "GPU-b": SLURM_7})
    look(watched)
    ran(6_500_000)
    look(watched, begin=1)
    group = the_group(watched.take())
    # What others of the job do counts, too, and of all its GPUs the same is said.
    assert list(group.gpu_uuids) == ["GPU-a", "GPU-b"]
    assert (list(group.processor_ms), group.holders) == ([0, 1500], 1)
    watched.follow({"GPU-a": (), "GPU-b": ()}, {"GPU-a": SLURM_7, "GPU-b": SLURM_7})
    look(watched, begin=2)
    watched.take()
    ran(7_500_000)
    (prepares / "io").write_text("rchar: 9000\nwchar: 0\n")
    look(watched, begin=3)
    group = the_group(watched.take())
    assert (list(group.processor_ms), list(group.read_bytes), group.holders) == ([1000], [8000], 0)


@pytest.mark.parametrize("beside", [(), (20,)])
def test_that_a_job_has_no_process_left_is_told_with_the_next_look(reader, tmp_path, beside):
    newest(tmp_path, 500)
    for pid in (10, *beside):
        (write_process(tmp_path, pid) / "io").write_text("rchar: 0\nwchar: 0\n")
    slurm_cgroup(tmp_path / "cgroup", pids=beside)
    watched = reader(SelfCounters(), tmp_path, tmp_path / "cgroup")
    watched.follow({"GPU-a": (10,)}, {"GPU-a": SLURM_7})
    assert look(watched, 5) == []
    write_process(tmp_path, 10, start=900)  # somebody else's
    told = [the_group([record]) for record in look(watched, 2, begin=5)]
    # What goes on beside its GPUs is the job, too.
    assert [(group.processes, len(group.forks)) for group in told] == ([] if beside else [(1, 6), (0, 1)])
    assert look(watched, 22, begin=7) == []


def test_a_job_that_was_never_on_its_gpus_is_looked_at_where_slurm_names_its_cgroup(reader, tmp_path):
    newest(tmp_path, 500)
    slurm_cgroup(tmp_path / "cgroup", job="7")
    watched = reader(SelfCounters(), tmp_path, tmp_path / "cgroup")
    other = (Owner(Scheduler.SLURM, "8"),)
    watched.follow({"GPU-a": (), "GPU-b": ()}, {"GPU-a": SLURM_7, "GPU-b": other})
    look(watched, 2)
    group = the_group(watched.take())
    assert (list(group.gpu_uuids), list(group.processor_ms), group.holders) == (["GPU-a"], [0, 0], 0)


@pytest.mark.parametrize("seen", [0, 256])
def test_processes_on_a_gpu_count_as_there_where_they_are_hidden_or_too_many(reader, tmp_path, seen):
    newest(tmp_path, 500)
    slurm_cgroup(tmp_path / "cgroup")
    slurm_cgroup(tmp_path / "cgroup", job="8")
    on_first = tuple(range(1000, 1000 + seen))
    for pid in on_first:
        write_process(tmp_path, pid)
    if seen:
        write_process(tmp_path, 20)
    watched = reader(SelfCounters(), tmp_path, tmp_path / "cgroup")
    owners = {"GPU-a": SLURM_7, "GPU-b": (Owner(Scheduler.SLURM, "8"),)}
    for begin in range(2):
        watched.follow({"GPU-a": on_first, "GPU-b": (20, 21)}, owners)
        look(watched, begin=begin)
        (record,) = watched.take()
        told = {group.gpu_uuids[0]: group for group in record.job_activity.groups}
        assert (told["GPU-a"].holders, told["GPU-b"].holders) == (seen, 2)
        # What those move whom nobody looks at is not nothing.
        assert not told["GPU-b"].read_bytes


def test_nothing_is_said_of_a_job_without_a_cgroup_or_once_that_is_gone(reader, tmp_path):
    newest(tmp_path, 500)
    slurm_cgroup(tmp_path / "cgroup")
    watched = reader(SelfCounters(), tmp_path, tmp_path / "cgroup")
    watched.follow({"GPU-a": ()}, {"GPU-a": SLURM_7})
    look(watched)
    (tmp_path / "cgroup" / "system.slice" / "slurmstepd.scope" / "job_7" / "cpu.stat").unlink()
    look(watched, 2, begin=1)
    watched.follow({"GPU-a": ()}, {"GPU-a": SLURM_7})
    assert look(watched, 40, begin=3) == []
    pod = (Owner(Scheduler.KUBERNETES, "team/pod"),)
    watched.follow({"GPU-a": ()}, {"GPU-a": pod})
    assert look(watched, 40, begin=50) == []


def test_threads_and_the_children_of_others_are_no_forks(reader, tmp_path):
    newest(tmp_path, 100)
    write_process(tmp_path, 10)
    watched = reader(SelfCounters(), tmp_path)
    watched.follow({"GPU-a": (10,)}, {})
    look(watched)
    write_process(tmp_path, 101, parent=10, name="worker) S 1 (")
    thread = write_process(tmp_path, 102, parent=10)
    (thread / "status").write_text("Name:\tworker\nTgid:\t101\n")
    write_process(tmp_path, 103, parent=4)
    write_process(tmp_path, 104, parent=101)
    (tmp_path / "105").mkdir()
    (tmp_path / "105" / "stat").write_text("cut sh")
    newest(tmp_path, 105)
    look(watched, begin=1)
    assert list(the_group(watched.take()).forks) == [0, 2]


def test_process_ids_that_begin_anew_are_followed(reader, tmp_path):
    newest(tmp_path, 32_000)
    write_process(tmp_path, 10)
    watched = reader(SelfCounters(), tmp_path)
    watched.follow({"GPU-a": (10,)}, {})
    look(watched)
    write_process(tmp_path, 301, parent=10)
    newest(tmp_path, 305)
    look(watched, begin=1)
    assert list(the_group(watched.take()).forks) == [0, 1]


def test_a_hundred_thousand_new_processes_cost_no_more_than_a_few_hundred(reader, tmp_path, monkeypatch):
    newest(tmp_path, 1000)
    write_process(tmp_path, 10)
    counters = SelfCounters()
    watched = reader(counters, tmp_path)
    watched.follow({"GPU-a": (10,)}, {})
    look(watched)
    newest(tmp_path, 101_000)
    opened = []
    monkeypatch.setattr(
        activity.os, "open", lambda path, flags, _open=os.open: opened.append(path) or _open(path, flags)
    )
    look(watched, begin=1)
    assert len(opened) <= activity.MOST_NEW_IDS + 10
    assert counters.job_processes_unseen == 100_000 - activity.MOST_NEW_IDS


def test_processes_that_came_while_no_job_was_there_are_nobodys(reader, tmp_path):
    newest(tmp_path, 1000)
    write_process(tmp_path, 10)
    counters = SelfCounters()
    watched = reader(counters, tmp_path)
    watched.follow({"GPU-a": (10,)}, {})
    look(watched)
    watched.follow({}, {})
    newest(tmp_path, 101_000)
    watched.follow({"GPU-a": (10,)}, {})
    look(watched, begin=1)
    assert counters.job_processes_unseen == 0


def test_a_job_of_very_many_processes_is_followed_in_part_and_the_rest_is_counted(reader, tmp_path):
    newest(tmp_path, 5000)
    write_process(tmp_path, 10)
    for pid in range(1000, 1000 + activity.MOST_PROCESSES + 44):
        write_process(tmp_path, pid, parent=10, status=False)
    counters = SelfCounters()
    watched = reader(counters, tmp_path)
    watched.follow({"GPU-a": (10,)}, {})
    look(watched)
    assert the_group(watched.take()).processes == activity.MOST_PROCESSES
    assert counters.job_processes_unseen == 45


def test_without_any_procfs_there_is_nothing_to_tell(reader, tmp_path):
    watched = reader(SelfCounters(), tmp_path / "absent")
    assert watched.follow({"GPU-a": (10,)}, {}) == []
    assert look(watched, 40) == []


def test_the_driver_is_asked_once_in_a_poll():
    asked = []
    now = [0.0]
    shared = SharedProcessIds(lambda: asked.append(1) or {"GPU-a": (len(asked),)}, lambda: now[0])
    assert (shared(), shared()) == ({"GPU-a": (1,)}, {"GPU-a": (1,)})
    now[0] = 5.0
    assert shared() == {"GPU-a": (2,)}


@pytest.mark.parametrize("wanted", [True, False])
def test_the_agent_records_it_unless_it_is_switched_off(job, fake_nvml, tmp_path, wanted):
    records = []
    fake_nvml.add_process(job.pid, 0)
    inventory = SourceInventory("nvml", (GpuDescription(fake_nvml.uuid(0), 0),), (), 0.1)
    reader = NvmlProcesses(fake_nvml.loader())
    watcher = make_watcher(
        JobsConfig(slurm_mapping_dir="", kubelet_socket="", activity=wanted),
        JobParts(inventory, tmp_path, records.append, SelfCounters(), processes=reader),
    )
    waits = []
    watcher._wait = lambda seconds: waits.append(seconds) or len(waits) > 7
    watcher._wall_ns = lambda: time.time_ns() + len(waits) * SECOND
    watcher.run()
    found = [r.job_activity for r in records if r.HasField("job_activity")]
    if not wanted:
        assert found == []
        return
    assert waits == [1.0] * 8
    (recorded,) = found
    assert len(recorded.offsets_ms) == 7
    assert list(recorded.groups[0].gpu_uuids) == [fake_nvml.uuid(0)]
