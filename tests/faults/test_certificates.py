"""Certificates that expire and are renewed on disk while a real collector and a real uplink run: nothing is lost."""

import time

import pytest
from support.certificates import Authority, tls_settings
from support.running_collector import ProcessCollector
from support.uplink_rig import SteadyRig, assert_every_record_once

from gpusonde.service.tls import ClientSecurity

QUICK_LOOKS = {"renewal_check_s": 0.1, "hello_timeout_s": 5.0}


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


@pytest.fixture
def rig(tmp_path):
    rig = SteadyRig(tmp_path / "spool")
    yield rig
    rig.spool.close()


def agent_files(authority, valid_s=86_400.0):
    certificate, key = authority.client("agent", "agent-1", valid_s=valid_s)
    return ClientSecurity(str(authority.ca), str(certificate), str(key))


def test_an_agent_whose_certificate_expired_goes_on_when_its_file_is_renewed(tmp_path, authority, rig, caplog):
    renewed = []
    valid_s, late = [3.0], [0]

    def drive():
        rig.grow_a_little()
        failures = rig.counters.connection_failures
        refused = failures.get("UNAVAILABLE", 0) - late[0]
        if refused and "UNAUTHENTICATED" not in failures:
            # A busy machine: the date passed before there was a stream, or a write that met its end hid the reason.
            valid_s[0], late[0] = 2 * valid_s[0], late[0] + refused
            agent_files(authority, valid_s[0])
        # The open stream ends when the date passes, then no new one comes into being, then its file is a new one.
        elif not renewed and refused and rig.counters.unacked_records > 20:
            renewed.append(agent_files(authority))

    with ProcessCollector(tmp_path / "data", **tls_settings(authority)) as collector:
        security = agent_files(authority, valid_s[0])
        rig.run(
            collector.target, until=lambda: renewed and rig.counters.unacked_records == 0, during=drive,
            security=security, **QUICK_LOOKS,
        )  # fmt: skip
        assert collector.terminate() == 0
    assert rig.counters.connection_failures["UNAUTHENTICATED"] == 1
    assert rig.counters.sessions == 2 + rig.counters.connection_failures.get("INTERNAL", 0)
    assert "the certificate has expired" in caplog.text
    assert_every_record_once(tmp_path / "data", rig.spool.last_sequence)


def test_a_collector_whose_certificate_expired_is_used_again_when_its_file_is_renewed(tmp_path, authority, rig):
    stages = iter(("expired", "left", "renewed"))
    stage = ["good", 0.0]

    def enter():
        stage[:] = next(stages), time.monotonic()

    def drive():
        rig.grow_a_little()
        name, since_s = stage
        if name == "good" and rig.counters.acked_sequence >= 5:
            authority.server(valid_s=-60.0)
            enter()
        elif name == "expired" and time.monotonic() - since_s > 1.1:  # its files are looked at once a second at most
            agent_files(authority)  # makes the agent leave the connection that was opened while all was well
            enter()
        elif name == "left" and "UNAVAILABLE" in rig.counters.connection_failures and rig.counters.unacked_records > 20:
            authority.server()
            enter()

    with ProcessCollector(tmp_path / "data", **tls_settings(authority)) as collector:
        rig.run(
            collector.target, until=lambda: stage[0] == "renewed" and rig.counters.unacked_records == 0, during=drive,
            security=agent_files(authority), **QUICK_LOOKS,
        )  # fmt: skip
        assert collector.terminate() == 0
    assert rig.counters.sessions == 2
    assert_every_record_once(tmp_path / "data", rig.spool.last_sequence)


def test_certificates_renewed_in_time_cost_one_orderly_session_and_no_failure(tmp_path, authority, rig):
    renewed = []

    def drive():
        rig.grow_a_little()
        if not renewed and rig.counters.acked_sequence >= 10:
            authority.server()
            renewed.append(agent_files(authority))

    with ProcessCollector(tmp_path / "data", **tls_settings(authority)) as collector:
        rig.run(
            collector.target, until=lambda: rig.counters.sessions == 2 and rig.counters.unacked_records == 0,
            during=drive, security=agent_files(authority), **QUICK_LOOKS,
        )  # fmt: skip
        assert collector.terminate() == 0
    assert rig.counters.connection_failures == {}
    assert_every_record_once(tmp_path / "data", rig.spool.last_sequence)
