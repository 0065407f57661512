"""HTTP beside gRPC: the same answers, the same rights, bounds on what strangers cost."""

import asyncio
import contextlib
import json
import re
import socket
from collections import Counter

import pyarrow as pa
import pytest
from support.certificates import Authority, tls_settings
from support.filled_web import DEMO, GPU, WEB, filled_collector
from support.running_collector import ThreadCollector
from support.trace_records import trace_records
from support.web_client import WebClient
from support.wire_agent import WireStream, hello, source_ended, wait_until

pytest.importorskip("uvicorn", reason="HTTP needs the extra web")
pytest.importorskip("starlette", reason="HTTP needs the extra web")

import jsonschema

from gpusonde.collector import server as collector_server
from gpusonde.collector.config import CollectorConfig, ConfigError
from gpusonde.collector.security.identity import Role
from gpusonde.collector.security.tokens import token_entry
from gpusonde.collector.web import gateway
from gpusonde.collector.web import server as web_server
from gpusonde.collector.web.routes import ROUTES, openapi
from gpusonde.telemetry import read_trace


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    with filled_collector(tmp_path_factory.mktemp("web")) as collector:
        yield collector


def test_samples_come_as_arrow_too(filled):
    status, headers, body = filled.admin.ask("GET", f"/v1/gpus/{GPU}/samples:arrow?metrics=power_watts")
    assert (status, headers["Content-Type"]) == (200, "application/vnd.apache.arrow.stream")
    table = pa.ipc.open_stream(body).read_all()
    assert table.column_names == ["time_unix_nano", "power_watts"]
    assert table.num_rows > 1000
    assert filled.admin.problem("GET", "/v1/gpus/nobody/samples:arrow")["code"] == "NOT_FOUND"


def test_answers_are_what_the_description_says(filled):
    document = filled.admin.get("/v1/openapi.json")
    assert document == json.loads(json.dumps(openapi()))
    assert set(document["paths"]) == {route.plain_path for route in ROUTES}
    for path in ("/v1/runs", "/v1/jobs", "/v1/hosts", f"/v1/runs/{filled.run_id}/epochs"):
        known = "/v1/runs/{run_id}/epochs" if filled.run_id in path else path
        answer = document["paths"][known]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        schema = {"$ref": answer["$ref"], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(filled.admin.get(path))


@pytest.mark.parametrize(
    ("token", "path", "status"),
    [
        ("", "/v1/runs", 200),
        ("", "/v1/agents", 403),
        ("of-a-reader", "/v1/runs", 200),
        ("of-a-reader", "/v1/agents", 403),
        ("of-the-admin", "/v1/agents", 200),
        ("of-an-agent", "/v1/runs", 403),
        ("of-nobody", "/v1/runs", 401),
        ("of-nobody", "/v1/watch", 401),
    ],
)
def test_a_token_is_good_for_the_same_as_over_grpc(filled, token, path, status):
    assert WebClient(filled.directory, token).ask("GET", path)[0] == status


def test_where_nobody_may_ask_without_a_token_nobody_may_over_http(tmp_path):
    (tmp_path / "tokens.toml").write_text(token_entry("of-a-reader", Role.READER))
    settings = WEB | {"security__tokens_file": str(tmp_path / "tokens.toml"), "security__anonymous": "never"}
    with ThreadCollector(tmp_path / "data", **settings):
        status, headers, _ = WebClient(tmp_path / "data").ask("GET", "/v1/runs")
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert WebClient(tmp_path / "data", "of-a-reader").get("/v1/runs")["runs"] == []
        # The page itself is no secret: it asks for the token.
        assert WebClient(tmp_path / "data").ask("GET", "/v1/openapi.json")[0] == 200


@pytest.mark.parametrize(
    ("verb", "path", "body", "headers", "status", "field"),
    [
        ("GET", "/v1/nothing", None, {}, 404, ""),
        ("DELETE", "/v1/runs", None, {}, 405, ""),
        ("GET", "/v1/runs?colour=red", None, {}, 400, "colour"),
        ("GET", "/v1/runs?page_size=many", None, {}, 400, "page_size"),
        ("GET", "/v1/runs?page_size=1&page_size=2", None, {}, 400, "page_size"),
        ("GET", "/v1/runs?start_time=yesterday", None, {}, 400, "start_time"),
        ("GET", "/v1/runs?status=RUN_STATUS_LOST", None, {}, 400, "status"),
        ("GET", "/v1/jobs?active_only=perhaps", None, {}, 400, "active_only"),
        ("GET", "/v1/runs?gpu_uuid=" + "x" * 9000, None, {}, 414, ""),
        ("GET", "/v1/watch?interval=1h", None, {}, 400, "interval"),
        ("POST", "/v1/predictions", b"{", {"Content_Type": "application/json"}, 400, ""),
        ("POST", "/v1/predictions", b"[]", {"Content_Type": "application/json"}, 400, ""),
        ("POST", "/v1/predictions", b'{"run_id": "x"}', {"Content_Type": "text/plain"}, 415, ""),
        ("POST", "/v1/predictions", {"run_id": 3}, {}, 400, "run_id"),
        ("POST", "/v1/predictions", {"speed": 3}, {}, 400, "speed"),
        ("POST", "/v1/predictions", b"[" * 500_000, {"Content_Type": "application/json"}, 413, ""),
        ("POST", "/v1/predictions", b'{"a":' * 90_000, {"Content_Type": "application/json"}, 400, ""),
        ("GET", "/v1/runs", None, {"Host": "evil.example"}, 421, ""),
        ("GET", "/v1/runs", None, {"Host": "evil.example:7434"}, 421, ""),
        ("GET", "/v1/runs", None, {"Host": "unix:80"}, 421, ""),
        ("GET", "/v1/runs", None, {"Host": "unix-abstract:x"}, 421, ""),
        ("GET", "/v1/runs", None, {"Host": "ipv4:127.0.0.1:80"}, 421, ""),
        ("GET", "/v1/runs", None, {"Host": "10.0.0.1:7434"}, 421, ""),
        ("GET", "/v1/runs", None, {"Host": ""}, 421, ""),
        ("GET", "/v1/runs", None, {"Origin": "http://evil.example"}, 403, ""),
        ("GET", "/v1/runs", None, {"Sec_Fetch_Site": "cross-site"}, 403, ""),
    ],
)
def test_a_bad_request_is_told_as_a_problem_with_its_field(filled, verb, path, body, headers, status, field):
    problem = filled.admin.problem(verb, path, body, **headers)
    assert (problem["status"], [error["field"] for error in problem.get("errors", [])]) == (
        status,
        [field] if field else [],
    )
    assert problem["detail"]


@pytest.mark.parametrize("host", ["localhost", "LocalHost:7434", "127.0.0.1", "127.3.2.1:80", "[::1]", "[::1]:7434"])
def test_every_name_of_this_host_is_taken(filled, host):
    assert filled.admin.ask("GET", "/v1/runs", Host=host)[0] == 200


def test_what_is_not_offered_has_a_code_of_its_own(filled):
    assert filled.admin.problem("DELETE", "/v1/runs")["code"] == "UNIMPLEMENTED"
    assert filled.admin.problem("GET", "/v1/nothing")["code"] == "NOT_FOUND"


def test_a_token_that_can_be_none_is_answered_as_an_unknown_one(filled):
    status, headers, _ = filled.admin.ask("GET", "/v1/runs", Authorization="Bearer caf\u00e9")
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")


def test_the_page_is_all_here_and_may_do_little(filled):
    status, headers, body = filled.admin.ask("GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    names = re.findall(r'(?:src|href)="([\w./]+)"', body.decode())
    assert {"app.js", "style.css", "vendor/uplot/uplot.js"} <= set(names)
    for name in [*names, "vendor/uplot/LICENSE.txt"]:
        status, headers, content = filled.admin.ask("GET", f"/{name}")
        assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff"), name
        assert filled.admin.ask("GET", f"/{name}", If_None_Match=headers["ETag"])[0] == 304
        for other in re.findall(r'^import .* from "\./([\w.]+)";$', content.decode(), re.MULTILINE):
            assert filled.admin.ask("GET", f"/{other}")[0] == 200
    assert filled.admin.ask("GET", "/../server.py")[0] == 404


def test_a_body_that_is_too_large_is_not_read_to_its_end(filled, monkeypatch):
    monkeypatch.setattr(gateway, "_LARGEST_BODY_BYTES", 1000)
    body = b'{"run_id": "' + b"x" * 2000 + b'"}'
    problem = filled.admin.problem("POST", "/v1/predictions", body, Content_Type="application/json")
    assert problem["status"] == 413


def read_to_end(connection):
    connection.settimeout(60)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(4096):
            received += piece
    return received


@pytest.mark.parametrize("begun", [b"", b"GET /v1/runs HTTP/1.1\r\nHost: loc"])
def test_who_does_not_get_to_the_end_of_a_head_is_cut_off(filled, monkeypatch, begun):
    monkeypatch.setattr(web_server, "_HEAD_S", 0.2)
    with socket.create_connection(filled.admin.address) as connection:
        connection.sendall(begun)
        assert read_to_end(connection) == b""


def test_who_does_not_take_the_answer_is_cut_off(filled, monkeypatch):
    monkeypatch.setattr(web_server, "_SLOW_READER_S", 0.2)
    cut = []
    lost = web_server.BoundedProtocol.connection_lost
    monkeypatch.setattr(
        web_server.BoundedProtocol, "connection_lost", lambda self, error: (cut.append(self), lost(self, error))
    )
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    with connection:
        connection.connect(filled.admin.address)
        # Answers to a thousand questions that nobody reads fill every buffer on the way.
        question = b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with contextlib.suppress(OSError):
            connection.sendall(question * 1000)
        wait_until(lambda: cut, 60, "end of the connection")


def test_a_watch_tells_what_begins_what_changes_and_what_ends(tmp_path):
    trace = read_trace(DEMO).window(0, 110)
    with ThreadCollector(tmp_path / "data", **WEB) as collector:
        client = WebClient(tmp_path / "data")
        events = client.events("/v1/watch?interval=1s")
        assert next(events) == ("change", {"runs": [], "jobs": [], "alerts": []})
        with WireStream(collector.target, hello("agent-1")) as stream:
            stream.greet()
            records = trace_records(trace, end=False)
            stream.send(*records).wait_acked(len(records))
            statuses = run_statuses(events)
            assert next(statuses) == "RUN_STATUS_ACTIVE"
            stream.send(source_ended(len(records) + 1)).wait_acked(len(records) + 1)
            assert next(status for status in statuses if status != "RUN_STATUS_ACTIVE") == "RUN_STATUS_ENDED"


def test_what_all_viewers_are_told_is_made_once_however_many_watch(tmp_path, monkeypatch):
    made = []
    to_json = gateway.to_json
    monkeypatch.setattr(gateway, "to_json", lambda message: made.append(message) or to_json(message))
    with ThreadCollector(tmp_path / "data", **WEB) as collector:
        client = WebClient(tmp_path / "data")
        viewers = [client.events("/v1/watch?interval=1s") for _ in range(6)]
        for events in viewers:
            assert next(events) == ("change", {"runs": [], "jobs": [], "alerts": []})
        with WireStream(collector.target, hello("agent-1")) as stream:
            stream.greet()
            records = trace_records(read_trace(DEMO).window(0, 60), end=False)
            stream.send(*records).wait_acked(len(records))
            told = [next(events) for events in viewers]
    assert told[0][1]["runs"]
    assert all(each == told[0] for each in told)
    assert len(made) < len(viewers)


def run_statuses(events):
    for name, document in events:
        assert name == "change"
        yield from (run["status"] for run in document["runs"])


def test_viewers_beyond_the_limit_wait_for_their_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(gateway, "_MOST_VIEWERS", 1)
    monkeypatch.setattr(gateway, "_WAITING_S", 0.1)
    with ThreadCollector(tmp_path / "data", **WEB):
        client = WebClient(tmp_path / "data")
        first, second = client.events("/v1/watch"), client.events("/v1/watch")
        assert next(first)[0] == "change"
        assert next(second)[0] == "waiting"
        first.close()
        assert next(name for name, _ in second if name != "waiting") == "change"


def begin(client, head, body=b""):
    """Send the head of a request, and perhaps a piece of its body; return the connection."""
    connection = socket.create_connection(client.address, timeout=60)
    connection.sendall(head.encode() + b"\r\nHost: localhost\r\n\r\n" + body)
    return connection


def first_event(connection):
    for line in connection.makefile("rb"):
        if line.startswith(b"HTTP/1.1 503 "):
            return "refused"
        if line.startswith(b"event: "):
            return line.removeprefix(b"event: ").strip().decode()
    return "none"


def test_seventy_who_watch_at_once_hear_or_wait_or_are_refused_and_leave_the_others_their_answers(tmp_path):
    with ThreadCollector(tmp_path / "data", **WEB), contextlib.ExitStack() as stack:
        client = WebClient(tmp_path / "data")
        head = "GET /v1/watch HTTP/1.1"
        viewers = [stack.enter_context(begin(client, head)) for _ in range(70)]
        assert client.get("/v1/runs")["runs"] == []
        assert Counter(map(first_event, viewers)) == {"change": 32, "waiting": 32, "refused": 6}
        # Who goes leaves the place to somebody else, whether they had one or waited.
        stack.close()
        wait_until(lambda: next(client.events("/v1/watch"))[0] == "change", 60, "a free place")


def test_who_may_not_ask_is_told_before_the_body_is_read(tmp_path):
    (tmp_path / "tokens.toml").write_text(token_entry("of-a-reader", Role.READER))
    settings = WEB | {"security__tokens_file": str(tmp_path / "tokens.toml"), "security__anonymous": "never"}
    with ThreadCollector(tmp_path / "data", **settings):
        head = "POST /v1/predictions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000000"
        with begin(WebClient(tmp_path / "data"), head) as connection:
            assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("bound", ["_MOST_BODY_BYTES", "_MOST_BODY_BYTES_OF_ONE"])
def test_bodies_that_come_at_the_same_time_share_their_bytes(filled, monkeypatch, bound):
    monkeypatch.setattr(gateway, bound, 3000)
    head = "POST /v1/predictions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 4000"
    body = b'{"run_id": "' + b"x" * 2000 + b'"}'

    def status():
        return filled.admin.ask("POST", "/v1/predictions", body, Content_Type="application/json")[0]

    assert status() == 404
    with begin(filled.admin, f"{head}\r\nAuthorization: Bearer of-the-admin", b"{" * 2000):
        wait_until(lambda: status() == 503, 60, "the first one's bytes")
    wait_until(lambda: status() == 404, 60, "the first one's end")


def test_one_callers_questions_leave_the_others_their_turn(monkeypatch):
    monkeypatch.setattr(gateway, "_MOST_QUESTIONS_OF_ONE", 2)
    monkeypatch.setattr(gateway, "_MOST_QUESTIONS", 3)
    monkeypatch.setattr(gateway, "_TURN_S", 0.05)

    async def ask():
        turns = gateway.Turns()
        async with contextlib.AsyncExitStack() as others, contextlib.AsyncExitStack() as ours:
            for _ in range(2):
                await ours.enter_async_context(turns.take("the first"))
            with pytest.raises(gateway.HttpProblemError, match="ask again"):
                await ours.enter_async_context(turns.take("the first"))
            await others.enter_async_context(turns.take("the second"))
            with pytest.raises(gateway.HttpProblemError, match="ask again"):
                await others.enter_async_context(turns.take("the third"))
            await ours.aclose()
            await others.enter_async_context(turns.take("the third"))
        assert not turns._callers
        assert not turns._asking

    asyncio.run(ask())


def test_a_stream_of_samples_has_a_turn_while_it_lasts(filled, monkeypatch):
    monkeypatch.setattr(gateway, "_MOST_QUESTIONS_OF_ONE", 1)
    monkeypatch.setattr(gateway, "_TURN_S", 0.2)

    async def without_end(_pieces, first):
        yield first.arrow_ipc
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway, "_bytes_of", without_end)
    reader = WebClient(filled.directory, "of-a-reader")
    head = f"GET /v1/gpus/{GPU}/samples:arrow HTTP/1.1\r\nAuthorization: Bearer of-a-reader"
    with begin(reader, head) as connection:
        assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 200 ")
        assert reader.ask("GET", "/v1/runs")[0] == 503
    wait_until(lambda: reader.ask("GET", "/v1/runs")[0] == 200, 60, "the stream's turn")


def test_as_many_connections_are_served_as_there_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(web_server, "_MOST_CONNECTIONS", 3)
    monkeypatch.setattr(web_server, "_HEAD_S", 300.0)
    with ThreadCollector(tmp_path / "data", **WEB), contextlib.ExitStack() as idle:
        client = WebClient(tmp_path / "data")
        for _ in range(2):
            idle.enter_context(socket.create_connection(client.address))
        assert client.ask("GET", "/v1/runs")[0] == 200
        idle.enter_context(socket.create_connection(client.address))
        wait_until(lambda: client.ask("GET", "/v1/runs")[0] == 503, 60, "one too many")


def test_a_watch_ends_with_the_collector_and_says_so(tmp_path):
    with ThreadCollector(tmp_path / "data", **WEB) as collector:
        events = WebClient(tmp_path / "data").events("/v1/watch")
        next(events)
        collector.stop()
        ((name, problem),) = events
        # The second where the collector's own word comes later than its patience with open streams.
        assert (name, problem["code"] in ("UNAVAILABLE", "CANCELLED")) == ("problem", True)
    assert not (tmp_path / "data" / "web_address").exists()


def test_a_taken_address_is_no_reason_not_to_collect(tmp_path, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with ThreadCollector(tmp_path / "data", web__listen=address) as collector:
            assert collector.target
    assert f"no pages and no HTTP on {address}" in caplog.text


def test_a_host_without_a_folder_for_temporary_files_collects_all_the_same(tmp_path, monkeypatch, caplog):
    def refuse(**_):
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(collector_server.tempfile, "TemporaryDirectory", refuse)
    with ThreadCollector(tmp_path / "data", **WEB) as collector:
        assert collector.target
    assert "no page and no HTTP" in caplog.text


def test_https_has_the_collectors_certificate(tmp_path):
    import ssl
    import urllib.request

    authority = Authority(tmp_path / "ca")
    settings = tls_settings(authority) | WEB
    del settings["security__tls_client_ca"]
    with ThreadCollector(tmp_path / "data", **settings):
        address = (tmp_path / "data" / "web_address").read_text().strip()
        context = ssl.create_default_context(cafile=str(authority.ca))
        with urllib.request.urlopen(f"https://{address}/v1/runs", context=context, timeout=60) as answer:
            assert json.load(answer)["runs"] == []


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({}, "there is no TLS"),
        ({"security.plaintext": "anywhere"}, "nobody could connect to web.listen"),
    ],
)
def test_a_page_for_other_hosts_needs_encryption_and_proof(overrides, says):
    with pytest.raises(ConfigError, match=says) as caught:
        CollectorConfig.load(overrides={"web.listen": "0.0.0.0:7434"} | overrides)
    assert caught.value.field == "web.listen"


def test_a_page_for_other_hosts_takes_away_the_trust_in_this_one():
    ours = {"web.listen": "127.0.0.1:7434"}
    assert CollectorConfig.load(overrides=ours).allow_anonymous
    theirs = {"web.listen": "0.0.0.0:7434", "security.plaintext": "anywhere", "security.tokens_file": "tokens"}
    assert not CollectorConfig.load(overrides=theirs).allow_anonymous
