"""The endpoint of self metrics: what it answers, and that no client can hold it up."""

import collections
import contextlib
import errno
import http.client
import socket
import threading
import time

import pytest
from prometheus_client import CollectorRegistry
from support.own_port import own_port
from support.wire_agent import wait_until

from gpusonde.service import metrics
from gpusonde.service.metrics import Distribution
from gpusonde.service.metrics_endpoint import Endpoint, EndpointLimits, Monitoring, check_free, split_address


class Figures:
    """A collector whose figures a test sets."""

    def __init__(self):
        self.ticks = 3
        self.fault = None

    def collect(self):
        if self.fault:
            raise self.fault
        yield metrics.counter("test_ticks", "Ticks.", self.ticks)


class Rig:
    """An endpoint on a free port, and what it serves."""

    def __init__(self, **limits):
        self.figures = Figures()
        self.unhealthy = self.unready = None
        self.registry = CollectorRegistry()
        self.registry.register(self.figures)
        self.endpoint = Endpoint(
            self.registry, lambda: self.unhealthy, lambda: self.unready, EndpointLimits(**limits) if limits else None
        )
        self.address = self.endpoint.start("127.0.0.1:0")

    def get(self, path, method="GET"):
        connection = http.client.HTTPConnection(self.address, timeout=200)
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())

    def raw(self, data):
        """Send bytes and return everything that comes back until the end of the connection."""
        with self.connect() as channel:
            channel.sendall(data)
            return _read_all(channel)

    def connect(self):
        return socket.create_connection(split_address(self.address), timeout=200)


def _read_all(channel):
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := channel.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.fixture
def rig():
    made = Rig()
    yield made
    made.endpoint.stop()


def test_metrics_are_read_when_they_are_asked_for(rig):
    text = "# HELP test_ticks_total Ticks.\n# TYPE test_ticks_total counter\ntest_ticks_total {}\n"
    assert rig.get("/metrics")[:2] == (200, text.format("3.0"))
    rig.figures.ticks = 4
    status, body, headers = rig.get("/metrics?name=x")
    assert (status, body) == (200, text.format("4.0"))
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_checks_say_why_not(rig):
    assert rig.get("/-/healthy")[:2] == (200, "ok\n")
    rig.unready = "the disk is full"
    assert rig.get("/-/healthy")[:2] == (200, "ok\n")
    assert rig.get("/-/ready")[:2] == (503, "the disk is full\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /../metrics HTTP/1.1\r\n\r\n", b"404"),
        (b"GET  HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 10_000 + b"\r\n\r\n", b"431"),
        (b"x" * 100_000, b"431"),
    ],
)
def test_what_is_no_proper_question_is_refused(rig, request_bytes, status):
    assert rig.raw(request_bytes).split(b" ")[1] == status
    assert rig.get("/-/healthy")[0] == 200


def test_a_client_that_goes_away_in_its_request_leaves_nothing_behind(rig):
    with rig.connect() as channel:
        channel.sendall(b"GET /metr")
    assert rig.get("/metrics")[0] == 200


def test_a_fault_in_a_figure_is_logged_and_the_checks_go_on(rig, caplog):
    rig.figures.fault = ValueError("of the test")
    assert rig.get("/metrics")[0] == 500
    assert "could not be answered" in caplog.text
    assert rig.get("/-/ready")[0] == 200


def test_a_client_that_sends_too_slowly_is_turned_away():
    rig = Rig(request_s=0.2)
    with contextlib.closing(rig.connect()) as channel:
        channel.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert _read_all(channel).split(b" ")[1] == b"408"
    rig.endpoint.stop()


def test_a_client_that_does_not_take_its_answer_is_cut_off():
    rig = Rig(connections=1, answer_s=0.2)
    rig.unhealthy = "x" * (32 << 20)
    with contextlib.closing(rig.connect()) as channel:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        channel.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
        # The only connection is free again once the endpoint has given up, although this client keeps its own.
        wait_until(lambda: rig.get("/-/ready")[0] == 200, 120, "end of the slow client")
    rig.endpoint.stop()


def test_the_connection_whose_request_is_awaited_longest_makes_room_for_one_more():
    rig = Rig(connections=2, request_s=20.0)
    with contextlib.ExitStack() as stack:
        first, second = [stack.enter_context(contextlib.closing(rig.connect())) for _ in range(2)]
        for channel in (first, second):
            channel.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert rig.get("/-/ready")[0] == 200
        answer = _read_all(first)
        assert answer.split(b" ")[1] == b"503"
        assert b"more than 2 connections are open" in answer
        second.sendall(b"\r\n")
        assert _read_all(second).split(b" ")[1] == b"200"
    rig.endpoint.stop()


def test_one_connection_more_is_refused_while_all_are_being_answered():
    rig = Rig(connections=2, answer_s=20.0)
    rig.unhealthy = "x" * (32 << 20)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            channel = stack.enter_context(contextlib.closing(rig.connect()))
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            channel.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
            channel.recv(1)  # the answer has begun
        assert rig.raw(b"").split(b" ")[1] == b"503"
    rig.endpoint.stop()


def test_health_checks_are_answered_while_strangers_hold_hundreds_of_connections_and_trickle(rig):
    over, opened = threading.Event(), collections.Counter()

    def trickle():
        channels = []
        while not over.wait(0.02):
            with contextlib.suppress(OSError):
                channels.append(rig.connect())
                opened["all"] += 1
            for channel in channels[-100:]:
                with contextlib.suppress(OSError):
                    channel.send(b"x")
        for channel in channels:
            channel.close()

    strangers = [threading.Thread(target=trickle) for _ in range(3)]
    for stranger in strangers:
        stranger.start()
    try:
        wait_until(lambda: opened["all"] >= 50, 120, "connections of strangers")
        began_s = time.monotonic()
        # On a busy machine strangers are quicker than a health check now and then: those ask three times.
        answered = [any(rig.get("/-/healthy")[0] == 200 for _ in range(3)) for _ in range(100)]
    finally:
        over.set()
        for stranger in strangers:
            stranger.join(240)
    assert all(answered)
    # Each would wait for a stranger's five seconds.
    assert time.monotonic() - began_s < 120.0


def test_a_stopped_endpoint_can_be_started_again(rig):
    rig.endpoint.stop()
    before = rig.address = rig.endpoint.start(f"127.0.0.1:{own_port()}")
    rig.endpoint.stop()
    with pytest.raises(ConnectionRefusedError):
        rig.connect()
    assert rig.endpoint.start(before) == before
    assert rig.get("/-/ready")[0] == 200


def test_an_endpoint_that_stops_leaves_no_client_waiting(rig):
    with rig.connect() as silent, rig.connect() as halfway:
        halfway.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert rig.get("/-/healthy")[0] == 200  # both of the others are being served by now
        begun_s = time.monotonic()
        rig.endpoint.stop()
        assert (_read_all(silent), _read_all(halfway)) == (b"", b"")
        assert time.monotonic() - begun_s < 45.0


def test_every_client_of_an_endpoint_that_comes_and_goes_has_its_answer_or_an_end(rig):
    answers, over = collections.Counter(), threading.Event()

    def ask():
        while not over.is_set():
            begun_s = time.monotonic()
            try:
                answers[rig.raw(b"GET /metrics HTTP/1.1\r\n\r\n")[:12] or b"end"] += 1
            except OSError as error:
                answers["refused" if not isinstance(error, TimeoutError) else "left waiting"] += 1
            if time.monotonic() - begun_s > 30.0:
                answers["left waiting"] += 1

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        for _ in range(50):
            rig.endpoint.stop()
            rig.address = rig.endpoint.start("127.0.0.1:0")
            wait_until(lambda before=answers[b"HTTP/1.1 200"]: answers[b"HTTP/1.1 200"] > before)
    finally:
        over.set()
        for client in clients:
            client.join(240)
    assert "left waiting" not in answers


def test_a_distribution_counts_by_upper_bound():
    seconds = Distribution((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        seconds.observe(value)
    assert seconds.cumulative() == [(0.1, 2), (1.0, 3), (float("inf"), 4)]
    registry = CollectorRegistry()

    class One:
        def collect(self):
            yield metrics.histogram("test_seconds", "Time.", seconds)

    registry.register(One())
    assert registry.get_sample_value("test_seconds_bucket", {"le": "1.0"}) == 3
    assert registry.get_sample_value("test_seconds_bucket", {"le": "+Inf"}) == 4
    assert registry.get_sample_value("test_seconds_count") == 4
    assert registry.get_sample_value("test_seconds_sum") == pytest.approx(7.65)


@pytest.mark.parametrize("text", ["", "9435", "host:", ":9435", "host:x", "host:70000", "::1:9435", "[]:1", "host:１"])
def test_what_is_no_address_is_named(text):
    with pytest.raises(ValueError, match="is no address"):
        split_address(text)


def test_addresses_are_host_and_port():
    assert split_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert split_address("[::1]:9435") == ("::1", 9435)


def test_an_address_that_is_taken_or_not_ours_is_told_apart(rig):
    check_free("127.0.0.1:0")
    check_free("localhost:0")
    with pytest.raises(OSError, match="in use"):
        check_free(rig.address)
    with pytest.raises(OSError, match="Cannot assign"):
        check_free("192.0.2.1:9435")


def test_the_address_is_told_in_a_file_while_it_is_served(tmp_path):
    monitoring = Monitoring(Endpoint(CollectorRegistry(), lambda: None, lambda: None), tmp_path)
    assert monitoring.serve("127.0.0.1:0")
    address = (tmp_path / "metrics_address").read_text().strip()
    assert address.startswith("127.0.0.1:")
    assert monitoring.serve("")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(split_address(address), timeout=200)


def test_a_taken_address_costs_the_metrics_and_not_the_daemon(tmp_path, caplog, rig):
    monitoring = Monitoring(Endpoint(CollectorRegistry(), lambda: None, lambda: None), tmp_path)
    assert not monitoring.serve(rig.address)
    assert "choose another metrics.listen" in caplog.text
    # The next configuration is tried again.
    assert monitoring.serve("127.0.0.1:0")
    monitoring.stop()


def test_a_process_without_free_files_goes_on_without_metrics(tmp_path, caplog, monkeypatch):
    def no_socket(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monitoring = Monitoring(Endpoint(CollectorRegistry(), lambda: None, lambda: None), tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("socket.create_server", no_socket)
        assert not monitoring.serve("127.0.0.1:0")
    assert "Too many open files" in caplog.text
    assert monitoring.serve("127.0.0.1:0")
    monitoring.stop()


@pytest.mark.parametrize("listen", ["", "taken"])
def test_the_address_that_a_killed_daemon_left_behind_is_not_told_any_more(tmp_path, rig, listen):
    (tmp_path / "metrics_address").write_text("127.0.0.1:1\n")
    monitoring = Monitoring(Endpoint(CollectorRegistry(), lambda: None, lambda: None), tmp_path)
    monitoring.serve(rig.address if listen else "")
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_others_can_reach_is_warned_about(tmp_path, caplog):
    monitoring = Monitoring(Endpoint(CollectorRegistry(), lambda: None, lambda: None), tmp_path)
    assert monitoring.serve("0.0.0.0:0")
    assert "can be read by other hosts" in caplog.text
    monitoring.stop()
