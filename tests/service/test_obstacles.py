"""What keeps a client from a collector, found at real servers: gRPC's with and without TLS, HTTP's, and none."""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from support.certificates import Authority
from support.own_port import own_port

from gpusonde.collector.client import Client
from gpusonde.errors import CollectorError
from gpusonde.service.tls import ClientSecurity, find_obstacle


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@contextlib.contextmanager
def grpc_server(certificate=None, client_ca=None):
    """A server of gRPC without services; its target."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    if certificate:
        pem, key = (path.read_bytes() for path in certificate)
        roots = client_ca.read_bytes() if client_ca else None
        credentials = grpc.ssl_server_credentials([(key, pem)], roots, require_client_auth=roots is not None)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def kind_and_words(target, security=None, **more):
    obstacle = find_obstacle(target, security or ClientSecurity(), 10.0, **more)
    return (obstacle.kind, obstacle.words) if obstacle else None


def refusal(target, security=None):
    with Client(target, timeout_s=20, security=security) as client, pytest.raises(CollectorError) as refused:
        client.list_runs()
    return str(refused.value)


def test_nothing_is_in_the_way_of_a_server_that_is_as_the_client_thinks(authority):
    certificate = authority.server()
    with grpc_server() as plain, grpc_server(certificate) as encrypted:
        assert kind_and_words(plain) is None
        assert kind_and_words(encrypted, ClientSecurity(ca=str(authority.ca))) is None
        assert kind_and_words(encrypted, ClientSecurity(ca=str(authority.ca), server_name="LOCALHOST")) is None


def test_a_server_without_tls_is_asked_without_what_tls_takes_of_memory(monkeypatch):
    def context():
        raise AssertionError("a context of TLS was made")

    monkeypatch.setattr("gpusonde.service.tls.obstacles._context", context)
    with grpc_server() as plain:
        assert kind_and_words(plain) is None


def test_nobody_and_unknown_hosts_are_told_apart():
    assert kind_and_words(f"127.0.0.1:{own_port()}") == ("nobody", "nothing listens there")
    assert kind_and_words("no-such-host.invalid:7433") == ("host", "the host's name is not known here")


def test_one_that_never_answers_is_silent_to_a_client_with_tls_and_unexplained_without(authority):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        target = f"127.0.0.1:{deaf.getsockname()[1]}"
        assert find_obstacle(target, ClientSecurity(ca=str(authority.ca)), 0.2).kind == "silent"
        assert find_obstacle(target, ClientSecurity(), 0.2) is None


def test_one_that_drips_bytes_is_not_listened_to_for_ever(authority):
    done = threading.Event()

    def drip(connection):
        with connection, contextlib.suppress(OSError):
            while not done.wait(0.05):
                connection.sendall(b"x")

    def serve(server):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as dripping:
        threading.Thread(target=serve, args=(dripping,), daemon=True).start()
        target = f"127.0.0.1:{dripping.getsockname()[1]}"
        try:
            # Without a bound in all, 64 KiB at this pace would take an hour.
            assert find_obstacle(target, ClientSecurity(), 0.3) is None
        finally:
            done.set()


@pytest.mark.parametrize("host", [".", "a" * 70, "gpu..example"])
def test_a_host_that_can_be_no_name_is_told_as_that(authority, host):
    for security in (ClientSecurity(), ClientSecurity(ca=str(authority.ca))):
        assert kind_and_words(f"{host}:7433", security) == ("host", "the host's name is not known here")


def test_a_server_with_tls_and_one_without_are_told_to_the_client_of_the_other(authority):
    with grpc_server(authority.server()) as encrypted:
        assert kind_and_words(encrypted) == ("encrypted", "it speaks TLS")
        assert "it speaks TLS; give --tls-ca" in refusal(encrypted)
    with grpc_server() as plain:
        security = ClientSecurity(ca=str(authority.ca))
        assert kind_and_words(plain, security) == ("plain", "it does not speak TLS")
        assert "it does not speak TLS; leave --tls-ca out" in refusal(plain, security)


def test_a_web_server_is_told_with_and_without_tls_asked_for(authority):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = f"127.0.0.1:{server.server_port}"
        for security in (ClientSecurity(), ClientSecurity(ca=str(authority.ca))):
            assert kind_and_words(target, security) == ("http", "an HTTP server listens there, and no gRPC")
        assert "give the port of server.listen (7433)" in refusal(target)
        server.shutdown()


def test_a_certificate_of_another_authority_of_other_names_or_too_old_is_told_as_that(authority, tmp_path):
    other = Authority(tmp_path / "other")
    security = ClientSecurity(ca=str(authority.ca))
    with grpc_server(other.server()) as stranger:
        kind, words = kind_and_words(stranger, security)
        assert (kind, words.startswith(f"its certificate is of no authority in {authority.ca}")) == ("authority", True)
        assert "give with --tls-ca the authority that its certificate comes from" in refusal(stranger, security)
    with grpc_server(authority.server(hosts=("gpu-collector.example", "*.rack.example", "10.0.0.7"))) as renamed:
        words = "its certificate is for gpu-collector.example, *.rack.example, 10.0.0.7, not for 127.0.0.1"
        assert kind_and_words(renamed, security) == ("name", words)
        assert f"{words}; ask for it by one of these names, or set GPUSONDE_TLS_SERVER_NAME" in refusal(
            renamed, security
        )
        for name in ("a.rack.example", "GPU-COLLECTOR.example"):
            assert kind_and_words(renamed, ClientSecurity(ca=str(authority.ca), server_name=name)) is None
        below = ClientSecurity(ca=str(authority.ca), server_name="b.a.rack.example")
        assert kind_and_words(renamed, below)[0] == "name"
    with grpc_server(authority.server(valid_s=-3600.0)) as old:
        assert kind_and_words(old, security) == ("expired", "its certificate has expired by the clock of this host")


def test_a_client_without_the_certificate_that_is_wanted_is_told_so(authority):
    with grpc_server(authority.server(), client_ca=authority.ca) as choosy:
        security = ClientSecurity(ca=str(authority.ca))
        assert kind_and_words(choosy, security)[0] == "stranger"
        pem, key = authority.client("reader", "me")
        known = ClientSecurity(ca=str(authority.ca), certificate=str(pem), key=str(key))
        assert kind_and_words(choosy, known) is None


def test_only_grpcs_own_variable_puts_a_proxy_between_and_it_is_named_without_its_password():
    there = {"grpc_proxy": "http://me:secret@proxy.example:3128"}
    kind, words = kind_and_words("collector.example:7433", environment=there)
    assert (kind, "proxy.example:3128" in words, "secret" in words) == ("proxy", True, False)
    options = ClientSecurity().load("collector.example:7433", there).options
    assert dict(options)["grpc.enable_http_proxy"] == 1
    for environment in ({"http_proxy": "http://proxy.example:3128", "https_proxy": "http://proxy.example:3128"}, {}):
        assert dict(ClientSecurity().load("collector.example:7433", environment).options)["grpc.enable_http_proxy"] == 0
    assert dict(ClientSecurity().load("127.0.0.1:7433", there).options)["grpc.enable_http_proxy"] == 0


def test_a_command_prints_one_line_and_none_of_grpcs(authority, tmp_path):
    other = Authority(tmp_path / "other")
    with grpc_server(other.server()) as stranger:
        command = [sys.executable, "-m", "gpusonde.cli", "runs", "--collector", stranger, "--tls-ca", str(authority.ca)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "its certificate is of no authority in" in done.stderr
