"""What one caller may do, and what happens to those who want more: units first, then a real server."""

import logging
import threading
import time
from dataclasses import replace

import pytest
from support.running_collector import ThreadCollector
from support.wire_agent import StreamEnded, WireStream, batch, block, hello, inventory

from gpusonde.collector.client import Client, CollectorError
from gpusonde.collector.config import IngestConfig
from gpusonde.collector.ingest.admission import AgentPace, Backpressure
from gpusonde.collector.ingest.session import AgentSession
from gpusonde.collector.security.rates import CallerBook, CallerLimits, RateBucket
from gpusonde.collector.storage.model import SpoolStanding
from gpusonde.errors import RequestError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import OsFiles


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_bucket_gives_bursts_and_then_the_mean_rate():
    clock = Clock()
    bucket = RateBucket(10.0, 20.0, clock)
    assert [bucket.take(10.0), bucket.take(10.0), bucket.take(5.0)] == [0.0, 0.0, 0.5]
    clock.now += 0.5
    assert bucket.fill_ratio == 0.0
    clock.now += 1000
    assert bucket.fill_ratio == 1.0
    assert bucket.take_if_there(20.0)
    assert not bucket.take_if_there(0.1)


def test_a_caller_may_ask_so_often_and_so_much_at_once():
    clock = Clock()
    book = CallerBook(CallerLimits(questions=2, questions_per_s=1.0, all_questions=3), clock)
    with book.question("a"), book.question("a"):
        with pytest.raises(RequestError) as error, book.question("a"):
            pass
        assert error.value.reason == "concurrency"
        with book.question("b"), pytest.raises(RequestError), book.question("c"):
            pass
    for _ in range(8):
        with book.question("a"):
            pass
    with pytest.raises(RequestError) as error, book.question("a"):
        pass
    assert error.value.reason == "rate"
    with book.question("b"):
        pass
    clock.now += 1.0
    with book.question("a"):
        pass


def test_one_agent_has_few_streams_a_shared_token_many_and_an_address_half_of_all():
    book = CallerBook(CallerLimits(streams=1, all_streams=4))
    with book.stream("one", "10.0.0.1", is_one_agent=True):
        with pytest.raises(RequestError, match="1 streams of one are open"):
            book.stream("one", "10.0.0.2", is_one_agent=True).__enter__()
        with book.stream("fleet", "10.0.0.1", is_one_agent=False):
            with pytest.raises(RequestError, match=r"2 streams of 10\.0\.0\.1 are open.* ingest\.max_agents") as error:
                book.stream("fleet", "10.0.0.1", is_one_agent=False).__enter__()
            assert error.value.reason == "streams"
            with (
                book.stream("fleet", "10.0.0.2", is_one_agent=False),
                book.stream("fleet", "10.0.0.3", is_one_agent=False),
                pytest.raises(RequestError, match="of all 4"),
            ):
                book.stream("fleet", "10.0.0.4", is_one_agent=False).__enter__()
    with book.stream("one", "10.0.0.1", is_one_agent=True):
        pass


def test_one_address_has_half_of_the_streams_of_those_without_a_name():
    book = CallerBook(CallerLimits(watches=2))
    with book.stranger("10.0.0.1"):
        with pytest.raises(RequestError, match=r"1 streams of 10\.0\.0\.1 without a name"):
            book.stranger("10.0.0.1").__enter__()
        with book.stranger("10.0.0.2"):
            pass


def test_the_book_of_callers_does_not_grow_with_their_number():
    book = CallerBook(CallerLimits())
    with book.question("busy"):
        for number in range(20_000):
            with book.question(f"caller {number}"):
                pass
        assert len(book._callers) <= book._MOST_CALLERS
        assert "busy" in book._callers


def test_pressure_begins_at_its_limits_and_ends_when_it_was_calm_for_a_while():
    clock, lag, waiting, memory = Clock(), [0.0], [0], [0.0]
    config = IngestConfig(max_waiting_bytes=100)
    pressure = Backpressure(config, 0.1, lambda: lag[0], lambda: waiting[0], lambda: memory[0], clock)
    assert pressure.evaluate() == ""
    lag[0] = 2.0
    assert pressure.evaluate() == "records wait too long for the disk"
    lag[0] = 1.8  # a little better is not well
    for _ in range(10):
        clock.now += 5.0
        assert pressure.evaluate()
    lag[0] = 0.0
    assert pressure.evaluate()
    clock.now += 4.9
    assert pressure.evaluate()
    clock.now += 0.2
    assert pressure.evaluate() == ""
    waiting[0] = 50
    assert pressure.evaluate() == "too many bytes wait for the disk"
    waiting[0], memory[0] = 0, 0.9
    assert pressure.evaluate() == "segments are not written fast enough"


def session_of(durable=0, first=1):
    return AgentSession("a", "s", SpoolStanding(durable, None), first, AgentPace(IngestConfig()))


def test_the_strictest_wish_counts_and_the_last_one_lifted_lifts_all():
    session = session_of()
    assert session.next_throttle(64) is None
    session.request_throttle("rate", ingest_pb2.Throttle(max_unacked_records=8, batch_interval_ms=1000))
    session.request_throttle("pressure", ingest_pb2.Throttle(max_unacked_records=2, batch_interval_ms=500))
    assert session.next_throttle(64) == ingest_pb2.Throttle(max_unacked_records=2, batch_interval_ms=1000)
    assert session.next_throttle(64) is None
    session.request_throttle("pressure", None)
    assert session.next_throttle(64) == ingest_pb2.Throttle(max_unacked_records=8, batch_interval_ms=1000)
    session.request_throttle("rate", None)
    assert session.next_throttle(64) == ingest_pb2.Throttle()
    assert not session.is_throttled


@pytest.mark.parametrize(("durable", "first", "start"), [(0, 1, 0), (10, 11, 10), (3, 500, 499)])
def test_what_was_in_flight_before_a_throttle_is_no_fault_and_what_comes_after_it_is(durable, first, start):
    session = session_of(durable, first)
    session.request_throttle("rate", ingest_pb2.Throttle(max_unacked_records=2))
    session.next_throttle(64)
    assert not session.ignores_throttle(start + 64)
    assert session.ignores_throttle(start + 65)
    session.ack_written(start + 64)
    assert not session.ignores_throttle(start + 66)
    assert session.ignores_throttle(start + 67)
    session.request_throttle("rate", None)
    session.next_throttle(64)
    assert not session.ignores_throttle(start + 1000)


def read_throttle(stream):
    while True:
        answer = stream.next()
        if answer.HasField("ack"):
            stream.acked = answer.ack.durable_sequence
        if answer.HasField("throttle"):
            return answer.throttle


def send_as_allowed(stream, records):
    """Send within the window of the moment until all are acknowledged; return the throttles that came."""
    sent, window, throttles = 0, 64, []
    while stream.acked < len(records):
        limit = min(len(records), stream.acked + window)
        stream.send(*records[sent:limit])
        sent = max(sent, limit)
        answer = stream.next()
        if answer.HasField("ack"):
            stream.acked = answer.ack.durable_sequence
        if answer.HasField("throttle"):
            throttles.append(answer.throttle)
            window = answer.throttle.max_unacked_records or 64
    return throttles


@pytest.fixture
def short_bursts(monkeypatch):
    """What an agent may send at once is five seconds of its rate instead of ten."""
    monkeypatch.setattr("gpusonde.collector.ingest.admission._BURST_S", 5.0)


def test_an_agent_that_sends_too_much_is_throttled_slowed_down_and_let_go_again(tmp_path, short_bursts):
    with (
        ThreadCollector(tmp_path / "data", ingest__max_records_per_second="8") as collector,
        WireStream(collector.target, hello()) as stream,
    ):
        stream.greet()
        began = time.monotonic()
        throttles = send_as_allowed(stream, [inventory(), *(batch(n) for n in range(2, 61))])
        # 40 at once, 8 per second from then on.
        assert time.monotonic() - began > 1.5
        assert throttles == [ingest_pb2.Throttle(max_unacked_records=8, batch_interval_ms=5000)]
        assert read_throttle(stream) == ingest_pb2.Throttle()
        stream.send(batch(61)).wait_acked(61)
    assert collector.stop().counts["throttles"] == 1


def test_an_agent_that_ignores_its_throttle_loses_its_stream_and_nothing_else(tmp_path):
    with ThreadCollector(tmp_path / "data", ingest__max_records_per_second="20") as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(inventory(), *(batch(n) for n in range(2, 1000)))
            code, text = stream.end()
            assert code == "RESOURCE_EXHAUSTED"
            assert "exceeds the window that Throttle allows" in text
            acked = stream.acked
        assert 200 <= acked < 999
        with WireStream(collector.target, hello()) as stream:
            assert stream.greet().durable_sequence == acked
        with Client(collector.target) as client:
            assert len(client.read_samples("GPU-a")) == 10 * (acked - 1)


def test_bytes_are_limited_like_records(tmp_path, short_bursts):
    with (
        ThreadCollector(tmp_path / "data", ingest__max_bytes_per_second="100KiB", runs__track="false") as collector,
        WireStream(collector.target, hello()) as stream,
    ):
        stream.greet()
        big = [batch(n, block(first_tick=5000 * n, ticks=5000)) for n in range(2, 12)]  # 80 kB each, of 500 KiB at once
        assert send_as_allowed(stream, [inventory(), *big])[0].max_unacked_records == 8


class HeldFiles(OsFiles):
    """Real files whose syncs wait while the gate is closed, as on a disk that is busy with something else."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()

    def create(self, path, mode=0o640):
        file = super().create(path, mode)
        sync = file.sync

        def held_sync():
            self.gate.wait(200)
            sync()

        file.sync = held_sync
        return file


def soon_calm(config):
    return replace(config, ingest=replace(config.ingest, max_lag_s=0.5, calm_s=1.0))


def test_all_agents_are_asked_for_less_while_the_disk_is_slow_and_until_it_was_well_for_a_while(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    files = HeldFiles()
    with (
        ThreadCollector(tmp_path / "data", files=files, adapt=soon_calm) as collector,
        WireStream(collector.target, hello("a")) as busy,
        WireStream(collector.target, hello("b")) as idle,
    ):
        busy.greet()
        idle.greet()
        busy.send(inventory()).wait_acked(1)
        files.gate.clear()
        busy.send(batch(2))
        expected = ingest_pb2.Throttle(max_unacked_records=8, batch_interval_ms=5000)
        assert [read_throttle(busy), read_throttle(idle)] == [expected, expected]
        assert busy.acked == 1
        files.gate.set()
        assert [read_throttle(busy), read_throttle(idle)] == [ingest_pb2.Throttle(), ingest_pb2.Throttle()]
        assert busy.acked == 2
    assert "all agents are asked for less: records wait too long for the disk" in caplog.text
    assert "agents may send as usual again" in caplog.text


def test_coming_back_is_no_way_around_the_limits(tmp_path):
    with ThreadCollector(tmp_path / "data", ingest__max_records_per_second="5") as collector:
        sent, refused = 1, ""
        while not refused:
            with WireStream(collector.target, hello()) as stream:
                try:
                    durable = stream.greet().durable_sequence
                except StreamEnded as ended:
                    refused = f"{ended.code}: {ended.details}"
                    continue
                sent = durable + 1
                stream.send(*([inventory()] if sent == 1 else []), *(batch(n) for n in range(max(2, sent), sent + 64)))
                stream.finish().end()
            assert sent < 1000
        assert refused.startswith("RESOURCE_EXHAUSTED: too much was sent; come back in")


def test_questions_beyond_the_rate_are_refused(tmp_path):
    with (
        ThreadCollector(tmp_path / "data", security__questions_per_second="0.1") as collector,
        Client(collector.target) as client,
    ):
        client.list_runs()
        with pytest.raises(CollectorError, match="ask less often") as error:
            client.list_runs()
        assert error.value.code == "RESOURCE_EXHAUSTED"
