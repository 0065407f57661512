"""Stand-ins for NVIDIA's libraries, compiled once per session."""

import pytest
from support.fake_nvidia import FakeNvml, compile_library


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory):
    return FakeNvml(compile_library("fake_nvml", "libnvidia-ml.so.1", tmp_path_factory.mktemp("nvml")))


@pytest.fixture
def fake_nvml(fake_nvml_library):
    fake_nvml_library.reset()
    return fake_nvml_library


@pytest.fixture(scope="session")
def fake_cuda_path(tmp_path_factory):
    return compile_library("fake_cuda", "libcuda.so.1", tmp_path_factory.mktemp("cuda"))
