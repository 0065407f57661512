"""Alerts and dashboards against the metrics that the daemons have, and against promtool."""

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml
from support.own_port import own_port
from support.tracked_store import TrackedStore
from support.wire_agent import wait_until

from gpusonde.collector.storage.model import CycleRow, CycleTree, JobStateRow, RunRow, RunUpdate

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
# Where samples get lost, come late or are not what they seem. Each has an alert and a panel.
LOSS_PATHS = (
    "gpusonde_agent_ticks_missed_total",
    "gpusonde_agent_lost_ticks_total",
    "gpusonde_agent_dropped_records_total",
    "gpusonde_agent_blank_values_total",
    "gpusonde_agent_gpu_events_total",
    "gpusonde_agent_source_hung_calls_total",
    "gpusonde_agent_source_suspect_ticks_total",
    "gpusonde_agent_slowdowns_total",
    "gpusonde_agent_spool_bytes",
    "gpusonde_agent_spool_oldest_record_age_seconds",
    "gpusonde_agent_connection_failures_total",
    "gpusonde_agent_throttled",
    "gpusonde_agent_job_source_failures_total",
    "gpusonde_collector_job_alert_notifications_total",
    "gpusonde_agent_certificate_expiry_timestamp_seconds",
    "gpusonde_agent_config_last_reload_successful",
    "gpusonde_collector_taking_records",
    "gpusonde_collector_sequence_gaps_total",
    "gpusonde_collector_lost_ticks_reported_total",
    "gpusonde_collector_records_rejected_total",
    "gpusonde_collector_records_quarantined_total",
    "gpusonde_collector_ingest_lag_seconds",
    "gpusonde_collector_throttles_total",
    "gpusonde_collector_requests_refused_total",
    "gpusonde_collector_streams",
    "gpusonde_collector_store_bytes",
    "gpusonde_collector_store_free_bytes",
    "gpusonde_collector_compaction_failures_total",
    "gpusonde_collector_tracking_backlog_gpus",
    "gpusonde_collector_certificate_expiry_timestamp_seconds",
    "gpusonde_collector_config_last_reload_successful",
)
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def scraped(daemon, folder, *arguments):
    """Series of a daemon that runs, from what it serves under /metrics."""
    folder.mkdir()
    command = [sys.executable, "-m", "gpusonde.cli", daemon, "--set", "metrics.listen=127.0.0.1:0", *arguments]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        address = folder / "state" / "metrics_address"
        wait_until(lambda: address.exists() or process.poll() is not None, 120, f"the metrics of the {daemon}")
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        with urllib.request.urlopen(f"http://{address.read_text().strip()}/metrics", timeout=200) as answer:
            text = answer.read().decode()
    finally:
        process.terminate()
        process.wait(200)
    families = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    return {name + suffix for name, kind in families for suffix in SUFFIXES.get(kind, ("",))}


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    folder = tmp_path_factory.mktemp("daemons")
    trace = ROOT / "tests" / "data" / "demo_trace.parquet"
    agent = scraped("agent", folder / "agent", "--replay", str(trace), "--spool", str(folder / "agent" / "state"))
    listen = ("--listen", "127.0.0.1:0")
    collector = scraped("collector", folder / "collector", *listen, "--store", str(folder / "collector" / "state"))
    assert min(len(agent), len(collector)) > 20
    return agent | collector


def used(text):
    return set(re.findall(r"\bgpusonde_(?:agent|collector|job)_\w+", text))


def alerts():
    groups = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def panels(path):
    return [panel for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]


def expressions(path):
    return [target["expr"] for panel in panels(path) for target in panel["targets"]]


def promtool(*arguments):
    return subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=120, check=False
    )


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_rules_and_the_example():
    for arguments in (("check", "rules", "rules.yml"), ("check", "config", "prometheus.yml")):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_every_alert_fires_when_it_should_and_only_then():
    done = promtool("test", "rules", "rules_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_with_a_series_that_does_not_fire():
    tested = {test["name"]: test for test in yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]}
    assert set(tested) == set(alerts())
    for name, test in tested.items():
        (case,) = test["alert_rule_test"]
        fired = [alert["exp_labels"] for alert in case["exp_alerts"]]
        labels = [dict(re.findall(r'(\w+)="([^"]*)"', entry["series"])) for entry in test["input_series"]]
        keys = [key for key in fired[0] if key not in ("severity", "alertname")]
        quiet = [one for one in labels if not any(all(one.get(k) == f.get(k) for k in keys) for f in fired)]
        assert quiet, f"{name} has no case that stays quiet"


def test_alerts_and_dashboards_ask_for_nothing_that_no_daemon_gives(series):
    asked = {"rules.yml": used((PROMETHEUS / "rules.yml").read_text())}
    asked |= {path.name: used("\n".join(expressions(path))) for path in DASHBOARDS}
    assert {name: sorted(names - series) for name, names in asked.items() if names - series} == {}


def test_every_loss_path_has_an_alert_and_a_panel(series):
    alerted = used("\n".join(rule["expr"] for rule in alerts().values()))
    drawn = used("\n".join(expression for path in DASHBOARDS for expression in expressions(path)))
    assert [name for name in LOSS_PATHS if name not in series] == []
    assert [name for name in LOSS_PATHS if name not in alerted] == []
    assert [name for name in LOSS_PATHS if name not in drawn] == []


def test_every_metric_of_the_daemons_is_drawn_somewhere(series):
    drawn = used("\n".join(expression for path in DASHBOARDS for expression in expressions(path)))
    bare = {re.sub(r"_(bucket|count|sum)$", "", name) for name in drawn}
    missing = {name for name in series if re.sub(r"_(bucket|count|sum)$", "", name) not in bare | drawn}
    assert sorted(missing) == []


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    page = (ROOT / "docs" / "operations.md").read_text()
    sections = {heading.strip("`") for heading in re.findall(r"^### (\S+)$", page, re.MULTILINE)}
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}, name
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
        assert name in sections, f"{name} has no section in docs/operations.md"
    assert {name for name in sections if name.startswith("Gpusonde")} == set(alerts())


def test_there_are_four_dashboards_with_names_of_their_own():
    documents = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert [path.stem for path in DASHBOARDS] == ["agent", "collector", "fleet", "jobs"]
    assert len({d["uid"] for d in documents} | {d["title"] for d in documents}) == 8


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_ids_titles_places_and_a_chosen_source(path):
    every = json.loads(path.read_text())["panels"]
    ids = [panel["id"] for panel in every]
    assert len(set(ids)) == len(ids)
    cells = set()
    for panel in every:
        assert panel["title"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, f"{panel['title']} lies over another panel"
        cells |= taken
    for panel in panels(path):
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {source["uid"] for source in sources} == {"${datasource}"}


@needs_promtool
@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_expression_of_a_dashboard_is_promql(path, tmp_path):
    filled = [
        expression.replace("$__rate_interval", "5m").replace("$instance", "a|b").replace("$job_id", "a|b")
        for expression in expressions(path)
    ]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(filled)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_is_told_where_the_dashboards_and_prometheus_are():
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/gpusonde.yml").read_text())["providers"]
    assert provider["type"] == "file"
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"


def test_the_rules_become_an_object_of_the_prometheus_operator():
    done = subprocess.run([str(PROMETHEUS / "prometheus-rule.sh"), "ns"], capture_output=True, text=True, check=True)
    made = yaml.safe_load(done.stdout)
    assert (made["kind"], made["metadata"]["namespace"]) == ("PrometheusRule", "ns")
    assert made["spec"] == yaml.safe_load((PROMETHEUS / "rules.yml").read_text())


@pytest.fixture
def prometheus(tmp_path):
    """Start a real Prometheus that scrapes an address each second; return a function that asks it."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    started = []

    def start(target):
        address = f"127.0.0.1:{own_port()}"
        scrape = {"job_name": "gpusonde-collector", "static_configs": [{"targets": [target]}]}
        config = tmp_path / "prometheus.yml"
        config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        command += [f"--web.listen-address={address}"]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

        def ask(expression):
            query = urllib.parse.urlencode({"query": expression})
            try:
                with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=200) as answer:
                    return json.loads(answer.read())["data"]["result"]
            except urllib.error.URLError:
                return []

        return ask

    yield start
    for process in started:
        process.terminate()
        process.wait(200)


def test_the_board_of_jobs_shows_what_a_real_prometheus_has_scraped(tmp_path, prometheus):
    now = time.time_ns()
    subject = TrackedStore(tmp_path / "state")
    for i, state in enumerate(("training", "hung", "idle")):
        starts = tuple(now - 60 * (60 - k) * 10**9 for k in range(60))
        cycle = CycleRow(60.0, 59.0, 61.0, 59, 0.9, "epoch", 0.9, None, starts, True)
        run = RunRow(f"run-{i}", "host-1", f"GPU-{i}", f"47{i}", 1, False, "", starts[0], now, 1, 1, 1, 2, 9, 0)
        states = [JobStateRow(starts[0], "training", "works", 0.9), JobStateRow(now - 10**9, state, "so", 0.9)]
        subject.results.save([RunUpdate(run, None, CycleTree((cycle,), 0), states)], {})
    subject.store.close()
    command = [sys.executable, "-m", "gpusonde.cli", "collector", "--store", str(tmp_path / "state")]
    command += ["--listen", "127.0.0.1:0", "--set", "metrics.listen=127.0.0.1:0", "--set", "metrics.job_gpus=true"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = tmp_path / "state" / "metrics_address"
        wait_until(address.exists, 120, "the metrics of the collector")
        ask = prometheus(address.read_text().strip())
        wait_until(lambda: len(ask("count_over_time(gpusonde_job_state[1m]) > 3")) == 3, 90, "jobs in Prometheus")
        empty = []
        for expression in expressions(GRAFANA / "dashboards" / "jobs.json"):
            filled = expression.replace("$__rate_interval", "1m").replace("$job_id", ".*")
            if not ask(filled):
                empty.append(expression.partition("{")[0])
        # No total and no earlier job tells the end of these.
        assert empty == ["gpusonde_job_progress_ratio", "gpusonde_job_eta_seconds"]
        states = {each["metric"]["job_id"]: each["metric"]["state"] for each in ask("gpusonde_job_state")}
        assert states == {"470": "training", "471": "hung", "472": "idle"}
        assert {each["metric"]["gpu_uuid"] for each in ask("gpusonde_job_gpu")} == {"GPU-0", "GPU-1", "GPU-2"}
        assert ask("gpusonde_collector_goodput_ratio")
    finally:
        process.terminate()
        process.wait(200)
