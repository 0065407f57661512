"""Requests that are small on the wire and large behind it, and calls that stay open: the collector goes on."""

import asyncio
import contextlib
import socket
import time

import grpc
import pytest
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.running_collector import ThreadCollector
from support.wire_agent import WireStream, batch, hello, inventory, wait_until

from gpusonde.collector.security.interceptor import MOST_ELEMENTS, TooManyElementsError, bounded
from gpusonde.collector.security.rates import CallerBook, CallerLimits
from gpusonde.errors import RequestError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.planning.v1 import planning_pb2, planning_pb2_grpc
from gpusonde.query.v1 import query_pb2, query_pb2_grpc
from gpusonde.service.child import ChildPool, PoolOptions, Purpose
from gpusonde.workload.v1 import workload_pb2

MANY = MOST_ELEMENTS + 1
PURPOSE = Purpose("nobody", "nothing", "nothing", "ask nothing")


def measurements(count):
    job = planning_pb2.Job(allreduce=[planning_pb2.AllreduceMeasurement()] * count)
    return planning_pb2.SolveProblemRequest(problem=planning_pb2.Problem(job=job))


def decode(message):
    return bounded(type(message).FromString, message.DESCRIPTOR)(message.SerializeToString())


@pytest.mark.parametrize(
    "message",
    [
        measurements(MANY),
        workload_pb2.EmbedRequest(graphs=[workload_pb2.GraphSource()] * MANY),
        query_pb2.PredictEpochLatencyRequest(target_gpu_models=[""] * MANY),
        ingest_pb2.StreamSamplesRequest(
            record=ingest_pb2.Record(batch=ingest_pb2.SampleBatch(blocks=[ingest_pb2.GpuBlock()] * MANY))
        ),
        ingest_pb2.StreamSamplesRequest(hello=ingest_pb2.Hello(agent_id="x" * (1 << 20))),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_of_too_many_parts_is_not_decoded(message):
    if message.ByteSize() < 1 << 20 or message.DESCRIPTOR.name != "StreamSamplesRequest" or message.HasField("record"):
        with pytest.raises(TooManyElementsError):
            decode(message)
    else:  # large, and of few parts
        assert decode(message) == message


def test_a_message_of_as_many_parts_as_may_be_is_decoded():
    # Request, problem and job count too.
    message = measurements(MOST_ELEMENTS - 2)
    assert decode(message) == message
    assert decode(planning_pb2.Problem(batch_sizes=[1] * (4 * MANY))).batch_sizes[-1] == 1


def test_parts_cannot_hide_in_a_group_nor_behind_long_numbers():
    request = measurements(MANY).SerializeToString()
    take = bounded(planning_pb2.SolveProblemRequest.FromString, planning_pb2.SolveProblemRequest.DESCRIPTOR)
    with pytest.raises(DecodeError):
        take(b"\xa3\x06\xa4\x06" + request)  # field 100, an empty group
    with pytest.raises(TooManyElementsError):
        take(b"\xa0\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + request)  # field 100, a number
    with pytest.raises(TooManyElementsError):
        take(b"\x8a\x80\x80\x00" + request[1:])  # field 1 with a tag that is longer than it need be
    for cut in (request[:-1], request[: 1 << 17], b"\xff" * (1 << 17)):
        with pytest.raises(DecodeError):
            take(cut)


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    with ThreadCollector(tmp_path_factory.mktemp("hostile") / "data", planning__max_watches="2") as running:
        yield running


@pytest.fixture
def agent(collector):
    """Whose records are acknowledged before and after."""
    with WireStream(collector.target, hello(), timeout_s=120) as stream:
        first = stream.greet().durable_sequence
        stream.send(inventory(first + 1), batch(first + 2)).wait_acked(first + 2)
        yield stream
        stream.send(batch(first + 3)).wait_acked(first + 3)


@pytest.fixture
def channel(collector):
    with grpc.insecure_channel(collector.target, [("grpc.use_local_subchannel_pool", 1)]) as opened:
        yield opened


def refusal(ask):
    with pytest.raises(grpc.RpcError) as error:
        ask()
    return error.value.code(), error.value.details()


METHODS = {
    "planning.v1.PlanningService/SolveProblem": measurements(MANY),
    "planning.v1.PlanningService/SolveProblems": planning_pb2.SolveProblemsRequest(
        problems=[measurements(MANY // 2).problem] * 2
    ),
    "planning.v1.PlanningService/ListParetoPlans": planning_pb2.ListParetoPlansRequest(
        problem=measurements(MANY).problem
    ),
    "workload.v1.WorkloadService/Predict": workload_pb2.PredictRequest(workloads=[workload_pb2.Workload()] * MANY),
    "query.v1.QueryService/PredictEpochLatency": query_pb2.PredictEpochLatencyRequest(target_gpu_models=[""] * MANY),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_request_of_too_many_parts_is_refused_while_records_go_on(agent, channel, method):
    ask = channel.unary_unary(f"/gpusonde.{method}", request_serializer=lambda message: message.SerializeToString())
    code, text = refusal(lambda: ask(METHODS[method], timeout=200))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "messages and texts" in text


def test_a_watch_of_too_many_parts_or_of_no_message_is_the_callers_fault(agent, channel):
    watch = channel.stream_stream("/gpusonde.planning.v1.PlanningService/WatchJob")
    start = planning_pb2.WatchJobRequest(start=planning_pb2.WatchStart(problem=measurements(MANY).problem))
    for request in (start.SerializeToString(), b"\xff\xff\xff"):
        code, text = refusal(lambda r=request: list(watch(iter([r]), timeout=200)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "decoded" in text


def test_an_agents_record_of_too_many_parts_ends_its_stream_and_no_other(agent, collector):
    with WireStream(collector.target, hello("agent-2", "spool-2"), timeout_s=60) as other:
        other.greet()
        blocks = [ingest_pb2.GpuBlock()] * MANY
        other.send(ingest_pb2.Record(sequence=1, batch=ingest_pb2.SampleBatch(blocks=blocks)))
        assert other.end()[0] == "INVALID_ARGUMENT"


def test_a_greeting_is_small(agent, collector):
    greeting = hello("agent-3", "spool-3")
    greeting.host.MergeFromString(b"\xa2\x06\x80\x80\x02" + b"x" * (1 << 15))  # field 100, which nobody knows yet
    with WireStream(collector.target, greeting, timeout_s=60) as other:
        code, text = other.end()
    assert (code, "hello" in text) == ("INVALID_ARGUMENT", True)


@pytest.mark.parametrize("field", ["start_time", "end_time"])
@pytest.mark.parametrize(
    ("seconds", "nanos"), [(1 << 62, 0), (-(1 << 62), 0), (253_402_300_800, 0), (5, -1), (5, 2**31 - 1)]
)
def test_a_time_that_cannot_be_is_the_callers_fault(agent, channel, field, seconds, nanos):
    request = query_pb2.ReadSamplesRequest(gpu_uuid="GPU-a")
    time_ = getattr(request, field)
    time_.seconds, time_.nanos = seconds, nanos
    code, text = refusal(lambda: list(query_pb2_grpc.QueryServiceStub(channel).ReadSamples(request, timeout=200)))
    assert (code, field in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_times_that_are_far_away_are_answered(agent, channel):
    ask = query_pb2_grpc.QueryServiceStub(channel).ReadSamples
    request = query_pb2.ReadSamplesRequest(gpu_uuid="GPU-a")
    request.start_time.seconds, request.end_time.seconds = -62_135_596_800, 253_402_300_799
    everything = sum(len(response.arrow_ipc) for response in ask(request, timeout=200))
    request.start_time.seconds = 253_402_300_798
    assert 0 < sum(len(response.arrow_ipc) for response in ask(request, timeout=200)) < everything


def test_a_duration_that_cannot_be_is_the_callers_fault(agent, channel):
    request = query_pb2.PredictEpochLatencyRequest()
    request.measurement.gpu_model = "T4"
    request.measurement.epoch_latency.seconds = 1 << 62
    ask = query_pb2_grpc.QueryServiceStub(channel).PredictEpochLatency
    code, text = refusal(lambda: ask(request, timeout=200))
    assert (code, "epoch_latency" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_errors_do_not_repeat_megabytes(agent, channel):
    stub = query_pb2_grpc.QueryServiceStub(channel)
    name = "tesla" * 1_000_000
    began_s = time.process_time()
    for ask in (
        lambda: list(stub.ReadSamples(query_pb2.ReadSamplesRequest(gpu_uuid="GPU-a", metrics=[name]), timeout=200)),
        lambda: stub.PredictEpochLatency(
            query_pb2.PredictEpochLatencyRequest(target_gpu_models=[name], run_id="none"), timeout=200
        ),
        lambda: stub.ListEpochs(query_pb2.ListEpochsRequest(run_id=name), timeout=200),
    ):
        code, text = refusal(ask)
        assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
        assert len(text) < 1000
    # Stripping one "tesla" after the other took minutes of the collector, which is in this process.
    assert time.process_time() - began_s < 30


def test_who_asks_has_streams_of_its_own_and_takes_none_from_agents():
    book = CallerBook(CallerLimits(streams=4, all_streams=1, watches=2, questions=1, all_questions=1))
    with book.watch("reader"), book.watch("reader"):
        with pytest.raises(RequestError) as error, book.watch("reader"):
            pass
        assert error.value.reason == "streams"
        # To begin a watch is a question; to go on with it is none.
        with book.stream("agent", "10.0.0.1", is_one_agent=True), book.question("reader"):
            pass
        with book.question("reader"), pytest.raises(RequestError), book.watch("other"):
            pass
    with book.watch("reader"):
        pass


def test_to_begin_a_watch_counts_against_the_rate():
    book = CallerBook(CallerLimits(questions_per_s=0.1), clock=lambda: 0.0)
    with book.watch("reader"):
        pass
    with pytest.raises(RequestError) as error, book.watch("reader"):
        pass
    assert error.value.reason == "rate"


def silent(stop):
    while not stop:
        time.sleep(0.05)
        yield from ()


def test_watches_that_never_begin_do_not_keep_agents_out(collector, agent, channel):
    stop, watch = [], planning_pb2_grpc.PlanningServiceStub(channel).WatchJob
    try:
        # More than a caller may have, which the limits of this collector allow 52 of.
        calls = [watch(silent(stop), timeout=200) for _ in range(60)]
        refused = lambda: sum(call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED for call in calls if call.done())  # noqa: E731
        wait_until(lambda: refused() == 8, 100, "refusals")
        with WireStream(collector.target, hello("agent-4", "spool-4"), timeout_s=60) as stream:
            stream.greet()
    finally:
        stop.append(True)
        for call in calls:
            call.cancel()


def test_whoever_need_not_say_who_it_is_gets_little(agent, collector):
    with (
        grpc.insecure_channel(collector.target, [("grpc.use_local_subchannel_pool", 1)]) as one,
        grpc.insecure_channel(collector.target, [("grpc.use_local_subchannel_pool", 1)]) as two,
    ):
        stubs = [health_pb2_grpc.HealthStub(each) for each in (one, two)]
        large = health_pb2.HealthCheckRequest(service="x" * 5000)
        assert refusal(lambda: stubs[0].Check(large, timeout=200))[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal(lambda: next(stubs[0].Watch(large, timeout=200)))[0] is grpc.StatusCode.INVALID_ARGUMENT
        calls = [stubs[number % 2].Watch(health_pb2.HealthCheckRequest(), timeout=120) for number in range(60)]
        codes = []
        for call in calls:
            try:
                assert next(call).status == health_pb2.HealthCheckResponse.SERVING
            except grpc.RpcError as error:
                codes.append(error.code())
        assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 34  # half of 52 is for one address
        for call in calls:
            call.cancel()

        def watches_again():
            try:
                return next(stubs[0].Watch(health_pb2.HealthCheckRequest(), timeout=200)).status
            except grpc.RpcError:
                return 0

        wait_until(watches_again, 120, "room for another one")


@pytest.mark.parametrize("steps", range(6))
def test_a_question_that_is_given_up_at_its_turn_passes_it_on(steps):
    async def main():
        processes, done = ChildPool(PURPOSE, PoolOptions(processes=1)), asyncio.Event()
        answered = []

        async def answer(name, until=None):
            async with processes._turn():
                if until:
                    await until.wait()
                answered.append(name)

        first = asyncio.ensure_future(answer("first", done))
        await asyncio.sleep(0)
        gives_up, waits = (asyncio.ensure_future(answer(name)) for name in ("gives up", "waits"))
        await asyncio.sleep(0)
        done.set()
        # After one of these steps it has been told that it is its turn, and has not taken it.
        for _ in range(steps):
            await asyncio.sleep(0)
        gives_up.cancel()
        await asyncio.wait_for(asyncio.gather(first, gives_up, waits, return_exceptions=True), 30)
        return answered, processes.waiting

    answered, waiting = asyncio.run(main())
    assert (answered[0], answered[-1], waiting) == ("first", "waits", 0)


def test_a_flood_of_pings_ends_its_connection_and_no_other(agent, collector):
    host, _, port = collector.target.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as channel:
        channel.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        received = b""
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                channel.sendall(b"\x00\x00\x08\x06" + bytes(5) + b"12345678")
                channel.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    received += channel.recv(65536)
            channel.settimeout(200)
            while part := channel.recv(65536):
                received += part
    assert b"too_many_pings" in received
