"""``gpusonde tell``: what jobs do, in the comments of a real Slurm (where one is installed) and on pods."""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.collector_process import ask
from support.running_collector import ThreadCollector
from support.tracked_store import TrackedStore
from support.wire_agent import wait_until

from gpusonde.collector.storage.model import CycleRow, CycleTree, JobStateRow, RunRow, RunUpdate
from gpusonde.common.v1 import job_pb2

SECOND = 1_000_000_000
SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"


def write_jobs(directory, *jobs):
    """A collector's store with jobs: (id, scheduler, state, whether it is over)."""
    now = time.time_ns()
    subject = TrackedStore(directory)
    for i, (job_id, scheduler, state, ended) in enumerate(jobs):
        start = now - 3600 * SECOND
        run = RunRow(
            f"run-{i}", "host-1", f"GPU-{i}", job_id, scheduler, ended, "", start, now, 1, 1, 1, 2, 9, 0, period_s=60.0
        )
        cycle = CycleRow(60.0, 59.0, 61.0, 59, 0.9, "epoch", 0.9, None, (start, start + 60 * SECOND), True)
        states = [JobStateRow(start, "training", "works", 0.9)]
        if state != "training":
            states.append(JobStateRow(now - 900 * SECOND, state, 'all "wait" for\none', 0.9))
        subject.results.save([RunUpdate(run, None, CycleTree((cycle,), 0), states)], {})
    subject.store.close()


class ApiServer:
    """The API server of Kubernetes, as far as patches of pods go."""

    def __init__(self):
        self.patches = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.patches.append((self.path, self.headers["Content-Type"], body))
                gone = "gone" in self.path
                self.send_response(404 if gone else 200)
                self.end_headers()
                self.wfile.write(b'{"message": "pods \\"gone\\" not found"}' if gone else b"{}")

            def log_message(self, *_):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def api():
    server = ApiServer()
    yield server
    server.close()


KUBERNETES, SLURM = job_pb2.SCHEDULER_KUBERNETES, job_pb2.SCHEDULER_SLURM


def test_pods_are_annotated_with_what_their_job_does(tmp_path, api):
    jobs = [
        ("team/train-0", KUBERNETES, "hung", False),
        ("team/done", KUBERNETES, "training", True),
        ("7", SLURM, "idle", False),
    ]
    write_jobs(tmp_path / "data", *jobs)
    with ThreadCollector(tmp_path / "data") as collector:
        told = ask("tell", "kubernetes", "--api", api.address, "--collector", collector.target)["told"]
    patched = {path: body["metadata"]["annotations"] for path, _, body in api.patches}
    assert set(patched) == {"/api/v1/namespaces/team/pods/train-0", "/api/v1/namespaces/team/pods/done"}
    assert {kind for _, kind, _ in api.patches} == {"application/merge-patch+json"}
    hung = patched["/api/v1/namespaces/team/pods/train-0"]
    assert hung["gpusonde/state"] == "hung"
    assert "epochs of 60.0 s" in hung["gpusonde/summary"]
    assert "goodput 75 %" in hung["gpusonde/summary"]
    assert "59 epochs of 60.0 s" in patched["/api/v1/namespaces/team/pods/done"]["gpusonde/summary"]
    assert {each["job_id"] for each in told} == {"team/train-0", "team/done"}


def test_a_pod_that_is_gone_is_a_failure_with_its_reason_and_the_others_are_told(tmp_path, api, capsys):
    write_jobs(tmp_path / "data", ("team/gone", KUBERNETES, "idle", False), ("team/here", KUBERNETES, "idle", False))
    with ThreadCollector(tmp_path / "data") as collector:
        told = ask("tell", "kubernetes", "--api", api.address, "--collector", collector.target, exit_code=1)["told"]
    failures = {each["job_id"]: each["failure"] for each in told}
    assert failures["team/here"] is None
    assert "answers 404" in failures["team/gone"]
    assert "job team/gone: the API server answers 404" in capsys.readouterr().err


def test_a_dry_run_and_names_that_are_no_pods_touch_nothing(tmp_path, api):
    write_jobs(
        tmp_path / "data", ("team/../secrets/x", KUBERNETES, "idle", False), ("team/pod", KUBERNETES, "idle", False)
    )
    with ThreadCollector(tmp_path / "data") as collector:
        told = ask("tell", "kubernetes", "--api", api.address, "--dry-run", "--collector", collector.target)["told"]
    assert [each["job_id"] for each in told] == ["team/pod"]
    assert api.patches == []


@pytest.mark.parametrize(
    "arguments",
    [("kubernetes", "--api", "http://10.0.0.1:8080"), ("slurm", "--every", "soon"), ("slurm", "--every", "10ms")],
)
def test_what_cannot_be_meant_is_refused(arguments):
    ask("tell", *arguments, exit_code=2)


SLURM_CONF = """\
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


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A real Slurm of one node with two GPUs, and our prolog and epilog."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "scontrol", "scancel") if not shutil.which(name)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    folder = tmp_path_factory.mktemp("slurm")
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
    (folder / "slurm.conf").write_text(SLURM_CONF.format(host=host, port=port, next_port=port + 1, folder=folder))
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/nvidia[0-1]\n")
    for name in ("prolog", "epilog"):
        script = folder / name
        ours = SCRIPTS / f"{name}.d" / "50-gpusonde.sh"
        script.write_text(
            f"#!/bin/sh\nGPUSONDE_JOBS_DIR={folder}/jobs GPUSONDE_DRIVER_DIR={folder}/driver"
            f" GPUSONDE_DEFAULTS=/nonexistent exec {ours}\n"
        )
        script.chmod(0o755)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(*command, check=True):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    try:
        for daemon in ("slurmctld", "slurmd"):
            run(daemon)
        wait_until(lambda: "idle" in run("sinfo", "--noheader", "-o", "%T", check=False), 60, "the node of Slurm")
        run.folder = folder
        yield run
    finally:
        # A job of a test that failed outlives its daemons otherwise.
        run("scancel", "--state=RUNNING", check=False)
        for daemon in ("slurmd", "slurmctld"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((folder / f"{daemon}.pid").read_text()), 15)


@pytest.mark.needs_root
def test_a_real_slurm_has_its_jobs_bound_by_our_prolog_and_commented_by_us(slurm, tmp_path, monkeypatch):
    job = slurm("sbatch", "--parsable", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    jobs = slurm.folder / "jobs"
    bound = wait_until(lambda: [path for path in jobs.iterdir() if path.name.startswith("GPU-")], 60, "the prolog")
    assert [(path.name, path.read_text()) for path in bound] == [("GPU-00", f"{job}\n")]
    write_jobs(tmp_path / "data", (job, SLURM, "hung", False))
    monkeypatch.setenv("SLURM_CONF", str(slurm.folder / "slurm.conf"))
    with ThreadCollector(tmp_path / "data") as collector:
        (told,) = ask("tell", "slurm", "--collector", collector.target)["told"]
    assert told["failure"] is None
    comment = next(line for line in slurm("scontrol", "show", "job", job).splitlines() if "Comment=" in line)
    assert comment.strip().startswith("Comment=gpusonde: hung since ")
    assert "epochs of 60.0 s, goodput 75 %, all  wait  for one" in comment
    slurm("scancel", job)
    wait_until(lambda: not [path for path in jobs.iterdir() if path.name.startswith("GPU-")], 60, "the epilog")


@pytest.mark.needs_root
def test_a_job_that_slurm_does_not_know_is_a_failure_with_slurms_words(slurm, tmp_path, monkeypatch):
    write_jobs(tmp_path / "data", ("987654", SLURM, "hung", False))
    monkeypatch.setenv("SLURM_CONF", str(slurm.folder / "slurm.conf"))
    with ThreadCollector(tmp_path / "data") as collector:
        (told,) = ask("tell", "slurm", "--collector", collector.target, exit_code=1)["told"]
    assert "Invalid job id" in told["failure"]
