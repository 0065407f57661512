"""Thousands of strangers who connect to a collector and say nothing: it lives, and those who have a name are served.

The first test runs for as many seconds as ``GPUSONDE_IDLE_SECONDS`` says (15) and prints what it saw:
``GPUSONDE_IDLE_SECONDS=300 python -m pytest -s tests/faults/test_idle_connections.py -k alive``
"""

import contextlib
import os
import socket
import ssl
import statistics
import time
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import Authority, tls_settings
from support.idle_connections import IdleConnections, allow_many_files
from support.running_collector import ProcessCollector
from support.wire_agent import WireStream, batch, hello, inventory, wait_until

from gpusonde.collector.client import Client, CollectorError
from gpusonde.service.tls import ClientSecurity

# Longer than the collector's limit of a handshake, 10 s, at which gRPC used to end it.
SECONDS = float(os.environ.get("GPUSONDE_IDLE_SECONDS", "15"))
# In the suite other tests take the processor at the same time.
LONGEST_WAIT_S = 1.0 if "GPUSONDE_IDLE_SECONDS" in os.environ else 3.0
IDLE = 2000


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


@pytest.fixture(autouse=True)
def _many_files():
    if allow_many_files() < 2 * IDLE:
        pytest.skip("the hard limit of open files is too low for thousands of connections")


def client(authority, role, name):
    certificate, key = authority.client(role, name)
    return ClientSecurity(str(authority.ca), str(certificate), str(key))


def greet(collector, security):
    """Connect anew as one more agent; return the seconds until its greeting was answered."""
    began_s = time.monotonic()
    with WireStream(collector.target, hello("agent-1"), security=security) as stream:
        stream.greet()
        return time.monotonic() - began_s


def is_answered(collector, security):
    """Ask anew, and return whether there was an answer: one who asks does not wait for a connection."""
    with contextlib.suppress(CollectorError), Client(collector.target, security=security) as reader:
        return reader.list_runs() == []


def used(pid):
    """Return CPU seconds, resident MiB and open files of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.timeout(SECONDS + 240)
def test_a_collector_stays_alive_and_greets_agents_while_two_thousand_strangers_hold_idle_connections(
    tmp_path, authority
):
    with ProcessCollector(tmp_path / "data", **tls_settings(authority)) as collector:
        good = client(authority, "agent", "agent-0")
        new = client(authority, "agent", "agent-1")
        with (
            WireStream(collector.target, hello("agent-0"), timeout_s=SECONDS + 120, security=good) as steady,
            IdleConnections(collector.target, IDLE) as idle,
        ):
            steady.greet()
            steady.send(inventory()).wait_acked(1)
            wait_until(lambda: idle.open >= IDLE, 120, "idle connections")
            began_s, (cpu_s, _, _) = time.monotonic(), used(collector.pid)
            greetings_s, acks_s, resident_mib, sequence = [], [], [], 1
            while time.monotonic() - began_s < SECONDS:
                greetings_s.append(greet(collector, new))
                sent_s, sequence = time.monotonic(), sequence + 1
                steady.send(batch(sequence)).wait_acked(sequence)
                acks_s.append(time.monotonic() - sent_s)
                resident_mib.append(used(collector.pid)[1])
                time.sleep(0.2)
            cpu_s, files = used(collector.pid)[0] - cpu_s, used(collector.pid)[2]
            print(
                f"\n{IDLE} idle connections for {time.monotonic() - began_s:.0f} s, {idle.opened} opened in all; "
                f"{len(greetings_s)} agents greeted in {statistics.median(greetings_s):.3f} s (median) to "
                f"{max(greetings_s):.3f} s, records acknowledged in {statistics.median(acks_s):.3f} to "
                f"{max(acks_s):.3f} s; collector: {100 * cpu_s / (time.monotonic() - began_s):.1f} % of a core, "
                f"{resident_mib[0]:.0f} to {max(resident_mib):.0f} MiB, {files} files open"
            )
        assert max(greetings_s + acks_s) < LONGEST_WAIT_S
        assert collector.terminate() == 0


def test_strangers_who_take_all_connections_lose_some_and_agents_and_readers_of_other_addresses_get_in(
    tmp_path, authority
):
    # There is room for 768 connections, and the store keeps the rest of the files.
    with (
        ProcessCollector(tmp_path / "data", open_files=1024, **tls_settings(authority)) as collector,
        WireStream(collector.target, hello("agent-0"), security=client(authority, "agent", "agent-0")) as steady,
    ):
        steady.greet()
        with IdleConnections(collector.target, 1100, source="127.0.0.2", pause_s=1.0) as idle:
            wait_until(lambda: idle.opened >= 1100, 120, "idle connections")
            new = client(authority, "agent", "agent-1")
            greetings_s = [greet(collector, new) for _ in range(5)]
            reader = client(authority, "reader", "r")
            wait_until(lambda: is_answered(collector, reader), 120, "an answer to a question")
            steady.send(inventory()).wait_acked(1)
        assert collector.terminate() == 0
    assert statistics.median(greetings_s) < 5.0
    log = collector.log_path.read_text()
    assert "of 127.0.0.2: there is room for 768 connections (ingest.max_agents, LimitNOFILE of the unit)" in log


def shown_serial(collector, security):
    """Return the serial number of the certificate that a new handshake is shown."""
    context = ssl.create_default_context(cafile=security.ca)
    context.load_cert_chain(security.certificate, security.key)
    context.set_alpn_protocols(["h2"])
    host, _, port = collector.target.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as channel,
        context.wrap_socket(channel, server_hostname=host) as tls,
    ):
        return int(tls.getpeercert()["serialNumber"], 16)


def test_certificates_renewed_while_strangers_hold_idle_connections_are_used_by_the_next_handshake(tmp_path, authority):
    """For longer than a handshake may take: those that began with an earlier certificate end meanwhile."""
    with ProcessCollector(tmp_path / "data", **tls_settings(authority)) as collector:
        good = client(authority, "agent", "agent-0")
        new = client(authority, "agent", "agent-1")
        with (
            WireStream(collector.target, hello("agent-0"), security=good) as steady,
            IdleConnections(collector.target, 500),
        ):
            steady.greet()
            steady.send(inventory()).wait_acked(1)
            renewed, sequence, began_s = 0, 1, time.monotonic()
            while time.monotonic() - began_s < 13.0 or renewed < 5:
                certificate, _ = authority.server()
                serial = x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number
                wait_until(lambda serial=serial: shown_serial(collector, good) == serial, 120, "renewal")
                renewed, sequence = renewed + 1, sequence + 1
                assert greet(collector, new) < LONGEST_WAIT_S
                steady.send(batch(sequence)).wait_acked(sequence)
        assert collector.terminate() == 0
    assert collector.log_path.read_text().count("the server's certificate was read again") == renewed
