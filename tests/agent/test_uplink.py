"""The uplink against a real gRPC server that acks late, dies, throttles, drains and refuses."""

import asyncio
import errno
import itertools
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from support.certificates import Authority
from support.freezing_proxy import FreezingProxy
from support.scripted_collector import Script, ScriptedCollector
from support.uplink_rig import Rig, batch, uplink_config

from gpusonde.agent.spool.segment import scan
from gpusonde.agent.uplink import AgentFacts, Backoff, StreamLimits, Uplink
from gpusonde.agent.uplink.session import GreetedStream, Session, SessionEnd
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import OsFiles
from gpusonde.service.process import end, within
from gpusonde.service.tls import ClientSecurity


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "spool")
    yield rig
    rig.spool.close()


def sequences(collector):
    return [record.sequence for record in collector.records()]


def test_hello_says_who_the_agent_is_and_what_it_holds(rig):
    rig.fill(3)
    with ScriptedCollector() as collector:
        rig.run(collector.target)
    hello = collector.hellos[0]
    assert (hello.agent_id, hello.spool_id) == (rig.spool.agent_id, rig.spool.spool_id)
    assert hello.first_available_sequence == 1
    assert (hello.agent_version, hello.instance_id, hello.agent_start_time_unix_nano) == ("1.2.3", "instance", 17)
    assert hello.host.host_name == "here"
    assert list(hello.encodings) == [ingest_pb2.ENCODING_FLOAT32_LE_ZSTD, ingest_pb2.ENCODING_FLOAT32_LE]


def test_a_stream_that_dies_again_and_again_loses_nothing_and_doubles_nothing(rig):
    rig.fill(300)
    scripts = [Script(die_after=n, max_unacked_records=16) for n in (1, 7, 30, 2, 50)] + [Script(close_after=20)]
    with ScriptedCollector(scripts=scripts) as collector:
        rig.run(collector.target)
        assert sequences(collector) == list(range(1, 301))
    assert collector.gaps == []
    # What was stored but not yet acknowledged is not sent again: Hello asks first.
    assert collector.duplicates == 0
    assert rig.counters.sessions == 7
    assert sum(rig.counters.connection_failures.values()) == 6


def test_what_waits_goes_together_to_a_collector_that_takes_it_so(rig):
    rig.fill(10)
    stored = [rig.spool.read_bytes(sequence) for sequence in range(1, 11)]
    with ScriptedCollector(scripts=[Script(max_records_per_request=4)]) as collector:
        rig.run(collector.target)
        assert [record.SerializeToString() for record in collector.records()] == stored
    assert collector.together == [4, 4, 2]
    assert rig.counters.sent_records == 10


def test_a_collector_that_does_not_take_records_together_gets_each_alone(rig):
    rig.fill(10)
    with ScriptedCollector(scripts=[Script(max_records_per_request=0)]) as collector:
        rig.run(collector.target)
        assert sequences(collector) == list(range(1, 11))
    assert collector.together == [0] * 10


def test_records_that_travel_together_keep_to_the_window(rig):
    rig.fill(40)
    scripts = [Script(ack=False, max_unacked_records=5, max_records_per_request=16)]
    with ScriptedCollector(scripts=scripts) as collector:
        rig.run(collector.target, until=lambda: collector.highest_unacked >= 5)
        time.sleep(0.2)
        assert collector.highest_unacked == 5


def test_large_records_do_not_fill_a_request_beyond_what_a_collector_takes(rig):
    for _ in range(6):
        rig.spool.append(batch(size=900))
    rig.spool.commit()
    scripts = [Script(max_record_bytes=1000, max_records_per_request=16)]
    with ScriptedCollector(scripts=scripts) as collector:
        rig.run(collector.target)
        assert sequences(collector) == list(range(1, 7))
    assert collector.together == [2, 2, 2]


@pytest.mark.parametrize("after", [1, 6, 7, 30])
def test_a_stream_that_dies_within_records_sent_together_loses_nothing_and_doubles_nothing(rig, after):
    rig.fill(60)
    scripts = [Script(die_after=after, max_records_per_request=4)] * 2 + [Script(max_records_per_request=16)]
    with ScriptedCollector(scripts=scripts) as collector:
        rig.run(collector.target)
        assert sequences(collector) == list(range(1, 61))
    assert collector.gaps == []
    assert collector.duplicates == 0


def test_no_more_records_are_in_flight_than_the_collector_allows(rig):
    rig.fill(40)
    with ScriptedCollector(scripts=[Script(ack=False, max_unacked_records=5)]) as collector:
        rig.run(collector.target, until=lambda: collector.highest_unacked >= 5)
        time.sleep(0.2)
        assert collector.highest_unacked == 5
        assert rig.counters.unacked_records == 40


def test_late_acks_move_the_window_on(rig):
    rig.fill(40)

    def ack_what_is_there():
        stored = sequences(collector)
        if stored:
            ack = ingest_pb2.Ack(durable_sequence=stored[-1])
            collector.send(ingest_pb2.StreamSamplesResponse(ack=ack))

    with ScriptedCollector(scripts=[Script(ack=False, max_unacked_records=5)]) as collector:
        rig.run(collector.target, during=ack_what_is_there)
        assert sequences(collector) == list(range(1, 41))
    assert collector.highest_unacked <= 40
    assert len(collector.hellos) == 1


def test_throttle_narrows_the_window_and_lengthens_the_batches(rig):
    rig.fill(30)
    throttle = ingest_pb2.Throttle(max_unacked_records=2, batch_interval_ms=5000)
    with ScriptedCollector(scripts=[Script(throttle_after=(10, throttle))]) as collector:
        rig.run(collector.target, until=lambda: 5.0 in rig.intervals)
        rig.run(collector.target)
    # Forgotten when the session ends.
    assert rig.intervals[-1] is None


def test_drain_moves_the_agent_to_the_preferred_collector(rig):
    rig.fill(20)
    with ScriptedCollector() as refuge:
        script = Script(drain_after=5, preferred_target=refuge.target, max_unacked_records=4)
        with ScriptedCollector(scripts=[script]) as collector:
            rig.run(collector.target, allowed_targets="10.0.0.*:7433, 127.0.0.1:*")
            first, second = sequences(collector), sequences(refuge)
    assert first == list(range(1, len(first) + 1))
    assert 5 <= len(first) < 20
    # The refuge has never seen this spool, so it begins with what is still on disk.
    assert second[-1] == 20
    assert refuge.gaps == []
    assert rig.bounds == []


def test_an_agent_goes_nowhere_that_its_own_configuration_does_not_allow(rig, caplog):
    rig.fill(20)
    with ScriptedCollector() as elsewhere:
        script = Script(drain_after=5, preferred_target=elsewhere.target, max_unacked_records=4)
        with ScriptedCollector(scripts=[script]) as collector:
            rig.run(collector.target, allowed_targets="refuge.example:*")
            assert sequences(collector) == list(range(1, 21))
    assert elsewhere.hellos == []
    assert "uplink.allowed_targets does not allow" in caplog.text


def test_drain_without_another_address_waits_before_coming_back(rig):
    rig.fill(20)
    with ScriptedCollector(scripts=[Script(drain_after=5, max_unacked_records=4)]) as collector:
        rig.run(collector.target)
        assert sequences(collector) == list(range(1, 21))
        assert collector.duplicates == 0
    assert len(rig.bounds) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION])
def test_a_second_agent_of_the_same_name_is_told_what_to_do_and_asks_again_slowly(rig, caplog, code):
    rig.fill(3)
    with ScriptedCollector(scripts=[Script(refuse=code)] * 3) as collector:
        rig.run(collector.target)
        assert sequences(collector) == [1, 2, 3]
    refusals = [r for r in caplog.records if "refuses this agent" in r.message]
    assert len(refusals) == 1
    assert refusals[0].levelno == logging.ERROR
    assert "agent.id" in refusals[0].message
    assert rig.bounds == [(15.0, 30.0)] * 3


def test_an_address_that_is_no_collector_is_named(rig, caplog):
    rig.fill(1)
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    rig.run(f"127.0.0.1:{port}", until=lambda: "UNIMPLEMENTED" in rig.counters.connection_failures)
    server.stop(0)
    assert "not a gpusonde collector" in caplog.text


def test_a_collector_that_does_not_answer_hello_is_left(rig):
    rig.fill(2)
    with ScriptedCollector(scripts=[Script(silent=True)]) as collector:
        rig.run(collector.target, hello_timeout_s=5.0)
        assert sequences(collector) == [1, 2]
    assert rig.counters.connection_failures == {"DEADLINE_EXCEEDED": 1}


def test_a_collector_that_stops_acknowledging_is_left(rig):
    rig.fill(10)
    with ScriptedCollector(scripts=[Script(ack=False)]) as collector:
        rig.run(collector.target, ack_timeout_s=5.0)
        assert sequences(collector) == list(range(1, 11))
        assert collector.duplicates == 0
    assert len(collector.hellos) == 2


def test_a_collector_that_comes_back_gets_the_rest_and_each_change_is_said_once(rig, caplog):
    caplog.set_level(logging.INFO)
    rig.fill(10)
    with ScriptedCollector() as collector:
        rig.run(collector.target)
        collector.stop()
        rig.fill(10)
        rig.run(collector.target, until=lambda: len(rig.bounds) >= 8)
        collector.start()
        rig.run(collector.target)
        assert sequences(collector) == list(range(1, 21))
    assert caplog.text.count("is not there") == 1
    assert caplog.text.count("connected to collector") == 2


def test_a_collector_on_a_full_disk_is_not_said_to_be_gone(rig, caplog):
    caplog.set_level(logging.INFO)
    rig.fill(3)
    full = Script(refuse=grpc.StatusCode.RESOURCE_EXHAUSTED, refuse_details="no space left for data")
    with ScriptedCollector(scripts=[full] * 3) as collector:
        rig.run(collector.target)
        assert sequences(collector) == [1, 2, 3]
    assert caplog.text.count("takes no records now") == 1
    assert "no space left for data" in caplog.text
    assert "is not there" not in caplog.text


def test_an_agent_without_tls_at_a_collector_with_it_is_told_what_to_set(rig, tmp_path, caplog):
    rig.fill(1)
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.server()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        rig.run(f"127.0.0.1:{port}", until=lambda: "no way" in caplog.text)
    finally:
        server.stop(None).wait()
    assert "it speaks TLS; set uplink.tls_ca" in caplog.text


def test_a_collector_without_tls_is_not_said_to_be_gone_by_an_agent_with_it(rig, tmp_path, caplog):
    rig.fill(1)
    authority = Authority(tmp_path / "authority")
    with ScriptedCollector() as collector:
        rig.run(
            collector.target, until=lambda: "no way" in caplog.text, security=ClientSecurity(ca=str(authority.ca)),
        )  # fmt: skip
    assert "it does not speak TLS; correct the port, or leave uplink.tls_ca empty" in caplog.text


def test_files_that_cannot_be_used_are_named_and_used_once_they_can(rig, tmp_path, caplog):
    rig.fill(3)
    token = tmp_path / "token"
    with ScriptedCollector() as collector:

        def write_token():
            if rig.counters.connection_failures.get("CREDENTIALS", 0) >= 2:
                token.write_text("gpusonde_abc")

        rig.run(collector.target, during=write_token, security=ClientSecurity(token_file=str(token)))
        assert sequences(collector) == [1, 2, 3]
    assert caplog.text.count("give a file that this user can read") == 1


def test_a_network_that_loses_everything_is_noticed_by_pings_while_nothing_is_sent(rig):
    rig.fill(3)
    with ScriptedCollector() as collector, FreezingProxy(collector.target) as proxy:

        def cut_when_idle():
            if rig.counters.unacked_records == 0 and rig.counters.sessions == 1:
                proxy.freeze()
            if "UNAVAILABLE" in rig.counters.connection_failures:
                proxy.thaw()

        # No record is in flight: the time-out of acknowledgements, a minute, is not what ends the session.
        rig.run(
            proxy.target, until=lambda: rig.counters.sessions == 2, during=cut_when_idle, keepalive_s=1.0,
            keepalive_timeout_s=1.0, timeout_s=30.0,
        )  # fmt: skip
        assert sequences(collector) == [1, 2, 3]
    assert rig.counters.connection_failures["UNAVAILABLE"] >= 1


def test_waits_double_up_to_half_a_minute_with_full_jitter(rig):
    rig.fill(1)
    rig.run("127.0.0.1:1", until=lambda: len(rig.bounds) >= 9)
    assert rig.bounds[:9] == [(0.0, b) for b in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0)]


def test_a_collector_that_answers_and_then_fails_is_not_asked_in_a_tight_loop(rig):
    rig.fill(5)
    with ScriptedCollector(scripts=[Script(ack=False, die_after=1, durable_sequence=0)] * 6) as collector:
        rig.run(collector.target, until=lambda: len(rig.bounds) >= 6)
    assert [high for _, high in rig.bounds[:6]] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_collector_that_always_knows_more_is_not_asked_in_a_tight_loop(rig):
    rig.fill(5)
    with ScriptedCollector(scripts=[Script(durable_sequence=500)] * 50) as collector:
        rig.run(collector.target, until=lambda: len(rig.bounds) >= 5)
        assert len(collector.hellos) <= 7
    assert rig.bounds[4] == (0.0, 8.0)


def test_shutdown_does_not_wait_for_the_back_off(rig):
    rig.fill(1)
    uplink = Uplink(
        rig.spool,
        uplink_config("127.0.0.1:1"),
        AgentFacts(gpu_pb2.Host(), "", 0, ""),
        rig.counters,
        backoff=Backoff(uniform=lambda _low, _high: 1000.0),
    )

    async def main():
        running = asyncio.ensure_future(uplink.run())
        while not rig.counters.connection_failures:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return time.monotonic() - began

    assert asyncio.run(main()) < 30.0


def test_a_collector_that_knows_more_than_we_do_gets_everything_under_a_new_spool_id(rig, caplog):
    rig.fill(5)
    old = rig.spool.spool_id
    with ScriptedCollector(scripts=[Script(durable_sequence=500)]) as collector:
        rig.run(collector.target)
        assert collector.hellos[0].spool_id == old
        assert collector.hellos[1].spool_id == rig.spool.spool_id != old
        stored = collector.stored[rig.spool.agent_id, rig.spool.spool_id]
        assert sorted(stored) == [1, 2, 3, 4, 5]
    assert "new spool id" in caplog.text


@pytest.mark.parametrize("lost", [1, 3])
def test_records_that_take_the_numbers_of_a_lost_tail_are_not_taken_for_resends(tmp_path, lost, caplog):
    first = Rig(tmp_path / "spool")
    first.fill(6)
    with ScriptedCollector() as collector:
        first.run(collector.target)
        first.spool.close()
        (path,) = (tmp_path / "spool").glob("*.seg")
        records = scan(path.read_bytes()).records
        with path.open("r+b") as file:
            file.truncate(records[-lost].offset + 7)
        again = Rig(tmp_path / "spool")
        again.fill(4)
        assert again.spool.last_sequence == 10 - lost
        again.run(collector.target)
        again.spool.close()
        third = Rig(tmp_path / "spool")
        third.fill(2)
        third.run(collector.target)
        third.spool.close()
        old, new = (
            collector.stored[hello.agent_id, hello.spool_id] for hello in (collector.hellos[0], collector.hellos[-1])
        )
    assert sorted(old) == [1, 2, 3, 4, 5, 6]
    # The first one stands for the inventory in force there.
    assert sorted(new) == list(range(6 - lost, 13 - lost))
    assert new[6 - lost].HasField("inventory")
    assert [new[s].HasField("batch") for s in range(7 - lost, 13 - lost)] == [True] * 6
    assert collector.duplicates == 0
    assert caplog.text.count("new spool id") == 1


def test_what_was_dropped_meanwhile_is_skipped_at_hello_with_the_inventory_first(tmp_path):
    rig = Rig(tmp_path / "spool", max_bytes=8192)
    rig.fill(300)
    first = rig.spool.first_available_sequence
    assert first > 1
    with ScriptedCollector() as collector:
        rig.run(collector.target)
        records = collector.records()
    assert collector.hellos[0].first_available_sequence == first
    assert [r.sequence for r in records] == list(range(first, rig.spool.last_sequence + 1))
    assert collector.gaps == []
    assert records[0].HasField("inventory")
    assert any(r.HasField("loss_report") for r in records)
    rig.spool.close()


def test_what_is_dropped_while_connected_ends_the_session_and_is_declared_in_the_next(tmp_path):
    rig = Rig(tmp_path / "spool", max_bytes=8192)
    rig.fill(2)
    flood = iter(range(1))

    def overflow():
        if collector.highest_unacked == 2 and next(flood, None) is not None:
            rig.fill(300)
            ack = ingest_pb2.Ack(durable_sequence=sequences(collector)[-1])
            collector.send(ingest_pb2.StreamSamplesResponse(ack=ack))

    with ScriptedCollector(scripts=[Script(ack=False, max_unacked_records=2)]) as collector:
        rig.run(collector.target, during=overflow)
        stored = sequences(collector)
    assert len(collector.hellos) == 2
    assert collector.gaps == []
    jumps = [(a, b) for a, b in itertools.pairwise(stored) if b != a + 1]
    assert jumps == [(2, collector.hellos[1].first_available_sequence)]
    rig.spool.close()


def test_a_record_the_collector_cannot_take_becomes_a_loss_and_stops_nothing(rig, caplog):
    rig.fill(2)
    rig.spool.append(batch(size=5000))
    rig.fill(2)
    with ScriptedCollector(scripts=[Script(max_record_bytes=1000)]) as collector:
        rig.run(collector.target)
        assert sequences(collector) == [1, 2, 3, 4, 5]
        report = collector.records()[2].loss_report
    assert (report.first_lost_sequence, report.last_lost_sequence, report.lost_ticks) == (3, 3, 10)
    assert rig.counters.dropped_records == {"too_large": 1}
    assert "the collector takes 1000" in caplog.text


def test_an_ack_of_what_was_never_sent_is_not_believed(rig, caplog):
    rig.fill(5)

    def lie():
        if collector.highest_unacked == 5:
            collector.send(ingest_pb2.StreamSamplesResponse(ack=ingest_pb2.Ack(durable_sequence=99)))

    with ScriptedCollector(scripts=[Script(ack=False)]) as collector:
        rig.run(collector.target, during=lie, until=lambda: "was not sent" in caplog.text)
    assert rig.counters.acked_sequence == 0


def test_a_spool_that_cannot_be_read_stops_nothing(tmp_path, caplog):
    class Unreadable(OsFiles):
        broken = True

        def open(self, path):
            if self.broken:
                raise OSError(errno.EIO, "Input/output error")
            return super().open(path)

    files = Unreadable()
    rig = Rig(tmp_path / "spool", files=files)
    rig.fill(5)
    with ScriptedCollector() as collector:
        rig.run(collector.target, until=lambda: rig.counters.connection_failures.get("SPOOL", 0) >= 3)
        files.broken = False
        rig.run(collector.target)
        assert sequences(collector) == [1, 2, 3, 4, 5]
    assert "check its disk" in caplog.text
    rig.spool.close()


class EagerCall:
    """A stream on which the ack of a record arrives before its write returns, as happens on a loaded machine."""

    def __init__(self):
        self.responses = asyncio.Queue()
        self.written = []

    async def write(self, request):
        sequence = ingest_pb2.StreamSamplesRequest.FromString(request).record.sequence
        self.written.append(sequence)
        ack = ingest_pb2.Ack(durable_sequence=sequence)
        await self.responses.put(ingest_pb2.StreamSamplesResponse(ack=ack))
        for _ in range(10):
            await asyncio.sleep(0)

    async def read(self):
        return await self.responses.get()


def test_an_ack_that_overtakes_the_end_of_its_write_counts(rig, caplog):
    rig.fill(5)

    async def main():
        session = Session(
            GreetedStream(EagerCall(), ingest_pb2.HelloAck(), 1), rig.spool, rig.counters, asyncio.Event(),
            limits=StreamLimits(ack_timeout_s=60), on_batch_interval=lambda _: None,
        )  # fmt: skip
        running = asyncio.ensure_future(session.run())
        while rig.counters.acked_sequence < 5:
            await asyncio.sleep(0)
            assert not running.done(), running.exception()
        await end(running)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert "was not sent" not in caplog.text


class ClosedUnderAWrite(EagerCall):
    """A stream that the collector closes while a record is being written; its Drain is read a moment later."""

    def __init__(self):
        super().__init__()
        self.error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata())
        drain = ingest_pb2.Drain(preferred_target="refuge:1", grace_ms=10)
        self.left = [ingest_pb2.StreamSamplesResponse(drain=drain)]

    async def write(self, request):
        raise self.error

    async def read(self):
        await asyncio.sleep(0.01)
        if not self.left:
            raise self.error
        return self.left.pop()

    async def done_writing(self):
        raise self.error


def test_a_stream_that_closes_under_a_write_is_left_for_where_the_collector_wanted(rig):
    rig.fill(5)
    session = Session(
        GreetedStream(ClosedUnderAWrite(), ingest_pb2.HelloAck(), 1), rig.spool, rig.counters, asyncio.Event(),
        limits=StreamLimits(ack_timeout_s=60), on_batch_interval=lambda _: None,
    )  # fmt: skip
    with pytest.raises(SessionEnd) as left:
        asyncio.run(asyncio.wait_for(session.run(), 60))
    assert left.value.preferred_target == "refuge:1"


class DrainedForWeeks(EagerCall):
    """A collector that asks for a grace of 49 days and acknowledges nothing in it."""

    def __init__(self):
        drain = ingest_pb2.Drain(preferred_target="refuge:1", grace_ms=2**32 - 1)
        self.left = [ingest_pb2.StreamSamplesResponse(drain=drain)]

    async def write(self, request):
        pass

    async def read(self):
        return self.left.pop() if self.left else await asyncio.Event().wait()

    async def done_writing(self):
        pass


def test_a_grace_of_weeks_does_not_keep_an_agent_from_sending(rig, monkeypatch):
    monkeypatch.setattr("gpusonde.agent.uplink.session._LONGEST_GRACE_S", 0.1)
    rig.fill(5)
    session = Session(
        GreetedStream(DrainedForWeeks(), ingest_pb2.HelloAck(), 1), rig.spool, rig.counters, asyncio.Event(),
        limits=StreamLimits(ack_timeout_s=600), on_batch_interval=lambda _: None,
    )  # fmt: skip
    with pytest.raises(SessionEnd, match="drained"):
        asyncio.run(asyncio.wait_for(session.run(), 60))


def test_a_cancellation_that_meets_the_result_is_not_lost():
    """What made shutdown hang: asyncio.wait_for of Python 3.11 gives the result and forgets the cancellation."""

    async def wait_for_ever(event, cancelled):
        try:
            while True:
                await within(event.wait(), 60)
                event.clear()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main():
        event, cancelled = asyncio.Event(), []
        task = asyncio.ensure_future(wait_for_ever(event, cancelled))
        for _ in range(3):
            await asyncio.sleep(0)
        event.set()
        for _ in range(2):
            await asyncio.sleep(0)
        began = time.monotonic()
        await end(task)
        return cancelled, time.monotonic() - began

    cancelled, took_s = asyncio.run(main())
    assert cancelled == [True]
    assert took_s < 20


def test_another_address_takes_over_in_good_order(rig):
    rig.fill(50)
    with ScriptedCollector() as old, ScriptedCollector() as new:

        def move():
            if rig.counters.acked_sequence == 50 and rig.spool.last_sequence == 50:
                rig.fill(30)
                rig.uplink.configure(uplink_config(new.target))
                rig.uplink.configure(uplink_config(new.target))

        rig.run(old.target, during=move, until=lambda: rig.counters.acked_sequence == 80)
        first, second = sequences(old), sequences(new)
    assert first[:50] == list(range(1, 51))
    # The new one knows nothing of the spool, which still holds the inventory in the place of what was acknowledged.
    assert second[-1] == 80
    assert set(first) | set(second) >= set(range(1, 81))
    assert rig.counters.sessions == 2
    assert rig.counters.connection_failures == {}


def test_an_address_that_does_not_answer_is_left_at_once(rig):
    rig.fill(5)
    with socket.create_server(("127.0.0.1", 0)) as silent, ScriptedCollector() as good:
        began = time.monotonic()

        def move():
            if time.monotonic() - began > 0.3:
                rig.uplink.configure(uplink_config(good.target))

        rig.run(f"127.0.0.1:{silent.getsockname()[1]}", during=move, timeout_s=60.0)
        assert sequences(good) == [1, 2, 3, 4, 5]
