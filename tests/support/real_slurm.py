"""A Slurm of Debian's own packages, with a node of two GPUs and our prolog and epilog, where it is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.wire_agent import wait_until

_SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
SlurmdPort={next_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
GresTypes=gpu
Prolog={folder}/prolog
Epilog={folder}/epilog
PrologFlags=Alloc
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


@contextlib.contextmanager
def real_slurm(folder: Path) -> Iterator[Any]:
    """Run it in a folder; yield what runs its commands, which has the folder as ``folder``."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "scontrol", "scancel") if not shutil.which(name)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    for name in ("state", "spool", "jobs", "driver/gpus"):
        (folder / name).mkdir(parents=True)
    for number in range(2):
        # Slurm wants device files; what is behind them it does not look at.
        try:
            os.mknod(folder / f"nvidia{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError as error:
            pytest.skip(f"no device files can be made here: {error}")
        information = folder / "driver" / "gpus" / str(number)
        information.mkdir()
        (information / "information").write_text(f"GPU UUID: \t GPU-{number}{number}\nDevice Minor: \t {number}\n")
    host = os.uname().nodename.partition(".")[0]
    port = 20_000 + os.getpid() % 20_000
    (folder / "slurm.conf").write_text(_CONF.format(host=host, port=port, next_port=port + 1, folder=folder))
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/nvidia[0-1]\n")
    for name in ("prolog", "epilog"):
        script = folder / name
        ours = _SCRIPTS / f"{name}.d" / "50-gpusonde.sh"
        script.write_text(
            f"#!/bin/sh\nGPUSONDE_JOBS_DIR={folder}/jobs GPUSONDE_DRIVER_DIR={folder}/driver"
            f" GPUSONDE_DEFAULTS=/nonexistent exec {ours}\n"
        )
        script.chmod(0o755)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(*command, check=True):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert not check or done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    try:
        for daemon in ("slurmctld", "slurmd"):
            run(daemon)
        wait_until(lambda: "idle" in run("sinfo", "--noheader", "-o", "%T", check=False), 120, "the node of Slurm")
        run.folder = folder
        yield run
    finally:
        # A job of a test that failed outlives its daemons otherwise.
        run("scancel", "--state=RUNNING", check=False)
        for daemon in ("slurmd", "slurmctld"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((folder / f"{daemon}.pid").read_text()), 15)
