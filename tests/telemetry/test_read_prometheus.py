"""Series of a real Prometheus, which scrapes an exporter with dcgm-exporter's names; and addresses that are none."""

from __future__ import annotations

import base64
import contextlib
import http.server
import itertools
import json
import re
import shutil
import socketserver
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.own_port import own_port
from support.wire_agent import wait_until

from gpusonde.cli.main import main
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


@pytest.mark.parametrize(
    "address",
    [
        "prom://", "prom://host:port/?query=up", "prom://host", "prom:///?query=up", "prom://[::1/?query=up",
        "prom://a host/?query=up", "prom://host:99999/?query=up", "prom://host:0/?query=up", "prom://host/a b?query=up",
        "prom://ho\0st/?query=up", "prom://host/?",
    ],
)  # fmt: skip
def test_an_address_without_host_or_query_is_refused(address: str) -> None:
    with pytest.raises(TraceFormatError, match="no host or no query"):
        read_traces(address)


def test_nobody_there_is_said_without_the_password() -> None:
    with pytest.raises(TraceFormatError, match=r"no answer from http://127\.0\.0\.1:1/api") as caught:
        read_traces(Path("prom://me:secret@127.0.0.1:1/?query=up"))
    assert str(caught.value).startswith("prom://127.0.0.1:1/?query=up: "), "as it can be typed again"


_NOTHING = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'


def _http(body: bytes, status: str = "200 OK", header: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{header}Content-Length: {len(body)}\r\n\r\n".encode() + body


class _Said(socketserver.ThreadingTCPServer):
    """Says one thing, whatever it is asked, and keeps what it was asked."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, says: Callable[[], Iterable[bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Sayer)
        self.says = says
        self.asked: list[bytes] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Sayer(socketserver.StreamRequestHandler):
    server: _Said

    def handle(self) -> None:
        request = b""
        while line := self.rfile.readline():
            request += line
            if not line.strip():
                break
        length = re.search(rb"(?i)content-length: (\d+)", request)
        self.server.asked.append(request + self.rfile.read(int(length[1]) if length else 0))
        with contextlib.suppress(OSError):
            for part in self.server.says():
                self.wfile.write(part)


@contextlib.contextmanager
def _server(*says: bytes, drip: Callable[[], Iterable[bytes]] | None = None) -> Iterator[_Said]:
    with _Said(drip or (lambda: says)) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (_http(b""), "is not Prometheus"),
        (_http(b"[]"), "is not Prometheus"),
        (_http(b"null"), "is not Prometheus"),
        (_http(b"{}{}"), "is not Prometheus"),
        (_http(b"<html>Grafana</html>"), "is not Prometheus, it says '<html>Grafana"),
        (_http(_NOTHING), "nothing matches"),
        (_http(b'{"data":{"result":[1]}}'), "no answer of the API"),
        (_http(b'{"data":{"result":[{"metric":{"gpu":["a"]},"values":[[1,"1"]]}]}}'), "the label 'gpu' is no text"),
        (_http(b"", "500 Broken"), "refused (500): 'Broken'"),
        (
            _http(b"", "302 Found", "Location: http://127.0.0.1:9/\r\n"),
            "leads to 'http://127.0.0.1:9/', which is not fol",
        ),
        (b"HTTP/1.1 500 Broken\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "refused (500): 'Broken'"),
        (_http(b"", "302 Found"), "which is not followed"),
        (_http(_NOTHING).replace(b": 63", b": 99"), "no answer from"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no answer from"),
        # A hundred headers are the limit of the standard library, or 10,000 once clickhouse-connect was imported.
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10_200, "no answer from"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no answer from"),
        (b"", "no answer from"),
    ],
)
def test_who_answers_something_else_is_told_so_without_the_password(said: bytes, says: str) -> None:
    with _server(said) as server, pytest.raises(TraceFormatError) as caught:
        read_traces(f"prom://me:secret@{server.address}/?query=up")
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"prom://{server.address}/?query=up:")
    assert "; " in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_redirect_takes_the_password_nowhere() -> None:
    with _server(_http(_NOTHING)) as other:
        away = _http(b"", "302 Found", f"Location: http://{other.address}/elsewhere\r\n")
        with _server(away) as server, pytest.raises(TraceFormatError, match="write the address of Prometheus itself"):
            read_traces(f"prom://me:secret@{server.address}/?query=up")
        assert [b"Authorization: Basic bWU6c2VjcmV0" in asked for asked in server.asked] == [True]
        assert other.asked == []


@pytest.mark.parametrize("password", ["s/e", "s?e", "s@e", "s#e&f", "s:e", "a@b/c?d@e", "s%2Fe"])
def test_a_password_of_any_letters_is_sent_and_never_shown(password: str) -> None:
    with _server(_http(_NOTHING)) as server, pytest.raises(TraceFormatError, match="nothing matches") as caught:
        read_traces(f"prom://me:{password}@{server.address}/?query=up @ 5")
    pair = base64.b64encode(f"me:{urllib.parse.unquote(password)}".encode())
    assert b"Basic " + pair in server.asked[0]
    assert str(caught.value).startswith(f"prom://{server.address}/?query=up @ 5: ")
    for broken in (
        f"prom://me:{password}@host",
        f"prom:/me:{password}@?query=up",
        f"prom://me:{password}@h/?quarry=up",
    ):
        with pytest.raises(TraceFormatError) as caught:
            read_traces(broken)
        assert password not in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "sum(a) + sum(b)",
        'a{path="x&end=5"}',
        "a{path='x&y=5', b=`#&last=1h`}",
        "a # a comment",
        "sum(a) and on() b % 2",
        "up @ 1764811351",
        'a{mail="me@host"}',
    ],
)
def test_a_query_arrives_as_it_was_written(query: str) -> None:
    with _server(_http(_NOTHING)) as server, pytest.raises(TraceFormatError, match="nothing matches"):
        read_traces(f"prom://{server.address}/prefix/?last=1h&query={query}&step=60s")
    sent = server.asked[0].rpartition(b"\r\n")[2].decode()
    assert urllib.parse.parse_qs(sent)["query"] == [query]
    assert server.asked[0].startswith(b"POST /prefix/api/v1/query_range ")


@pytest.mark.parametrize("before", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"])
def test_an_answer_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    monkeypatch.setattr("gpusonde.telemetry.readers.prometheus._LONGEST_ANSWER_S", 0.5)
    left = threading.Event()

    def drip() -> Iterator[bytes]:
        yield before
        while not left.wait(0.05):
            yield b"a"

    with _server(drip=drip) as server:
        with pytest.raises(TraceFormatError, match=r"took longer than 0\.5 s; ask for fewer series"):
            read_traces(f"prom://{server.address}/?query=up")
        left.set()


def test_an_answer_without_end_is_left_at_the_most_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusonde.telemetry.readers.prometheus._MOST_BYTES", 1 << 16)
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    endless = _server(drip=lambda: itertools.chain([head], itertools.repeat(b" " * 4096)))
    with endless as server, pytest.raises(TraceFormatError, match="more than 65,536 bytes; ask for fewer series"):
        read_traces(f"prom://{server.address}/?query=up")


@pytest.mark.parametrize("key", ["last", "step", "start", "end"])
def test_numbers_of_any_length_are_refused(key: str) -> None:
    with pytest.raises(TraceFormatError, match=f"field '{key}': "):
        read_traces(f"prom://127.0.0.1:1/?query=up&{key}={'9' * 400}d")


def test_the_password_is_in_no_answer_of_detect(capsys: pytest.CaptureFixture[str]) -> None:
    series = [
        {
            "metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": f"GPU-{gpu}"},
            "values": [[at, str(at % 7)] for at in range(99)],
        }
        for gpu in (0, 1)
    ]
    body = json.dumps({"status": "success", "data": {"result": series}}).encode()
    with _server(_http(body)) as server:
        address = f"prom://me:se/cr?et@{server.address}/?query=DCGM_FI_DEV_GPU_UTIL"
        for options in (
            ["--gpu", "0"],
            ["--gpu", "0", "--json"],
            [],
            ["--json"],
            ["--gpu", "7", "--json"],
            ["--metric", "x"],
        ):
            main(["detect", address, *options])
            shown = capsys.readouterr()
            assert server.address in shown.out + shown.err
            assert not re.search(r"se/|cr\?|et@", shown.out + shown.err), options
