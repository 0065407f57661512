"""What ``/metrics`` shows, sent to a Prometheus and to a receiver of OTLP; and neither has to be there."""

import contextlib
import http.server
import json
import math
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.job_records import binding
from support.own_port import own_port
from support.running_collector import ThreadCollector
from support.trace_records import incoming
from support.tracked_store import TrackedStore
from support.wire_agent import batch, block, inventory, wait_until

from gpusonde.collector import CollectorConfig
from gpusonde.collector.alerts import AlertCounters
from gpusonde.collector.metrics import JobMetrics
from gpusonde.collector.push.outgoing import Pusher, read_headers
from gpusonde.collector.storage.model import AgentRow
from gpusonde.errors import ConfigError
from gpusonde.http_request import send
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.query.v1 import query_pb2

pytest.importorskip("cramjam", reason="the extra push is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the extra push is not installed")
import cramjam
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc

from gpusonde.collector.push.remote_write import RemoteWrite
from gpusonde.formats.v1 import remote_write_pb2 as pb

PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")
ROOT = Path(__file__).parents[2]
SECOND = 1_000_000_000
METRICS = ("gpu_utilization", "power_watts", "framebuffer_used_bytes", "energy_joules")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A store with one job that has gone on for a minute, and goes on longer than the tests of this file."""
    directory = tmp_path_factory.mktemp("push") / "data"
    start = time.time_ns() - 60 * SECOND
    bound = binding("GPU-0", "4711")
    bound.start_time_unix_nano = start
    said = [inventory(1, METRICS, ("GPU-0",))]
    said.append(ingest_pb2.Record(sequence=2, job_bindings=ingest_pb2.JobBindings(bindings=[bound])))
    rng = np.random.default_rng(1)
    for first in range(0, 6600, 10):
        values = np.stack([np.full(10, 0.75), rng.normal(300.0, 5.0, 10), np.full(10, 3e9), np.arange(10) * 30.0])
        ticks = block(first, 10, values, METRICS, start_ns=start, bases=(30.0 * first,))
        said.append(batch(len(said) + 1, ticks))
    subject = TrackedStore(directory)
    subject.store.samples.register_agents([AgentRow("agent-1", "spool-1", "instance", start, "gpu-host", "1", b"")])
    subject.feed(incoming(said), 60)
    subject.store.close()
    return directory


def scraped(directory):
    """Series of a running collector: name and labels -> value."""
    address = (directory / "metrics_address").read_text().strip()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextlib.contextmanager
def prometheus(folder):
    """A Prometheus that takes remote writes; yields its address."""
    folder.mkdir(parents=True)
    (folder / "prometheus.yml").write_text("")
    port = own_port()
    words = [
        PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"

        def is_ready():
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                return answer.status == 200
            return False

        wait_until(is_ready, 120, "Prometheus")
        yield url
    finally:
        process.terminate()
        process.wait(60)


def asked(url, query, unix_s=None):
    words = {"query": query} | ({} if unix_s is None else {"time": unix_s})
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode(words)}", timeout=30) as answer:
        return json.load(answer)["data"]["result"]


@needs_prometheus
def test_prometheus_gets_every_series_of_metrics_and_no_other(data, tmp_path):
    # A job changes its state, and has a level of its cycles, from one moment to the next.
    changing = ("gpusonde_job_state", "gpusonde_job_cycle")

    def stored(url):
        found = set()
        for series in asked(url, '{job="gpusonde-collector",instance="c-1"}'):
            labels = {name: text for name, text in series["metric"].items() if name not in ("job", "instance")}
            name = labels.pop("__name__")
            found |= set() if name.startswith(changing) else {(name, *sorted(labels.items()))}
        return found

    def shown():
        return {each for each in scraped(data) if not each[0].startswith(changing)}

    with prometheus(tmp_path / "prometheus") as url:
        settings = {"remote_write.url": f"{url}/api/v1/write", "remote_write.interval": "1s"}
        with ThreadCollector(data, metrics__listen="127.0.0.1:0", server__id="c-1", **settings):
            wait_until(lambda: asked(url, 'gpusonde_job_state{job_id="4711"}'), 120, "the job in Prometheus")
            wait_until(lambda: stored(url) == shown(), 120, "all series in Prometheus")
            assert ("gpusonde_job_gpus", ("job_id", "4711"), ("scheduler", "slurm")) in shown()
            values = scraped(data)
    assert values["gpusonde_collector_remote_write_points_total", ("result", "sent")] > 0
    assert values["gpusonde_collector_remote_write_points_total", ("result", "lost")] == 0


def jobs(*ids):
    found = [query_pb2.Job(job_id=name, scheduler=1, state=query_pb2.JOB_STATE_TRAINING) for name in ids]
    return JobMetrics(SimpleNamespace(jobs=found, counters=AlertCounters()))


@needs_prometheus
def test_a_job_that_is_over_ends_in_prometheus_at_once(tmp_path):
    with prometheus(tmp_path / "prometheus") as url:
        form, counts = RemoteWrite(f"{url}/api/v1/write", "", "c-1"), Counter()
        now = time.time_ns() - 2 * SECOND
        Pusher("there", form, [jobs("a", "b")], 1.0, counts).push(now)
        assert {row["metric"]["job_id"] for row in asked(url, "gpusonde_job_state")} == {"a", "b"}
        Pusher("there", form, [jobs("b")], 1.0, counts).push(now + SECOND)
        assert {row["metric"]["job_id"] for row in asked(url, "gpusonde_job_state")} == {"b"}
    assert (counts["sent"] > 0, counts["lost"]) == (True, 0)


@needs_prometheus
def test_the_annotations_of_the_board_mark_ends_of_cycles_and_beginnings_of_states(tmp_path):
    board = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "jobs.json").read_text(encoding="utf-8"))
    marks = {mark["name"]: mark["expr"].replace("$job_id", ".*") for mark in board["annotations"]["list"]}
    start = time.time_ns() - 150 * SECOND
    found = {"cycles": [], "states": []}
    with prometheus(tmp_path / "prometheus") as url:
        job_metrics = jobs("a")
        pusher = Pusher("there", RemoteWrite(f"{url}/api/v1/write", "", "c-1"), [job_metrics], 1.0, Counter())
        job = job_metrics.alerts.jobs[0]
        job.level.role, job.level.period.seconds = query_pb2.CYCLE_ROLE_EPOCH, 45
        for number in range(6):
            job.level.count = 3 + (number >= 2)
            job.state = query_pb2.JOB_STATE_HUNG if number == 5 else query_pb2.JOB_STATE_TRAINING
            pusher.push(start + 30 * number * SECOND)
        for name, times in found.items():
            for number in range(6):
                for row in asked(url, marks[name], (start + 30 * number * SECOND) / 1e9 + 1.0):
                    times.append((number, row["metric"].get("state") or row["metric"]["level"]))
    assert found["cycles"] == [(2, "epoch"), (3, "epoch")]
    assert found["states"] == [(0, "training"), (1, "training"), (5, "hung")]


class Receiver(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Takes OTLP on a free port of loopback."""

    def __init__(self):
        self.requests, self.headers = [], {}
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        self._server.stop(0).wait()

    def Export(self, request, context):
        self.headers = dict(context.invocation_metadata())
        self.requests.append(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def metrics(self):
        """Name -> list of (resource, metric)."""
        found = {}
        for request in list(self.requests):
            for told in request.resource_metrics:
                resource = {each.key: each.value.string_value for each in told.resource.attributes}
                for metric in (metric for scope in told.scope_metrics for metric in scope.metrics):
                    found.setdefault(metric.name, []).append((resource, metric))
        return found


def attributes(point):
    return {each.key: each.value.string_value for each in point.attributes}


def test_an_otlp_receiver_gets_gpus_by_the_conventions_and_the_series_of_metrics(data, tmp_path):
    (tmp_path / "headers").write_text("Authorization: Bearer of-a-receiver\n\nX-Scope: team\n")
    (tmp_path / "headers").chmod(0o600)
    with Receiver() as receiver:
        settings = {
            "otlp.endpoint": receiver.endpoint, "otlp.interval": "1s", "otlp.headers_file": str(tmp_path / "headers"),
        }  # fmt: skip
        with ThreadCollector(data, metrics__listen="127.0.0.1:0", server__id="c-1", **settings):
            wait_until(lambda: {"gpusonde.job.gpus", "hw.power"} <= receiver.metrics().keys(), 120, "job and GPU")

            def is_whole():
                """What Prometheus would make of the names is what /metrics has."""
                families = tuple(name.replace(".", "_") for name in receiver.metrics())
                return all(name.startswith(families) for name, *_ in scraped(data))

            wait_until(is_whole, 120, "all series")
        found = receiver.metrics()
    assert (receiver.headers["authorization"], receiver.headers["x-scope"]) == ("Bearer of-a-receiver", "team")
    resource, power = found["hw.power"][-1]
    assert resource == {"host.name": "gpu-host"}
    (point,) = power.gauge.data_points
    assert point.as_double == pytest.approx(300.0, abs=5.0)
    assert abs(point.time_unix_nano - time.time_ns()) < 120 * SECOND
    assert attributes(point).items() >= {"hw.id": "GPU-0", "hw.type": "gpu", "hw.model": "Tesla T4"}.items()
    assert power.unit == "W"
    (used,) = found["hw.gpu.utilization"][-1][1].gauge.data_points
    assert (used.as_double, attributes(used)["hw.gpu.task"]) == (0.75, "general")
    memory = found["hw.gpu.memory.usage"][-1][1].sum
    assert (memory.is_monotonic, memory.data_points[0].as_double) == (False, 3e9)
    energy = found["hw.energy"][-1][1].sum
    assert energy.is_monotonic
    assert energy.data_points[0].start_time_unix_nano > 0
    own, waiting = found["gpusonde.collector.ack_latency_seconds"][-1]
    assert (own["service.instance.id"], waiting.unit) == ("c-1", "s")
    (spread,) = waiting.histogram.data_points
    assert sum(spread.bucket_counts) == spread.count
    assert len(spread.bucket_counts) == len(spread.explicit_bounds) + 1


def test_a_receiver_that_is_gone_costs_counts_and_nothing_else(data):
    nobody = f"127.0.0.1:{own_port()}"
    settings = {
        "otlp.endpoint": f"http://{nobody}", "otlp.interval": "1s",
        "remote_write.url": f"http://{nobody}/write", "remote_write.interval": "1s",
    }  # fmt: skip
    with ThreadCollector(data, metrics__listen="127.0.0.1:0", **settings) as running:
        lost = [(f"gpusonde_collector_{name}_points_total", ("result", "lost")) for name in ("otlp", "remote_write")]
        wait_until(lambda: all(scraped(data)[each] > 0 for each in lost), 120, "lost points")
        assert running.target
        began = time.monotonic()
    assert time.monotonic() - began < 60
    assert running.error is None


class Refusing(http.server.BaseHTTPRequestHandler):
    """Sends elsewhere who comes, says no, or keeps what it is told."""

    def do_POST(self):
        self.server.asked[self.path] += 1
        told = pb.WriteRequest.FromString(
            bytes(cramjam.snappy.decompress_raw(self.rfile.read(int(self.headers["Content-Length"]))))
        )
        taken = self.path == "/choosy" and not self.server.refuses(self.server.asked[self.path])
        if taken:
            self.server.taken += told.timeseries
        self.send_response(204 if taken else 307 if self.path == "/moved" else 500)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def refusing():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    server.asked, server.taken, server.refuses = Counter(), [], lambda number: False
    server.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_points_that_are_refused_are_lost_once_and_follow_no_redirect(refusing):
    for path in ("/moved", "/broken"):
        counts = Counter()
        form = RemoteWrite(refusing.address + path, "", "c-1")
        Pusher("there", form, [jobs("a")], 1.0, counts).push(time.time_ns())
        assert (counts["sent"], counts["lost"]) == (0, len(form.batches(jobs("a").collect(), 0)[0]))
    assert refusing.asked == {"/moved": 1, "/broken": 1}


def test_no_proxy_of_the_site_comes_between_two_programs_of_one_host(refusing, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{own_port()}")
    with pytest.raises(urllib.error.HTTPError, match="500"):
        send(urllib.request.Request(f"{refusing.address}/broken", bytes(cramjam.snappy.compress_raw(b""))), 5.0)


def test_a_message_that_is_refused_keeps_the_next_ones_from_nothing(refusing, monkeypatch):
    monkeypatch.setattr("gpusonde.collector.push.remote_write.MOST_POINTS", 7)
    refusing.refuses = lambda number: number == 2
    form, counts = RemoteWrite(f"{refusing.address}/choosy", "", "c-1"), Counter()
    Pusher("there", form, [jobs(*"abcdefgh")], 1.0, counts).push(time.time_ns())
    assert refusing.asked["/choosy"] >= 5
    assert (counts["lost"], counts["sent"]) == (7, len(refusing.taken))


def test_a_receiver_that_answers_too_late_is_asked_once_in_a_round(monkeypatch):
    monkeypatch.setattr("gpusonde.collector.push.remote_write.MOST_POINTS", 7)
    for module in ("outgoing", "remote_write"):
        monkeypatch.setattr(f"gpusonde.collector.push.{module}.TIMEOUT_S", 0.5)
    with Dripping(ANSWER) as server:
        counts = Counter()
        form = RemoteWrite(f"http://{server.place}/", "", "c-1")
        Pusher("there", form, [jobs("a", "b", "c", "d")], 1.0, counts).push(time.time_ns())
        wait_until(lambda: server.ended, 60, "the end of the connection")
        assert (server.came, counts["sent"]) == (1, 0)
        assert counts["lost"] == sum(map(len, form.batches(jobs("a", "b", "c", "d").collect(), 0)))


def test_the_end_of_a_series_is_told_until_it_is_taken_or_needs_no_telling(refusing):
    form, start = RemoteWrite(f"{refusing.address}/choosy", "", "c-1"), time.time_ns()

    def ends(at_s, *names):
        refusing.taken.clear()
        Pusher("there", form, [jobs(*names)], 1.0, Counter()).push(start + at_s * SECOND)
        over = [series for series in refusing.taken if math.isnan(series.samples[0].value)]
        return {label.value for series in over for label in series.labels if label.name == "job_id"}

    assert ends(0, "a", "b", "c") == set()
    refusing.refuses = lambda number: number <= 3
    assert ends(1, "b", "c") == ends(2, "c") == set()
    assert ends(3, "b", "c") == {"a"}
    assert ends(4, "b", "c") == set()
    refusing.refuses = lambda number: number <= 6
    assert ends(5, "c") == set()
    assert ends(400, "c") == set()


ANSWER = b"HTTP/1.1 200 OK\r\nX-A: "
HANDSHAKE = b"\x16\x03\x03\x40\x00"


class Dripping:
    """Begins to answer, and adds a byte now and then for as long as anybody waits."""

    def __init__(self, begins):
        self.came = self.ended = 0
        self._begins = begins
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.came += 1
                threading.Thread(target=self._drip, args=(connection,), daemon=True).start()

    def _drip(self, connection):
        with contextlib.suppress(OSError), connection:
            connection.sendall(self._begins)
            while True:
                connection.sendall(b"x")
                time.sleep(0.1)
        self.ended += 1


@pytest.mark.parametrize(("scheme", "begins"), [("http", ANSWER), ("https", HANDSHAKE)], ids=["answer", "handshake"])
def test_who_answers_a_byte_now_and_then_holds_nobody_and_no_connection(scheme, begins):
    with Dripping(begins) as server:
        with pytest.raises(OSError, match="longer than 1 s"):
            send(urllib.request.Request(f"{scheme}://{server.place}/", b"told"), 1.0)
        wait_until(lambda: server.ended, 60, "the end of the connection")


def test_a_receiver_that_drips_is_asked_again_and_holds_no_end_of_the_collector(data, monkeypatch):
    monkeypatch.setattr("gpusonde.collector.push.remote_write.TIMEOUT_S", 1.0)
    with Dripping(ANSWER) as server:
        settings = {"remote_write.url": f"http://{server.place}/", "remote_write.interval": "1s"}
        with ThreadCollector(data, **settings) as running:
            wait_until(lambda: server.came >= 2, 120, "another attempt")
        assert running.error is None
        wait_until(lambda: server.ended == server.came, 60, "the end of all connections")


def test_many_series_go_in_several_messages_and_no_nan_does(monkeypatch):
    monkeypatch.setattr("gpusonde.collector.push.remote_write.MOST_POINTS", 7)
    form = RemoteWrite("http://127.0.0.1:1/", "", "c-1")
    sent = form.batches(jobs(*map(str, range(20))).collect(), 5_000_000)
    assert {len(each) for each in sent[:-1]} == {7}
    series = [series for each in sent for series in each.series()]
    assert len(series) > 60
    for each in series:
        names = [label.name for label in each.labels]
        assert names == sorted(set(names))
        assert (each.samples[0].timestamp, math.isnan(each.samples[0].value)) == (5, False)


@pytest.mark.parametrize("text", ["s3cret", "Name; s3cret", "A: b\ns3cret\n", "Ä: s3cret", "", "A: s3cret\x00c"])
def test_a_file_that_holds_no_headers_is_refused_without_showing_it(tmp_path, text):
    path = tmp_path / "headers"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OSError, match="headers") as refused:
        read_headers(str(path))
    assert "s3cret" not in str(refused.value)


def test_headers_do_not_leave_the_host_in_the_open(tmp_path):
    for section, key in (("otlp", "endpoint"), ("remote_write", "url")):
        for address in ("http://receiver.example:4317", "http://127.0.0.1.example/"):
            settings = {f"{section}.{key}": address, f"{section}.headers_file": "secret"}
            with pytest.raises(ConfigError, match="without TLS"):
                CollectorConfig.load(overrides=settings)
            CollectorConfig.load(overrides={f"{section}.{key}": address})
        for host in ("127.0.0.1:4317", "127.0.0.1", "localhost", "[::1]", "[::1]:4317"):
            CollectorConfig.load(
                overrides={f"{section}.{key}": f"http://{host}/write", f"{section}.headers_file": "secret"}
            )


@pytest.mark.parametrize(
    "address",
    [
        "http://",
        "https:///x",
        "http://host:99999/x",
        "http://host:0",
        "http://[::1/x",
        "http://host/a b",
        "http://:80/",
    ],
)
@pytest.mark.parametrize("key", ["otlp.endpoint", "remote_write.url", "alerts.webhook"])
def test_what_is_no_address_is_refused(key, address):
    with pytest.raises(ConfigError, match="is no address"):
        CollectorConfig.load(overrides={key: address})
