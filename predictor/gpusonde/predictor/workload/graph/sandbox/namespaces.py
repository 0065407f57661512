"""What Linux offers to keep a process to itself: namespaces, a root of its own, limits, no privileges."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterable
from pathlib import Path

_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWUTS = 0x0400_0000
_CLONE_NEWIPC = 0x0800_0000
_CLONE_NEWUSER = 0x1000_0000
_CLONE_NEWPID = 0x2000_0000
_CLONE_NEWNET = 0x4000_0000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x4_0000
_MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 38, 4, 24
_CAPABILITY_VERSION_3 = 0x2008_0522
_LAST_CAPABILITY = 63
_NOBODY = 65534
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_SCRATCH_BYTES = 64 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def leave_namespaces() -> None:
    """Give this process a network without any interface and mounts of its own, its children numbers of their own.

    Raises:
        OSError: The system does not permit it.
    """
    flags = _CLONE_NEWNET | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWIPC | _CLONE_NEWUTS
    user, group = os.getuid(), os.getgid()
    if user != 0:
        flags |= _CLONE_NEWUSER
    _check(_libc.unshare(flags), "unshare")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)


def enter_empty_root(readable: Iterable[str], scratch: str) -> None:
    """Leave the file system but for what is named, all of it read-only, and an empty folder to work in.

    Call it in a child of the process that left the namespaces.

    Args:
        readable: Files and folders that are there besides the system's libraries; those that do not exist are left out.
        scratch: The empty folder; 64 MiB fit into it.

    Raises:
        OSError: The system does not permit it.
    """
    # Mounted over, which nobody else sees. No package lies in it.
    root = "/sys"
    shown = [*_SYSTEM, *sorted(set(readable))]
    handles = [(each, os.open(each, os.O_PATH | os.O_CLOEXEC)) for each in shown if os.path.exists(each)]
    links = [(each, os.readlink(each)) for each in _SYSTEM if os.path.islink(each)]
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={_SCRATCH_BYTES},mode=755")
    for link, target in links:
        os.symlink(target, root + link)
    devices = [(each, os.open(each, os.O_PATH | os.O_CLOEXEC)) for each in _DEVICES if os.path.exists(each)]
    linked = {link for link, _ in links}
    for place, handle in handles:
        if place not in linked and not os.path.lexists(root + place):
            _show(handle, root + place, _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    for place, handle in devices:
        _show(handle, root + place, _MS_NOSUID)
    os.makedirs(root + "/proc", exist_ok=True)
    with contextlib.suppress(OSError):  # not permitted in some containers, and missed by few
        _mount("proc", root + "/proc", "proc", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    os.makedirs(root + scratch, exist_ok=True)
    os.chmod(root + scratch, 0o777)  # noqa: S103 - the only one in there is about to become nobody
    for _, handle in (*handles, *devices):
        os.close(handle)
    _pivot(root)
    os.chdir(scratch)


def drop_privileges() -> None:
    """Become nobody if root, and give up every capability for good."""
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with_parent(signal_number: int) -> None:
    """Get this signal when the parent ends. A change of the user undoes it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def limit_resources(*, memory_bytes: int, cpu_s: int, file_bytes: int, files: int) -> None:
    """Limit this process for good: no new process, no new thread, no core dump.

    Args:
        memory_bytes: Address space beyond what it has now.
        cpu_s: Processor time in all.
        file_bytes: Size of a file that it writes.
        files: Open files.
    """
    page_bytes = resource.getpagesize()
    mapped = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * page_bytes
    for what, most in (
        (resource.RLIMIT_AS, mapped + memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (allowed, allowed))


def _show(handle: int, place: str, flags: int) -> None:
    """Make a file or folder that is open visible at another place."""
    source = f"/proc/self/fd/{handle}"
    if os.path.isdir(source):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        Path(place).touch()
    _mount(source, place, None, _MS_BIND | _MS_REC)
    # Flags that a mount has must be repeated where we are not the real root.
    kept = os.statvfs(place).f_flag & (_MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _mount("none", place, None, _MS_REMOUNT | _MS_BIND | flags | kept)


def _pivot(root: str) -> None:
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root has no known number on {os.uname().machine}")
    os.chdir(root)
    # The old root comes to lie over the new one, and is taken away.
    _check(_libc.syscall(number, b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mount of {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
