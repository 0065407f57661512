"""The doctor says which sources of jobs work, and what to do about the others."""

import subprocess
import tempfile
from pathlib import Path

import pytest
from support.fake_kubelet import FakeKubelet

from gpusonde.agent.config import JobsConfig
from gpusonde.agent.doctor import examine_jobs
from gpusonde.agent.sources.base import GpuDescription
from gpusonde.agent.sources.nvml.gpu import NvmlProcesses


@pytest.fixture
def look(fake_nvml, tmp_path):
    def look(**settings):
        config = JobsConfig(**{"slurm_mapping_dir": str(tmp_path), "kubelet_socket": str(tmp_path / "k")} | settings)
        gpus = [GpuDescription(fake_nvml.uuid(0), 0), GpuDescription(fake_nvml.uuid(1), 1)]
        found = examine_jobs(config, gpus, NvmlProcesses(fake_nvml.loader()))
        return {finding.name: finding for finding in found}

    return look


def test_each_source_names_the_jobs_that_it_knows(look, fake_nvml, tmp_path):
    (tmp_path / "0").write_text("4711\n")
    child = subprocess.Popen(["sleep", "60"])
    try:
        fake_nvml.add_process(child.pid, 1)
        with tempfile.TemporaryDirectory() as folder, FakeKubelet(Path(folder) / "k.sock") as kubelet:
            kubelet.pods = [("ns", "pod", "c", "nvidia.com/gpu", [fake_nvml.uuid(1)])]
            found = look(kubelet_socket=str(kubelet.socket))
    finally:
        child.kill()
        child.wait()
    assert [finding.usable for finding in found.values()] == [True, True, True]
    jobs = {
        name: {gpu: [o.job_id for o in of] for gpu, of in finding.owners.items()} for name, finding in found.items()
    }
    assert jobs["slurm"] == {fake_nvml.uuid(0): ["4711"]}
    assert jobs["kubernetes"] == {fake_nvml.uuid(1): ["ns/pod"]}
    assert list(jobs["processes"]) == [fake_nvml.uuid(1)]


def test_what_is_not_there_or_off_is_told_with_what_to_do(look, fake_nvml, tmp_path):
    found = look(slurm_mapping_dir=str(tmp_path / "none"), cgroups=False)
    assert "prolog of deploy/slurm" in found["slurm"].reason
    assert "mount the folder" in found["kubernetes"].reason
    assert found["processes"].reason == "jobs.cgroups is off"
    off = look(slurm_mapping_dir="", kubelet_socket="")
    assert [off[name].reason for name in ("slurm", "kubernetes")] == [
        "jobs.slurm_mapping_dir is empty",
        "jobs.kubelet_socket is empty",
    ]


def test_hidden_processes_and_a_silent_driver_are_told_apart(look, fake_nvml):
    fake_nvml.add_process(2**22 + 1, 0)
    assert "ProtectProc" in look()["processes"].reason
    fake_nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", 4)
    assert "names no GPU" in look()["processes"].reason


def test_a_replay_has_no_jobs(tmp_path):
    assert examine_jobs(JobsConfig(), [], None) == ()
