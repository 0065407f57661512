"""The watcher: precedence, what is told and when, sources that fail."""

import itertools
import os
import threading

import pytest

from gpusonde.agent.jobs.activity import ActivityReader, SharedProcessIds
from gpusonde.agent.jobs.ownership import Owner, OwnershipFile, Scheduler
from gpusonde.agent.jobs.sources import DeviceNames
from gpusonde.agent.jobs.watcher import JobWatcher, ProcessLooks
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.sources.base import GpuDescription
from gpusonde.common.v1 import job_pb2
from gpusonde.errors import SourceError
from gpusonde.service.durable_files import OsFiles

T = 1_700_000_000_000_000_000
GPUS = [GpuDescription("GPU-a", 0), GpuDescription("GPU-b", 1)]


class Source:
    """Says what a test tells it to."""

    def __init__(self, name, scheduler):
        self.name = name
        self._scheduler = scheduler
        self.jobs = {}
        self.error = None
        self.asked = 0

    def owners(self, now_unix_nano):
        self.asked += 1
        if self.error:
            raise self.error
        return {
            gpu: tuple(job if isinstance(job, Owner) else Owner(self._scheduler, job) for job in jobs)
            for gpu, jobs in self.jobs.items()
        }


class Rig:
    def __init__(self, folder):
        self.slurm = Source("slurm", Scheduler.SLURM)
        self.kubelet = Source("kubernetes", Scheduler.KUBERNETES)
        self.processes = Source("processes", Scheduler.USER)
        self.records = []
        self.counters = SelfCounters()
        self.now = T
        self.folder = folder
        self.watcher = self.make()

    def make(self, **more):
        watcher = JobWatcher(
            [self.slurm, self.kubelet, self.processes],
            DeviceNames(GPUS, {}),
            OwnershipFile(self.folder / "state.json", OsFiles()),
            self.records.append,
            self.counters,
            wall_ns=lambda: self.now,
            **more,
        )
        watcher.begin()
        return watcher

    def poll(self):
        """Poll; return what was recorded as (gpu, job, open)."""
        self.records.clear()
        self.now += 5_000_000_000
        self.watcher.poll()
        bindings = [b for record in self.records for b in record.job_bindings.bindings]
        return [(b.gpu_uuid, b.job_id, not b.end_time_unix_nano) for b in bindings]


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def test_changes_are_told_once(rig):
    rig.slurm.jobs = {"GPU-a": ["1"]}
    assert rig.poll() == [("GPU-a", "1", True)]
    assert rig.poll() == []
    rig.slurm.jobs = {"GPU-b": ["2"]}
    assert rig.poll() == [("GPU-a", "1", False), ("GPU-b", "2", True)]


def test_per_gpu_the_first_source_that_names_an_owner_is_believed(rig):
    rig.processes.jobs = {"GPU-a": ["uid-1"], "GPU-b": ["uid-1"]}
    rig.kubelet.jobs = {"GPU-a": ["ns/pod"]}
    assert rig.poll() == [("GPU-a", "ns/pod", True), ("GPU-b", "uid-1", True)]
    rig.slurm.jobs = {"GPU-a": ["7"]}
    assert rig.poll() == [("GPU-a", "ns/pod", False), ("GPU-a", "7", True)]


def test_the_same_job_from_a_better_source_changes_nothing(rig):
    rig.processes.jobs = {"GPU-a": [Owner(Scheduler.SLURM, "7")]}
    assert rig.poll() == [("GPU-a", "7", True)]
    rig.slurm.jobs = {"GPU-a": ["7"]}
    assert rig.poll() == []


def test_the_scheduler_and_the_labels_are_on_the_wire(rig):
    rig.processes.jobs = {
        "GPU-a": [
            Owner(Scheduler.CONTAINER, "abc", T + 1, 0, {"uid": "5"}),
            Owner(Scheduler.SYSTEMD, "x.service", T + 2),
        ],
        "GPU-b": [Owner(Scheduler.USER, "uid-5", T + 3)],
    }
    rig.poll()
    (record,) = rig.records
    wire = [(b.job_id, b.scheduler, b.start_time_unix_nano - T, dict(b.labels)) for b in record.job_bindings.bindings]
    assert wire == [
        ("abc", job_pb2.SCHEDULER_CONTAINER, 1, {"uid": "5"}),
        ("x.service", job_pb2.SCHEDULER_SYSTEMD, 2, {"shared": "true"}),
        ("uid-5", job_pb2.SCHEDULER_USER, 3, {}),
    ]


def test_owners_of_gpus_that_are_not_sampled_are_not_told(rig):
    rig.slurm.jobs = {"GPU-x": ["1"]}
    assert rig.poll() == []


def test_what_a_failing_source_said_stays_in_force_and_it_is_asked_less_often(rig, caplog):
    rig.kubelet.jobs = {"GPU-a": ["ns/pod"]}
    rig.poll()
    rig.kubelet.error = SourceError("the kubelet is away")
    asked = rig.kubelet.asked
    assert [rig.poll() for _ in range(200)] == [[]] * 200
    assert rig.kubelet.asked - asked == 8
    assert rig.counters.job_source_failures == {"kubernetes": 8}
    assert caplog.text.count("the kubelet is away") == 1
    rig.kubelet.error = None
    rig.kubelet.jobs = {}
    polls = next(i for i in range(100) if rig.poll() == [("GPU-a", "ns/pod", False)])
    assert polls <= 61


def test_a_source_that_breaks_in_a_new_way_does_not_take_the_others_with_it(rig, caplog):
    rig.kubelet.error = ZeroDivisionError("a bug")
    rig.slurm.jobs = {"GPU-a": ["1"]}
    assert rig.poll() == [("GPU-a", "1", True)]
    assert "ZeroDivisionError" in caplog.text


def test_a_pod_waits_for_the_name_that_a_silent_kubelet_will_give_it(rig):
    rig.kubelet.error = SourceError("starting")
    rig.processes.jobs = {"GPU-a": [Owner(Scheduler.KUBERNETES, "uid-of-pod")], "GPU-b": ["uid-1"]}
    assert rig.poll() == [("GPU-b", "uid-1", True)]
    rig.kubelet.error = None
    rig.kubelet.jobs = {"GPU-a": ["ns/pod"]}
    assert rig.poll() == [("GPU-a", "ns/pod", True)]


def test_what_holds_is_told_again_after_an_inventory_and_ends_are_after_a_loss(rig):
    rig.slurm.jobs = {"GPU-a": ["1"], "GPU-b": ["2"]}
    rig.poll()
    rig.watcher.inventory_changed(GPUS)
    assert rig.poll() == [("GPU-a", "1", True), ("GPU-b", "2", True)]
    rig.slurm.jobs = {"GPU-b": ["2"]}
    rig.poll()
    rig.counters.count_dropped("spool_full", 3, 0)
    assert rig.poll() == [("GPU-a", "1", False), ("GPU-b", "2", True)]
    assert rig.poll() == []


def test_a_gpu_that_leaves_the_inventory_has_no_owner_any_more(rig):
    rig.slurm.jobs = {"GPU-a": ["1"], "GPU-b": ["2"]}
    rig.poll()
    rig.watcher.inventory_changed(GPUS[:1])
    assert rig.poll() == [("GPU-b", "2", False), ("GPU-a", "1", True)]


def test_a_job_that_ended_while_the_agent_was_away_is_ended_at_its_return(rig):
    rig.slurm.jobs = {"GPU-a": ["1"], "GPU-b": ["2"]}
    rig.poll()
    rig.slurm.jobs = {"GPU-b": ["2"]}
    rig.watcher = rig.make()
    assert rig.poll() == [("GPU-a", "1", False), ("GPU-b", "2", True)]


def test_many_bindings_are_cut_into_records_that_a_collector_takes(rig):
    rig.slurm.jobs = {"GPU-a": [str(i) for i in range(3000)]}
    rig.poll()
    assert [len(record.job_bindings.bindings) for record in rig.records] == [1024, 1024, 952]


def test_the_thread_goes_on_after_an_error_and_ends_when_it_is_told_to(rig, caplog):
    polls = []

    def wait(_seconds):
        polls.append(1)
        if len(polls) == 1:
            rig.watcher._emit = rig.records.append
        return len(polls) == 2

    rig.slurm.jobs = {"GPU-a": ["1"]}
    rig.watcher = rig.make(wait=wait)
    rig.watcher._emit = None
    rig.watcher.run()
    assert len(polls) == 2
    assert "could not be recorded" in caplog.text
    assert [b.job_id for record in rig.records for b in record.job_bindings.bindings] == ["1"]

    watcher = rig.make()
    thread = threading.Thread(target=watcher.run)
    thread.start()
    watcher.stop()
    thread.join(240)
    assert not thread.is_alive()


def test_nobody_wakes_up_between_polls_while_no_process_is_on_a_gpu(rig):
    held, waits = {}, []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            held["GPU-a"] = (os.getpid(),)
        return len(waits) == 4

    ids = SharedProcessIds(lambda: held, itertools.count().__next__)
    rig.make(wait=wait, looks=ProcessLooks(ids, ActivityReader(rig.counters))).run()
    assert waits == [5.0, 5.0, 1.0, 1.0]
