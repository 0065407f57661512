"""``python -m gpusonde.cli.demo.child PARENT ARGUMENT ...``: a ``gpusonde`` subcommand that ends with the demo.

Asking the kernel for that here, after the exec, and not in a ``preexec_fn`` of the demo: that would fork a process in
which gRPC's threads run, and gRPC may abort the child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from gpusonde.cli.main import main

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when its parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the demo has already ended")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
