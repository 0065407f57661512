"""QueryService and Client over real gRPC, on what was really ingested."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.fleet_store import write_fleet
from support.running_collector import ThreadCollector
from support.trace_records import trace_records
from support.wire_agent import WireStream, hello, wait_until

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.collector import LocalStore
from gpusonde.collector.client import Client, CollectorError, GpuPlacement, MeasuredMetric, Measurement
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.query import prediction
from gpusonde.collector.query.runs import list_runs
from gpusonde.epoch_detect import detect
from gpusonde.epoch_detect.progress import duration_trend, epoch_table, estimate_end, time_shares
from gpusonde.planning.v1 import planning_pb2, planning_pb2_grpc
from gpusonde.predictor.crossgpu import LatencyModel, SourceMeasurement, summarise_metrics
from gpusonde.query.v1 import query_pb2, query_pb2_grpc
from gpusonde.telemetry import read_trace

DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"
START_NS = 1_700_000_000_000_000_000


@pytest.fixture(scope="module")
def trace():
    return read_trace(DEMO_TRACE).window(0, 130)


@pytest.fixture(scope="module")
def filled(tmp_path_factory, trace):
    """A collector that holds one run with epochs, one too short for any, and one of a GPU nobody knows."""
    with ThreadCollector(tmp_path_factory.mktemp("collector") / "data", store__segment_interval="100ms") as collector:
        streams = [
            (hello("agent-1"), trace_records(trace)),
            (hello("agent-2"), trace_records(trace.window(40, 42.5), START_NS + 10**12, gpu_uuid="GPU-short")),
            (hello("agent-3"), trace_records(_of_model(trace, "Matrox G200"), START_NS + 2 * 10**12, gpu_uuid="GPU-x")),
            (hello("agent-4"), trace_records(_of_model(trace, ""), START_NS + 3 * 10**12, gpu_uuid="GPU-nameless")),
        ]
        for greeting, records in streams:
            with WireStream(collector.target, greeting) as stream:
                stream.greet()
                stream.send(*records).wait_acked(len(records))
        with Client(collector.target) as client:
            wait_until(lambda: len(_ended(client)) == 4, 120, "end of all runs")
        yield collector


def _of_model(trace, model):
    return type(trace)(trace.time_s, trace.values, trace.gpu_uuid, model)


def _ended(client):
    return [run for run in client.list_runs() if not run.active]


@pytest.fixture
def client(filled):
    with Client(filled.target) as asking:
        yield asking


@pytest.fixture
def run(client):
    (found,) = client.list_runs(gpu_uuid="GPU-generated-demo-t4")
    return found


def refusal(call, *arguments, **more):
    with pytest.raises(CollectorError) as caught:
        call(*arguments, **more)
    return caught.value.code, str(caught.value)


def test_a_run_tells_what_is_known_of_it(run, trace):
    offline = detect(trace)
    assert run.agent_id == "agent-1"
    assert run.product_name == "Tesla T4"
    assert run.host_name == "host-1"
    assert run.replayed
    assert run.verdict == "epochs"
    assert run.epoch_count == len(offline.epoch_starts_s)
    assert run.period_s == pytest.approx(offline.period_s, abs=1e-8)
    assert run.period_low_s < run.period_s < run.period_high_s
    assert 0.5 < run.confidence <= 1
    assert run.tick_count > 1000
    assert run.missed_ticks == 0


def test_runs_come_newest_first_in_pages(filled, client):
    everything = client.list_runs()
    assert [run.gpu_uuid for run in everything] == ["GPU-nameless", "GPU-x", "GPU-short", "GPU-generated-demo-t4"]
    assert client.list_runs(limit=2) == everything[:2]
    assert client.list_runs(job_id="no such job") == []
    with grpc.insecure_channel(filled.target) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)
        pages, token = [], ""
        while not pages or token:
            answer = stub.ListRuns(query_pb2.ListRunsRequest(page_size=3, page_token=token))
            pages.append([run.run_id for run in answer.runs])
            token = answer.next_page_token
        assert pages == [[run.run_id for run in everything[:3]], [everything[3].run_id]]


def test_a_page_of_runs_reads_its_gpus_and_not_those_of_the_fleet(tmp_path, monkeypatch):
    write_fleet(tmp_path / "data", jobs=2)
    store = LocalStore(tmp_path / "data", StoreConfig(reserve_bytes=0))
    store.open()
    gpus, asked = store.facts.gpus, []
    monkeypatch.setattr(store.facts, "gpus", lambda uuids=None: asked.append(uuids) or gpus(uuids))
    runs = list_runs(store, query_pb2.ListRunsRequest(page_size=2)).runs
    store.close()
    assert asked == [{run.gpu_uuid for run in runs}]
    assert all(run.product_name for run in runs)


def test_epochs_of_a_run_are_those_of_the_trace(filled, client, run, trace):
    offline = detect(trace)
    found = client.list_epochs(run.run_id)
    assert (found.verdict, found.reason) == ("epochs", offline.reason)
    starts = [(epoch.start_unix_nano - START_NS) / 1e9 for epoch in found.epochs]
    assert starts == pytest.approx(offline.epoch_starts_s.tolist(), abs=1e-6)
    assert all(epoch.status == "confirmed" for epoch in found.epochs)
    assert found.epochs[0].duration_s == pytest.approx(offline.epoch_ends_s[0] - offline.epoch_starts_s[0], abs=1e-6)
    with grpc.insecure_channel(filled.target) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)
        first = stub.ListEpochs(query_pb2.ListEpochsRequest(run_id=run.run_id, page_size=2))
        rest = stub.ListEpochs(query_pb2.ListEpochsRequest(run_id=run.run_id, page_token=first.next_page_token))
        assert len(first.epochs) == 2
        assert len(first.epochs) + len(rest.epochs) == len(found.epochs)
        assert not rest.next_page_token


def test_the_levels_of_a_run_are_those_of_the_trace(client, run, trace):
    offline = detect(trace)
    found = client.list_epochs(run.run_id)
    assert offline.cycles
    assert found.level == offline.level
    assert found.run_state == str(offline.run_state)
    # A run begins with its first work, a trace where it was cut.
    assert found.run_state_confidence == pytest.approx(offline.run_state_confidence, abs=0.01)
    for level, expected in zip(found.cycles, offline.cycles, strict=True):
        assert (level.period_s, level.confidence) == pytest.approx((expected.period_s, expected.confidence))
        assert (level.count, level.role, level.parent) == (expected.count, str(expected.role), expected.parent)
        starts = [(start - START_NS) / 1e9 for start in level.latest_starts_unix_nano]
        assert starts == pytest.approx(expected.starts_s[-64:].tolist(), abs=1e-6)


def test_what_the_epochs_of_a_run_tell_is_that_of_the_trace(client, run, trace):
    wait_until(lambda: not client.list_epochs(run.run_id).pending_summaries, what="summaries")
    offline = detect(trace)
    starts, ends = offline.epoch_starts_s, offline.epoch_ends_s
    found = client.list_epochs(run.run_id, total_epochs=20)
    for epoch, expected in zip(found.epochs, epoch_table(trace.time_s, trace.values, starts, ends), strict=True):
        assert epoch.mean_metrics == pytest.approx(expected.mean_metrics, rel=1e-6)
        assert epoch.energy_joules == pytest.approx(expected.energy_joules, rel=1e-6)
        assert epoch.seen_share == pytest.approx(expected.seen_share, rel=1e-6)
    shares = time_shares(trace.time_s, trace.values, starts, ends)
    assert (found.idle_share, found.stalled_share) == pytest.approx((shares.idle, shares.stalled), abs=1e-6)
    trend = duration_trend((ends - starts)[1:])
    assert found.trend.changes == trend.change_points == ()
    assert found.trend.recent_s == pytest.approx(trend.recent_s, abs=1e-6)
    assert found.trend.change_per_epoch == pytest.approx(trend.change_per_epoch, abs=1e-6)
    # The collector knows when it trained, too: the long first epoch may be two, which widens the interval.
    now_s = trace.time_s[-1]
    end = estimate_end(starts, ends, 20, now_s, training_s=np.array([[starts[0], now_s]]))
    assert (found.estimate.epochs_done, found.estimate.epochs_left) == (len(starts), 20 - len(starts))
    said = (found.estimate.end_unix_nano, found.estimate.end_low_unix_nano, found.estimate.end_high_unix_nano)
    assert [(each - START_NS) / 1e9 for each in said] == pytest.approx([end.end_s, end.end_low_s, end.end_high_s])
    assert found.estimate.interval_coverage == 0.9


def test_every_page_tells_of_the_whole_run(filled, run):
    with grpc.insecure_channel(filled.target) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)
        whole = stub.ListEpochs(query_pb2.ListEpochsRequest(run_id=run.run_id, total_epochs=9))
        request = query_pb2.ListEpochsRequest(run_id=run.run_id, page_size=2, total_epochs=9)
        pages = [stub.ListEpochs(request)]
        while request.page_token != pages[-1].next_page_token:
            request.page_token = pages[-1].next_page_token
            pages.append(stub.ListEpochs(request))
            if not pages[-1].next_page_token:
                break
    assert [epoch for page in pages for epoch in page.epochs] == list(whole.epochs)
    assert len(pages) > 2
    for page in pages:
        assert (page.trend, page.estimate, page.idle_share) == (whole.trend, whole.estimate, whole.idle_share)


def test_a_total_that_cannot_be_names_its_field_and_what_to_do(client, run):
    code, text = refusal(client.list_epochs, run.run_id, total_epochs=2)
    assert code == "INVALID_ARGUMENT"
    assert "field 'total_epochs'" in text
    assert "more than the 2" in text
    assert "or leave it out" in text


def test_too_few_epochs_for_an_estimate_are_no_error(client):
    (short,) = client.list_runs(gpu_uuid="GPU-short")
    found = client.list_epochs(short.run_id, total_epochs=10)
    assert (found.estimate, found.trend) == (None, None)
    assert "at least 3 are needed" in found.estimate_reason


def test_a_run_without_epochs_says_why(client):
    (short,) = client.list_runs(gpu_uuid="GPU-short")
    found = client.list_epochs(short.run_id)
    assert found.epochs == ()
    assert found.verdict == "none"
    assert found.reason
    code, text = refusal(client.predict_run, short.run_id)
    assert code == "FAILED_PRECONDITION"
    assert "has no epochs to predict from" in text
    assert math.isnan(short.period_s)


def test_a_prediction_of_a_run_is_that_of_its_trace(client, run, trace):
    origin = (run.start_unix_nano - START_NS) / 1e9
    end = (run.end_unix_nano - START_NS) / 1e9
    inside = trace.window(origin - 1e-6, end + 1e-6)
    as_float32 = type(trace)(inside.time_s, {k: v.astype(np.float32) for k, v in inside.values.items()})
    gpus = load_gpus()
    targets = ["V100-SXM2-16GB", "A10"]
    error = (run.period_high_s - run.period_low_s) / 3.92 / run.period_s
    source = SourceMeasurement(
        gpus.resolve("Tesla T4").spec,
        run.period_s,
        summarise_metrics(as_float32),
        epoch_latency_relative_error=error,
        epoch_count=run.epoch_count,
    )
    expected = LatencyModel.shipped().predict(source, [gpus.resolve(name).spec for name in targets])
    found = client.predict_run(run.run_id, targets)
    assert found.source_gpu_model == "T4"
    assert found.source_epoch_latency_s == pytest.approx(run.period_s)
    assert found.model_version == LatencyModel.shipped().version
    assert [p.gpu_model for p in found.predictions] == [p.target_gpu for p in expected]
    for one, other in zip(found.predictions, expected, strict=True):
        assert one.epoch_latency_s == pytest.approx(other.epoch_latency_s, rel=1e-6)
        assert one.epoch_latency_low_s == pytest.approx(other.epoch_latency_low_s, rel=1e-6)
        assert one.epoch_latency_high_s == pytest.approx(other.epoch_latency_high_s, rel=1e-6)
        assert (one.status, one.extrapolated, one.method) == (other.status, other.extrapolated, other.method)
        assert one.interval_coverage == other.interval_coverage


def test_a_run_poses_a_problem_that_has_plans_and_says_what_it_assumes(filled, run):
    with grpc.insecure_channel(filled.target) as channel:
        stub = planning_pb2_grpc.PlanningServiceStub(channel)
        wanted = {"run_id": run.run_id, "epochs": 90, "quota": 1, "providers": ["lambda"]}
        posed = stub.PoseProblem(planning_pb2.PoseProblemRequest(**wanted, steps_per_epoch=100))
        assert (posed.problem.epochs, posed.problem.samples_per_epoch) == (90, 100 * posed.problem.global_batch)
        rented = {offer.gpu_model for offer in load_offers().offers(provider="lambda", newest_only=False)}
        assert {curve.device for curve in posed.problem.job.curves} <= rented
        assert posed.assumed[0] == f"an epoch takes {run.period_s:.1f} s on 1 x T4"
        assert "batches told as shares of 256" in posed.assumed[-1]
        front = stub.ListParetoPlans(planning_pb2.ListParetoPlansRequest(problem=posed.problem))
        assert [point.estimate.cost_usd for point in front.points] == sorted(
            (point.estimate.cost_usd for point in front.points), reverse=True
        )
        assert all(group.machines == 1 for point in front.points for group in point.plan.groups)
        for change, code, text in (
            ({"epochs": 0}, "INVALID_ARGUMENT", "field 'epochs': give a whole number from 1 to 10,000,000, not 0"),
            ({"epochs": 10_000_001}, "INVALID_ARGUMENT", "field 'epochs': give a whole number from 1 to 10,000,000"),
            ({"quota": 0}, "INVALID_ARGUMENT", "field 'quota': give"),
            ({"quota": 10_001}, "INVALID_ARGUMENT", "field 'quota': give a whole number from 1 to 10,000, not 10,001"),
            ({"batch_size": 0}, "INVALID_ARGUMENT", "field 'batch_size': give"),
            ({"batch_size": 1 << 21}, "INVALID_ARGUMENT", "field 'batch_size': give a whole number from 1 to 1,048"),
            ({"steps_per_epoch": 0}, "INVALID_ARGUMENT", "field 'steps_per_epoch': give"),
            ({"steps_per_epoch": 1 << 31}, "INVALID_ARGUMENT", "field 'steps_per_epoch': give a whole number from 1"),
            ({"providers": ["nowhere"]}, "INVALID_ARGUMENT", "field 'providers': no provider"),
            ({"providers": ["aws"] * 65}, "INVALID_ARGUMENT", "at most 64"),
            ({"gpus": ["T44"]}, "INVALID_ARGUMENT", "field 'gpus'"),
            ({"deadline_s": -1.0}, "INVALID_ARGUMENT", "field 'deadline_s': give a number above zero"),
            ({"budget_usd": float("nan")}, "INVALID_ARGUMENT", "field 'budget_usd': give a number above zero"),
            ({"run_id": "nobody"}, "NOT_FOUND", "nobody"),
            ({"precision": "fp3"}, "INVALID_ARGUMENT", "field 'precision'"),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                stub.PoseProblem(planning_pb2.PoseProblemRequest(**(wanted | change)))
            assert refused.value.code().name == code
            assert text in refused.value.details()


def test_without_targets_every_gpu_of_the_catalogue_is_predicted(client, run):
    assert len(client.predict_run(run.run_id).predictions) == len(load_gpus().specs)


def test_a_prediction_tells_what_its_machines_cost(client):
    offers = load_offers().offers("T4")
    one = min(offer.usd_per_hour for offer in offers)
    four = min(offer.usd_per_hour for offer in offers if offer.gpu_count >= 4)
    placements = [GpuPlacement(1), GpuPlacement(4), GpuPlacement(8, 2), GpuPlacement(1)]
    found = client.predict_measurement(Measurement("T4", 100.0), ["T4", "T4", "T4", "GB300"], placements=placements)
    assert [each.usd_per_hour for each in found.predictions[:3]] == pytest.approx([one, four, 2 * four])
    assert " (4x T4): " in found.predictions[1].offer
    assert math.isnan(found.predictions[3].usd_per_hour)
    assert found.predictions[3].offer == ""


def test_jobs_on_several_gpus_are_predicted_on_others(client):
    measurement = Measurement("V100-SXM2-16GB", 100.0)
    targets = ["V100-SXM2-16GB", "V100-SXM2-16GB", "T4"]
    placements = [GpuPlacement(8), GpuPlacement(4, link="pcie"), GpuPlacement(64)]
    found = client.predict_measurement(measurement, targets, here=GpuPlacement(8), placements=placements)
    same, fewer, refused = found.predictions
    assert (found.source_gpu_count, same.gpu_count, fewer.gpu_count) == (8, 8, 4)
    assert same.epoch_latency_s == pytest.approx(100.0)
    assert fewer.epoch_latency_s > 120
    assert fewer.communication_ratio > 0
    assert (same.fits, refused.fits) == ("yes", "unknown")
    assert (same.link, fewer.link, refused.network_bytes_per_second) == ("nvlink", "pcie", 0.0)
    assert refused.status == "unsupported_gpu"
    assert "8x8xT4" in refused.reason
    # One for all; none: as many as the run has.
    (half,) = client.predict_measurement(
        measurement, targets[:1], here=GpuPlacement(8), placements=[GpuPlacement(4, link="pcie")]
    ).predictions
    assert half == fewer
    assert client.predict_measurement(measurement, targets[:1], here=GpuPlacement(8)).predictions == (same,)


def test_slices_are_predicted_where_their_share_is_known_and_refused_by_name_elsewhere(client):
    measurement = Measurement("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 100.0)
    found = client.predict_measurement(measurement, ["A100 MIG 1g.5gb", "A100-SXM4-40GB"])
    assert found.source_gpu_model == "A100-SXM4-40GB MIG 3g.20gb"
    smaller, whole = found.predictions
    assert smaller.gpu_model == "A100-SXM4-40GB MIG 1g.5gb"
    assert smaller.epoch_latency_s > 100 > whole.epoch_latency_s
    code, text = refusal(client.predict_measurement, measurement, ["T4 MIG 1g.5gb"])
    assert code == "NOT_FOUND"
    assert "'T4 MIG 1g.5gb' is a MIG slice whose share of SMs and memory is not known, none of T4 is known" in text


@pytest.mark.parametrize(
    ("here", "placements", "words"),
    [
        (GpuPlacement(3, 8), [], "'source_placement': 3 x V100-SXM2-16GB cannot be on 8 hosts"),
        (GpuPlacement(8, link="string"), [], "nvlink or pcie"),
        (GpuPlacement(8), [GpuPlacement(8, link="nvlink")], "'target_placements[0]': T4 has no NVLink"),
        (GpuPlacement(8, network_bytes_per_second=float("nan")), [], "from 1000000 to"),
        (GpuPlacement(8, 2, network_bytes_per_second=1e-300), [], "from 1000000 to"),
        (GpuPlacement(8, batch_per_gpu=1e-300), [], "from 1 to"),
        (GpuPlacement(8), [GpuPlacement(4)] * 2, "2 for 3 targets"),
    ],
)
def test_gpus_that_cannot_be_are_refused(client, here, placements, words):
    measurement = Measurement("V100-SXM2-16GB", 100.0)
    code, text = refusal(
        client.predict_measurement, measurement, ["T4", "V100", "A10G"], here=here, placements=placements
    )
    assert code == "INVALID_ARGUMENT"
    assert words in text


def test_what_an_older_collector_passes_over_is_not_taken_for_an_answer(client, monkeypatch):
    old = query_pb2.PredictEpochLatencyResponse(source_gpu_model="V100", predictions=[{"gpu_model": "T4"}])
    job = query_pb2.Job(job_id="4711", active=True, level={"count": 3})
    stub = SimpleNamespace(
        PredictEpochLatency=lambda *_, **__: old, ListJobs=lambda *_, **__: query_pb2.ListJobsResponse(jobs=[job])
    )
    monkeypatch.setattr(client, "_stub", stub)
    measurement = Measurement("V100-SXM2-16GB", 100.0)
    assert client.predict_measurement(measurement, ["T4"], placements=[GpuPlacement()]).source_gpu_count == 1
    for more in ({"here": GpuPlacement(8)}, {"placements": [GpuPlacement(4)]}):
        code, text = refusal(client.predict_measurement, measurement, ["T4"], **more)
        assert (code, "update it" in text) == ("UNIMPLEMENTED", True)
    assert [each.job_id for each in client.list_jobs()] == ["4711"]
    code, text = refusal(client.list_jobs, estimates=True)
    assert (code, "update it" in text) == ("UNIMPLEMENTED", True)
    job.estimate_reason = "nothing is known"
    assert [each.job_id for each in client.list_jobs(estimates=True)] == ["4711"]


def test_a_number_that_contradicts_the_run_is_refused(client, run):
    code, text = refusal(client.predict_run, run.run_id, ["T4"], here=GpuPlacement(8))
    assert code == "INVALID_ARGUMENT"
    assert "source_placement.gpu_count" in text
    assert client.predict_run(run.run_id, ["T4"], here=GpuPlacement(1)).source_gpu_count == 1


def test_a_run_has_the_gpus_that_its_job_had_while_it_ran(client, run, monkeypatch):
    def with_three_more(results, row):
        hour = 3_600 * 10**9
        before = replace(row, start_unix_nano=row.start_unix_nano - 2 * hour, end_unix_nano=row.end_unix_nano - hour)
        others = [replace(row, gpu_uuid=f"GPU-{number}", agent_id="agent-9") for number in range(3)]
        return [row, *others, replace(before, gpu_uuid="GPU-before")]

    monkeypatch.setattr(prediction, "runs_of_job", with_three_more)
    found = client.predict_run(run.run_id, ["V100-SXM2-16GB"])
    assert (found.source_gpu_count, found.source_host_count) == (4, 2)
    (answer,) = found.predictions
    assert (answer.gpu_count, answer.host_count, answer.status) == (4, 2, "extrapolated")
    assert "2 hosts of 2 x T4 to 2 hosts of 2 x V100-SXM2-16GB: communication assumed" in answer.reason
    # What is told beside adds to what is known.
    assert client.predict_run(run.run_id, ["T4"], here=GpuPlacement(4)).source_host_count == 2
    code, text = refusal(client.predict_run, run.run_id, ["T4"], here=GpuPlacement(8))
    assert (code, "8, but the job of run" in text) == ("INVALID_ARGUMENT", True)


@pytest.mark.parametrize(("count", "hosts"), [(7, 2), (16, 1)])
def test_a_run_keeps_the_hosts_that_its_job_had(client, run, monkeypatch, count, hosts):
    """Unlike hosts are no more hosts, and a large one that was seen is there."""
    monkeypatch.setattr(
        prediction,
        "runs_of_job",
        lambda results, row: [
            replace(row, gpu_uuid=f"{row.gpu_uuid}-{gpu}" if gpu else row.gpu_uuid, agent_id=f"agent-{gpu % hosts}")
            for gpu in range(count)
        ],
    )
    for here in (None, GpuPlacement(count, hosts)):
        found = client.predict_run(run.run_id, ["T4", "V100-SXM2-16GB"], here=here)
        assert (found.source_gpu_count, found.source_host_count) == (count, hosts)
        assert all(answer.epoch_latency_s > 0 for answer in found.predictions)


def test_a_job_on_unlike_gpus_is_not_taken_for_one_on_gpus_of_the_runs_model(client, run, monkeypatch):
    monkeypatch.setattr(
        prediction, "runs_of_job", lambda results, row: [row, replace(row, gpu_uuid="GPU-x", agent_id="agent-3")]
    )
    code, text = refusal(client.predict_run, run.run_id, ["T4"])
    assert code == "FAILED_PRECONDITION"
    assert "several models (Matrox G200, T4)" in text


def distribution(mean):
    return MeasuredMetric(mean, mean / 10, mean / 2, mean * 0.9, mean, mean * 1.1, mean * 1.5)


def test_the_precision_of_a_measurement_counts(client):
    def seconds(precision):
        measurement = Measurement("Tesla T4", 20.0, precision=precision)
        return client.predict_measurement(measurement, ["P100-PCIe-16GB"]).predictions[0].epoch_latency_s

    assert seconds("fp32") == seconds("") < seconds("mixed")
    assert seconds("fp64") < seconds("fp32")
    code, text = refusal(client.predict_measurement, Measurement("Tesla T4", 20.0, precision="int4"), ["T4"])
    assert code == "INVALID_ARGUMENT"
    assert "measurement.precision" in text
    assert "mixed" in text


def test_a_measurement_in_the_request_is_predicted_from(client):
    metrics = {"gpu_utilization": distribution(0.6), "power_watts": distribution(60.0)}
    found = client.predict_measurement(Measurement("Tesla T4", 20.0, metrics), ["V100"])
    assert found.source_epoch_latency_s == 20.0
    assert found.predictions[0].gpu_model.startswith("V100")
    assert 0 < found.predictions[0].epoch_latency_low_s < found.predictions[0].epoch_latency_high_s


@pytest.mark.parametrize(
    ("measurement", "targets", "code", "words"),
    [
        (Measurement("Voodoo 2", 20.0), (), "NOT_FOUND", "unknown GPU 'Voodoo 2'"),
        (Measurement("T4", 20.0), ("Voodoo 2",), "NOT_FOUND", "unknown GPU 'Voodoo 2'"),
        (Measurement("T4", 0.0), (), "INVALID_ARGUMENT", "epoch_latency_s is 0.0"),
        (Measurement("T4", 20.0, {"nonsense": distribution(1)}), (), "INVALID_ARGUMENT", "nonsense"),
        (Measurement("T4", 20.0, {"sm_active": distribution(-1)}), (), "INVALID_ARGUMENT", "sm_active"),
        (
            Measurement("T4", 20.0, epoch_latency_relative_error=2.0),
            (),
            "INVALID_ARGUMENT",
            "epoch_latency_relative_error",
        ),
        (Measurement("8xT4", 20.0), (), "INVALID_ARGUMENT", "number of GPUs, which has a field of its own"),
        (Measurement("T4", 20.0), ("A10G", "4 x V100"), "INVALID_ARGUMENT", "'4 x V100' is a name with a number"),
    ],
)
def test_an_impossible_measurement_is_refused_with_the_reason(client, measurement, targets, code, words):
    found = refusal(client.predict_measurement, measurement, targets)
    assert found[0] == code
    assert words in found[1]


def test_a_gpu_that_the_catalogue_does_not_hold_is_named(client):
    (unknown,) = client.list_runs(gpu_uuid="GPU-x")
    code, text = refusal(client.predict_run, unknown.run_id)
    assert code == "NOT_FOUND"
    assert "Matrox G200" in text
    (nameless,) = client.list_runs(gpu_uuid="GPU-nameless")
    code, text = refusal(client.predict_run, nameless.run_id)
    assert code == "FAILED_PRECONDITION"
    assert "give a measurement with its gpu_model" in text


def test_a_run_that_does_not_exist_is_not_found(client):
    for call in (client.list_epochs, client.predict_run):
        code, text = refusal(call, "nonsense")
        assert code == "NOT_FOUND"
        assert "no run 'nonsense'" in text


@pytest.mark.parametrize(
    ("method", "request_message", "field"),
    [
        ("ListRuns", query_pb2.ListRunsRequest(page_size=-1), "page_size"),
        ("ListEpochs", query_pb2.ListEpochsRequest(), "run_id"),
        ("GetRun", query_pb2.GetRunRequest(), "run_id"),
        ("GetJob", query_pb2.GetJobRequest(), "job_id"),
        ("PredictEpochLatency", query_pb2.PredictEpochLatencyRequest(run_id=""), "run_id"),
        ("DecimateSamples", query_pb2.DecimateSamplesRequest(gpu_uuid="x", metrics=["power_watts"] * 17), "metrics"),
        ("DecimateSamples", query_pb2.DecimateSamplesRequest(metrics=["power_watts"]), "gpu_uuid"),
        ("ListRuns", query_pb2.ListRunsRequest(page_token="; DROP TABLE runs"), "page_token"),
        ("ListRuns", query_pb2.ListRunsRequest(page_token="W10="), "page_token"),
        ("ListRuns", query_pb2.ListRunsRequest(page_token="Ww" * 5000), "page_token"),
        ("PredictEpochLatency", query_pb2.PredictEpochLatencyRequest(), "source"),
    ],
)
def test_a_bad_request_names_its_field(filled, method, request_message, field):
    with grpc.insecure_channel(filled.target) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            getattr(stub, method)(request_message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"field '{field}'" in caught.value.details()


def test_a_status_tells_programs_the_field_too(filled):
    rpc_status = pytest.importorskip("grpc_status.rpc_status", reason="details are read with grpcio-status")
    from google.rpc import error_details_pb2

    with grpc.insecure_channel(filled.target) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            query_pb2_grpc.QueryServiceStub(channel).ListRuns(query_pb2.ListRunsRequest(page_token="W10="))
        status = rpc_status.from_call(caught.value)
        assert (status.code, status.message) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], caught.value.details())
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        assert status.details[0].Unpack(info)
        assert (info.reason, info.domain) == ("INVALID_ARGUMENT", "gpusonde")
        assert status.details[1].Unpack(bad)
        assert [(v.field, v.description) for v in bad.field_violations] == [
            ("page_token", "is not one that this collector gave out")
        ]


def test_a_page_larger_than_the_largest_is_the_largest(filled, client):
    with grpc.insecure_channel(filled.target) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)
        assert len(stub.ListRuns(query_pb2.ListRunsRequest(page_size=5000)).runs) == len(client.list_runs())


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"agent_id": "agent-2"}, ["GPU-short"]),
        ({"agent_id": "agent-9"}, []),
        ({"host_name": "host-1", "gpu_uuid": "GPU-x"}, ["GPU-x"]),
        ({"host_name": "host-9"}, []),
        ({"status": query_pb2.RUN_STATUS_ACTIVE}, []),
        ({"status": query_pb2.RUN_STATUS_ENDED, "agent_id": "agent-1"}, ["GPU-generated-demo-t4"]),
        ({"start_s": 500, "end_s": 1500}, ["GPU-short"]),
        ({"start_s": 1500}, ["GPU-nameless", "GPU-x"]),
        ({"end_s": 500}, ["GPU-generated-demo-t4"]),
        ({"start_s": 300, "end_s": 600}, []),
    ],
)
@pytest.mark.parametrize("page_size", [1, 100])
def test_runs_are_chosen_by_time_host_agent_and_status(filled, chosen, found, page_size):
    request = query_pb2.ListRunsRequest(page_size=page_size)
    for name, value in chosen.items():
        if name.endswith("_s"):
            getattr(request, f"{name[:-2]}_time").FromNanoseconds(START_NS + value * 10**9)
        else:
            setattr(request, name, value)
    seen = []
    with grpc.insecure_channel(filled.target) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)
        while True:
            page = stub.ListRuns(request)
            seen += [run.gpu_uuid for run in page.runs]
            request.page_token = page.next_page_token
            if not request.page_token:
                break
    assert seen == found


def test_one_run_is_told_as_in_the_list(filled, run):
    with grpc.insecure_channel(filled.target) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)
        listed = stub.ListRuns(query_pb2.ListRunsRequest(gpu_uuid=run.gpu_uuid)).runs[0]
        assert stub.GetRun(query_pb2.GetRunRequest(run_id=run.run_id)).run == listed


def test_a_picture_gets_the_bounds_of_the_samples(filled, run, trace):
    with grpc.insecure_channel(filled.target) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)
        request = query_pb2.DecimateSamplesRequest(run_id=run.run_id, metrics=["power_watts"], bin_count=40)
        found = stub.DecimateSamples(request)
        every = query_pb2.DecimateSamplesRequest(gpu_uuid=run.gpu_uuid, metrics=["power_watts"], bin_count=4000)
        every.start_time.FromNanoseconds(START_NS)
        every.end_time.FromNanoseconds(START_NS + 20 * 10**9)
        ticks = stub.DecimateSamples(every)
    (power,) = found.metrics
    assert set(found.available_metrics) == set(trace.metrics)
    assert len(found.offset_seconds) == len(power.minimums) == len(power.maximums) <= 40
    # From the run's first activity to its last.
    first_s, last_s = ((time - START_NS) / 1e9 for time in (run.start_unix_nano, run.end_unix_nano))
    watts = trace.values["power_watts"][(trace.time_s > first_s - 0.05) & (trace.time_s < last_s + 0.05)]
    assert min(power.minimums) == pytest.approx(np.nanmin(watts))
    assert max(power.maximums) == pytest.approx(np.nanmax(watts))
    # Bins narrower than the interval hold each tick by itself, at its time.
    inside = trace.time_s < 20
    assert list(ticks.offset_seconds) == pytest.approx(list(trace.time_s[inside]), abs=1e-5)
    assert np.array_equal(ticks.metrics[0].minimums, trace.values["power_watts"][inside].astype(np.float32))
    assert list(ticks.metrics[0].minimums) == list(ticks.metrics[0].maximums)
    assert ticks.interval.ToNanoseconds() / 1e9 == pytest.approx(0.1, rel=0.05)


def test_samples_come_back_as_they_were_taken(client, trace):
    found = client.read_samples("GPU-generated-demo-t4")
    assert set(found.metrics) == set(trace.metrics)
    assert found.time_s == pytest.approx(trace.time_s - trace.time_s[0], abs=1e-6)
    assert found.origin_unix_s == pytest.approx(START_NS / 1e9)
    for name in trace.metrics:
        assert np.array_equal(found.values[name], trace.values[name].astype(np.float32), equal_nan=True), name


def test_samples_of_a_range_and_of_some_metrics(client, run):
    start = START_NS + 10 * 10**9
    found = client.read_samples(
        "GPU-generated-demo-t4", metrics=["power_watts"], start_unix_nano=start, end_unix_nano=start + 10**9
    )
    assert found.metrics == ("power_watts",)
    assert len(found) == 10
    assert len(client.read_samples("GPU-generated-demo-t4", start_unix_nano=start * 2)) == 0
    inside = client.read_samples(run.gpu_uuid, start_unix_nano=run.start_unix_nano, end_unix_nano=run.end_unix_nano + 1)
    assert len(inside) == run.tick_count


def test_pieces_of_the_arrow_stream_are_at_most_a_mebibyte(filled):
    with grpc.insecure_channel(filled.target) as channel:
        request = query_pb2.ReadSamplesRequest(gpu_uuid="GPU-generated-demo-t4")
        sizes = [len(r.arrow_ipc) for r in query_pb2_grpc.QueryServiceStub(channel).ReadSamples(request)]
    assert sizes
    assert max(sizes) <= 1 << 20


def test_samples_that_do_not_exist_are_refused_by_name(client):
    assert refusal(client.read_samples, "GPU-nobody")[0] == "NOT_FOUND"
    code, text = refusal(client.read_samples, "GPU-generated-demo-t4", metrics=["sm_activ"])
    assert (code, "did you mean sm_active" in text) == ("INVALID_ARGUMENT", True)
    code, text = refusal(client.read_samples, "GPU-generated-demo-t4", metrics=["fp64_active"])
    assert (code, "has no metric 'fp64_active'; it has" in text) == ("NOT_FOUND", True)
    code, _ = refusal(client.read_samples, "GPU-generated-demo-t4", start_unix_nano=10, end_unix_nano=5)
    assert code == "INVALID_ARGUMENT"


def test_a_collector_that_is_not_there_is_an_error_with_advice():
    with Client("127.0.0.1:1", timeout_s=5) as nobody:
        code, text = refusal(nobody.list_runs)
    assert code == "UNAVAILABLE"
    assert "no collector answers at 127.0.0.1:1" in text
    assert "start one with 'gpusonde collector'" in text


@pytest.mark.parametrize("service", ["", "gpusonde.ingest.v1.IngestService", "gpusonde.query.v1.QueryService"])
def test_health_is_served(filled, service):
    with grpc.insecure_channel(filled.target) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_services_on_loopback(filled):
    with grpc.insecure_channel(filled.target) as channel:
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]))
    names = {service.name for service in answer.list_services_response.service}
    assert {"gpusonde.ingest.v1.IngestService", "gpusonde.query.v1.QueryService"} <= names


def test_reflection_is_served_under_its_newer_name_too(filled):
    with grpc.insecure_channel(filled.target) as channel:
        call = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        (answer,) = call(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    names = {service.name for service in answer.list_services_response.service}
    assert {"grpc.reflection.v1.ServerReflection", "gpusonde.query.v1.QueryService"} <= names


def test_reflection_can_be_switched_off(tmp_path):
    with (
        ThreadCollector(tmp_path / "data", server__reflection="off") as collector,
        grpc.insecure_channel(collector.target) as channel,
    ):
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError) as caught:
            list(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask])))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
