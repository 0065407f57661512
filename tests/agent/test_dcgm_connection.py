"""DcgmSource: where bindings and engine are found, what they are given and what is given back."""

import pytest
from support.dcgm_agent_host import BINDINGS
from support.fake_dcgm.engine import XID_FIELD

from gpusonde.agent.sources.dcgm.bindings import load_bindings
from gpusonde.errors import SourceUnavailableError


def test_the_engine_keeps_little(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    (connection,) = dcgm_host.engine.connections
    fast = [w for w in connection.watches.values() if w.interval_s == pytest.approx(0.1)]
    assert {w.keep_s for w in fast} == {10.0}
    assert all(w.keep_s >= 2 * w.interval_s for w in connection.watches.values())
    assert max(w.keep_s for w in connection.watches.values() if w.fields != (XID_FIELD,)) <= 30.0
    source.close()


def test_a_remote_engine_is_preferred_to_an_embedded_one(dcgm_host):
    source = dcgm_host.source(dcgm_address="10.0.0.7:5555")
    dcgm_host.open(source)
    assert source.engine_address == "10.0.0.7:5555"
    source.close()
    dcgm_host.engine.remote = False
    source = dcgm_host.source()
    dcgm_host.open(source)
    assert source.engine_address == "embedded"
    source.close()


def test_without_any_engine_the_error_says_what_each_one_answered(dcgm_host):
    dcgm_host.engine.remote = dcgm_host.engine.embeddable = False
    with pytest.raises(SourceUnavailableError) as caught:
        dcgm_host.source().open()
    assert "127.0.0.1:5555" in str(caught.value)
    assert "systemctl start nvidia-dcgm" in str(caught.value)
    assert "embedded" in str(caught.value)
    with pytest.raises(SourceUnavailableError) as caught:
        dcgm_host.source(dcgm_embedded=False).open()
    assert "embedded" not in str(caught.value)


def test_an_engine_without_gpus_is_told_what_to_check(dcgm_host):
    dcgm_host.engine.gpus = 0
    with pytest.raises(SourceUnavailableError, match="dcgmi discovery -l"):
        dcgm_host.source().open()
    assert dcgm_host.engine.connections == []


def test_closing_gives_everything_back(dcgm_host):
    source = dcgm_host.source()
    source.close()
    dcgm_host.open(source)
    (connection,) = dcgm_host.engine.connections
    assert len(connection.watches) == 4
    source.close()
    source.close()
    assert (connection.watches, connection.groups, connection.field_groups) == ({}, {}, {})
    assert dcgm_host.engine.connections == []


def test_the_bindings_are_found_where_the_packages_put_them_and_each_refusal_is_told(dcgm_host, tmp_path):
    nowhere = tmp_path / "v4"
    found = load_bindings("", installed=(nowhere, BINDINGS))
    assert found.folder == str(BINDINGS)
    assert found.library_version == "4.4.2"


def test_missing_bindings_and_a_missing_library_are_told_apart(dcgm_host, tmp_path):
    with pytest.raises(SourceUnavailableError, match=r"no pydcgm\.py.*source\.dcgm_bindings"):
        load_bindings(str(tmp_path))
    dcgm_host.engine.library = False
    with pytest.raises(SourceUnavailableError, match=r"libdcgm of the same major version .*LD_LIBRARY_PATH"):
        load_bindings("", installed=(BINDINGS,))
    dcgm_host.engine.library = True
    assert load_bindings("", installed=(BINDINGS,)).folder == str(BINDINGS)


def test_bindings_that_are_too_old_are_refused(dcgm_host, monkeypatch):
    agent = load_bindings(str(BINDINGS)).agent
    monkeypatch.delattr(agent, "dcgmGetValuesSince_v2")
    with pytest.raises(SourceUnavailableError, match="older than DCGM 3"):
        load_bindings(str(BINDINGS))
