"""Alerts about jobs: when they fire, when they are over, what a webhook gets, and what if it is down."""

import asyncio
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from support.collector_process import ask
from support.job_records import gpu_traces, records_of
from support.running_collector import ThreadCollector
from support.tracked_store import TrackedStore
from support.wire_agent import wait_until

from gpusonde.cli.main import main
from gpusonde.collector.alerts import JobAlerts, notification
from gpusonde.collector.config import AlertsConfig, CollectorConfig, ConfigError
from gpusonde.collector.query.jobs import list_alerts
from gpusonde.collector.storage.model import AlertRow, JobStateRow, RunRow, RunUpdate
from gpusonde.common.v1 import job_pb2
from gpusonde.query.v1 import query_pb2

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


class Webhook:
    """A receiver that keeps what it is sent, and refuses while it is told to."""

    def __init__(self):
        self.bodies, self.refuses, self.refusal = [], 0, b""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.refuses:
                    outer.refuses -= 1
                    self.wfile.write(outer.refusal)
                    return
                outer.bodies.append(json.loads(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/alerts"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class World:
    """A store with one job that a test moves from state to state, and its alerts."""

    def __init__(self, directory, **config):
        self.subject = TrackedStore(directory)
        self.now = START
        self.config = AlertsConfig(**({"hung_after_s": 30.0, "clear_after_s": 60.0} | config))
        with ThreadPoolExecutor(1) as executor:
            self.alerts = JobAlerts(self.subject.store, executor, self.config, lambda: self.now)
        # An agent whose runs this collector follows.
        self.subject.store.followed = lambda: [("host-1", "GPU-1")]

    def at(self, seconds, *states, ended=False, job="4711"):
        self.now = START + seconds * SECOND
        run = RunRow(
            f"run-{job}", "host-1", "GPU-1", job, job_pb2.SCHEDULER_SLURM, ended, "", START, self.now, 1, 1, 1, 2, 9, 0
        )
        rows = [JobStateRow(START + since * SECOND, state, f"is {state}", 0.9) for since, state in states]
        self.subject.results.save([RunUpdate(run, None, states=rows)], {})
        return self.alerts.look()

    @property
    def kept(self):
        return [
            (
                row.rule,
                (row.start_unix_nano - START) // SECOND,
                row.end_unix_nano and (row.end_unix_nano - START) // SECOND,
            )
            for row in self.subject.results.alerts(limit=100)
        ]


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "data")
    yield world
    world.subject.store.close()


def test_an_alert_fires_after_its_time_and_not_before(world):
    world.at(100, (0, "training"), (80, "hung"))
    assert world.kept == []
    world.at(110)
    assert world.kept == [("hung", 80, 0)]
    world.at(500)
    assert world.kept == [("hung", 80, 0)]


def test_an_alert_is_over_once_the_job_has_done_otherwise_for_a_while(world):
    world.at(200, (0, "training"), (100, "hung"))
    world.at(210, (205, "training"))
    world.at(240, (230, "hung"))
    world.at(250, (245, "training"))
    # It fired once, though the job was in the state twice.
    assert world.kept == [("hung", 100, 0)]
    world.at(320)
    assert world.kept == [("hung", 100, 320)]


def test_what_cannot_be_told_ends_no_alert_and_the_end_of_the_job_does(world):
    world.at(200, (0, "hung"))
    world.at(210, (205, "unknown"))
    world.at(900)
    assert world.kept == [("hung", 0, 0)]
    world.at(910, ended=True)
    assert world.kept == [("hung", 0, 910)]


def test_evaluations_and_checkpoints_of_a_slower_job_do_not_end_its_alert_and_training_does(world):
    world.at(1000, (0, "training"), (100, "slower"))
    assert world.kept == [("slower", 100, 0)]
    world.at(1010, (1005, "evaluating"))
    world.at(1200, (1100, "checkpointing"))
    assert world.kept == [("slower", 100, 0)]
    world.at(1310, (1300, "training"))
    world.at(1400)
    assert world.kept == [("slower", 100, 1400)]


def test_a_rule_can_be_switched_off_while_the_collector_runs(world):
    world.alerts.configure(AlertsConfig(hung_after_s=0.0, idle_after_s=10.0))
    world.at(500, (0, "hung"))
    world.at(600, (520, "idle"))
    assert world.kept == [("idle", 520, 0)]


def test_an_alert_that_was_open_at_a_restart_fires_no_second_time_and_ends(world):
    world.at(200, (0, "hung"))
    with ThreadPoolExecutor(1) as executor:
        world.alerts = JobAlerts(world.subject.store, executor, world.config, lambda: world.now)
    world.at(300)
    assert world.alerts.counters.fired["hung"] == 0
    world.at(310, (305, "training"))
    world.at(400)
    assert world.kept == [("hung", 0, 400)]


def test_jobs_of_other_collectors_are_theirs_to_tell(world):
    world.subject.store.followed = lambda: [("host-2", "GPU-9")]
    world.at(500, (0, "hung"))
    assert world.kept == []
    assert [job.job_id for job in world.alerts.jobs] == ["4711"]


def test_a_webhook_gets_what_alertmanager_would_send(world):
    firing = AlertRow(1, "4711", "hung", START, 0, "all wait", "host-1")
    over = AlertRow(1, "12", "idle", START, START + 60 * SECOND, "no work", "host-1")
    sent = notification([firing, over])
    assert (sent["version"], sent["status"]) == ("4", "firing")
    assert set(sent) == {
        "version", "groupKey", "truncatedAlerts", "status", "receiver", "groupLabels", "commonLabels",
        "commonAnnotations", "externalURL", "alerts",
    }  # fmt: skip
    assert sent["commonLabels"] == {"scheduler": "slurm"}
    first, second = sent["alerts"]
    assert first["labels"] == {
        "alertname": "GpusondeJobHung",
        "job_id": "4711",
        "scheduler": "slurm",
        "severity": "critical",
    }
    assert (first["status"], first["startsAt"]) == ("firing", "2023-11-14T22:13:20Z")
    assert (second["status"], second["endsAt"]) == ("resolved", "2023-11-14T22:14:20Z")
    assert first["fingerprint"] == notification([firing])["alerts"][0]["fingerprint"] != second["fingerprint"]


async def deliver(world, until):
    task = asyncio.ensure_future(world.alerts.run())
    try:
        for _ in range(4000):
            if until():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("nothing came")
    finally:
        task.cancel()


@pytest.mark.parametrize("refusal", [b"HTTP/1.0 503 Later\r\n\r\n", b"SSH-2.0-no-HTTP\r\n"])
def test_a_webhook_that_is_down_gets_the_alert_later_and_every_attempt_is_counted(tmp_path, refusal, caplog):
    webhook = Webhook()
    webhook.refusal = refusal
    world = World(tmp_path / "data", webhook=webhook.address)
    with ThreadPoolExecutor(1) as executor:
        world.alerts = JobAlerts(world.subject.store, executor, world.config, lambda: world.now)
        webhook.refuses = 2
        world.at(200, (0, "hung"))
        asyncio.run(deliver(world, lambda: world.alerts.counters.sent))
    counters = world.alerts.counters
    assert [alert["labels"]["job_id"] for alert in webhook.bodies[0]["alerts"]] == ["4711"]
    assert (counters.failed, counters.sent, counters.dropped) == (2, 1, 0)
    # It does answer.
    assert "does not answer" not in caplog.text
    assert "the webhook does not take alerts, 1 wait: " in caplog.text
    webhook.close()
    world.subject.store.close()


def test_what_a_webhook_has_not_taken_is_sent_by_the_next_process_and_what_it_has_is_not(tmp_path):
    webhook = Webhook()
    world = World(tmp_path / "data", webhook="http://127.0.0.1:9/")
    world.at(200, (0, "hung"))
    world.at(210, (205, "training"))
    world.at(300, job="4711")
    assert world.kept == [("hung", 0, 300)]
    world.at(400, (310, "hung"), job="12")
    # The process ends here, and nothing has been taken.
    world.config = AlertsConfig(hung_after_s=30.0, clear_after_s=60.0, webhook=webhook.address)
    with ThreadPoolExecutor(1) as executor:
        world.alerts = JobAlerts(world.subject.store, executor, world.config, lambda: world.now)
        asyncio.run(deliver(world, lambda: not world.subject.results.alerts(untold_only=True, limit=9)))
    told = [(alert["labels"]["job_id"], alert["status"]) for body in webhook.bodies for alert in body["alerts"]]
    assert told == [("4711", "resolved"), ("12", "firing")]
    with ThreadPoolExecutor(1) as executor:
        world.alerts = JobAlerts(world.subject.store, executor, world.config, lambda: world.now)
        assert world.alerts.look() is False
    webhook.close()
    world.subject.store.close()


def test_that_an_alert_is_over_is_not_forgotten_while_its_beginning_is_being_sent(tmp_path):
    world = World(tmp_path / "data", webhook="http://127.0.0.1:9/")
    world.at(200, (0, "hung"))
    (beginning,) = world.subject.results.alerts(untold_only=True, limit=9)
    world.at(210, (205, "training"))
    world.at(300)
    # The webhook has taken the beginning meanwhile.
    world.alerts._note_told([beginning])
    assert world.kept == [("hung", 0, 300)]
    assert [row.end_unix_nano for row in world.subject.results.alerts(untold_only=True, limit=9)] == [world.now]
    world.subject.store.close()


def test_a_look_that_fails_is_no_end_of_the_collector(world, monkeypatch):
    looks = []

    def look():
        looks.append(1)
        if len(looks) == 1:
            raise ValueError("an odd job")
        return False

    monkeypatch.setattr(world.alerts, "look", look)
    monkeypatch.setattr("gpusonde.collector.alerts._LOOK_INTERVAL_S", 0.01)
    with ThreadPoolExecutor(1) as executor:
        world.alerts._executor = executor
        asyncio.run(deliver(world, lambda: len(looks) > 2))


def test_looking_takes_a_tenth_of_the_time_at_most(world, monkeypatch):
    slept, clock = [], iter(range(0, 1000, 2))
    real = asyncio.sleep

    async def sleep(seconds):
        slept.append(seconds)
        await real(0)

    monkeypatch.setattr("gpusonde.collector.alerts.asyncio.sleep", sleep)
    monkeypatch.setattr("gpusonde.collector.alerts.time", SimpleNamespace(monotonic=lambda: next(clock)))

    async def look_twice():
        task = asyncio.ensure_future(world.alerts.run())
        while len(slept) < 2:
            await real(0.01)
        task.cancel()

    with ThreadPoolExecutor(1) as executor:
        world.alerts._executor = executor
        asyncio.run(look_twice())
    # Each look took two seconds.
    assert slept[:2] == [18, 18]


def test_what_a_dead_webhook_does_not_take_is_bounded_and_counted(tmp_path):
    world = World(tmp_path / "data", webhook="http://127.0.0.1:9/")
    for i in range(1003):
        world.at(100 * i + 40, (100 * i, "hung"), job=f"job-{i}")
        world.at(100 * i + 50, ended=True, job=f"job-{i}")
        if world.alerts.counters.dropped:
            break
    assert world.alerts.counters.dropped > 0
    world.subject.store.close()


@pytest.mark.parametrize("key", ["alerts.webhook", "otlp.endpoint", "remote_write.url"])
@pytest.mark.parametrize(
    "address",
    ["ftp://host/", "host:9093", "https://user:secret@host/", "https://host/?token=secret", "https://h?secret"],
)
def test_an_address_that_cannot_be_used_is_refused_with_its_key_and_not_shown(key, address):
    with pytest.raises(ConfigError, match=re.escape(key)) as caught:
        CollectorConfig.load(overrides={key: address})
    assert "secret" not in str(caught.value)


def test_a_running_collector_tells_the_webhook(tmp_path):
    webhook = Webhook()
    run = RunRow("run-1", "agent-1", "GPU-0", "4711", 1, False, "", START, START + 100 * SECOND, 1, 1, 1, 2, 9, 0)
    subject = TrackedStore(tmp_path / "data")
    # The inventory: whose GPU it is.
    subject.feed(records_of(gpu_traces(1))[:1], 1)
    subject.results.save([RunUpdate(run, None, states=[JobStateRow(START, "hung", "all wait", 0.9)])], {})
    subject.store.close()
    with ThreadCollector(tmp_path / "data", alerts__webhook=webhook.address):
        wait_until(lambda: webhook.bodies, 120, "the alert")
    assert webhook.bodies[0]["alerts"][0]["annotations"]["description"] == "all wait"
    webhook.close()


def test_that_there_was_no_alert_is_said_of_what_was_asked(tmp_path, capsys):
    with ThreadCollector(tmp_path / "data", runs__track=False) as collector:
        where = ("--alerts", "--collector", collector.target)
        assert main(["jobs", *where]) == main(["jobs", "--all", *where]) == 0
    opened, everything = capsys.readouterr().out.splitlines()
    assert opened.startswith("no alert is open at")
    assert everything.startswith("there was no alert at")


def test_a_user_reads_the_alerts_there_were_page_by_page(tmp_path):
    subject = TrackedStore(tmp_path / "data")
    rows = [
        AlertRow(1, f"job-{i % 3}", "hung", START + i * SECOND, 0 if i > 3 else START + 90 * SECOND, "wait", "host-1")
        for i in range(6)
    ]
    subject.results.save_alerts(rows)
    pages, request = [], query_pb2.ListAlertsRequest(page_size=4)
    while not pages or request.page_token:
        page = list_alerts(subject.results, request)
        pages.append([alert.start_time.seconds - START // SECOND for alert in page.alerts])
        request.page_token = page.next_page_token
    assert pages == [[5, 4, 3, 2], [1, 0]]
    subject.store.close()
    with ThreadCollector(tmp_path / "data", runs__track=False) as collector:
        opened = ask("jobs", "--alerts", "--collector", collector.target)["alerts"]
        everything = ask("jobs", "--alerts", "--all", "--collector", collector.target)["alerts"]
        of_job = ask("jobs", "job-0", "--alerts", "--collector", collector.target)["alerts"]
    assert [(alert["job_id"], alert["end_time"]) for alert in opened] == [("job-2", None), ("job-1", None)]
    assert len(everything) == 6
    assert {(alert["job_id"], alert["scheduler"], alert["state"]) for alert in of_job} == {("job-0", "slurm", "hung")}
    assert len(of_job) == 2
