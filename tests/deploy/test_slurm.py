"""Slurm's prolog and epilog, run as slurmd runs them, and read by the agent."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpusonde.agent.jobs.sources import DeviceNames, MappingFiles, read_minors
from gpusonde.agent.sources.base import GpuDescription

SLURM = Path(__file__).parents[2] / "deploy" / "slurm"
PROLOG = SLURM / "prolog.d" / "50-gpusonde.sh"
EPILOG = SLURM / "epilog.d" / "50-gpusonde.sh"
GPU = {n: f"GPU-0000000{n}-0000-0000-0000-000000000000" for n in range(4)}
MIG = "MIG-11111111-2222-3333-4444-555555555555"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("flock", "awk", "seq"))), reason="flock, awk or seq is not installed"
)


@pytest.fixture
def node(tmp_path):
    driver = tmp_path / "driver"
    # The order of the PCI bus is not that of the device files.
    for bus, minor in (("0000:17:00.0", 1), ("0000:65:00.0", 0), ("0000:ca:00.0", 2)):
        (driver / "gpus" / bus).mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100 80GB\nIRQ:   \t\t 5\nGPU UUID: \t {GPU[minor]}\nDevice Minor: \t {minor}\n"
        (driver / "gpus" / bus / "information").write_text(text)
    (driver / "gpus" / "0000:cb:00.0").mkdir()
    unopened = "GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 3\n"
    (driver / "gpus" / "0000:cb:00.0" / "information").write_text(unopened)
    return tmp_path


def run(node, script, job, **environment):
    environment = {
        "SLURM_JOB_ID": job,
        "GPUSONDE_JOBS_DIR": str(node / "jobs"),
        "GPUSONDE_DRIVER_DIR": str(node / "driver"),
        "GPUSONDE_DEFAULTS": str(node / "defaults"),
    } | environment
    done = subprocess.run([str(script)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def prolog(node, job, gpus, **environment):
    return run(node, PROLOG, job, SLURM_JOB_GPUS=gpus, **environment)


def epilog(node, job, **environment):
    return run(node, EPILOG, job, **environment)


def files(node):
    return {p.name: p.read_text() for p in (node / "jobs").iterdir() if not p.name.startswith(".")}


def test_a_job_is_written_for_each_of_its_gpus_and_taken_out_at_its_end(node):
    prolog(node, "4711", "0,2")
    assert files(node) == {GPU[0]: "4711\n", GPU[2]: "4711\n"}
    epilog(node, "4711")
    assert files(node) == {}


def test_the_agent_reads_what_the_prolog_writes(node):
    gpus = [GpuDescription(uuid, index) for index, uuid in enumerate((GPU[1], GPU[0], GPU[2]))]
    gpus.append(GpuDescription("GPU-x", 4, mig_uuid=MIG))
    source = MappingFiles(node / "jobs", DeviceNames(gpus, read_minors(node / "driver")))
    prolog(node, "1", "1")
    run(node, PROLOG, "2", SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES=MIG)
    now = time.time_ns()
    assert {gpu: [o.job_id for o in owners] for gpu, owners in source.owners(now).items()} == {
        GPU[1]: ["1"],
        MIG: ["2"],
    }
    epilog(node, "1")
    epilog(node, "2")
    assert source.owners(now) == {}


def test_jobs_that_share_a_gpu_come_and_go_one_by_one(node):
    prolog(node, "1", "0")
    prolog(node, "2", "0,1")
    prolog(node, "12", "0")
    assert files(node) == {GPU[0]: "1\n2\n12\n", GPU[1]: "2\n"}
    epilog(node, "2")
    assert files(node) == {GPU[0]: "1\n12\n"}


def test_a_prolog_that_runs_twice_writes_once(node):
    prolog(node, "1", "0")
    prolog(node, "1", "0")
    assert files(node) == {GPU[0]: "1\n"}


def test_ranges_of_gpus_and_gpus_without_a_known_uuid_are_written(node):
    prolog(node, "1", "0-2,3,7")
    assert files(node) == {GPU[0]: "1\n", GPU[1]: "1\n", GPU[2]: "1\n", "3": "1\n", "7": "1\n"}


def test_files_can_be_named_by_number_for_dcgm_exporter(node):
    (node / "defaults").write_text("GPUSONDE_FILE_NAMES=index\n")
    prolog(node, "1", "0,2")
    assert files(node) == {"0": "1\n", "2": "1\n"}


def test_a_job_without_gpus_and_a_call_without_a_job_write_nothing(node):
    prolog(node, "1", "")
    run(node, PROLOG, "", SLURM_JOB_GPUS="0")
    run(node, PROLOG, "../x", SLURM_JOB_GPUS="0")
    epilog(node, "1")
    assert not (node / "jobs").exists()


def test_names_that_are_no_gpu_are_passed_over(node):
    prolog(node, "1", "NoDevFiles,../../x,0;rm,1")
    assert files(node) == {GPU[1]: "1\n"}
    run(node, PROLOG, "2", CUDA_VISIBLE_DEVICES="GPU-../../x,GPU-a;b")
    assert set(files(node)) == {GPU[1]}


def test_a_folder_that_cannot_be_written_does_not_drain_the_node(node):
    (node / "jobs").write_text("a file where the folder should be")
    prolog(node, "1", "0")
    epilog(node, "1")
    (node / "jobs").unlink()
    (node / "jobs" / ".lock").mkdir(parents=True)
    prolog(node, "1", "0")
    epilog(node, "1")


def test_twenty_jobs_that_begin_and_end_at_once_lose_nothing(node):
    environment = dict(os.environ) | {
        "GPUSONDE_JOBS_DIR": str(node / "jobs"),
        "GPUSONDE_DRIVER_DIR": str(node / "driver"),
        "GPUSONDE_DEFAULTS": "/nonexistent",
        "SLURM_JOB_GPUS": "0,1",
    }
    for script in (PROLOG, EPILOG):
        jobs = [
            subprocess.Popen([str(script)], env=environment | {"SLURM_JOB_ID": str(job)}, stderr=subprocess.DEVNULL)
            for job in range(100, 120)
        ]
        assert [job.wait(240) for job in jobs] == [0] * 20
        if script == PROLOG:
            wanted = {str(job) for job in range(100, 120)}
            assert {name: set(text.split()) for name, text in files(node).items()} == {GPU[0]: wanted, GPU[1]: wanted}
    assert files(node) == {}


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", [PROLOG, EPILOG], ids=["prolog", "epilog"])
def test_shellcheck_finds_nothing(script):
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
