"""What a process belongs to, by the layouts of cgroups that are out there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusonde.agent.jobs.ownership import Scheduler
from gpusonde.agent.jobs.processes import job_path, owner_of
from gpusonde.agent.jobs.sources import bounded

CONTAINER = "3f2a" * 16
OTHER = "9b1c" * 16
POD = "6b29fc40-ca47-1067-b31d-00dd010662da"
POD_ = POD.replace("-", "_")
SLICES = "/kubepods.slice/kubepods-burstable.slice"
V1 = "12:pids:{0}\n11:memory:{0}\n4:devices:{0}\n1:name=systemd:{1}\n"

SLURM, KUBERNETES, CONTAINERS = Scheduler.SLURM, Scheduler.KUBERNETES, Scheduler.CONTAINER


@pytest.mark.parametrize(
    ("cgroup", "scheduler", "job_id"),
    [
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", SLURM, "4711"),
        ("0::/system.slice/node7_slurmstepd.scope/job_4711/step_batch/user/task_special", SLURM, "4711"),
        (V1.format("/slurm/uid_1000/job_12/step_extern", "/system.slice/slurmd.service"), SLURM, "12"),
        (V1.format("/slurm_node7/uid_1000/job_12/step_0/task_3", "/"), SLURM, "12"),
        # A container started inside a Slurm job is the job's.
        (f"0::/system.slice/slurmstepd.scope/job_8/step_0/user/task_0/libpod-{CONTAINER}.scope", SLURM, "8"),
        (f"0::/kubepods/burstable/pod{POD}/{CONTAINER}", KUBERNETES, POD),
        (V1.format(f"/kubepods/pod{POD}/{CONTAINER}", f"/kubepods/pod{POD}/{CONTAINER}"), KUBERNETES, POD),
        (f"0::{SLICES}/kubepods-burstable-pod{POD_}.slice/cri-containerd-{CONTAINER}.scope", KUBERNETES, POD),
        (f"0::/kubepods.slice/kubepods-pod{POD_}.slice/crio-{CONTAINER}.scope/container", KUBERNETES, POD),
        (
            f"0::/system.slice/containerd.service/kubepods-besteffort-pod{POD_}.slice:cri-containerd:{CONTAINER}",
            KUBERNETES,
            POD,
        ),
        (
            f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{POD_}.slice/docker-{CONTAINER}.scope",
            KUBERNETES,
            POD,
        ),
        # Out of a pod with a cgroup namespace of its own.
        (f"0::/../../pod{POD}/{CONTAINER}", KUBERNETES, POD),
        (f"0::/../../kubepods-burstable-pod{POD_}.slice/cri-containerd-{CONTAINER}.scope", KUBERNETES, POD),
        ("0::/../../../../system.slice/slurmstepd.scope/job_7/step_0/user/task_0", SLURM, "7"),
        ("0::/../../../../user.slice/user-1001.slice/session-3.scope", Scheduler.USER, "uid-1001"),
        (f"0::/kubepods/burstable/pod{'0a' * 16}/{CONTAINER}", KUBERNETES, "0a" * 16),
        (f"0::/system.slice/docker-{CONTAINER}.scope", CONTAINERS, CONTAINER[:12]),
        (V1.format(f"/docker/{CONTAINER}", f"/docker/{CONTAINER}"), CONTAINERS, CONTAINER[:12]),
        (f"0::/docker/{CONTAINER}/docker/{OTHER}", CONTAINERS, OTHER[:12]),
        (f"0::/default/{CONTAINER}", CONTAINERS, CONTAINER[:12]),
        (f"0::/machine.slice/libpod-{CONTAINER}.scope/container", CONTAINERS, CONTAINER[:12]),
        (
            f"0::/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-{CONTAINER}.scope",
            CONTAINERS,
            CONTAINER[:12],
        ),
        ("0::/system.slice/jupyterhub.service", Scheduler.SYSTEMD, "jupyterhub.service"),
        ("0::/system.slice/system-train.slice/train@7.service/worker", Scheduler.SYSTEMD, "train@7.service"),
        (V1.format("/system.slice/x.service", "/system.slice/x.service"), Scheduler.SYSTEMD, "x.service"),
        ("0::/user.slice/user-1001.slice/session-3.scope", Scheduler.USER, "uid-1001"),
        ("0::/user.slice/user-1001.slice/user@1001.service/app.slice/notebook.service", Scheduler.USER, "uid-1001"),
        ("0::/", Scheduler.USER, "uid-42"),
        ("", Scheduler.USER, "uid-42"),
        ("nonsense\n::\n0:\n", Scheduler.USER, "uid-42"),
        # Names that only look like a scheduler's.
        ("0::/system.slice/job_5.service", Scheduler.SYSTEMD, "job_5.service"),
        (f"0::/mine/pod{POD}/x", Scheduler.USER, "uid-42"),
    ],
)
def test_the_owner_is_the_innermost_thing_that_a_scheduler_made(cgroup, scheduler, job_id):
    owner = owner_of(cgroup, 42)
    assert (owner.scheduler, owner.job_id) == (scheduler, job_id)
    assert owner.labels["uid"] == "42"


@pytest.mark.parametrize(
    ("whole", "below", "scheduler"),
    [
        ("system.slice/slurmstepd.scope/job_7", "/step_0/user/task_0", Scheduler.SLURM),
        (f"kubepods/burstable/pod{POD}", f"/{CONTAINER}", Scheduler.KUBERNETES),
        (f"kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice", f"/crio-{CONTAINER}.scope", Scheduler.KUBERNETES),
        (f"system.slice/docker-{CONTAINER}.scope", "", Scheduler.CONTAINER),
        (f"system.slice/docker-{CONTAINER}.scope", "/init", Scheduler.CONTAINER),
    ],
)
def test_the_cgroup_of_a_whole_job_is_the_outermost_that_is_only_its_own(whole, below, scheduler):
    assert job_path(whole + below, scheduler) == whole
    others = {Scheduler.SLURM, Scheduler.KUBERNETES, Scheduler.CONTAINER, Scheduler.USER} - {scheduler}
    assert {job_path(whole + below, other) for other in others} == {""}


def test_a_pod_keeps_its_container_and_a_session_its_unit():
    pod = owner_of(f"0::/kubepods/burstable/pod{POD}/{CONTAINER}", 0)
    assert pod.labels == {"pod_uid": POD, "container_id": CONTAINER, "uid": "0"}
    session = owner_of("0::/user.slice/user-1001.slice/user@1001.service/app.slice/notebook.service", 1001)
    assert session.labels == {"unit": "notebook.service", "uid": "1001"}


@given(st.text(max_size=2000), st.integers(0, 1 << 32))
def test_any_text_leads_to_an_owner_that_a_collector_takes(text, uid):
    for cgroup in (text, f"0::/{text}", f"0::/slurm/job_{text}", f"0::/kubepods/pod{text}", f"0::/a/{text}.service"):
        owner = owner_of(cgroup, uid)
        for value in (owner.job_id, *owner.labels.values()):
            assert 0 < len(value) <= 256
            assert value.isprintable()


def test_long_names_are_cut_and_stay_different():
    long = "x" * 300
    assert len(bounded(long)) == 256
    assert bounded(long) != bounded(long + "y")
    assert bounded("a b\n\x00c") == "a_b_c"
