"""Jobs from the processes on a GPU, on a procfs made of files and on the real one."""

import os
import subprocess
import time

import pytest

from gpusonde.agent.config import JobsConfig
from gpusonde.agent.jobs import JobParts, make_watcher
from gpusonde.agent.jobs.ownership import Scheduler
from gpusonde.agent.jobs.processes import ProcessOwners, ProcFolder
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.sources.base import GpuDescription, SourceInventory
from gpusonde.agent.sources.nvml.gpu import NvmlProcesses
from gpusonde.errors import SourceError

BOOT_S = 1_799_990_000
NOW = 1_800_000_000_000_000_000
SECOND = 1_000_000_000


class Proc:
    """A procfs of files."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "stat").write_text(f"cpu  1 2 3\nbtime {BOOT_S}\nprocesses 5\n")

    def start(self, pid, cgroup, age_s=100.0):
        home = self.folder / str(pid)
        home.mkdir(exist_ok=True)
        (home / "cgroup").write_text(cgroup)
        ticks = round((NOW / 1e9 - age_s - BOOT_S) * 100)
        # A name may hold blanks and parentheses.
        (home / "stat").write_text(f"{pid} (py) thon (3) S 1 {' '.join(['0'] * 17)} {ticks} 5 6 7\n")

    def end(self, pid):
        for file in (self.folder / str(pid)).iterdir():
            file.unlink()
        (self.folder / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path)


def source(proc, on_gpu):
    return ProcessOwners(lambda: on_gpu, ProcFolder(proc.folder, ticks_per_second=100))


def names(owners):
    return {gpu: [(o.scheduler.value, o.job_id) for o in of_gpu] for gpu, of_gpu in owners.items()}


def twice(subject, now=NOW):
    subject.owners(now)
    return subject.owners(now)


def test_processes_of_one_job_are_one_owner_since_the_first_of_them(proc):
    proc.start(10, "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0", age_s=50)
    proc.start(11, "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_1", age_s=70)
    proc.start(12, "0::/user.slice/user-7.slice/session-1.scope", age_s=20)
    found = twice(source(proc, {"GPU-a": (10, 11), "GPU-b": (12,), "GPU-c": ()}))
    assert names(found) == {"GPU-a": [("slurm", "5")], "GPU-b": [("user", "uid-7")]}
    (owner,) = found["GPU-a"]
    assert abs(owner.start_unix_nano - (NOW - 70 * SECOND)) <= SECOND
    assert owner.labels == {"uid": str(os.getuid())}


def test_several_owners_of_one_gpu_are_all_told(proc):
    proc.start(10, "0::/system.slice/slurmstepd.scope/job_5/step_0")
    proc.start(11, "0::/system.slice/jupyter.service")
    found = twice(source(proc, {"GPU-a": (10, 11)}))
    assert names(found) == {"GPU-a": [("slurm", "5"), ("systemd", "jupyter.service")]}


def test_a_tool_that_is_gone_at_the_second_look_was_never_an_owner(proc):
    on_gpu = {"GPU-a": (10,)}
    subject = source(proc, on_gpu)
    proc.start(10, "0::/user.slice/user-7.slice/session-1.scope")
    assert subject.owners(NOW) == {}
    on_gpu["GPU-a"] = ()
    assert subject.owners(NOW + 5 * SECOND) == {}
    on_gpu["GPU-a"] = (10,)
    assert subject.owners(NOW + 10 * SECOND) == {}


def test_a_job_that_starts_its_workers_anew_stays_and_one_that_is_gone_was_last_seen_then(proc):
    on_gpu = {"GPU-a": (10,)}
    subject = source(proc, on_gpu)
    proc.start(10, "0::/slurm/uid_1/job_5/step_0")
    twice(subject)
    on_gpu["GPU-a"] = ()
    (owner,) = subject.owners(NOW + 30 * SECOND)["GPU-a"]
    assert owner.seen_unix_nano == NOW
    assert subject.owners(NOW + 31 * SECOND) == {}


def test_a_clock_that_is_set_back_does_not_keep_a_job_that_is_gone(proc):
    on_gpu = {"GPU-a": (10,)}
    subject = source(proc, on_gpu)
    proc.start(10, "0::/slurm/uid_1/job_5/step_0")
    twice(subject)
    on_gpu["GPU-a"] = ()
    assert subject.owners(NOW - 3600 * SECOND) == {}


def test_a_process_that_ends_under_our_eyes_is_no_error(proc):
    proc.start(10, "0::/slurm/uid_1/job_5/step_0")
    subject = source(proc, {"GPU-a": (10, 11)})
    assert names(twice(subject)) == {"GPU-a": [("slurm", "5")]}
    proc.end(10)
    assert names(subject.owners(NOW + SECOND)) == {"GPU-a": [("slurm", "5")]}


def test_processes_that_are_hidden_from_the_agent_are_reported_as_such(proc):
    subject = source(proc, {"GPU-a": (10,)})
    assert twice(subject) == {}
    with pytest.raises(SourceError, match=r"hostPID.*ProtectProc"):
        subject.owners(NOW)


def test_half_written_and_odd_files_of_proc_give_an_owner_without_a_start(proc):
    proc.start(10, "0::/slurm/uid_1/job_5/step_0")
    (proc.folder / "10" / "stat").write_text("10 (x) S 1")
    (proc.folder / "stat").write_bytes(b"\xff\xfe")
    (owner,) = twice(source(proc, {"GPU-a": (10,)}))["GPU-a"]
    assert (owner.job_id, owner.start_unix_nano) == ("5", 0)


def test_more_processes_than_we_look_at_cost_no_more(proc):
    for pid in range(1, 300):
        proc.start(pid, f"0::/slurm/uid_1/job_{pid}/step_0")
    assert len(twice(source(proc, {"GPU-a": tuple(range(1, 300))}))["GPU-a"]) == 256


def test_this_process_is_found_in_the_real_procfs():
    facts = ProcFolder().facts(os.getpid())
    assert facts.owner.labels["uid"] == str(os.getuid())
    assert facts.owner.scheduler in Scheduler
    with open("/proc/uptime") as file:
        uptime_s = float(file.read().split()[0])
    started_s = facts.start_unix_nano / 1e9
    with open("/proc/stat") as file:
        boot_s = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    assert boot_s <= started_s <= boot_s + uptime_s + 2
    assert ProcFolder().facts(2**22 + 1) is None


def test_a_running_process_on_a_gpu_of_the_driver_is_bound_to_what_it_belongs_to(fake_nvml, tmp_path):
    child = subprocess.Popen(["sleep", "60"])
    records = []
    try:
        fake_nvml.add_process(child.pid, 1)
        inventory = SourceInventory(
            "nvml", (GpuDescription(fake_nvml.uuid(0), 0), GpuDescription(fake_nvml.uuid(1), 1)), (), 0.1
        )
        reader = NvmlProcesses(fake_nvml.loader())
        watcher = make_watcher(
            JobsConfig(slurm_mapping_dir="", kubelet_socket=""),
            JobParts(inventory, tmp_path, records.append, SelfCounters(), processes=reader),
        )
        watcher.begin()
        watcher.poll()
        watcher.poll()
        reader.close()
    finally:
        child.kill()
        child.wait()
    (binding,) = (b for record in records for b in record.job_bindings.bindings)
    assert binding.gpu_uuid == fake_nvml.uuid(1)
    assert binding.labels["uid"] == str(os.getuid())
    assert binding.job_id == ProcFolder().facts(os.getpid()).owner.job_id
    assert abs(binding.start_time_unix_nano - time.time_ns()) < 5 * SECOND


def test_looking_at_processes_can_be_switched_off(fake_nvml, tmp_path):
    inventory = SourceInventory("nvml", (GpuDescription(fake_nvml.uuid(0), 0),), (), 0.1)
    config = JobsConfig(slurm_mapping_dir="", kubelet_socket="", cgroups=False)
    parts = JobParts(inventory, tmp_path, print, SelfCounters(), processes=NvmlProcesses(fake_nvml.loader()))
    assert make_watcher(config, parts) is None
