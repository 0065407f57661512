"""Stand-ins for NVIDIA's libraries, compiled once per session."""

import pytest
from support.dcgm_agent_host import DcgmHost, forget_bindings
from support.fake_dcgm.engine import FakeEngine
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


@pytest.fixture
def dcgm_host():
    yield DcgmHost(FakeEngine())
    forget_bindings()


@pytest.fixture(params=[3, 4])
def dcgm_host_of_each_version(request):
    yield DcgmHost(FakeEngine(version=request.param))
    forget_bindings()
