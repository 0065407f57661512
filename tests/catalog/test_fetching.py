"""Fetching over a TLS server on loopback that serves lists in the clouds' forms, and answers as broken ones do."""

from __future__ import annotations

import http.server
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from support.price_lists import AZURE_ITEMS, aws_file, azure_page

from gpusonde.catalog import CatalogError
from gpusonde.catalog.fetching import Budget, fetch_aws, fetch_azure
from gpusonde.errors import CloudError

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Server:
    """Answers every request as ``answer`` says and keeps the paths that were asked for."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.answer: Answer = lambda handler: handler.send_error(404)
        self.paths: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                outer.answer(self)

            def log_message(self, *args: object) -> None:
                """Keep the tests' output clean."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = Server(context)
    yield server
    server.close()


def serving(text: str, *, content_type: str = "text/csv", length: int | None = None, code: int = 200) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        content = text.encode()
        handler.send_response(code)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(content) if length is None else length))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def test_the_offer_file_of_a_region_is_read_over_tls(server: Server) -> None:
    server.answer = serving(aws_file())
    listed = fetch_aws("us-east-1", url=server.url)
    assert server.paths == ["/us-east-1/index.csv"]
    assert listed.price_date == "2026-11-20"
    assert "p5.48xlarge" in {price.instance_type for price in listed.prices}


def test_pages_are_followed_to_the_last(server: Server) -> None:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        last = "skip=3" in handler.path
        items = AZURE_ITEMS[3:] if last else AZURE_ITEMS[:3]
        following = None if last else f"{server.url}/prices?$filter=x&$skip=3"
        serving(azure_page(items, following=following), content_type="application/json")(handler)

    server.answer = answer
    listed = fetch_azure("eastus", url=f"{server.url}/prices")
    assert len(server.paths) == 2
    assert "armRegionName%20eq%20%27eastus%27" in server.paths[0]
    assert {price.billing for price in listed.prices} == {"on_demand", "spot"}


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (serving("busy", code=500), "answers 500"),
        (serving("slow down", code=429), "answers 429"),
        (serving("no", code=404), "answers 404"),
        (serving(aws_file(), length=10**6), "ended after"),
        (serving("x" * 3_000_000), "has a line of more than 1,048,576 bytes"),
        (serving(aws_file(), length=2 << 30), "is larger than 1,073,741,824 bytes"),
    ],
)
def test_a_list_that_cannot_be_had_is_an_error_that_says_how_else(
    server: Server, answer: Answer, complaint: str
) -> None:
    server.answer = answer
    with pytest.raises(CloudError) as caught:
        fetch_aws("us-east-1", url=server.url)
    assert complaint in str(caught.value)
    assert "nothing was changed; a list that was downloaded elsewhere is read with --from" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["<html><title>Sign in to the proxy</title></html>", '{"formatVersion": "v1.0"}', "", aws_file()[:-200]]
)
def test_something_else_than_a_list_is_refused(server: Server, text: str) -> None:
    server.answer = serving(text, content_type="text/html")
    with pytest.raises(CatalogError, match=r"index\.csv"):
        fetch_aws("us-east-1", url=server.url)


def test_a_list_without_a_declared_length_is_bounded_too(server: Server) -> None:
    def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        line = b'"a","b"\n' * 8192
        try:
            for _ in range(1000):
                handler.wfile.write(line)
        except OSError:
            pass

    server.answer = endless
    with pytest.raises(CloudError, match="is larger than 1,000,000 bytes"):
        # The header, which never comes, is waited for within the first rows only.
        list(_all_lines(server, Budget(most_bytes=1_000_000)))


def _all_lines(server: Server, budget: Budget) -> Iterator[str]:
    from gpusonde.catalog.fetching import _lines

    return _lines(f"{server.url}/x", budget)


def test_drops_do_not_hold_us_beyond_the_time(server: Server) -> None:
    def dripping(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(2000):
                handler.wfile.write(b"x\n")
                handler.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass

    server.answer = dripping
    began = time.monotonic()
    with pytest.raises(CloudError, match=r"took longer than 0.5 s"):
        list(_all_lines(server, Budget(most_seconds=0.5)))
    assert time.monotonic() - began < 60


def test_a_redirect_away_from_https_is_not_followed(server: Server) -> None:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", server.url.replace("https", "http") + "/plain")
        handler.end_headers()

    server.answer = answer
    with pytest.raises(CloudError, match="which is not HTTPS"):
        fetch_aws("us-east-1", url=server.url)


def test_pages_that_lead_elsewhere_or_in_circles_end(server: Server) -> None:
    server.answer = serving(azure_page(following="https://example.org/prices"))
    with pytest.raises(CloudError, match="another host"):
        fetch_azure("eastus", url=server.url)
    server.answer = serving(azure_page(following=f"{server.url}/again"))
    with pytest.raises(CloudError, match="has no end after 2 pages"):
        fetch_azure("eastus", url=server.url)
    server.answer = serving("[" * 100_000)
    with pytest.raises(CloudError, match="something else than JSON"):
        fetch_azure("eastus", url=server.url)


def test_an_unknown_authority_is_not_trusted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answer = serving(aws_file())
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(CloudError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch_aws("us-east-1", url=server.url)


def test_without_a_network_the_error_names_the_proxy_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(CloudError, match=r"is there a network \(a proxy: HTTPS_PROXY\)\?"):
        fetch_aws("us-east-1", url="https://prices.invalid")


@pytest.mark.parametrize("region", ["", "../x", "us east", "eastus' or 1 eq 1", "US-EAST-1", "a--b"])
def test_a_region_that_is_none_is_refused_before_anything_is_asked(region: str) -> None:
    for fetch in (fetch_aws, fetch_azure):
        with pytest.raises(CloudError, match="is no name of a region"):
            fetch(region, url="https://prices.invalid")


def test_plain_http_is_not_spoken() -> None:
    with pytest.raises(CloudError, match="is not HTTPS"):
        fetch_aws("us-east-1", url="http://127.0.0.1:1")
