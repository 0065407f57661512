"""What a process belongs to, from the text of ``/proc/PID/cgroup``.

Layouts, in cgroup version 1 (one line per controller) and version 2 (one line, ``0::PATH``):

* Slurm: ``.../slurm/uid_1000/job_123/step_0/...``, ``/system.slice/slurmstepd.scope/job_123/step_0/user/task_0``;
* kubelet with the cgroupfs driver: ``/kubepods/burstable/podUID/CONTAINER``;
* kubelet with the systemd driver: ``/kubepods.slice/...-podUID_WITH_UNDERSCORES.slice/cri-containerd-CONTAINER.scope``
  (``crio-``, ``docker-``), and containerd's mixture of both, ``...-podUID.slice:cri-containerd:CONTAINER``;
* containers without Kubernetes: ``/docker/CONTAINER``, ``/system.slice/docker-CONTAINER.scope``, ``libpod-...``;
* all of these as seen out of a container with a cgroup namespace of its own: ``/../../podUID/CONTAINER``, where the
  beginning that both have in common is missing;
* the rest: the innermost systemd unit, or the user whose session it is.
"""

from __future__ import annotations

import re

from gpusonde.agent.jobs.owners import Owner, Scheduler, bounded

_MOST_LINES = 64
_SHORT_CONTAINER_ID = 12
_FROM_A_CONTAINER = "/../"

_SLURM_JOB = re.compile(r"/[^/]*slurm[^/]*/(?:[^/]+/)*?job_(\d+)(?:/step_([\w-]+))?(?=/|$)")
_POD = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)")
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?=\.scope|[/:]|$)")
_USER = re.compile(r"/user-(\d+)\.slice(?=/|$)")
_UNIT = re.compile(r"[^/]+\.(?:service|scope)")


def owner_of(cgroup: str, uid: int) -> Owner:
    """Return what a process belongs to.

    Args:
        cgroup: Text of its ``/proc/PID/cgroup``.
        uid: Its user, for processes in no job, container or unit, and as a label.
    """
    paths = _paths(cgroup)
    for recognise in (_slurm, _pod, _container, _user, _unit):
        for path in paths:
            found = recognise(path)
            if found is not None:
                return _with_uid(found, uid)
    return _with_uid(Owner(Scheduler.USER, f"uid-{uid}"), uid)


def _paths(cgroup: str) -> list[str]:
    """The distinct paths, that of version 2 and of systemd's own hierarchy first: they are the finest."""
    lines = [line.split(":", 2) for line in cgroup.splitlines()[:_MOST_LINES]]
    found = [(controllers, path) for _, controllers, path in (line for line in lines if len(line) == 3)]
    found.sort(key=lambda pair: pair[0] not in ("", "name=systemd"))
    return list(dict.fromkeys(path for _, path in found))


def _slurm(path: str) -> Owner | None:
    match = _SLURM_JOB.search(path)
    return Owner(Scheduler.SLURM, bounded(match.group(1))) if match else None


def _pod(path: str) -> Owner | None:
    match = _POD.search(path) if "kubepods" in path or path.startswith(_FROM_A_CONTAINER) else None
    if match is None:
        return None
    pod = match.group(1).replace("_", "-")
    container = _CONTAINER.search(path)
    labels = {"pod_uid": pod} | ({"container_id": container.group(1)} if container else {})
    return Owner(Scheduler.KUBERNETES, pod, labels=labels)


def _container(path: str) -> Owner | None:
    found = _CONTAINER.findall(path)
    if not found:
        return None
    return Owner(Scheduler.CONTAINER, found[-1][:_SHORT_CONTAINER_ID], labels={"container_id": found[-1]})


def _user(path: str) -> Owner | None:
    match = _USER.search(path)
    if match is None:
        return None
    units = _UNIT.findall(path[match.end() :])
    return Owner(Scheduler.USER, bounded(f"uid-{match.group(1)}"), labels={"unit": bounded(units[-1])} if units else {})


def _unit(path: str) -> Owner | None:
    units = _UNIT.findall(path)
    return Owner(Scheduler.SYSTEMD, bounded(units[-1])) if units else None


def _with_uid(owner: Owner, uid: int) -> Owner:
    return Owner(owner.scheduler, owner.job_id, labels={**owner.labels, "uid": str(uid)})
