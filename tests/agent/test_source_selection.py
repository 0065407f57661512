"""``auto``: DCGM, then NVML with or without GPM, and why one was not taken."""

import logging

import pytest
from support.dcgm_agent_host import BINDINGS, no_nvml

from gpusonde.agent import make_source
from gpusonde.agent.config import SourceConfig
from gpusonde.agent.sources.dcgm.source import DcgmSource
from gpusonde.agent.sources.nvml.source import NvmlSource
from gpusonde.agent.sources.select import AutoSource
from gpusonde.errors import SourceUnavailableError


def live(fake):
    return fake.library.fake_initialized()


def test_dcgm_is_preferred(dcgm_host, fake_nvml):
    source = AutoSource([dcgm_host.source(), fake_nvml.source()])
    assert source.name == "auto"
    inventory = dcgm_host.open(source)
    assert (inventory.source, source.name) == ("dcgm", "dcgm")
    dcgm_host.run(source, 1.0)
    source.close()
    assert dcgm_host.column("sm_active")[-1] > 0
    assert (dcgm_host.engine.connections, live(fake_nvml)) == ([], 0)


def test_without_an_engine_gpm_is_taken_and_the_reason_logged(dcgm_host, fake_nvml, caplog):
    dcgm_host.engine.remote = dcgm_host.engine.embeddable = False
    source = AutoSource([dcgm_host.source(), fake_nvml.source()])
    with caplog.at_level(logging.INFO, logger="gpusonde"):
        assert source.open().source == "gpm"
    source.close()
    assert "source dcgm is not used: no DCGM engine" in caplog.text
    assert "source nvml is used" in caplog.text


def test_an_engine_that_may_not_profile_gives_way_to_gpm(dcgm_host, fake_nvml, caplog):
    dcgm_host.engine.refused = {"profiling watch": -33}
    source = AutoSource([dcgm_host.source(), fake_nvml.source()])
    with caplog.at_level(logging.INFO, logger="gpusonde"):
        assert source.open().source == "gpm"
    assert dcgm_host.engine.connections == []
    assert "source dcgm gives no profiling metrics" in caplog.text
    assert "profiling module is not loaded" in caplog.text
    source.close()


def test_without_any_profiling_the_first_source_that_opened_is_kept(dcgm_host, fake_nvml):
    dcgm_host.engine.refused = {"profiling watch": -33}
    fake_nvml.reset(2, gpm=False)
    source = AutoSource([dcgm_host.source(), fake_nvml.source()])
    assert source.open().source == "dcgm"
    assert live(fake_nvml) == 0
    source.close()


def test_a_fault_in_one_source_does_not_leave_another_one_open(dcgm_host):
    def broken():
        raise ZeroDivisionError

    dcgm_host.engine.refused = {"profiling watch": -33}
    source = AutoSource([dcgm_host.source(), NvmlSource(load=broken)])
    with pytest.raises(ZeroDivisionError):
        source.open()
    assert dcgm_host.engine.connections == []


def test_when_nothing_opens_the_error_tells_what_each_source_lacks(dcgm_host):
    dcgm_host.engine.library = False
    source = AutoSource([dcgm_host.source(), NvmlSource(load=no_nvml)])
    with pytest.raises(SourceUnavailableError) as caught:
        source.open()
    assert "dcgm: the Python bindings of DCGM were not found" in str(caught.value)
    assert "nvml: no NVML in this test" in str(caught.value)
    source.close()


def test_the_configuration_names_the_source(dcgm_host):
    assert isinstance(make_source(SourceConfig()), AutoSource)
    assert isinstance(make_source(SourceConfig(kind="nvml")), NvmlSource)
    dcgm_host.engine.embeddable = False
    config = SourceConfig(
        kind="dcgm", dcgm_bindings=str(BINDINGS), dcgm_address="unix:///run/dcgm.sock", interval_s=0.2
    )
    source = make_source(config)
    assert isinstance(source, DcgmSource)
    dcgm_host.engine.remote = False
    with pytest.raises(SourceUnavailableError, match=r"unix:///run/dcgm\.sock"):
        source.open()
