"""How many files and sockets the process may have open."""

from __future__ import annotations

import resource


def allow_open_files(wanted: int) -> int:
    """Raise the soft limit towards what is wanted, as far as the hard limit allows; return the limit in force.

    The soft limit of a shell and of systemd is 1024 for the sake of programs that use ``select``; raising it is left to
    those that do not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft >= reachable:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    except (OSError, ValueError):
        # A sandbox may forbid it; the caller says what the limit that stays is good for.
        return soft
    return reachable
