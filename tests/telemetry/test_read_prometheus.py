"""Series of a real Prometheus, which scrapes an exporter with dcgm-exporter's names; and addresses that are none."""

from __future__ import annotations

import http.server
import itertools
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.own_port import own_port
from support.wire_agent import wait_until

from gpusonde.telemetry import TraceFormatError, read_trace, read_traces

START = 1_764_811_351
TICKS = 40


class _Exporter(http.server.BaseHTTPRequestHandler):
    """Two GPUs whose utilisation counts the scrapes."""

    scrapes = itertools.count(1)

    def do_GET(self) -> None:
        share = next(self.scrapes) % 100
        body = "".join(
            f'DCGM_FI_DEV_GPU_UTIL{{gpu="{gpu}",UUID="GPU-live-{gpu}",modelName="Tesla V100"}} {share}\n'
            for gpu in (0, 1)
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_unused: object) -> None:
        """Say nothing."""


def _backfill(folder: Path) -> None:
    """Write blocks of two GPUs of 2025, 5 s apart, as if they had been scraped then."""
    lines = []
    for name, value in (
        ("DCGM_FI_DEV_GPU_UTIL", lambda at, gpu: 10 + at + gpu),
        ("DCGM_FI_DEV_POWER_USAGE", lambda at, _: 70.5 + at),
    ):
        lines.append(f"# TYPE {name} gauge")
        lines += [
            f'{name}{{gpu="{gpu}",UUID="GPU-then-{gpu}",modelName="Tesla V100"}} {value(at, gpu)} {START + 5 * at}.25'
            for gpu in (0, 1)
            for at in range(TICKS)
        ]
    (folder / "then.txt").write_text("\n".join([*lines, "# EOF", ""]))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "then.txt"), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        pytest.skip("Prometheus is not installed")
    folder = tmp_path_factory.mktemp("prometheus")
    _backfill(folder)
    exporter = http.server.ThreadingHTTPServer(("127.0.0.1", own_port()), _Exporter)
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    (folder / "prometheus.yml").write_text(
        "scrape_configs:\n- job_name: dcgm\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  static_configs:\n"
        f"  - targets: ['127.0.0.1:{exporter.server_address[1]}']\n"
    )
    address = f"127.0.0.1:{own_port()}"
    server = subprocess.Popen(
        [
            "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=10y", f"--web.listen-address={address}", "--log.level=error",
        ]
    )  # fmt: skip
    try:
        wait_until(lambda: _is_ready(address), timeout_s=120, what="Prometheus is ready")
        yield address
    finally:
        server.terminate()
        server.wait(60)
        exporter.shutdown()


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_selector_gives_the_samples_at_the_times_of_their_scrapes(prometheus: str) -> None:
    query = '{__name__=~"DCGM_FI_DEV_(GPU_UTIL|POWER_USAGE)",UUID=~"GPU-then.*"}'
    traces = read_traces(f"prom://{prometheus}/?query={query}&start={START - 10}&end={START + 5 * TICKS}")
    assert [trace.gpu_uuid for trace in traces] == ["GPU-then-0", "GPU-then-1"]
    assert traces[1].gpu_model == "Tesla V100"
    assert traces[0].origin_unix_s == START + 0.25
    for gpu, trace in enumerate(traces):
        assert np.allclose(trace.time_s, 5.0 * np.arange(TICKS))
        assert np.allclose(trace.values["gpu_utilization"], (10 + np.arange(TICKS) + gpu) / 100)
        assert np.allclose(trace.values["power_watts"], 70.5 + np.arange(TICKS))


def test_an_expression_is_evaluated_at_even_steps_which_is_said(prometheus: str) -> None:
    query = 'avg_over_time(DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-then-1"}[5s])'
    address = f"prom://{prometheus}/?query={query}&start={START + 5}&end={START + 100}&step=5s"
    with pytest.raises(TraceFormatError, match="--column value=gpu_utilization:percent"):
        read_trace(address)
    trace = read_trace(address, columns=["value=gpu_utilization:percent"])
    assert trace.interval_s == 5.0
    assert any("evaluated every 5 s" in warning for warning in trace.warnings)


def test_what_is_scraped_now_is_read_up_to_now(prometheus: str) -> None:
    def scraped() -> bool:
        try:
            return len(read_trace(f'prom:/{prometheus}/?query=DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-live-0"}}&last=10m')) >= 4
        except TraceFormatError:
            return False

    wait_until(scraped, timeout_s=120, what="four scrapes")


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("/?query=nothing_has_this_name", "nothing matches the query"),
        ("/?query=rate(", "refused (400): "),
        ("/?query=up&start=tomorrow", "'tomorrow' is no Unix time"),
        ("/?query=up&last=soon", "'soon' is no time above zero"),
        ("/?query=up&start=2000000000&end=1000000000", "start does not lie before end"),
        ("/?query=sum(up)&last=100h&step=1s", "which Prometheus refuses"),
        ("/?quarry=up", "'quarry' is not asked for; write prom://HOST:PORT/?query="),
        ("/?query=up&steps=1", "'steps' is not asked for"),
        ("/elsewhere/?query=up", "refused (404)"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_to_do(prometheus: str, rest: str, says: str) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_traces(f"prom://{prometheus}{rest}")
    assert says in str(caught.value)


@pytest.mark.parametrize("address", ["prom://", "prom://host:port/?query=up", "prom://host", "prom:///?query=up"])
def test_an_address_without_host_or_query_is_refused(address: str) -> None:
    with pytest.raises(TraceFormatError, match="no host or no query"):
        read_traces(address)


def test_nobody_there_is_said_without_the_password() -> None:
    with pytest.raises(TraceFormatError, match=r"no answer from http://127\.0\.0\.1:1/api") as caught:
        read_traces("prom://me:secret@127.0.0.1:1/?query=up")
    assert "secret" not in str(caught.value)
