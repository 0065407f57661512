"""Slurm's mapping files: what is in them, and what must not hurt."""

import os

import pytest

from gpusonde.agent.jobs.ownership import Scheduler
from gpusonde.agent.jobs.sources import DeviceNames, MappingFiles
from gpusonde.agent.sources.base import GpuDescription, StaticAttribute, StaticOrigin
from gpusonde.errors import SourceError

NOW = 1_800_000_000_000_000_000
SECOND = 1_000_000_000
GPUS = [
    GpuDescription("GPU-a", 0),
    GpuDescription("GPU-b", 1),
    GpuDescription("GPU-c", 2, mig_uuid="MIG-1"),
    GpuDescription("GPU-c", 2, mig_uuid="MIG-2"),
]


def files(folder, minors=None, **more):
    return MappingFiles(folder, DeviceNames(GPUS, minors or {}), **more)


def write(folder, name, text, age_s=60.0):
    path = folder / name
    path.write_text(text)
    when = NOW - round(age_s * SECOND)
    os.utime(path, ns=(when, when))
    return when


def jobs(source, now=NOW):
    return {gpu: [owner.job_id for owner in owners] for gpu, owners in source.owners(now).items()}


def test_a_file_per_gpu_names_its_jobs_by_index_and_by_uuid(tmp_path):
    when = write(tmp_path, "0", "4711\n")
    write(tmp_path, "GPU-b", "12\n13\n")
    write(tmp_path, "MIG-2", "14 1000\n")
    source = files(tmp_path)
    assert jobs(source) == {"GPU-a": ["4711"], "GPU-b": ["12", "13"], "MIG-2": ["14"]}
    (owner,) = source.owners(NOW)["GPU-a"]
    assert (owner.scheduler, owner.start_unix_nano) == (Scheduler.SLURM, when)


def test_a_number_is_an_index_of_nvml_or_of_the_device_file_as_configured(tmp_path):
    write(tmp_path, "0", "1\n")
    assert jobs(files(tmp_path, {0: "GPU-b", 1: "GPU-a"})) == {"GPU-a": ["1"]}
    assert jobs(files(tmp_path, {0: "GPU-b", 1: "GPU-a"}, index_order="device")) == {"GPU-b": ["1"]}
    assert jobs(files(tmp_path, {}, index_order="device")) == {}


def test_a_gpu_instance_is_named_by_the_number_of_its_gpu_and_its_own(tmp_path):
    def part(mig_uuid, instance):
        return GpuDescription("GPU-m", 3, mig_uuid=mig_uuid, static_attributes=(instance_id(instance),))

    split = [part("MIG-7", 7), part("MIG-9a", 9), part("MIG-9b", 9)]
    for name, job in (("3.7", "1"), ("3.9", "2"), ("3.8", "3"), ("3", "4"), ("5.7", "5")):
        write(tmp_path, name, f"{job}\n")
    devices = DeviceNames([*GPUS, *split], {5: "GPU-m"})
    assert jobs(MappingFiles(tmp_path, devices)) == {"MIG-7": ["1"]}
    assert jobs(MappingFiles(tmp_path, devices, index_order="device")) == {"MIG-7": ["5"]}


def instance_id(number):
    return StaticAttribute("mig_gpu_instance_id", float(number), StaticOrigin.NVML)


def test_a_gpu_named_twice_has_each_job_once(tmp_path):
    earlier = write(tmp_path, "0", "5\n", age_s=90)
    write(tmp_path, "GPU-a", "5\n6\n", age_s=30)
    owners = files(tmp_path).owners(NOW)["GPU-a"]
    assert [(o.job_id, o.start_unix_nano) for o in owners] == [("5", earlier), ("6", NOW - 30 * SECOND)]


def test_a_job_that_joins_later_begins_later_and_one_that_leaves_is_gone(tmp_path):
    source = files(tmp_path)
    first = write(tmp_path, "0", "5\n", age_s=90)
    source.owners(NOW - 80 * SECOND)
    second = write(tmp_path, "0", "5\n6\n", age_s=10)
    owners = source.owners(NOW)["GPU-a"]
    assert [(o.job_id, o.start_unix_nano) for o in owners] == [("5", first), ("6", second)]
    write(tmp_path, "0", "6\n", age_s=5)
    assert jobs(source) == {"GPU-a": ["6"]}
    (tmp_path / "0").unlink()
    assert jobs(source) == {}


def test_a_line_that_is_still_being_written_waits_for_its_end(tmp_path):
    source = files(tmp_path)
    write(tmp_path, "0", "5\n47", age_s=0.1)
    assert jobs(source) == {"GPU-a": ["5"]}
    write(tmp_path, "0", "5\n4711\n", age_s=0.05)
    assert jobs(source) == {"GPU-a": ["5", "4711"]}


def test_a_file_without_a_last_end_of_line_counts_once_it_is_left_alone(tmp_path):
    source = files(tmp_path)
    write(tmp_path, "0", "4711", age_s=0.5)
    assert jobs(source) == {}
    assert jobs(source, NOW + 3 * SECOND) == {"GPU-a": ["4711"]}


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    source = files(tmp_path)
    write(tmp_path, "0", "5\n")
    assert jobs(source) == {"GPU-a": ["5"]}
    monkeypatch.setattr(os, "read", None)
    assert jobs(source) == {"GPU-a": ["5"]}


def test_rubbish_is_passed_over(tmp_path):
    write(tmp_path, "0", "\n; rm -rf /\n../../etc\n\x00\x01\n-5\n7\n" + "x" * 200 + "\n")
    (tmp_path / "1").write_bytes(bytes(range(256)) * 16 + b"\n8\n")
    write(tmp_path, "GPU-b", "9\n" * 20_000)
    write(tmp_path, "99", "1\n")
    write(tmp_path, "0.tmp", "1\n")
    write(tmp_path, "GPU-of-another-host", "1\n")
    (tmp_path / "2").mkdir()
    os.mkfifo(tmp_path / "MIG-1")
    (tmp_path / "secret").write_text("99\n")
    (tmp_path / "MIG-2").symlink_to(tmp_path / "secret")
    found = jobs(files(tmp_path))
    assert found["GPU-a"] == ["7"]
    assert set(found) <= {"GPU-a", "GPU-b"}
    assert "9" not in found.get("GPU-b", [])


def test_more_jobs_than_a_gpu_can_have_are_cut(tmp_path):
    write(tmp_path, "0", "".join(f"{i}\n" for i in range(1000)))
    assert len(jobs(files(tmp_path))["GPU-a"]) == 64


def test_an_empty_file_and_a_folder_that_is_not_there_name_nobody(tmp_path):
    write(tmp_path, "0", "")
    assert jobs(files(tmp_path)) == {}
    assert jobs(files(tmp_path / "not" / "yet")) == {}


def test_a_folder_that_cannot_be_listed_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="must be able to list it"):
        files(tmp_path / "file").owners(NOW)


def test_a_clock_that_is_behind_the_file_does_not_give_a_job_a_future(tmp_path):
    write(tmp_path, "0", "5\n", age_s=-3600)
    (owner,) = files(tmp_path).owners(NOW)["GPU-a"]
    assert owner.start_unix_nano == NOW
