"""``auto``: NVML where it has GPM, else DCGM; why one was not taken, and which follows one that fails."""

import logging

import pytest
from support.dcgm_agent_host import BINDINGS, no_nvml

from gpusonde.agent import make_source
from gpusonde.agent.config import SourceConfig
from gpusonde.agent.sources.base import GpuEventKind
from gpusonde.agent.sources.dcgm.source import DcgmSource
from gpusonde.agent.sources.nvml.source import NvmlSource
from gpusonde.agent.sources.select import AutoSource
from gpusonde.errors import SourceError, SourceUnavailableError


def live(fake):
    return fake.library.fake_initialized()


def auto(host, fake, **options):
    return AutoSource([fake.source(), host.source(**options)])


def test_gpm_is_preferred_to_dcgm_which_gives_no_more_and_costs_more(dcgm_host, fake_nvml, monkeypatch):
    monkeypatch.setattr("gpusonde.agent.sources.select.make_nvml", lambda config: fake_nvml.source())
    source = make_source(SourceConfig(dcgm_bindings=str(BINDINGS)))
    assert source.name == "auto"
    assert source.open().source == "gpm"
    assert dcgm_host.engine.calls == []
    source.close()
    assert live(fake_nvml) == 0


def test_dcgm_is_taken_where_nvml_has_no_gpm(dcgm_host, fake_nvml, caplog):
    fake_nvml.reset(2, gpm=False)
    source = auto(dcgm_host, fake_nvml)
    with caplog.at_level(logging.INFO, logger="gpusonde"):
        inventory = dcgm_host.open(source)
    assert (inventory.source, source.name) == ("dcgm", "dcgm")
    assert "source nvml gives no profiling metrics" in caplog.text
    dcgm_host.run(source, 1.0)
    source.close()
    assert dcgm_host.column("sm_active")[-1] > 0
    assert (dcgm_host.engine.connections, live(fake_nvml)) == ([], 0)


def test_without_an_engine_the_reason_is_logged_and_nvml_is_kept(dcgm_host, fake_nvml, caplog):
    fake_nvml.reset(2, gpm=False)
    dcgm_host.engine.remote = dcgm_host.engine.embeddable = False
    source = auto(dcgm_host, fake_nvml)
    with caplog.at_level(logging.INFO, logger="gpusonde"):
        assert source.open().source == "nvml"
    source.close()
    assert "source dcgm is not used: no DCGM engine" in caplog.text
    assert "source nvml is used" in caplog.text


def test_without_any_profiling_the_first_source_that_opened_is_kept(dcgm_host, fake_nvml, caplog):
    dcgm_host.engine.refused = {"profiling watch": -33}
    fake_nvml.reset(2, gpm=False)
    source = auto(dcgm_host, fake_nvml)
    with caplog.at_level(logging.INFO, logger="gpusonde"):
        assert source.open().source == "nvml"
    assert dcgm_host.engine.connections == []
    assert "source dcgm gives no profiling metrics" in caplog.text
    assert "profiling module is not loaded" in caplog.text
    source.close()


@pytest.mark.parametrize("how", ["gone", "hangs", "refuses every connection"])
def test_an_engine_in_trouble_is_left_for_nvml_within_a_minute_and_gpus_keep_their_place(dcgm_host, fake_nvml, how):
    fake_nvml.reset(3, gpm=False)
    engine = dcgm_host.engine
    engine.gpus, engine.uuid = 2, lambda gpu: fake_nvml.uuid(2 - gpu)
    source = auto(dcgm_host, fake_nvml, patience_s=45.0, call_limit_s=0.2)
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    before, ticks = dcgm_host.keys(), len(dcgm_host.ticks[0])
    if how == "gone":
        engine.kill()
    elif how == "hangs":
        engine.hanging = {"dcgmEntitiesGetLatestValues", "dcgmConnect_v2"}
    else:
        # What a connection does after it was made; each one seems to be an end of the trouble.
        engine.refused = {"dcgmEntitiesGetLatestValues": -21}
    dcgm_host.run(source, 62.0)
    assert source.name == "nvml"
    dcgm_host.run(source, 1.0)
    engine.released.set()
    source.close()
    assert dcgm_host.keys() == [*before, fake_nvml.uuid(0)]
    assert len(dcgm_host.ticks[0]) > ticks
    last = {event.gpu: event.kind for event in dcgm_host.events}
    assert last == {0: GpuEventKind.RECOVERED, 1: GpuEventKind.RECOVERED}


def test_when_no_other_source_can_go_on_the_error_tells_of_both(dcgm_host):
    source = AutoSource([NvmlSource(load=no_nvml), dcgm_host.source(patience_s=20.0)])
    dcgm_host.open(source)
    dcgm_host.engine.kill()
    with pytest.raises(SourceError, match=r"(?s)given up after.*no NVML in this test"):
        dcgm_host.run(source, 40.0)
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
