"""Names of GPUs: indices, device files, UUIDs and what device plugins make of them."""

from gpusonde.agent.jobs.sources import DeviceNames, read_minors
from gpusonde.agent.sources.base import GpuDescription

GPUS = [GpuDescription("GPU-a", 0), GpuDescription("GPU-b", 1), GpuDescription("GPU-c", 2, mig_uuid="MIG-1")]


def test_a_device_plugin_names_gpus_by_uuid_replica_and_device_file():
    devices = DeviceNames(GPUS, {0: "GPU-b", 7: "GPU-of-nobody"})
    names = ["GPU-a", "GPU-a::3", "MIG-1", "nvidia0", "nvidia7", "nvidia1", "GPU-c", "gpu-a", ""]
    assert [devices.by_plugin_id(name) for name in names] == [
        "GPU-a", "GPU-a", "MIG-1", "GPU-b", None, None, None, None, None,
    ]  # fmt: skip


def test_a_split_gpu_has_no_index_of_its_own():
    devices = DeviceNames(GPUS, {2: "GPU-c"})
    assert (devices.by_index(0), devices.by_index(2), devices.by_device_file(2)) == ("GPU-a", None, None)


def test_a_replayed_gpu_is_nobodys():
    assert DeviceNames([GpuDescription("GPU-a", 0, replayed=True)], {0: "GPU-a"}).keys == frozenset()


def test_a_new_inventory_replaces_the_names():
    devices = DeviceNames(GPUS, {0: "GPU-b"})
    devices.take([GpuDescription("GPU-d", 0)])
    assert (devices.keys, devices.by_index(0), devices.by_device_file(0)) == ({"GPU-d"}, "GPU-d", None)


def test_the_kernel_module_tells_the_device_files(tmp_path):
    for name, text in {
        "0000:17:00.0": "Model: \t NVIDIA H100\nGPU UUID: \t GPU-b\nDevice Minor: \t 0\n",
        "0000:ca:00.0": "Model: \t NVIDIA H100\nGPU UUID: \t GPU-a\nDevice Minor: \t 3\n",
        "0000:cb:00.0": "Model: \t half written",
    }.items():
        (tmp_path / "gpus" / name).mkdir(parents=True)
        (tmp_path / "gpus" / name / "information").write_text(text)
    (tmp_path / "gpus" / "empty").mkdir()
    assert read_minors(tmp_path) == {0: "GPU-b", 3: "GPU-a"}
    assert read_minors(tmp_path / "nowhere") == {}
