"""Which connections are ended when there are too many: those without a call, of addresses that hold the most."""

import contextlib
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from support.running_collector import ThreadCollector
from support.wire_agent import WireStream, hello, inventory

from gpusonde.collector import server
from gpusonde.collector.security.connections import Connections, address_of


@contextlib.contextmanager
def listener():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server, contextlib.ExitStack() as stack:

        def connect(source):
            client = stack.enter_context(socket.create_connection(server.getsockname(), 60, (source, 0)))
            stack.enter_context(server.accept()[0])
            return client

        yield server.getsockname()[1], connect


def is_open(client):
    client.setblocking(False)
    try:
        return bool(client.recv(1))
    except BlockingIOError:
        return True


def peer_of(client):
    return "ipv4:{}:{}".format(*client.getsockname())


def test_the_oldest_connections_of_the_address_with_most_of_them_are_ended_and_none_with_a_call(caplog):
    refused = Counter()
    connections = Connections(refused)
    with listener() as (port, connect):
        connections.watch(port, 8)  # seven may be taken
        few = [connect("127.0.0.2") for _ in range(2)]
        old = [connect("127.0.0.3") for _ in range(5)]
        with connections.call(peer_of(old[0])):
            connections.make_room()
            assert all(map(is_open, few + old))
            new = [connect("127.0.0.3") for _ in range(3)]
            connections.make_room()
            assert [is_open(client) for client in old].count(False) == 3
            assert all(map(is_open, [*few, *new, old[0]]))
    assert refused == {"idle_connections": 3}
    assert "3 connections without a call were ended, 3 of them of 127.0.0.3: there is room for 8" in caplog.text


def test_connections_are_left_alone_while_there_is_room_and_on_other_ports():
    refused = Counter()
    connections = Connections(refused)
    with listener() as (port, connect), listener() as (_, connect_elsewhere):
        clients = [connect("127.0.0.1") for _ in range(3)] + [connect_elsewhere("127.0.0.1") for _ in range(20)]
        connections.watch(port, 4)
        connections.make_room()
        assert all(map(is_open, clients))
    assert not refused["idle_connections"]


@pytest.mark.parametrize(
    ("listen", "connect"), [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]"), ("[::]:0", "127.0.0.1")]
)
def test_the_connection_of_a_call_is_known_by_grpcs_word_for_its_other_end(listen, connect):
    connections = Connections(Counter())

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            def answer(request, context):
                with connections.call(context.peer()) if details.method == "/a/b" else contextlib.nullcontext():
                    connections.make_room()
                return context.peer().encode()

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Handler()])
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError:
        pytest.skip(f"this host has no {listen}")
    server.start()
    connections.watch(port, 0)
    with grpc.insecure_channel(f"{connect}:{port}", [("grpc.enable_retries", 0)]) as channel:
        assert channel.unary_unary("/a/b")(b"", timeout=200)
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary("/a/c")(b"", timeout=200)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    server.stop(0).wait()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:5", "10.0.0.1"), ("ipv6:%5B2001:db8::1:2%5D:5", "2001:db8::/64"), ("unix:", "unix:"),
        ("ipv6:%5Bfe80::1%252%5D:5", "fe80::/64"), ("something", "something"),
    ],
)  # fmt: skip
def test_an_address_is_a_host_or_its_ipv6_network(peer, address):
    assert address_of(peer) == address


def test_connections_end_that_do_not_speak_in_time_or_have_no_call_and_streams_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_HANDSHAKE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(server, "_IDLE_TIMEOUT_S", 1.0)
    with ThreadCollector(tmp_path / "data") as collector, WireStream(collector.target, hello()) as stream:
        stream.greet()
        host, _, port = collector.target.rpartition(":")
        preface, settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(3) + b"\x04" + bytes(5)
        for words in (b"", preface[:10], preface, preface + settings):
            with socket.create_connection((host, int(port)), 20) as channel:
                channel.sendall(words)
                while channel.recv(65536):
                    pass
        stream.send(inventory()).wait_acked(1)
