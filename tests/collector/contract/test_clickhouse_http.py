"""The engine on ClickHouse over HTTP, against a stand-in for the server that runs the statements in this process."""

import contextlib
import http.client
import socket
import ssl
import threading
import uuid

import pytest
from support.certificates import Authority
from support.clickhouse_http import ClickHouseHttp
from support.running_collector import ThreadCollector
from support.store_engines import ClickHouseEngine
from support.store_records import EVER, Feed, durable_after, inventory_of
from support.wire_agent import StreamEnded, WireStream, batch, hello, inventory, wait_until

from gpusonde.collector.client import Client
from gpusonde.collector.config import ClickHouseConfig
from gpusonde.collector.storage.clickhouse.server import ClickHouseServer
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql
from gpusonde.collector.storage.model import AgentRow
from gpusonde.errors import StoreError

NAME = "it's; DROP TABLE samples -- \\ {gpu:String} %s ü&?=#+/"


@pytest.fixture
def server(chdb_directory):
    with ClickHouseHttp(chdb_directory) as running:
        yield running


@pytest.fixture
def password(tmp_path):
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    return path


@pytest.fixture
def engine(server, password):
    name = f"gpusonde_test_http_{uuid.uuid4().hex}"
    made = ClickHouseEngine(ClickHouseConfig(server.url, name, "gpusonde", str(password), timeout_s=100.0))
    yield made
    server.broken = False
    made.drop()


def test_records_statements_and_names_cross_http_whole(engine):
    store = engine.open()
    feed = Feed(NAME, gpus=(NAME,))
    store.samples.append([feed.incoming(feed.first), feed.incoming(batch(2)), feed.incoming(batch(3))])
    assert store.samples.append([feed.incoming(batch(3))]) == 1
    for _ in range(2):
        assert len(store.samples.read(NAME, *EVER)) == 20
        assert store.facts.gpus()[0].gpu_uuid == NAME
        assert inventory_of(store, NAME, "spool-1").gpus[0].gpu_uuid == NAME
        store = engine.open()


def test_a_crowd_of_agents_with_long_names_crosses_http_whole(engine):
    store = engine.open()
    crowd = [AgentRow(f"{i:04d}-{'n' * 120}", "spool-1", "instance", i, "host", "1", b"") for i in range(500)]
    assert durable_after(store, crowd) == [0] * 500
    assert durable_after(store, crowd) == [0] * 500
    assert store.facts.agents() == crowd


def test_a_connection_that_breaks_stores_nothing_that_counts_and_is_made_again(engine, server):
    store = engine.open()
    store.samples.append(Feed().batches(1, 3))
    server.broken = True
    with pytest.raises(StoreError, match=r"ClickHouse at http://127\.0\.0\.1"):
        store.samples.append(Feed().batches(4, 5))
    with pytest.raises(StoreError):
        store.samples.check_writable()
    server.broken = False
    store.samples.check_writable()
    store.samples.append(Feed().batches(4, 6))
    assert len(store.samples.read("GPU-a", *EVER)) == 50
    assert store.facts.losses() == []


def test_connections_are_kept_and_one_that_the_server_has_closed_since_is_made_again(engine, server):
    store = engine.open()
    made = server.connections
    store.samples.append(Feed().batches(1, 3))
    assert server.connections == made
    server.forgets = True
    for last in (4, 5, 6):
        store.samples.append(Feed().batches(last, last))
    assert len(store.samples.read("GPU-a", *EVER)) == 50
    assert store.facts.losses() == []
    assert server.connections > made


def test_a_server_with_a_certificate_is_known_by_its_authority(chdb_directory, tmp_path, password):
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "another authority")
    certificate, key = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ClickHouseHttp(chdb_directory, tls=context) as running:
        for trusted in (str(other.ca), ""):
            config = ClickHouseConfig(running.url, "default", "gpusonde", str(password), tls_ca=trusted)
            with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED"):
                ClickHouseSql(config)
        trusting = ClickHouseConfig(running.url, "default", "gpusonde", str(password), tls_ca=str(authority.ca))
        sql = ClickHouseSql(trusting)
        assert sql.rows("SELECT 1 AS one") == [(1,)]
        sql.close()


def test_a_proxy_that_the_environment_names_is_used_unless_the_server_is_excepted(server, password, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    config = ClickHouseConfig("http://database.invalid:8123", "default", "gpusonde", str(password))
    sql = ClickHouseSql(config)
    assert sql.rows("SELECT 1 AS one") == [(1,)]
    assert set(server.tunnels) == {"database.invalid:8123"}
    sql.close()
    monkeypatch.setenv("no_proxy", "database.invalid")
    with pytest.raises(StoreError, match=r"ClickHouse at http://database\.invalid"):
        ClickHouseSql(config)


def test_a_wrong_password_is_refused_and_not_in_the_error(server, password):
    password.write_text("wr0ng")
    with pytest.raises(StoreError, match=r"AUTHENTICATION_FAILED") as caught:
        ClickHouseSql(ClickHouseConfig(server.url, "x", "gpusonde", str(password)))
    assert "wr0ng" not in str(caught.value)
    assert server.refusals


def test_an_error_of_a_statement_is_an_error_of_the_store(engine):
    engine.open()
    with pytest.raises(StoreError, match="UNKNOWN_TABLE"):
        engine.sql.rows("SELECT * FROM nothing_of_that_name")


def test_a_collector_whose_database_goes_away_sends_agents_off_and_takes_them_again(tmp_path, engine, server, password):
    settings = {
        "store__engine": "clickhouse",
        "clickhouse__url": server.url,
        "clickhouse__database": engine.config.database,
        "clickhouse__user": "gpusonde",
        "clickhouse__password_file": str(password),
        "clickhouse__insert_interval": "20ms",
        "runs__track": "false",
    }
    with ThreadCollector(tmp_path / "data", **settings) as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(inventory(1), batch(2)).wait_acked(2)
            server.broken = True
            code, text = stream.send(batch(3)).end()
            assert code == "UNAVAILABLE"
            assert "s3cret" not in text
        server.broken = False

        def back():
            try:
                with WireStream(collector.target, hello(first=3)) as stream:
                    return stream.greet()
            except StreamEnded:
                return None

        assert wait_until(back, 120, "the return of the collector").durable_sequence == 2
        with WireStream(collector.target, hello(first=3)) as stream:
            stream.greet()
            stream.send(batch(3)).wait_acked(3)
        with Client(collector.target) as client:
            assert len(client.read_samples("GPU-a")) == 20
    engine.open()


@pytest.mark.parametrize("version", ["18.16.1", "23.8.16.16"])
def test_a_server_that_is_too_old_is_refused_with_its_version_and_the_least(server, password, version):
    server.version = version
    with pytest.raises(StoreError, match=f"version {version}, the collector needs 23.9 or newer"):
        ClickHouseSql(ClickHouseConfig(server.url, "gpusonde_test_old", "gpusonde", str(password)))


def test_the_oldest_server_that_will_do_is_taken(server, password):
    server.version = "23.9.1.1854"
    sql = ClickHouseSql(ClickHouseConfig(server.url, "default", "gpusonde", str(password)))
    assert sql.rows("SELECT 1 AS one") == [(1,)]
    sql.close()


def tables_of(server, engine):
    engine.open()
    return tuple(
        name for (name,) in engine.sql.rows("SELECT name FROM system.tables WHERE database = currentDatabase()")
    )


def test_where_tables_are_replicated_inserts_wait_for_most_replicas_and_reads_see_them(server, engine):
    server.replicated = tables_of(server, engine)
    server.settings.clear()
    store = engine.open()
    store.samples.append(Feed().batches(1, 3))
    # Quorum inserts into one table come one after another: the collector waits for those of others.
    server.busy = 3
    store.samples.append(Feed().batches(4, 5))
    assert server.busy == 0
    assert len(store.samples.read("GPU-a", *EVER)) == 40
    written = {table: values for table, values in server.settings if table in ("samples", "progress")}
    for table in ("samples", "progress"):
        values = written[table]
        assert (values["insert_quorum"], values["insert_quorum_parallel"]) == ("auto", "0"), table
        assert values["select_sequential_consistency"] == "1", table


def test_without_replicas_nothing_waits_for_them(server, engine):
    engine.open().samples.append(Feed().batches(1, 3))
    assert not [values for _, values in server.settings if "insert_quorum" in values]


def test_tables_of_which_only_some_are_replicated_are_refused(server, engine):
    server.replicated = tuple(name for name in tables_of(server, engine) if name != "progress")
    with pytest.raises(StoreError, match="make these Replicated too: progress"):
        engine.open()


@contextlib.contextmanager
def _answering(*answers: bytes):
    """Serve one connection after the other; each gets its answer to whatever it asks, and is then closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10.0)


_VERSION = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\n24.8.1"
_SETTINGS = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n4\n\r\n3\r\n2\n \r\n0\r\nA: b\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nCONTENT-length:  4\r\nConnection: Close\r\n\r\n4\n2\n",
        b"HTTP/1.0 200 OK\r\n\r\n4\n2\n",
    ],
    ids=["in chunks", "after a provisional one", "of HTTP/1.0, up to the end"],
)
def test_every_way_in_which_http_ends_an_answer_is_understood(answer):
    with _answering(_VERSION, _SETTINGS, answer) as url:
        server = ClickHouseServer(ClickHouseConfig(url), {})
        assert server.query("SELECT n", {}, "TabSeparated").split() == [b"4", b"2"]
        server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n4\n2\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n4\n2\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: four\r\n\r\n4\n2\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n4\n2\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-4\r\n4\n2\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n4\n2\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n4\n2\n",
        b"HTTP/1.1 200 OK\r\n" + b"A" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(200)) + b"\r\n",
    ],
    ids=range(12),
)
def test_what_is_no_whole_answer_is_a_failure_and_nothing_to_go_on_with(answer):
    with _answering(_VERSION, _SETTINGS, answer) as url:
        server = ClickHouseServer(ClickHouseConfig(url), {})
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            server.query("SELECT n", {}, "TabSeparated")
        server.close()
