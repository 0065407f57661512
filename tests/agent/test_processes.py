"""Which processes compute on which GPU: the stand-in for libnvidia-ml, MIG instances, refusals."""

import pytest

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.sources.nvml.gpu import NvmlProcesses
from gpusonde.agent.sources.select import make_process_reader


@pytest.fixture
def reader(fake_nvml):
    reader = NvmlProcesses(fake_nvml.loader())
    yield reader
    reader.close()


def test_processes_are_told_by_gpu_and_an_idle_gpu_has_none(reader, fake_nvml):
    fake_nvml.add_process(4711, 0)
    fake_nvml.add_process(17, 0)
    assert reader.compute_processes() == {fake_nvml.uuid(0): (17, 4711), fake_nvml.uuid(1): ()}


def test_the_instances_of_a_split_gpu_are_told_instead_of_it(reader, fake_nvml):
    first, third = fake_nvml.set_mig(1, 0, 3, 2), fake_nvml.set_mig(1, 2, 1, 9)
    fake_nvml.add_process(5, 1, 2)
    assert reader.compute_processes() == {fake_nvml.uuid(0): (), first: (), third: (5,)}


def test_a_gpu_whose_processes_may_not_be_seen_is_absent(reader, fake_nvml):
    fake_nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", 4, gpu=0)
    assert reader.compute_processes() == {fake_nvml.uuid(1): ()}


def test_a_driver_that_goes_away_and_returns_is_asked_again(reader, fake_nvml):
    assert reader.compute_processes()
    fake_nvml.fail("*", 9)
    assert reader.compute_processes() == {}
    fake_nvml.heal()
    assert set(reader.compute_processes()) == {fake_nvml.uuid(0), fake_nvml.uuid(1)}


def test_closing_gives_the_library_back(reader, fake_nvml):
    before = fake_nvml.library.fake_initialized()
    reader.compute_processes()
    reader.close()
    reader.close()
    assert fake_nvml.library.fake_initialized() == before


def test_a_replay_has_no_processes_here():
    assert make_process_reader(SourceConfig(kind="replay", trace="x.csv")) is None
    assert isinstance(make_process_reader(SourceConfig()), NvmlProcesses)
